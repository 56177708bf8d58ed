"""The configuration of a launch: parsed and checked once, then never changed.

Only ``cli`` builds these from the command line and the environment; every other layer receives them.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum, IntFlag

from elasticrun.dataclass import dataclass
from elasticrun.faults import Action as Action
from elasticrun.faults import FailureClass as FailureClass

#: Counts travel in 32-bit fields of the protocol.
MAX_COUNT = 2**31 - 1
#: Far below what a node can tell of (``core/protocol/commits.py``): nodes may be spread unevenly over hosts.
MAX_STATE_COPIES = 8


class Std(IntFlag):
    """Which of a worker's standard streams; the digits of ``--redirects`` and ``--tee``."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class StdByRank:
    """A Std for every local rank: one for all, or given rank by rank (others get NONE)."""

    default: Std = Std.NONE
    by_rank: tuple[tuple[int, Std], ...] = ()

    def of(self, local_rank: int) -> Std:
        return dict(self.by_rank).get(local_rank, self.default)


class TaskRole(Enum):
    """What a task of a TensorFlow cluster does; the words are those of TF_CONFIG."""

    CHIEF = "chief"  # with parameter servers it runs the training loop, else it is the first worker
    WORKER = "worker"
    PS = "ps"  # a parameter server
    EVALUATOR = "evaluator"  # reads checkpoints; not part of the cluster


class EntrypointKind(Enum):
    """How the training program is started."""

    SCRIPT = "script"  # PYTHON -u script args
    MODULE = "module"  # PYTHON -u -m module args
    BINARY = "binary"  # script args, no python in front
    RUN_PATH = "run_path"  # runpy.run_path in a fresh interpreter


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """The training program and its arguments; ``${local_rank}`` in them is expanded per worker."""

    kind: EntrypointKind
    target: str
    args: tuple[str, ...] = ()
    python: str = ""  # PYTHON_EXEC, else this interpreter


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Where the workers' output goes."""

    log_dir: str | None = None
    redirects: StdByRank = StdByRank()
    tee: StdByRank = StdByRank()
    local_ranks_filter: frozenset[int] | None = None  # None shows every rank on the console
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    line_prefix_template: str | None = None  # for lines of a teed stream
    rank_prefix: bool = False  # lines on the console begin with their rank, with and without files
    run_dir: str | None = None  # this run's own directory in ``log_dir``, once it is made


class NumaBinding(Enum):
    """The modes of ``--numa-binding``."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One line of a policy that differs from the default table."""

    failure: FailureClass
    action: Action


@dataclass(frozen=True, slots=True)
class Policy:
    """What failures cost and what is done about them; the default table is ``faults.py``."""

    rules: tuple[PolicyRule, ...] = ()
    same_error_rounds: int = 3  # rounds with the same exception, without progress, that end the job; 0: off
    refill_after: float = 0.0  # seconds of training without a failure that give a restart back; 0: never
    backoff_first: float = 1.0  # seconds
    backoff_factor: float = 2.0
    backoff_longest: float = 60.0  # seconds
    fast_failure: float = 10.0  # a round that fails without a step within so many seconds failed fast
    fast_failures_free: int = 2  # fast failures in a row before the job backs off


