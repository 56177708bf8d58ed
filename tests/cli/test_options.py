"""Every option in every spelling: in full, twin, abbreviation, short, environment; and who wins."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun import __version__
from elasticrun.cli import options
from elasticrun.cli.arguments import ShowText, read_arguments
from elasticrun.cli.option import Group, Option, Origin
from elasticrun.cli.options import OPTIONS
from elasticrun.cli.parse import parse_command_line
from elasticrun.config import (
    Endpoint,
    EntrypointKind,
    HealthCheckMode,
    LaunchConfig,
    NumaBinding,
    Std,
    StdByRank,
    TaskRole,
)
from elasticrun.errors import UsageError

Parse = Callable[..., LaunchConfig]
Pick = Callable[[LaunchConfig], object]


@dataclass(frozen=True)
class Sample:
    """An option given as ``text`` makes ``pick`` of the configuration ``value``."""

    name: str
    text: str
    value: object
    pick: Pick
    other: str  # another valid text, with another value
    default: object = None
    extra: tuple[str, ...] = ()  # options without which it has no effect


def both(config: LaunchConfig) -> object:
    return config.job.min_nodes, config.job.max_nodes


# fmt: off
SAMPLES = [
    Sample("nnodes", "2:4", (2, 4), both, "3", (1, 1)),
    Sample("nproc-per-node", "4", 4, lambda c: c.workers.local_world_size, "3", 1),
    Sample("node-unit", "2", 2, lambda c: c.job.node_unit, "1", 1, ("--nnodes=2:4",)),
    Sample("rdzv-backend", "c10d", "c10d", lambda c: c.rendezvous.backend, "etcd-v2", "static"),
    Sample("rdzv-endpoint", "h:1234", Endpoint("h", 1234), lambda c: c.rendezvous.endpoint, "g:1",
           Endpoint("127.0.0.1", 29500), ("--nnodes=2",)),
    Sample("rdzv-id", "job7", "job7", lambda c: c.job.job_id, "job8", "none", ("--nnodes=2",)),
    Sample("rdzv-conf", "join_timeout=77", 77.0, lambda c: c.job.join_timeout, "join_timeout=78", 600.0),
    Sample("node-rank", "3", 3, lambda c: c.rendezvous.node_rank, "0", None),
    Sample("master-addr", "h", "h", lambda c: c.rendezvous.endpoint.host, "g", "127.0.0.1", ("--nnodes=2",)),
    Sample("master-port", "1234", 1234, lambda c: c.rendezvous.endpoint.port, "4321", 29500, ("--nnodes=2",)),
    Sample("local-addr", "10.0.0.7", "10.0.0.7", lambda c: c.rendezvous.local_addr, "10.0.0.8"),
    Sample("state-dir", "state", "state", lambda c: c.rendezvous.state_dir, "other"),
    Sample("max-restarts", "3", 3, lambda c: c.job.max_restarts, "4", 0),
    Sample("last-call-timeout", "0.5", 0.5, lambda c: c.job.last_call_timeout, "7", 2.0),
    Sample("master-timeout", "5", 5.0, lambda c: c.rendezvous.master_timeout, "6", 60.0),
    Sample("waiting-notice-interval", "5", 5.0, lambda c: c.job.waiting_notice_interval, "6", 10.0),
    Sample("shutdown-timeout", "5", 5.0, lambda c: c.workers.shutdown_timeout, "6", 30.0),
    Sample("signals-to-handle", "SIGUSR1,SIGTERM", (signal.SIGUSR1, signal.SIGTERM),
           lambda c: c.workers.signals, "SIGTERM",
           (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)),
    Sample("drain-signal", "SIGUSR1", signal.SIGUSR1, lambda c: c.workers.drain_signal, "SIGUSR2",
           signal.SIGTERM),
    Sample("preemption-file", "notice", "notice", lambda c: c.workers.preemption_file, "other"),
    Sample("health-check", "always", HealthCheckMode.ALWAYS, lambda c: c.job.health.mode, "off",
           HealthCheckMode.AUTO),
    Sample("health-check-timeout", "5", 5.0, lambda c: c.job.health.timeout, "6", 60.0),
    Sample("straggler-ratio", "1.5", 1.5, lambda c: c.job.health.straggler_ratio, "3", 2.0),
    Sample("hang-timeout", "300", 300.0, lambda c: c.workers.hang_timeout, "off", None),
    Sample("state-copies", "2", 2, lambda c: c.job.state_copies, "0", 1),
    Sample("state-copy-rate", "1.5GB", 1.5e9, lambda c: c.workers.state_copy_rate, "2000000", 0.0),
    Sample("state-storage", "runs", "runs", lambda c: c.job.state_storage, "s3://b/run"),
    Sample("state-storage-every", "2m", 120.0, lambda c: c.job.state_storage_every, "7", 300.0),
    Sample("state-keep", "3", 3, lambda c: c.job.state_keep, "4"),
    Sample("state-keep-for", "7d", 7 * 86400.0, lambda c: c.job.state_keep_for, "2h", 0.0),
    Sample("state-flush-timeout", "1.5m", 90.0, lambda c: c.job.state_flush_timeout, "30s", 60.0),
    Sample("role", "trainer", "trainer", lambda c: c.workers.role, "reader", "default"),
    Sample("numa-binding", "core-complex", NumaBinding.CORE_COMPLEX,
           lambda c: c.workers.numa_binding, "node"),
    Sample("warm", "on", ("torch",), lambda c: c.workers.warm_imports, "off", None),
    Sample("warm-import", "a,b.c", ("a", "b.c"), lambda c: c.workers.warm_imports, "d", ("torch",),
           ("--warm=on",)),
    Sample("framework", "tensorflow", (TaskRole.WORKER,), lambda c: c.workers.roles, "torch", ()),
    Sample("role-counts", "worker=2,chief=1", (TaskRole.CHIEF, TaskRole.WORKER, TaskRole.WORKER),
           lambda c: c.workers.roles, "worker=2", ()),
    Sample("tf-role", "chief", (TaskRole.CHIEF,), lambda c: c.workers.roles, "worker", ()),
    Sample("tf-finish-timeout", "7.5", 7.5, lambda c: c.job.finish_timeout, "3", 60.0),
    Sample("tf-servers", "script", True, lambda c: c.workers.servers is None, "ready", False,
           ("--framework=tensorflow",)),
    Sample("log-dir", "logs", "logs", lambda c: c.workers.logs.log_dir, "other"),
    Sample("redirects", "3", StdByRank(Std.ALL), lambda c: c.workers.logs.redirects, "1", StdByRank()),
    Sample("tee", "0:1,12:3", StdByRank(Std.NONE, ((0, Std.OUT), (12, Std.ALL))),
           lambda c: c.workers.logs.tee, "1", StdByRank()),
    Sample("local-ranks-filter", "0,2", frozenset({0, 2}),
           lambda c: c.workers.logs.local_ranks_filter, "1"),
    Sample("duplicate-stdout-filters", "a,,b,c", ("a,b", "c"),
           lambda c: c.workers.logs.duplicate_stdout_filters, "x", ()),
    Sample("duplicate-stderr-filters", "a,,b,c", ("a,b", "c"),
           lambda c: c.workers.logs.duplicate_stderr_filters, "x", ()),
    Sample("log-line-prefix-template", "<${rank}> ", "<${rank}> ",
           lambda c: c.workers.logs.line_prefix_template, "${hostname}:"),
    Sample("event-log-handler", "console", "console", lambda c: c.event_log_handler, "null", "null"),
    Sample("ui", "off", "off", lambda c: c.ui, "auto", "auto"),
    Sample("web", ":8080", Endpoint("127.0.0.1", 8080), lambda c: c.web, "node0:80"),
    Sample("web-read", "anyone", "anyone", lambda c: c.web_read, "token", "auto"),
    Sample("traces", "http://c:4318/v1/traces", "http://c:4318/v1/traces", lambda c: c.traces, "http://d:1"),
]
# fmt: on
#: Accepted for torchrun's sake, or of another place; these change nothing, or only what is noted.
WITHOUT_EFFECT = {
    "monitor-interval": "0.5",
    "start-method": "fork",
    "logs-specs": "default",
    "platform": "host",
    "platform-conf": "cpus=4",
}
FLAGS: dict[str, tuple[Pick, object, object]] = {
    "standalone": (lambda c: c.rendezvous.standalone, True, True),
    "module": (lambda c: c.workers.entrypoint.kind, EntrypointKind.MODULE, EntrypointKind.SCRIPT),
    "no-python": (lambda c: c.workers.entrypoint.kind, EntrypointKind.BINARY, EntrypointKind.SCRIPT),
    "run-path": (lambda c: c.workers.entrypoint.kind, EntrypointKind.RUN_PATH, EntrypointKind.SCRIPT),
    "virtual-local-rank": (lambda c: c.workers.virtual_local_rank, True, False),
    "exclude-stragglers": (lambda c: c.job.health.exclude_stragglers, True, False),
    "health-check-only": (lambda c: c.job.health.only, True, False),
    "kill-leftovers": (lambda c: c.workers.kill_leftovers, True, False),
    "rank-prefix": (lambda c: c.workers.logs.rank_prefix, True, False),
    "no-auto-progress": (lambda c: c.workers.auto_progress, False, True),
}
#: Their files have to be there; test_faults.py makes them.
FILES = ("policy", "token-file", "tls-ca", "tls-cert", "tls-key")
#: Depend on whether there is a token; test_tokens.py has them.
TOKENS = ("require-token", "insecure-token", "no-token")

BY_NAME = {option.name: option for option in OPTIONS}


@pytest.fixture(autouse=True)
def tensorflow(script: str) -> None:
    """TensorFlow jobs are refused where it is missing; it is looked for beside the script, never imported."""
    Path("tensorflow.py").touch()


def shortest(name: str) -> str:
    """The shortest beginning of a name that means it: among torchrun's options if it is one of them."""
    ours = BY_NAME[name].origin is not Origin.TORCHRUN
    theirs = [other.name for other in OPTIONS if other.origin is Origin.TORCHRUN]
    for length in range(1, len(name) + 1):
        meant = [other for other in theirs if other.startswith(name[:length])]
        if ours and not meant:
            meant = [other.name for other in OPTIONS if other.name.startswith(name[:length])]
        if meant == [name]:
            return name[:length]
    return name


