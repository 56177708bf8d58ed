"""What a master knows of the time of its job: live, after it was started again, and when it knows nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticrun.core.protocol.chronicle import (
    Happening,
    LogEntry,
    MilestoneReached,
    NodeJoined,
    RoundStarted,
    RoundStopping,
    StepsDone,
)
from elasticrun.core.protocol.status import JobPhase, JobStatus, status_in_words
from elasticrun.master import accounts as accounts_module
from elasticrun.master.accounts import Accounts
from elasticrun.rpc.event_lines import to_line

STATUS = JobStatus("job", JobPhase.RUNNING, 0, 1, 1, 0, 3)
JOINED = (5.0, NodeJoined("a", "host", 1, False))
STARTED = (5.0, RoundStarted(0, 1, 1, ("a",), 0, None, ""))
FIRST = (7.0, MilestoneReached("a", 0, "first_step"))
STEPS = (11.0, StepsDone(0, 9, 2.0))


def entries(*told: tuple[float, Happening]) -> list[LogEntry]:
    return [LogEntry(0, at, 0.0, each) for at, each in told]


def fed(*told: tuple[float, Happening]) -> Accounts:
    accounts = Accounts()
    for entry in entries(*told):
        accounts.take(entry)
    return accounts


def test_steps_make_a_goodput() -> None:
    shown = fed(JOINED, STARTED, FIRST, STEPS).add_to(STATUS, 15.0)
    assert (shown.goodput, shown.ettr) == (0.8, 0.8)
    assert (shown.step, shown.steps_rate, shown.uptime) == (9, 2.0, 10.0)
    assert "  goodput 80.0 %, ETTR 80.0 %, step 9 (2 steps/s)" in status_in_words(shown).splitlines()


def test_without_steps_only_the_age_is_known() -> None:
    accounts = fed(JOINED, STARTED)
    shown = accounts.add_to(STATUS, 15.0)
    assert (shown.goodput, shown.ettr, shown.step, shown.uptime) == (None, None, None, 10.0)
    assert "goodput" not in status_in_words(shown)
    assert Accounts().add_to(STATUS, 15.0) is STATUS


def test_the_cause_of_the_last_stop_is_known_whatever_is_missing(tmp_path: Path) -> None:
    stopping = (16.0, RoundStopping(0, "worker_failed", "rank 1 was killed"))
    again = (17.0, RoundStarted(1, 1, 1, ("a",), 1, None, ""))
    shown = fed(JOINED, STARTED, stopping, again).add_to(STATUS, 20.0)
    assert shown.cause == "rank 1 was killed"
    assert "  the last round ended: rank 1 was killed" in status_in_words(shown).splitlines()
    accounts = Accounts()
    accounts.interrupted()
    accounts.take(entries(stopping)[0])
    assert accounts.add_to(STATUS, 20.0).cause == "rank 1 was killed"
    log = tmp_path / "events.jsonl"
    log.write_text("\n".join(to_line(entry) for entry in entries(JOINED, STARTED, stopping)) + "\n")
    accounts = Accounts()
    accounts.interrupted()
    accounts.read([log])
    assert accounts.add_to(STATUS, 20.0).cause == "rank 1 was killed"


def test_a_new_round_has_no_steps_yet() -> None:
    restarted = (16.0, RoundStarted(1, 1, 1, ("a",), 1, None, ""))
    shown = fed(JOINED, STARTED, FIRST, STEPS, restarted).add_to(STATUS, 20.0)
    assert shown.goodput is not None
    assert (shown.step, shown.steps_rate) == (None, None)
    assert "goodput" in status_in_words(shown)


def test_a_master_that_was_started_again_reads_the_log_once(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    lines = [to_line(entry) for entry in entries(JOINED, STARTED, FIRST, STEPS)]
    log.write_text("\n".join([*lines, '{"kind": "of a later version"}', ""]))
    accounts = Accounts()
    accounts.interrupted()
    accounts.take(entries(STEPS)[0])  # it is in the log as well
    assert accounts.add_to(STATUS, 15.0) is STATUS
    accounts.read([log])
    assert accounts.add_to(STATUS, 15.0) == fed(JOINED, STARTED, FIRST, STEPS).add_to(STATUS, 15.0)
    log.unlink()
    accounts.read([log])
    accounts.take(entries((16.0, StepsDone(0, 30, None)))[0])
    assert accounts.add_to(STATUS, 17.0).step == 30


@pytest.mark.parametrize("text", ["", "no line of a log\n"])
def test_a_log_that_says_nothing_leaves_all_unknown(text: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(text)
    accounts = Accounts()
    accounts.interrupted()
    accounts.read([log])
    accounts.read([tmp_path / "missing"])
    assert accounts.add_to(STATUS, 15.0) is STATUS


def interrupted() -> Accounts:
    accounts = Accounts()
    accounts.interrupted()
    return accounts


def test_a_damaged_log_is_read_only_once(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    lines = [to_line(entry) for entry in entries(JOINED, STARTED, FIRST, STEPS)]
    log.write_text("\n".join([lines[0].replace('"at":5.0', '"at":Infinity'), *lines[1:], ""]))
    accounts = interrupted()
    accounts.read([log])
    log.write_text("\n".join([*lines, ""]))
    accounts.read([log])
    assert accounts.add_to(STATUS, 15.0) is STATUS


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.1.jsonl")
    accounts = interrupted()
    accounts.read([tmp_path / "events.1.jsonl"])
    assert accounts.add_to(STATUS, 15.0) is STATUS


def test_a_long_log_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(to_line(entries(JOINED)[0]) + "\n")
    monkeypatch.setattr(accounts_module, "LONGEST", 10)
    accounts = Accounts()
    accounts.interrupted()
    accounts.read([log])
    assert accounts.add_to(STATUS, 15.0) is STATUS
