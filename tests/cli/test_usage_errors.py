"""Every usage error: one sentence that quotes what was given and says what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticrun.cli.parse import parse_command_line
from elasticrun.errors import ExitCode, UsageError

NODES = "give N or MIN:MAX with 1 <= MIN <= MAX, such as 2 or 1:4"
WORKERS = "give a number of 1 or more, cpu, gpu, xpu or auto"
STREAMS = "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or RANK:STREAMS,... such as 0:1,1:3"
SECONDS = "give a number of seconds, 0 or more"
ABOVE_0 = "give a number of seconds above 0"
WHOLE = "give a whole number of 0 or more"
SIGNALS = "give a comma list of signals that can be caught, such as SIGTERM,SIGINT,SIGUSR1"
SIGNAL = "give the name of a signal that can be caught, such as SIGUSR1"
ENDPOINT = "give HOST, HOST:PORT or [IPV6]:PORT with a port from 0 to 65535, or a comma list of them"
RANKS = "give a comma list of local ranks, such as 0,1"
CONF = "give KEY=VALUE,KEY=VALUE,... such as join_timeout=300"
ROLES = "give ROLE=N,... with N of 1 or more for each role out of chief, worker, ps and evaluator"
TIME = "give a time above 0, in seconds or with s, m, h or d"
RATE = "give 1MB or more, as a number of bytes or with MB, GB, MiB or GiB, or off"
SEE_HELP = "see elastic-run --help"

# fmt: off
#: option -> (value given, what the sentence says about it, what is allowed)
BAD_VALUES = [
    ("--nnodes", "0", "", NODES),
    ("--nnodes", "0:2", "", NODES),
    ("--nnodes", "-1", "", NODES),
    ("--nnodes", "3:2", "3 is more than 2", NODES),
    ("--nnodes", "1:2:3", "it has more than one colon", NODES),
    ("--nnodes", "two", "'two' is not a whole number", NODES),
    ("--nnodes", "1.5", "'1.5' is not a whole number", NODES),
    ("--nnodes", ":", "", NODES),
    ("--nnodes", "1:", "", NODES),
    ("--nnodes", "", "", NODES),
    ("--nnodes", "1:99999999999", "", NODES),
    ("--nproc-per-node", "0", "", WORKERS),
    ("--nproc-per-node", "-2", "", WORKERS),
    ("--nproc-per-node", "1.5", "'1.5' is not a whole number", WORKERS),
    ("--nproc-per-node", "", "", WORKERS),
    ("--node-unit", "0", "", "give a whole number of 1 or more"),
    ("--max-restarts", "-1", "", WHOLE),
    ("--max-restarts", "many", "'many' is not a whole number", WHOLE),
    ("--node-rank", "-1", "", WHOLE),
    ("--monitor-interval", "fast", "it is not a number", SECONDS),
    ("--monitor-interval", "nan", "it is not finite", SECONDS),
    ("--shutdown-timeout", "-1", "", SECONDS),
    ("--shutdown-timeout", "inf", "it is not finite", SECONDS),
    ("--last-call-timeout", "-0.1", "", SECONDS),
    ("--master-timeout", "-1", "", SECONDS),
    ("--waiting-notice-interval", "0", "", ABOVE_0),
    ("--rdzv-backend", "zookeeper", "", "give static, c10d, etcd or etcd-v2"),
    ("--rdzv-endpoint", "h:70000", "'70000' is no port", ENDPOINT),
    ("--rdzv-endpoint", "h:http", "'http' is no port", ENDPOINT),
    ("--rdzv-endpoint", "h:", "'' is no port", ENDPOINT),
    ("--rdzv-endpoint", "h:²", "'²' is no port", ENDPOINT),
    ("--rdzv-endpoint", "h:٣", "'٣' is no port", ENDPOINT),
    ("--rdzv-endpoint", ":29400", "the host is missing", ENDPOINT),
    ("--rdzv-endpoint", "http://h:29400", "that is no host name and no address", ENDPOINT),
    ("--rdzv-endpoint", "a b:1", "that is no host name and no address", ENDPOINT),
    ("--rdzv-conf", "join_timeout", "the key 'join_timeout' has no value", CONF),
    ("--rdzv-conf", "join_timeout=", "the key 'join_timeout' has no value", CONF),
    ("--rdzv-conf", "=3", "'=3' has no key", CONF),
    ("--rdzv-conf", "a=1,", "'' has no key", CONF),
    ("--rdzv-conf", "join_timeout=soon", "join_timeout is 'soon'", ABOVE_0),
    ("--rdzv-conf", "timeout=0", "timeout is '0'", ABOVE_0),
    ("--rdzv-conf", "close_timeout=-1", "close_timeout is '-1'", ABOVE_0),
    ("--rdzv-conf", "read_timeout=x", "read_timeout is 'x'", ABOVE_0),
    ("--rdzv-conf", "last_call_timeout=x", "last_call_timeout is 'x'", SECONDS),
    ("--rdzv-conf", "keep_alive_interval=0", "keep_alive_interval is '0'", ABOVE_0),
    ("--rdzv-conf", "keep_alive_max_attempt=0", "keep_alive_max_attempt is '0'",
     "a whole number of 1 or more"),
    ("--master-addr", "", "the host is missing", "give a host name or an address"),
    ("--master-addr", "a/b", "that is no host name and no address", "give a host name or an address"),
    ("--master-port", "port", "'port' is not a whole number", "give a port from 0 to 65535"),
    ("--master-port", "65536", "", "give a port from 0 to 65535"),
    ("--redirects", "4", "'4' names no streams", STREAMS),
    ("--redirects", "out", "'out' names no streams", STREAMS),
    ("--redirects", "", "'' names no streams", STREAMS),
    ("--redirects", "0:1,2", "'2' is not RANK:STREAMS", STREAMS),
    ("--redirects", "0:4", "'4' names no streams", STREAMS),
    ("--tee", "x:1", "'x:1' is not RANK:STREAMS", STREAMS),
    ("--tee", "0:1,", "'' is not RANK:STREAMS", STREAMS),
    ("--tee", "-1:1", "'-1:1' is not RANK:STREAMS", STREAMS),
    ("--local-ranks-filter", "0,a", "'a' is not a whole number", RANKS),
    ("--local-ranks-filter", "-1", "", RANKS),
    ("--local-ranks-filter", "0,,1", "", RANKS),
    ("--signals-to-handle", "SIGKILL", "no program can catch SIGKILL", SIGNALS),
    ("--signals-to-handle", "SIGTERM,SIGSTOP", "no program can catch SIGSTOP", SIGNALS),
    ("--signals-to-handle", "SIGCHLD", "the launcher needs SIGCHLD for itself", SIGNALS),
    ("--signals-to-handle", "SIGFOO", "this system has no signal 'SIGFOO'", SIGNALS),
    ("--signals-to-handle", "term", "this system has no signal 'term' (did you mean SIGTERM?)", SIGNALS),
    ("--signals-to-handle", ",", "it names no signal", SIGNALS),
    ("--rdzv-endpoint", "a:1,b:x", "'x' is no port", ENDPOINT),
    ("--rdzv-endpoint", "a,", "the host is missing", ENDPOINT),
    ("--rdzv-endpoint", "a,b:7,A:29400", "A:29400 is in it twice", ENDPOINT),
    ("--rdzv-endpoint", "a:0,b", "no other node can find port 0 of a:0", ENDPOINT),
    ("--drain-signal", "SIGKILL", "no program can catch SIGKILL", SIGNAL),
    ("--drain-signal", "usr1", "this system has no signal 'usr1' (did you mean SIGUSR1?)", SIGNAL),
    ("--drain-signal", "SIGTERM,SIGINT", "this system has no signal", SIGNAL),
    ("--health-check", "on", "", "give auto, off, start or always"),
    ("--health-check-timeout", "0", "", ABOVE_0),
    ("--straggler-ratio", "1", "", "give a number above 1"),
    ("--straggler-ratio", "inf", "it is not finite", "give a number above 1"),
    ("--warm", "yes", "", "auto, on or off"),
    ("--warm-import", "a,,b", "'' is not the full name of a module",
     "a comma list of full names of modules, such as numpy,torch._dynamo"),
    ("--hang-timeout", "0", "", f"{ABOVE_0}, or off"),
    ("--hang-timeout", "never", "it is not a number", f"{ABOVE_0}, or off"),
    ("--state-copies", "-1", "", "give a whole number from 0 to 8"),
    ("--state-copies", "9", "", "give a whole number from 0 to 8"),
    ("--state-copy-rate", "0", "", RATE),
    ("--state-copy-rate", "999999", "", RATE),
    ("--state-copy-rate", "8Mb", "'Mb' is no unit of bytes", RATE),
    ("--state-copy-rate", "1TB", "'TB' is no unit of bytes", RATE),
    ("--state-copy-rate", "MB", "it is not a number", RATE),
    ("--state-copy-rate", "fast", "'t' is no unit of bytes", RATE),
    ("--state-copy-rate", "1e308GB", "", RATE),
    ("--state-storage-every", "0", "", TIME),
    ("--state-storage-every", "5 minutes", "it is not a number", TIME),
    ("--state-storage-every", "off", "it is not a number", TIME),
    ("--state-storage-every", "1e308d", "", TIME),
    ("--state-keep", "0", "", "give a whole number of 1 or more"),
    ("--state-keep-for", "m", "it is not a number", f"{TIME}, or off"),
    ("--state-flush-timeout", "-1s", "", f"{TIME}, or off"),
    ("--framework", "tf", "", "give auto, torch or tensorflow"),
    ("--role-counts", "chef=1", "'chef' is no role", ROLES),
    ("--role-counts", "", "'' is no role", ROLES),
    ("--role-counts", "worker=1,", "'' is no role", ROLES),
    ("--role-counts", "Worker=1", "'Worker' is no role", ROLES),
    ("--role-counts", "worker=1,ps=1,worker=2", "worker is in it twice", ROLES),
    ("--role-counts", "chief=1,worker", "worker has no number", ROLES),
    ("--role-counts", "worker=", "", ROLES),
    ("--role-counts", "worker=two", "'two' is not a whole number", ROLES),
    ("--role-counts", "worker=1.5", "'1.5' is not a whole number", ROLES),
    ("--role-counts", "worker=2,ps=0", "ps counts 0", ROLES),
    ("--role-counts", "worker=-1", "worker counts -1", ROLES),
    ("--role-counts", "worker=99999999999", "", ROLES),
    ("--tf-role", "trainer", "", "give chief, worker, ps or evaluator"),
    ("--tf-role", "chief,ps", "", "give chief, worker, ps or evaluator"),
    ("--tf-servers", "auto", "", "give ready or script"),
    ("--start-method", "threads", "", "give spawn, fork or forkserver"),
    ("--event-log-handler", "file", "", "give null or console"),
    ("--numa-binding", "core", "", "give node, socket, exclusive or core-complex"),
    ("--logs-specs", "mine", "the group torchrun.logs_specs has no entry point of this name", "give default"),
]
# fmt: on


def refusal(argv: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(argv, environ or {})
    assert caught.value.exit_code is ExitCode.USAGE
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(("option", "text", "reason", "allowed"), BAD_VALUES)
def test_bad_value_on_the_command_line(
    option: str, text: str, reason: str, allowed: str, script: str
) -> None:
    sentence = refusal([f"{option}={text}", script])
    assert sentence.startswith(f"{option} {text!r} is not valid: {reason}")
    assert allowed in sentence


@pytest.mark.parametrize(("option", "text", "reason", "allowed"), [row for row in BAD_VALUES if row[1]])
def test_bad_value_in_the_environment(option: str, text: str, reason: str, allowed: str, script: str) -> None:
    variable = "PET_" + option[2:].upper().replace("-", "_")
    sentence = refusal([script], {variable: text})
    assert sentence.startswith(f"{variable}={text!r} is not valid: {reason}")
    assert allowed in sentence


@pytest.mark.parametrize("variable", ["PET_STANDALONE", "PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH"])
def test_a_flag_in_the_environment_is_an_integer(variable: str, script: str) -> None:
    sentence = refusal([script], {variable: "true"})
    assert sentence.startswith(f"{variable}='true' is not valid: ")
    assert "give an integer, 0 for no and 1 for yes" in sentence


def test_the_other_variable_of_shutdown_timeout(script: str) -> None:
    sentence = refusal([script], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-3"})
    assert sentence == f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT='-3' is not valid: {SECONDS}"


def test_is_host_is_a_truth_value(script: str) -> None:
    argv = ["--rdzv-backend=c10d", "--rdzv-conf=is_host=maybe", script]
    assert refusal(argv) == "--rdzv-conf 'is_host=maybe' is not valid: is_host is 'maybe'; give true or false"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], ["no training script given", "give elastic-run [options] script", SEE_HELP]),
        (["--nnodes", "2"], ["no training script given"]),
        (["--"], ["no training script given"]),
        (["--rdz-backend=c10d"], ["no option --rdz-backend", "did you mean --rdzv-backend?", SEE_HELP]),
        (["--qqq", "x"], ["no option --qqq", "after the script", SEE_HELP]),
        (["-x", "x"], ["no option -x", SEE_HELP]),
        (["--rdzv", "x"], ["--rdzv is ambiguous", "give one of --rdzv-backend, --rdzv-endpoint, --rdzv-id"]),
        (["--master_", "x"], ["--master_ is ambiguous", "--master-addr, --master-port"]),
        (["--r", "3"], ["--r is ambiguous", "--redirects", "--role"]),
        (["--log-dir"], ["--log-dir was given no value", "give a directory"]),
        (["-r"], ["--redirects was given no value", STREAMS]),
        (["--nnodes"], ["--nnodes was given no value", NODES]),
        (["--log-dir", "--standalone", "x.py"], ["--log-dir was given no value", "--standalone follows it"]),
        (["--rdzv-id", "-m", "x"], ["--rdzv-id was given no value", "-m follows it"]),
        (["--standalone=1", "x"], ["--standalone was given a value", "give --standalone alone"]),
        (["-m", "--no-python", "x"], ["--module and --no-python were given together", "give one of them"]),
    ],
)  # fmt: skip
def test_wrong_words(argv: list[str], said: list[str]) -> None:
    sentence = refusal(argv)
    assert all(part in sentence for part in said), sentence


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--standalone", "--nnodes=2"], ["--nnodes asks for 2 nodes", "--standalone runs one node", "give"]),
        (["--standalone", "--nnodes=2:3"], ["--nnodes asks for 2 nodes", "--standalone runs one node"]),
        (["--rdzv-endpoint=h:0", "--nnodes=2"], ["port 0 of --rdzv-endpoint", "give an endpoint"]),
        (["--master-port=0", "--nnodes=2"], ["--master-port 0", "give an endpoint"]),
        (
            ["--nnodes=3", "--node-unit=2"],
            ["--node-unit '2'", "no multiple of 2 lies in --nnodes, which is 3"],
        ),
        (["--nnodes=5:7", "--node-unit=4"], ["--node-unit '4'", "which is 5 to 7", "give"]),
        (["--nnodes=1:3", "--node-unit=4"], ["--node-unit '4'", "which is 1 to 3", "give"]),
    ],
)
def test_options_that_contradict_each_other(argv: list[str], said: list[str], script: str) -> None:
    sentence = refusal([*argv, script])
    assert all(part in sentence for part in said), sentence


@pytest.mark.parametrize("text", ["port", "-1", "65536"])
def test_health_check_port(text: str, script: str) -> None:
    sentence = refusal([script], {"TORCHELASTIC_HEALTH_CHECK_PORT": text})
    assert sentence == f"TORCHELASTIC_HEALTH_CHECK_PORT={text!r} is not valid: give a port from 0 to 65535"


def test_values_are_checked_before_files(tmp_path: Path) -> None:
    assert "--nnodes" in refusal(["--nnodes=x", str(tmp_path / "missing.py")])