def test_every_option_has_a_sample() -> None:
    sampled = {sample.name for sample in SAMPLES} | set(WITHOUT_EFFECT) | set(FLAGS) | {*FILES, *TOKENS}
    shown = {option.name for option in OPTIONS if option.group is not Group.ABOUT and not option.hidden}
    assert sampled == shown


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.sets is not None])
def test_the_default_of_an_option_is_that_of_the_field_it_sets(option: Option[Any]) -> None:
    assert option.sets is not None
    (field,) = (field for field in fields(option.sets) if field.name == option.field_name)
    if option.default is None and not option.is_flag and option.default_text:
        assert option.convert(option.default_text) == field.default
    assert option.fallback == field.default or option.default is not None


def by_name(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_default(sample: Sample, parse: Parse) -> None:
    assert sample.pick(parse(*sample.extra)) == sample.default


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_every_spelling(sample: Sample, parse: Parse) -> None:
    short = BY_NAME[sample.name].short
    twin = sample.name.replace("-", "_")
    spellings = [
        (f"--{sample.name}", sample.text),
        (f"--{sample.name}={sample.text}",),
        (f"--{twin}", sample.text),
        (f"--{twin}={sample.text}",),
        (f"--{shortest(sample.name)}={sample.text}",),
    ]
    if not any(other.startswith(sample.name[:-1]) for other in BY_NAME if other != sample.name):
        spellings.append((f"--{sample.name[:-1]}", sample.text))
    if short:
        spellings += [(f"-{short}", sample.text), (f"-{short}{sample.text}",), (f"-{short}={sample.text}",)]
    for spelling in spellings:
        assert sample.pick(parse(*sample.extra, *spelling)) == sample.value, spelling


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_environment_is_the_default_and_the_command_line_wins(sample: Sample, parse: Parse) -> None:
    variable = "PET_" + sample.name.upper().replace("-", "_")
    assert sample.pick(parse(*sample.extra, environ={variable: sample.text})) == sample.value
    other = {variable: sample.other}
    assert sample.pick(parse(*sample.extra, environ=other)) != sample.value
    assert sample.pick(parse(*sample.extra, f"--{sample.name}={sample.text}", environ=other)) == sample.value


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_an_empty_variable_is_an_unset_one(sample: Sample, parse: Parse) -> None:
    variable = "PET_" + sample.name.upper().replace("-", "_")
    assert sample.pick(parse(*sample.extra, environ={variable: ""})) == sample.default


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_the_last_one_counts(sample: Sample, parse: Parse) -> None:
    config = parse(*sample.extra, f"--{sample.name}={sample.other}", f"--{sample.name}={sample.text}")
    assert sample.pick(config) == sample.value


@pytest.mark.parametrize(("name", "text"), WITHOUT_EFFECT.items())
def test_accepted_without_effect(name: str, text: str, parse: Parse) -> None:
    plain = parse()
    for config in (parse(f"--{name}={text}"), parse(environ={BY_NAME[name].env: text})):
        assert replace(config.job, job_id="none") == replace(plain.job, job_id="none")
        assert config.rendezvous == plain.rendezvous
        assert config.workers.entrypoint == plain.workers.entrypoint


@pytest.fixture
def any_kind(script: str) -> str:
    """A script that is a program, too, and whose name, ``train``, is a module's."""
    path = Path("train")
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return script


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str, any_kind: str) -> None:
    pick, set_, unset = FLAGS[name]
    target = {"module": "train", "no-python": "./train"}.get(name, any_kind)
    variable = BY_NAME[name].env
    twin = name.replace("-", "_")
    for argv in ([f"--{name}"], [f"--{twin}"], [f"--{shortest(name)}"], [f"--{name}", f"--{name}"]):
        assert pick(parse_command_line([*argv, target], {})) == set_, argv
    for value in ("1", "2", "-1"):
        assert pick(parse_command_line([target], {variable: value})) == set_, value
    for value in ("0", ""):
        assert pick(parse_command_line([any_kind], {variable: value})) == unset, value
    assert pick(parse_command_line([f"--{name}", target], {variable: "0"})) == set_


