"""The part of the configuration about this node's workers: entrypoint, environment, logs, watchdog."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticrun.cli.parse import parse_command_line
from elasticrun.config import Entrypoint, EntrypointKind, LaunchConfig, LogConfig

Parse = Callable[..., LaunchConfig]


def warnings(config: LaunchConfig) -> list[str]:
    return [sentence for level, sentence in config.notes if level == "warning"]


def test_entrypoint_of_a_script(script: str) -> None:
    config = parse_command_line([script, "--lr", "0.1", "--", "-m"], {})
    assert config.workers.entrypoint == Entrypoint(
        EntrypointKind.SCRIPT, script, ("--lr", "0.1", "--", "-m"), python=sys.executable
    )


def test_dashes_before_the_script(script: str) -> None:
    assert parse_command_line(["--nnodes=1", "--", script, "--"], {}).workers.entrypoint.args == ("--",)


def test_python_exec(script: str, tmp_path: Path) -> None:
    python = tmp_path / "mypython"
    python.symlink_to(sys.executable)
    assert parse_command_line([script], {"PYTHON_EXEC": str(python)}).workers.entrypoint.python == str(python)
    assert parse_command_line([script], {"PYTHON_EXEC": ""}).workers.entrypoint.python == sys.executable


def test_run_path_goes_before_the_others(script: str) -> None:
    for flags in (
        ["--run-path"],
        ["--run-path", "--no-python"],
        ["--run-path", "-m"],
        ["--run-path", "-m", "--no-python"],
    ):
        assert parse_command_line([*flags, script], {}).workers.entrypoint.kind is EntrypointKind.RUN_PATH


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], []),
        (["--run-path"], []),
        (["--run-path", "--start-method=spawn"], []),
        (["--start-method=spawn"], ["--start-method spawn is ignored: it belongs to --run-path"]),
        (
            ["--run-path", "--start-method=fork"],
            ["--start-method fork: a fresh interpreter is used all the same"],
        ),
    ],
)
def test_start_method(argv: list[str], said: list[str], parse: Parse) -> None:
    assert [sentence for level, sentence in parse(*argv).notes if level == "info"] == said


def test_omp_num_threads(parse: Parse) -> None:
    one, several = parse("--nproc-per-node=1"), parse("--nproc-per-node=3")
    assert ("OMP_NUM_THREADS" in dict(one.workers.env), warnings(one)) == (False, [])
    assert dict(several.workers.env)["OMP_NUM_THREADS"] == "1"
    assert warnings(several) == ["OMP_NUM_THREADS is not set: each of the 3 workers gets 1; set it to tune"]


@pytest.mark.parametrize("value", ["4", ""])
def test_omp_num_threads_that_is_set_stays(value: str, parse: Parse) -> None:
    config = parse("--nproc-per-node=3", environ={"OMP_NUM_THREADS": value})
    assert (dict(config.workers.env)["OMP_NUM_THREADS"], warnings(config)) == (value, [])


@pytest.mark.parametrize(("given", "wanted"), [({}, "1"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "0")])
def test_large_tensors_are_in_huge_pages_unless_the_user_says_no(
    given: dict[str, str], wanted: str, parse: Parse
) -> None:
    assert dict(parse(environ=given).workers.env)["THP_MEM_ALLOC_ENABLE"] == wanted


def test_the_whole_environment_goes_to_the_workers(parse: Parse) -> None:
    environ = {"HOME": "/nowhere", "PET_MAX_RESTARTS": "2", "LOGLEVEL": "DEBUG"}
    assert dict(parse(environ=environ).workers.env).items() >= environ.items()


@pytest.mark.parametrize(
    ("text", "level"), [("DEBUG", "DEBUG"), ("info", "INFO"), ("", "WARNING"), ("warn", "WARNING")]
)
def test_log_level(text: str, level: str, parse: Parse) -> None:
    config = parse(environ={"LOGLEVEL": text})
    assert (config.log_level, warnings(config)) == (level, [])


def test_unknown_log_level_is_a_warning(parse: Parse) -> None:
    config = parse(environ={"LOGLEVEL": "chatty"})
    assert config.log_level == "WARNING"
    (warning,) = warnings(config)
    assert warning.startswith("LOGLEVEL='chatty' is no level, WARNING is used: give CRITICAL, ")


def test_logs_by_default(parse: Parse) -> None:
    assert parse().workers.logs == LogConfig()


def test_line_prefix_template(parse: Parse) -> None:
    template = parse(environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}|"}).workers.logs
    assert template.line_prefix_template == "${rank}|"
    both = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "a", "PET_LOG_LINE_PREFIX_TEMPLATE": "b"}
    assert parse(environ=both).workers.logs.line_prefix_template == "b"
    given = parse("--log-line-prefix-template", "c", environ=both)
    assert given.workers.logs.line_prefix_template == "c"


@pytest.mark.parametrize(
    ("text", "kept"), [("a", ("a",)), ("a,", ("a",)), (",,", (",",)), (",", ()), ("a,,b", ("a,b",))]
)
def test_filters(text: str, kept: tuple[str, ...], parse: Parse) -> None:
    assert parse("--duplicate-stdout-filters", text).workers.logs.duplicate_stdout_filters == kept


def test_file_timer(parse: Parse) -> None:
    on = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    assert parse(environ={**on, "TORCHELASTIC_TIMER_FILE": "/run/timer"}).workers.file_timer == "/run/timer"
    drawn = {parse(environ=on).workers.file_timer for _ in range(2)}
    assert len(drawn) == 2
    assert None not in drawn
    for off in ({}, {"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}, {"TORCHELASTIC_TIMER_FILE": "/run/timer"}):
        assert parse(environ=off).workers.file_timer is None


def test_health_check_port_and_error_file(parse: Parse) -> None:
    workers = parse(
        environ={"TORCHELASTIC_HEALTH_CHECK_PORT": "8081", "TORCHELASTIC_ERROR_FILE": "/run/error.json"}
    ).workers
    assert (workers.health_check_port, workers.error_file) == (8081, "/run/error.json")
    unset = parse().workers
    assert (unset.health_check_port, unset.error_file) == (None, None)


def test_default_logs_specs_are_what_we_do(parse: Parse) -> None:
    assert warnings(parse("--logs-specs=default")) == []


def test_custom_logs_specs_are_a_warning(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site" / "mine-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torchrun.logs_specs]\nmine = mine:Specs\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (warning,) = warnings(parse("--logs-specs=mine"))
    assert warning.startswith(
        "--logs-specs mine is not used, since its class needs torch inside the launcher"
    )


def test_signals_are_named_once(parse: Parse) -> None:
    import signal

    signals = parse("--signals-to-handle", "SIGTERM, SIGINT,SIGTERM,").workers.signals
    assert signals == (signal.SIGTERM, signal.SIGINT)
