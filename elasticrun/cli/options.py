"""Every option of ``elastic-run``, declared once.

The table is the single source of parsing, of the ``PET_<NAME>`` variables, of ``--help`` and of the
manual's option table, so none of them can disagree. A row that has no metavar is a flag. A row that
``sets`` a field of ``config.py`` needs nothing else: the field's default is the option's, and the value
given is the field's. For other rows the rest of ``cli`` calls ``given.get(options.NNODES)`` and gets a
value of the row's type; name and default are known only here.
"""

# fmt: off

from __future__ import annotations

from typing import Any

from elasticrun.cli import values
from elasticrun.cli.option import SWITCH, Group, Option, Origin, flag
from elasticrun.cli.platform_options import PLATFORM_OPTIONS
from elasticrun.cli.state_options import STATE_OPTIONS
from elasticrun.cli.watch_options import WATCH_OPTIONS
from elasticrun.config import (
    HealthCheckMode,
    HealthConfig,
    JobConfig,
    LaunchConfig,
    LogConfig,
    NumaBinding,
    RendezvousConfig,
    TaskRole,
    WorkerConfig,
)

_SECONDS = "a number of seconds, 0 or more"
_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or RANK:STREAMS,... such as 0:1,1:3"
_FILTERS = "a comma list of words, ,, for a comma inside a word"
_ENDPOINTS = "HOST, HOST:PORT or [IPV6]:PORT with a port from 0 to 65535, or a comma list of them"
_SIGNAL = "the name of a signal that can be caught, such as SIGUSR1"


NNODES = Option(
    "nnodes", Group.SIZE, values.node_range, "N|MIN:MAX",
    "Number of nodes, or the least and the most with which the job runs.",
    allowed="N or MIN:MAX with 1 <= MIN <= MAX, such as 2 or 1:4", default="1:1",
)
NPROC_PER_NODE = Option(
    "nproc-per-node", Group.SIZE, values.worker_count, "N|WORD",
    "Workers on this node: a number, cpu (usable cores), gpu or xpu (devices torch sees), "
    "auto (devices, else cores).",
    allowed="a number of 1 or more, cpu, gpu, xpu or auto", default="1",
)
NODE_UNIT = Option(
    "node-unit", Group.SIZE, values.whole(1), "N",
    "Worlds have a multiple of N nodes; nodes left over wait as spares.",
    allowed="a whole number of 1 or more", origin=Origin.OURS, sets=JobConfig,
)

STANDALONE = flag(
    "standalone", Group.RENDEZVOUS,
    "One node with a master of its own and a random job id; --rdzv-backend, --rdzv-endpoint and --rdzv-id "
    "are ignored.",
)
RDZV_BACKEND = Option(
    "rdzv-backend", Group.RENDEZVOUS, values.one_of("static", "c10d", "etcd", "etcd-v2"), "NAME",
    "static, c10d, etcd or etcd-v2; all are served by elasticrun's own master. With static and several "
    "nodes, --master-addr and --master-port are the endpoint unless --rdzv-endpoint is given.",
    allowed="static, c10d, etcd or etcd-v2", default="static",
)
RDZV_ENDPOINT = Option(
    "rdzv-endpoint", Group.RENDEZVOUS, values.endpoints, "HOST[:PORT],...",
    "Where the master listens, the same on every node; the node that owns the address hosts it. "
    "Port 29400 if none is given, [..]:PORT for IPv6. Of several, the next one takes over when the host "
    "before it is lost.",
    allowed=_ENDPOINTS, blank=True,
)
RDZV_ID = Option(
    "rdzv-id", Group.RENDEZVOUS, values.plain, "ID", "Name of the job, the same on every node.",
    allowed="a name", default="none", blank=True,
)
RDZV_CONF = Option(
    "rdzv-conf", Group.RENDEZVOUS, values.settings, "KEY=VALUE,...",
    "Used: join_timeout (600), last_call_timeout, keep_alive_interval, keep_alive_max_attempt, read_timeout, "
    "is_host, timeout. close_timeout has no effect; others are named in a warning.",
    allowed="KEY=VALUE,KEY=VALUE,... such as join_timeout=300", default="", blank=True,
)
NODE_RANK = Option(
    "node-rank", Group.RENDEZVOUS, values.whole(0), "N", "Orders the ranks: nodes with a lower N come first.",
    allowed="a whole number of 0 or more",
    sets=RendezvousConfig,
)
MASTER_ADDR = Option(
    "master-addr", Group.RENDEZVOUS, values.host, "HOST", "Host of the master, with the static backend.",
    allowed="a host name or an address", default="127.0.0.1",
)
MASTER_PORT = Option(
    "master-port", Group.RENDEZVOUS, values.whole(0, values.MAX_PORT), "PORT",
    "Port of the master, with the static backend (29500 if none is given).",
    allowed="a port from 0 to 65535",
)
LOCAL_ADDR = Option(
    "local-addr", Group.RENDEZVOUS, values.plain, "HOST",
    "Address under which other nodes reach this one; used as given, never looked up.",
    allowed="a host name or an address", blank=True, sets=RendezvousConfig,
)
STATE_DIR = Option(
    "state-dir", Group.RENDEZVOUS, values.plain, "DIR",
    "Where the master keeps its journal, the same for all agents of a host (default: a temporary directory "
    "of the job).",
    allowed="a directory", origin=Origin.OURS, blank=True, sets=RendezvousConfig,
)