def test_short_flag_of_module(any_kind: str) -> None:
    entrypoint = parse_command_line(["-m", "train", "-m"], {}).workers.entrypoint
    assert (entrypoint.kind, entrypoint.target, entrypoint.args) == (EntrypointKind.MODULE, "train", ("-m",))


def test_short_options_in_one_word(any_kind: str) -> None:
    config = parse_command_line(["-mr3", "train"], {})
    assert config.workers.entrypoint.kind is EntrypointKind.MODULE
    assert config.workers.logs.redirects == StdByRank(Std.ALL)


@pytest.mark.parametrize("flag", ["--use-env", "--use_env"])
def test_old_launch_lines_work(flag: str, parse: Parse) -> None:
    config = parse(
        flag, "--nproc_per_node=2", "--nnodes=2", "--node_rank=1", "--master_addr=h", "--master_port=7"
    )
    assert config.rendezvous.endpoint == Endpoint("h", 7)
    assert (config.rendezvous.node_rank, config.workers.local_world_size) == (1, 2)


def test_our_options_never_make_one_of_torchruns_ambiguous() -> None:
    for text, name in (
        ("--v", "virtual-local-rank"),
        ("--node", "node-rank"),
        ("--nod", "node-rank"),
        ("--no-", "no-python"),  # not --no-auto-progress
        ("--e", "event-log-handler"),  # not --exclude-stragglers
        ("--t", "tee"),  # not --tls-ca, --token-file
    ):
        value = [] if BY_NAME[name].is_flag else ["1"]
        assert name in read_arguments([text, *value, "x"], {}).texts, text