class HealthCheckMode(Enum):
    """When nodes are checked."""

    AUTO = "auto"  # with several nodes: before the first round, and nodes that a failure makes suspect
    OFF = "off"
    START = "start"  # before the first round only
    ALWAYS = "always"  # all nodes before every round


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How nodes are checked."""

    mode: HealthCheckMode = HealthCheckMode.OFF  # the command line's default is auto
    timeout: float = 60.0  # seconds for one step of a check
    straggler_ratio: float = 2.0  # a node slower than the median by this factor is a straggler
    exclude_stragglers: bool = False
    only: bool = False  # check, report and end


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How the workers of this node are started and stopped."""

    entrypoint: Entrypoint
    local_world_size: int
    role: str = "default"
    logs: LogConfig = LogConfig()
    env: tuple[tuple[str, str], ...] = ()  # the agent's environment, with OMP_NUM_THREADS settled
    numa_binding: NumaBinding | None = None
    virtual_local_rank: bool = False
    kill_leftovers: bool = False  # after a good end, also kill what workers detached
    shutdown_timeout: float = 30.0  # seconds between the stop signal and SIGKILL
    signals: tuple[int, ...] = ()  # signals that stop the launcher and are forwarded
    file_timer: str | None = None  # path of the watchdog's FIFO, None: off
    health_check_port: int | None = None
    error_file: str | None = None  # TORCHELASTIC_ERROR_FILE of the launcher itself
    auto_progress: bool = True  # workers that use torch report their steps by themselves
    hang_timeout: float | None = None  # seconds without a step that count as a hang; None: learnt, 0: never
    drain_signal: int = 15  # what workers get when another node leaves with grace
    notice_signal: int = 0  # the platform's: this node is taken away, so it leaves with grace; 0: none
    preemption_file: str | None = None  # the node leaves with grace once this file exists
    state_copy_rate: float = 0.0  # of copies to other nodes, the most bytes a second; 0: no bound
    warm_imports: tuple[str, ...] | None = None  # what a warm parent imports; None: workers start cold
    warm_later: tuple[str, ...] = ()  # what it imports as well, once workers run, for restarts
    preloaded: bool = False  # the launcher is a fork of one that has imported what the program needs
    keeps_warm: bool = False  # even if the script changes what that import reads
    roles: tuple[TaskRole, ...] = ()  # of TensorFlow tasks by local rank; (): no TensorFlow job
    servers: Entrypoint | None = None  # what ps, and the workers beside them, run; None: the entrypoint
    server_imports: tuple[str, ...] | None = None  # as ``warm_imports``, of a warm parent for ``servers``


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The job's settings; those of the agent that hosts the master hold for all nodes."""

    job_id: str = "none"
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1  # worlds have a multiple of this many nodes
    max_restarts: int = 0
    last_call_timeout: float = 2.0  # first world with min < max: seconds of quiet to wait for more
    join_timeout: float = 600.0  # seconds below min before the job gives up
    heartbeat_interval: float = 10.0
    heartbeat_timeout: float = 30.0  # a frozen agent is lost after this
    reattach_timeout: float = 3.0  # after a master's restart: seconds to wait for known agents, if few
    waiting_notice_interval: float = 10.0
    health: HealthConfig = HealthConfig()
    policy: Policy = Policy()
    finish_timeout: float = 60.0  # TensorFlow job: seconds to end after the leading task has
    endpoints: int = 1  # how many hosts may host the master, one after the other
    tag: str = field(default="", compare=False)  # random; for names that only the job's members can foresee
    join_command: str = field(default="", compare=False)  # what starts a missing node; "": none can join
    state_copies: int = 1  # how many other hosts keep a copy of what only one has of a saved state
    state_storage: str | None = None  # directory or URL where saved states are written; None: nowhere
    state_storage_every: float = 300.0  # seconds between two that are written, at least
    state_keep: int | None = None  # how many written ones stay, the newest; None: this rule keeps all
    state_keep_for: float = 0.0  # those stay that are younger than so many seconds; 0: no such rule
    state_flush_timeout: float = 60.0  # seconds that an end waits until the newest is written
    cautious: bool = False  # no token, so strangers may join: see ``core/membership/seniority.py``


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the master listens."""

    host: str
    port: int  # 0: the master picks one (standalone)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RendezvousConfig:
    """How this agent finds, or hosts, the master."""

    endpoint: Endpoint
    backend: str = "static"
    standalone: bool = False
    is_host: bool | None = None  # rdzv_conf's is_host; None: decided by trying to bind
    node_rank: int | None = None  # None unless the user gave one
    local_addr: str | None = None
    connect_timeout: float = 60.0  # seconds to keep trying an endpoint that does not answer at all
    master_timeout: float = 60.0  # seconds to wait for a master that went away
    state_dir: str | None = None
    successors: tuple[Endpoint, ...] = ()  # take over in this order if the endpoint's host is lost
    master: Endpoint | None = None  # MASTER_ADDR and MASTER_PORT of one node alone, if the user gave them


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files for mutual TLS, PEM each."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """What protects the streams between agents and the master."""

    token: str | None = field(default=None, repr=False)
    tls: TlsConfig | None = None
    token_source: str = ""  # where it was found, in words


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """One ``elastic-run`` invocation."""

    job: JobConfig
    rendezvous: RendezvousConfig
    workers: WorkerConfig
    security: SecurityConfig = SecurityConfig()
    event_log_handler: str = "null"
    ui: str = "auto"  # or off: no status line, whatever the terminal
    log_level: str = "WARNING"
    web: Endpoint | None = None  # where this node serves the web page; None: it does not
    web_read: str = "auto"  # who may read that without the token: see ``observer/access.py``
    traces: str | None = None  # the URL that gets the job's traces
    notes: tuple[tuple[str, str], ...] = field(default=())  # (level, sentence) to log once at start