MAX_RESTARTS = Option(
    "max-restarts", Group.RESTART, values.whole(0), "N",
    "How many times the job may be restarted after failures of workers; nodes that join or leave "
    "cost nothing.",
    allowed="a whole number of 0 or more",
    sets=JobConfig,
)
LAST_CALL_TIMEOUT = Option(
    "last-call-timeout", Group.RESTART, values.seconds, "SECONDS",
    "With MIN < MAX: the first world starts after this long without a new node "
    "(default: 2, or last_call_timeout of --rdzv-conf).",
    allowed=_SECONDS, origin=Origin.OURS,
)
MASTER_TIMEOUT = Option(
    "master-timeout", Group.RESTART, values.seconds, "SECONDS",
    "How long a node without running workers waits for a lost master to return before it gives up.",
    allowed=_SECONDS, origin=Origin.OURS, sets=RendezvousConfig,
)
WAITING_NOTICE_INTERVAL = Option(
    "waiting-notice-interval", Group.RESTART, values.some_seconds, "SECONDS",
    "How often a waiting node says which nodes are there and how many are missing.",
    allowed="a number of seconds above 0", origin=Origin.OURS, sets=JobConfig,
)
SHUTDOWN_TIMEOUT = Option(
    "shutdown-timeout", Group.RESTART, values.seconds, "SECONDS",
    "Time between the signal that stops workers and SIGKILL, at every stop.",
    allowed=_SECONDS, fallback_env="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    sets=WorkerConfig,
)
KILL_LEFTOVERS = flag(
    "kill-leftovers", Group.RESTART,
    "Kill the processes that workers leave behind even if the job succeeds; after any other end they are "
    "always killed.",
    origin=Origin.OURS, sets=WorkerConfig,
)
SIGNALS_TO_HANDLE = Option(
    "signals-to-handle", Group.RESTART, values.signal_numbers, "NAME,...",
    "Signals to elastic-run that stop the workers in good order and are passed on to them.",
    allowed="a comma list of signals that can be caught, such as SIGTERM,SIGINT,SIGUSR1",
    default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    sets=WorkerConfig, field="signals",
)
DRAIN_SIGNAL = Option(
    "drain-signal", Group.RESTART, values.signal_number, "NAME",
    "The signal that tells workers to save their state when another node leaves with grace.",
    allowed=_SIGNAL, default="SIGTERM", origin=Origin.OURS, sets=WorkerConfig,
)
PREEMPTION_FILE = Option(
    "preemption-file", Group.RESTART, values.plain, "FILE",
    "This node leaves with grace as soon as this file exists; its first line is the reason.",
    allowed="the path of a file", origin=Origin.OURS, blank=True, sets=WorkerConfig,
)
MONITOR_INTERVAL = Option(
    "monitor-interval", Group.RESTART, values.seconds, "SECONDS",
    "Accepted for torchrun's sake; elasticrun is told of a worker's end and never polls.",
    allowed=_SECONDS, default="0.1",
)

