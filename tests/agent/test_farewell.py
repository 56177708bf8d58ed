"""The last words: a summary, an error file, or one sentence."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from pathlib import Path

import pytest

from elasticrun.agent.logs.dirs import LogDirs
from elasticrun.agent.shutdown_report import MASTER_FAREWELL, MASTER_LEFT_BEHIND, ShutdownReport
from elasticrun.config import (
    Endpoint,
    Entrypoint,
    EntrypointKind,
    JobConfig,
    LaunchConfig,
    RendezvousConfig,
    WorkerConfig,
)
from elasticrun.core.agent.events import Finish
from elasticrun.core.protocol.messages import Assignment, Failure, FailureKind, Outcome

FAILURE = Failure("box/0", "box", 2, 0, "default", 77, FailureKind.EXIT, 3, message="boom \ud800")


def config(error_file: str | None = None) -> LaunchConfig:
    workers = WorkerConfig(Entrypoint(EntrypointKind.SCRIPT, "train.py"), 1, error_file=error_file)
    return LaunchConfig(JobConfig("job"), RendezvousConfig(Endpoint("h", 1)), workers)


class Ending:
    """What one Finish left."""

    def __init__(self, finish: Finish, directory: Path, error_file: str | None = None) -> None:
        written: list[bytes] = []
        dirs = LogDirs(str(directory), "job")
        ShutdownReport(config(error_file), finish).say(written.append, dirs)
        self.text = b"".join(written).decode()
        self.root = dirs.root


def test_a_good_end_needs_no_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Ending(Finish(0, "all ended with 0", Outcome.SUCCEEDED), tmp_path).text == ""
    assert caplog.records == []


ROUND = Assignment(2, 0, 1, 0, 2, 0, 2, "address", 29500, 0, 3)


@pytest.mark.parametrize(
    ("restarts", "is_seen", "level", "text"),
    [
        (0, False, logging.INFO, "done: 2 workers, 37 s"),
        (0, True, logging.WARNING, "done: 2 workers, 37 s"),
        (1, False, logging.WARNING, "done: 2 workers, 1 restart, 37 s"),
    ],
)
def test_a_good_end_is_told_on_a_terminal_or_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, restarts: int, is_seen: bool, level: int, text: str
) -> None:
    caplog.set_level(logging.INFO, "elasticrun")
    last = dataclasses.replace(ROUND, restart_count=restarts)
    for outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT, None):
        caplog.clear()
        report = ShutdownReport(config(), Finish(0, "reason", outcome), None, last, 37.0, is_seen)
        report.say(lambda _: None, LogDirs(str(tmp_path), "job"))
        said = [(record.levelno, record.getMessage()) for record in caplog.records]
        assert said == ([(level, text)] if outcome is Outcome.SUCCEEDED else [])


@pytest.mark.parametrize("name", ["stacks_0.txt", "error.json"])
def test_a_temporary_directory_that_stays_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dirs = LogDirs(None, "job")
    (Path(dirs.open_round(0, 1).directory) / "0" / name).write_text("x")
    ShutdownReport(config(), Finish(0, "all ended with 0", Outcome.SUCCEEDED)).say(lambda _: None, dirs)
    assert bool(dirs.root and dirs.root in caplog.text) == (name == "stacks_0.txt")
    assert len(caplog.records) == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    "finish",
    [
        Finish(3, "too few nodes", Outcome.TIMED_OUT),
        Finish(143, "stopped by signal 15"),
        Finish(8, "the master went away"),
    ],
)
def test_another_end_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, finish: Finish
) -> None:
    assert Ending(finish, tmp_path).text == ""
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, finish.reason)
    ]


def test_a_failed_job_is_summed_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ending = Ending(Finish(1, "no restart left", Outcome.FAILED, (FAILURE,)), tmp_path)
    for words in ("train.py", "no restart left", "boom ?", "box", "77", ending.root):
        assert words in ending.text
    assert caplog.records == []


def test_the_root_cause_is_passed_on(tmp_path: Path) -> None:
    own, target = tmp_path / "own.json", tmp_path / "target.json"
    own.write_text(json.dumps({"message": {"message": "boom"}}))
    failure = dataclasses.replace(FAILURE, error_file=str(own))
    Ending(Finish(1, "reason", Outcome.FAILED, (failure, FAILURE)), tmp_path / "logs", str(target))
    assert json.loads(target.read_text())["message"]["errorCode"] == 3


def test_a_root_cause_that_cannot_be_passed_on_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failure = dataclasses.replace(FAILURE, error_file="elsewhere")
    Ending(Finish(1, "reason", Outcome.FAILED, (failure,)), tmp_path, str(tmp_path / "no" / "such"))
    assert "cannot be written" in caplog.records[-1].getMessage()


def test_a_failed_job_without_a_failure_known(tmp_path: Path) -> None:
    ending = Ending(Finish(1, "no restart left", Outcome.FAILED), tmp_path, str(tmp_path / "target"))
    assert "no restart left" in ending.text
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("outcome", "patience"), [(None, MASTER_LEFT_BEHIND), *((each, MASTER_FAREWELL) for each in Outcome)]
)
def test_only_a_master_whose_job_has_ended_is_waited_for(outcome: Outcome | None, patience: float) -> None:
    assert ShutdownReport(config(), Finish(0, "", outcome)).patience == patience