def test_shutdown_timeout_falls_back_to_torchs_variable(parse: Parse) -> None:
    torchs = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert parse(environ=torchs).workers.shutdown_timeout == 7
    assert parse(environ={**torchs, "PET_SHUTDOWN_TIMEOUT": "8"}).workers.shutdown_timeout == 8
    assert parse("--shutdown-timeout=9", environ=torchs).workers.shutdown_timeout == 9
    assert parse("--shutdown-timeout=0", environ=torchs).workers.shutdown_timeout == 0


def test_an_option_given_empty_hides_the_environment_where_empty_means_none(parse: Parse) -> None:
    assert parse("--log-dir=", environ={"PET_LOG_DIR": "logs"}).workers.logs.log_dir is None
    assert parse("--nnodes=2", "--rdzv-id", "", environ={"PET_RDZV_ID": "a"}).job.job_id == "none"


WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8) | st.sampled_from(
    ["--", "-m", "--nnodes", "--help", "--version", "-r3", "--foo=bar", "-", "", "${local_rank}"]
)


@given(tail=st.lists(WORDS, max_size=6), dashes=st.booleans())
def test_everything_after_the_script_is_the_scripts(tail: list[str], dashes: bool) -> None:
    head = ["--nnodes", "2", *(["--"] if dashes else [])]
    read = read_arguments([*head, "train.py", *tail], {})
    assert read.command == ("train.py", *tail)
    assert set(read.texts) == {"nnodes"}


VARIABLES = sorted(option.env for option in OPTIONS if option.env and option is not options.NPROC_PER_NODE)


@settings(deadline=None)  # a module that is not there is looked for by a child
@given(
    head=st.lists(WORDS, max_size=6), environ=st.dictionaries(st.sampled_from(VARIABLES), WORDS, max_size=3)
)
def test_nothing_but_known_errors_comes_out(head: list[str], environ: dict[str, str]) -> None:
    try:
        parse_command_line([*head, "/dev/null"], {**environ, "PATH": "/bin"})
    except UsageError as error:
        assert str(error)
        assert "\n" not in str(error)
    except ShowText as shown:
        assert shown.text


@pytest.mark.parametrize(
    "argv", [["--help"], ["-h"], ["--nnodes", "2", "--hel"], ["--help", "no/such/script.py"]]
)
def test_help(argv: list[str]) -> None:
    with pytest.raises(ShowText, match="Usage: elastic-run"):
        parse_command_line(argv, {"PET_NNODES": "rubbish"})


def test_version() -> None:
    with pytest.raises(ShowText, match=f"^elastic-run {__version__}$"):
        parse_command_line(["--version"], {})


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(OPTIONS)
    shorts = [option.short for option in OPTIONS if option.short]
    assert sorted(shorts) == ["h", "m", "r", "t"]
    assert options.HELP.env == ""