HEALTH_CHECK = Option(
    "health-check", Group.HEALTH, values.Members(HealthCheckMode), "WHEN",
    "Check each node's compute and network: auto (jobs of several nodes; before the first round, and nodes "
    "involved in a failure), off, start (before the first round), always (before each round).",
    allowed="auto, off, start or always", default="auto", origin=Origin.OURS,
)
HEALTH_CHECK_TIMEOUT = Option(
    "health-check-timeout", Group.HEALTH, values.some_seconds, "SECONDS",
    "A node that takes longer than this for one step of a check is faulty.",
    allowed="a number of seconds above 0", origin=Origin.OURS, sets=HealthConfig, field="timeout",
)
HEALTH_CHECK_ONLY = flag(
    "health-check-only", Group.HEALTH,
    "Check the nodes, print a table and end with 0 if all are well; no script is needed.",
    origin=Origin.OURS, sets=HealthConfig, field="only",
)
STRAGGLER_RATIO = Option(
    "straggler-ratio", Group.HEALTH, values.ratio, "N",
    "A node slower than the median by this factor, checked or training, is a straggler, and reported.",
    allowed="a number above 1", origin=Origin.OURS, sets=HealthConfig,
)
EXCLUDE_STRAGGLERS = flag(
    "exclude-stragglers", Group.HEALTH, "Exclude stragglers that a check finds, as faulty nodes are.",
    origin=Origin.OURS, sets=HealthConfig,
)
POLICY = Option(
    "policy", Group.HEALTH, values.plain, "FILE",
    "YAML file that says what is done about each class of failure; counts on the node that hosts the master.",
    allowed="the path of a YAML file", origin=Origin.OURS, blank=True,
)
NO_AUTO_PROGRESS = flag(
    "no-auto-progress", Group.HEALTH,
    "Leave torch in workers as it is: optimizer steps are not watched, though elasticrun.report_step() still "
    "counts, ranks do not wait at the port of rank 0's store, and a second process group shares the store of "
    "the first one.",
    origin=Origin.OURS,
)
HANG_TIMEOUT = Option(
    "hang-timeout", Group.HEALTH, values.seconds_or_off, "SECONDS|off",
    "Workers without a step for this long hang, whatever they do (default: reported after a time learnt from "
    "the steps; acted on if nothing can move, or after 30 min; off in a TensorFlow job).",
    allowed="a number of seconds above 0, or off", origin=Origin.OURS, sets=WorkerConfig,
)

TOKEN_FILE = Option(
    "token-file", Group.SECURITY, values.plain, "FILE",
    "File with the job's token, the same on every node (default: ELASTICRUN_TOKEN, else "
    "/var/run/secrets/elasticrun/token, else ~/.config/elasticrun/token, else, at a loopback endpoint, one "
    "that this user has on this host).",
    allowed="the path of a file", origin=Origin.OURS, blank=True,
)
REQUIRE_TOKEN = Option(
    "require-token", Group.SECURITY, values.switch, "",
    "Do not run without a token, unless this node is alone (or ELASTICRUN_REQUIRE_TOKEN=1).",
    allowed=SWITCH, origin=Origin.OURS, fallback_env="ELASTICRUN_REQUIRE_TOKEN",
)
INSECURE_TOKEN = flag(
    "insecure-token", Group.SECURITY, "Take a token that can be guessed, of less than 128 bits.",
    origin=Origin.OURS,
)
NO_TOKEN = flag(
    "no-token", Group.SECURITY, "Run without a token, even where one would be found.", origin=Origin.OURS,
)
TLS_CA = Option(
    "tls-ca", Group.SECURITY, values.plain, "FILE",
    "Certificate of the authority that signed every node's certificate, PEM. With --tls-cert and --tls-key: "
    "mutual TLS between agents and master.",
    allowed="the path of a PEM file", origin=Origin.OURS, blank=True,
)
TLS_CERT = Option(
    "tls-cert", Group.SECURITY, values.plain, "FILE", "This node's certificate, PEM.",
    allowed="the path of a PEM file", origin=Origin.OURS, blank=True,
)
TLS_KEY = Option(
    "tls-key", Group.SECURITY, values.plain, "FILE", "The key of this node's certificate, PEM.",
    allowed="the path of a PEM file", origin=Origin.OURS, blank=True,
)

MODULE = flag(
    "module", Group.PROGRAM, "The script is the name of a module, started as python -m would.", short="m"
)
NO_PYTHON = flag("no-python", Group.PROGRAM, "The script is a program of its own: no python in front of it.")
RUN_PATH = flag(
    "run-path", Group.PROGRAM, "Run the script by runpy.run_path; goes before --module and --no-python."
)
START_METHOD = Option(
    "start-method", Group.PROGRAM, values.one_of("spawn", "fork", "forkserver"), "NAME",
    "spawn, fork or forkserver; accepted with --run-path, where a fresh interpreter is used in any case.",
    allowed="spawn, fork or forkserver", default="spawn",
)
ROLE = Option(
    "role", Group.PROGRAM, values.plain, "NAME",
    "Name of this node's workers in their environment and log lines; no role of TensorFlow (see --tf-role).",
    allowed="a name", blank=True, sets=WorkerConfig,
)
VIRTUAL_LOCAL_RANK = flag(
    "virtual-local-rank", Group.PROGRAM,
    "LOCAL_RANK is 0 for every worker, and each sees one CUDA device only.",
    sets=WorkerConfig,
)
NUMA_BINDING = Option(
    "numa-binding", Group.PROGRAM, values.Members(NumaBinding), "MODE",
    "Bind workers to the cores near their device: node, socket, exclusive or core-complex.",
    allowed="node, socket, exclusive or core-complex",
    sets=WorkerConfig,
)
WARM = Option(
    "warm", Group.PROGRAM, values.one_of("auto", "on", "off"), "WHEN",
    "Fork workers from a process that has imported torch before, or tensorflow in a TensorFlow job: auto (a "
    "Python script or module whose own source imports it), on or off.",
    allowed="auto, on or off", default="auto", origin=Origin.OURS,
)
WARM_IMPORT = Option(
    "warm-import", Group.PROGRAM, values.module_names, "MODULE,...",
    "Modules that this process imports as well; they must neither start threads nor touch CUDA.",
    allowed="a comma list of full names of modules, such as numpy,torch._dynamo", origin=Origin.OURS,
    blank=True,
)

FRAMEWORK = Option(
    "framework", Group.TENSORFLOW, values.one_of("auto", "torch", "tensorflow"), "NAME",
    "torch, tensorflow, or auto: tensorflow if --role-counts or --tf-role is given, else torch. With "
    "tensorflow each task gets TF_CONFIG beside torchrun's variables; if no roles are given, all are workers "
    "of MultiWorkerMirroredStrategy.",
    allowed="auto, torch or tensorflow", default="auto", origin=Origin.OURS,
)
ROLE_COUNTS = Option(
    "role-counts", Group.TENSORFLOW, values.role_counts, "ROLE=N,...",
    "On one node, instead of --nproc-per-node: how many tasks have each of the roles chief, worker, ps "
    "(parameter server) and evaluator, such as chief=1,worker=4,ps=2. With --platform ray each is a node.",
    allowed="ROLE=N,... with N of 1 or more for each role out of chief, worker, ps and evaluator that there "
    "is, such as chief=1,worker=4,ps=2", origin=Origin.OURS,
)
TF_ROLE = Option(
    "tf-role", Group.TENSORFLOW, values.Members(TaskRole), "ROLE",
    "On several nodes: the role of all --nproc-per-node tasks of this one; chief, worker, ps or evaluator.",
    allowed="chief, worker, ps or evaluator", origin=Origin.OURS,
)
TF_FINISH_TIMEOUT = Option(
    "tf-finish-timeout", Group.TENSORFLOW, values.seconds, "SECONDS",
    "How long an evaluator, or other mirrored workers, may take to end after the chief (or worker 0) has "
    "ended with 0; then they are stopped, and the job has succeeded.",
    allowed=_SECONDS, origin=Origin.OURS, sets=JobConfig, field="finish_timeout",
)
TF_SERVERS = Option(
    "tf-servers", Group.TENSORFLOW, values.one_of("ready", "script"), "NAME",
    "What ps, and the workers beside them, run: ready (python -m elasticrun.tf.server, so that the script is "
    "the chief's alone) or script (the training script, as the chief).",
    allowed="ready or script", default="ready", origin=Origin.OURS,
)

LOG_DIR = Option(
    "log-dir", Group.LOGS, values.plain, "DIR",
    "Where log files go; each run and each round gets a directory of its own (default: a temporary "
    "directory).",
    allowed="a directory", blank=True, sets=LogConfig,
)
REDIRECTS = Option(
    "redirects", Group.LOGS, values.std_by_rank, "STREAMS",
    "Streams that go to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by "
    "local rank, 0:1,1:3.",
    allowed=_STREAMS, default="0", short="r",
    sets=LogConfig,
)
TEE = Option(
    "tee", Group.LOGS, values.std_by_rank, "STREAMS",
    "Streams that go to log files and to the console, written as for -r.",
    allowed=_STREAMS, default="0", short="t",
    sets=LogConfig,
)
LOCAL_RANKS_FILTER = Option(
    "local-ranks-filter", Group.LOGS, values.rank_set, "RANK,...",
    "Show only these local ranks on the console.",
    allowed="a comma list of local ranks, such as 0,1", blank=True, sets=LogConfig,
)
DUPLICATE_STDOUT_FILTERS = Option(
    "duplicate-stdout-filters", Group.LOGS, values.filters, "WORD,...",
    "Copy lines of stdout that contain one of these words to filtered_stdout.log; ,, is a literal comma.",
    allowed=_FILTERS, blank=True, sets=LogConfig,
)
DUPLICATE_STDERR_FILTERS = Option(
    "duplicate-stderr-filters", Group.LOGS, values.filters, "WORD,...",
    "The same for stderr and filtered_stderr.log.",
    allowed=_FILTERS, blank=True, sets=LogConfig,
)
LOG_LINE_PREFIX_TEMPLATE = Option(
    "log-line-prefix-template", Group.LOGS, values.plain, "TEXT",
    "What stands before each line of a stream that --tee shows on the console; ${role_name}, ${local_rank}, "
    "${rank} and ${hostname} are filled in (default: [${role_name}${local_rank}]:).",
    allowed="a text such as '${hostname}:${rank}: '", blank=True,
    fallback_env="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    sets=LogConfig, field="line_prefix_template",
)
RANK_PREFIX = flag(
    "rank-prefix", Group.LOGS,
    "Begin each line of the workers' output on the console with its rank, such as [rank0], also without "
    "log files; elastic-ctl logs can show its end then.",
    origin=Origin.OURS, sets=LogConfig,
)
EVENT_LOG_HANDLER = Option(
    "event-log-handler", Group.LOGS, values.one_of("null", "console"), "NAME",
    "null, or console: events as JSON lines on stderr.",
    allowed="null or console",
    sets=LaunchConfig,
)
UI = Option(
    "ui", Group.LOGS, values.one_of("auto", "off"), "NAME",
    "auto: on a terminal, a status line below the output says what this node does; off: none.",
    allowed="auto or off", origin=Origin.OURS, sets=LaunchConfig,
)
LOGS_SPECS = Option(
    "logs-specs", Group.LOGS, values.plain, "NAME",
    "Entry point of the group torchrun.logs_specs; it must exist, but only default is used: a custom "
    "class needs torch in the launcher.",
    allowed="the name of an installed entry point", blank=True,
)

HELP = flag("help", Group.ABOUT, "Show this text and exit.", short="h")
PRINT_COMPLETION = Option(
    "print-completion", Group.ABOUT, values.one_of("bash", "zsh", "tcsh", "fish"), "SHELL",
    "Print a script that completes this command in bash, zsh, tcsh or fish, and exit.",
    allowed="bash, zsh, tcsh or fish",
)
VERSION = flag("version", Group.ABOUT, "Show the version and exit.", origin=Origin.OURS)
USE_ENV = flag(
    "use-env", Group.PROGRAM, "What elastic-run does anyway: it sets LOCAL_RANK.", origin=Origin.LEGACY,
)

OPTIONS: tuple[Option[Any], ...] = (
    *(row for row in tuple(globals().values()) if isinstance(row, Option)), *STATE_OPTIONS,
    *WATCH_OPTIONS, *PLATFORM_OPTIONS,
)
