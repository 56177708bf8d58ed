"""The event log on a real disk: what is there after a crash, a full disk and a rename."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elasticrun.config import JobConfig
from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.events import Beat, JobEvent, MasterStarted
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.chronicle import MasterStarted as Started
from elasticrun.core.protocol.chronicle import RoundStopped
from elasticrun.core.protocol.orders import ScaleJob
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.errors import UsageError
from elasticrun.master import event_log
from elasticrun.master.event_log import Chronicle, EventLog, read_events, set_aside
from elasticrun.master.journal import Entry, replay
from elasticrun.rpc.event_lines import kind_of

EVENTS: tuple[JobEvent, ...] = (MasterStarted(1, "a" * 64), ScaleJob(1, 2), ScaleJob(1, 3), ScaleJob(1, 4))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@contextmanager
def opened(path: Path, now: float = 1000.0) -> Iterator[EventLog]:
    log = EventLog(path, lambda: now)
    try:
        yield log
    finally:
        log.close()


def test_an_entry_is_one_line_with_its_cause_and_its_times(path: Path) -> None:
    with opened(path) as log:
        log.add(3, 1.5, [Started(1, is_first=True), RoundStopped(0)])
    first, second = path.read_text().splitlines()
    assert json.loads(first) == {
        "v": 1,
        "event": 3,
        "at": 1.5,
        "time": 1000.0,
        "kind": "master_started",
        "epoch": 1,
        "is_first": True,
    }
    assert json.loads(second)["kind"] == kind_of(RoundStopped) == "round_stopped"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_short_is_dropped_and_the_log_goes_on(path: Path) -> None:
    with opened(path) as log:
        log.add(1, 0.0, [RoundStopped(0)])
    with path.open("ab") as file:
        file.write(b'{"v":1,"event":2,"at":')
    with opened(path) as log:
        assert log.last == 1
        log.add(2, 0.0, [RoundStopped(1)])
    assert [(it["event"], it["round"]) for it in read_events(path)] == [(1, 0), (2, 1)]


def test_full_files_are_renamed_and_the_oldest_goes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "FILE_BYTES", 200)
    with opened(path) as log:
        for event in range(1, 101):
            log.add(event, float(event), [RoundStopped(event)])
            log.commit()
    assert len(list(path.parent.iterdir())) == 1 + event_log.KEPT
    assert sum(each.stat().st_size for each in path.parent.iterdir()) <= 200 * (1 + event_log.KEPT)
    found = [it["event"] for it in read_events(path)]
    assert found == list(range(found[0], 101))
    path.write_bytes(b"")  # a master that died right after the rename
    with opened(path) as log:
        assert log.last == found[-1] - (found[-1] - json.loads(_last(path))["event"])


def _last(path: Path) -> bytes:
    return path.with_name("events.1.jsonl").read_bytes().splitlines()[-1]


def test_a_full_disk_costs_entries_which_are_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write

    def write_some(fd: int, data: bytes) -> int:
        return write(fd, data[: len(data) - 5])

    def fail(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with opened(path) as log:
        for number, broken in ((1, write_some), (2, fail), (3, fail)):
            monkeypatch.setattr(os, "write", broken)
            log.add(number, 0.0, [RoundStopped(0), RoundStopped(1)])
            log.commit()
        monkeypatch.setattr(os, "write", write)
        log.add(4, 0.0, [RoundStopped(2)])
        log.commit()
        log.add(5, 0.0, [RoundStopped(3)])
    kinds = [(it["event"], it["kind"], it.get("count")) for it in read_events(path)]
    stopped = "round_stopped", None
    assert kinds == [(1, *stopped), (4, "entries_lost", 5), (4, *stopped), (5, *stopped)]
    assert caplog.text.count("has a gap") == 1


def test_a_log_that_cannot_be_made_costs_the_job_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with opened(tmp_path / "events.jsonl") as log:
        log.add(1, 0.0, [RoundStopped(0)])
        log.commit()
    assert "there will be no event log" in caplog.text


# A master that starts again


def journal(path: Path, events: tuple[JobEvent, ...], upto: int) -> list[Entry]:
    """Entries as a journal has them."""
    return [Entry(float(number), event, number) for number, event in enumerate(events[:upto], 1)]


def live(path: Path, upto: int) -> list[dict[str, Any]]:
    """What a master writes that handles some events, and is killed."""
    machine = JobMachine(JobConfig(max_nodes=4))
    with opened(path) as log:
        chronicle = Chronicle(log, machine.state)
        chronicle.begin(machine.state, 0.0)
        for number, event in enumerate(EVENTS[:upto], 1):
            chronicle.heard(event, machine.state, machine.handle(event, float(number)), float(number))
        chronicle.heard(Beat(1), machine.state, machine.handle(Beat(1), 99.0), 99.0)
        chronicle.commit()
    return read_events(path)


@pytest.mark.parametrize("written", range(1, len(EVENTS) + 1))
def test_the_next_master_writes_what_the_one_before_had_not(tmp_path: Path, written: int) -> None:
    whole = live(tmp_path / "whole.jsonl", len(EVENTS))
    path = tmp_path / "events.jsonl"
    live(path, written)
    with opened(path, now=5000.0) as log:
        chronicle = Chronicle(log, JobMachine(JobConfig(max_nodes=4)).state)
        config = JobConfig(max_nodes=4)
        machine = replay(path, config, journal(path, EVENTS, len(EVENTS)), chronicle)
        chronicle.begin(machine.state, 0.0)
    found = read_events(path)
    assert [{**it, "time": 0} for it in found] == [{**it, "time": 0} for it in whole]
    late = [it["time"] for it in found if it["event"] > written]
    assert late == [1000.0 + it["at"] - written for it in found if it["event"] > written]


def test_entries_of_events_that_the_journal_has_no_more_are_told_to_be_missing(path: Path) -> None:
    live(path, 1)
    machine = JobMachine(JobConfig(max_nodes=4))
    for number, event in enumerate(EVENTS, 1):
        machine.handle(event, float(number))
    with opened(path) as log:
        chronicle = Chronicle(log, JobMachine(JobConfig()).state)
        chronicle.restored(machine.state, 4.0)
        chronicle.begin(machine.state, 0.0)
    (lost,) = [it for it in read_events(path) if it["kind"] == "entries_lost"]
    assert (lost["event"], lost["count"]) == (4, 0)


def test_a_new_job_begins_a_new_log_and_keeps_the_old_one(path: Path) -> None:
    for number in range(3):
        set_aside(path)
        with opened(path) as log:
            assert log.last == 0
            log.add(1, 0.0, [RoundStopped(number)])
    names = sorted(each.name for each in path.parent.iterdir())
    assert names == ["earlier-1-events.jsonl", "earlier-2-events.jsonl", "events.jsonl"]
    assert [it["round"] for it in read_events(path)] == [2]


def test_logs_of_earlier_jobs_stay_in_order_and_only_the_newest_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "FILE_BYTES", 100)
    for job in range(5):
        set_aside(path)
        with opened(path) as log:
            for event in (1, 2, 3):
                log.add(event, 0.0, [RoundStopped(job)])
                log.commit()
    assert len(list(path.parent.iterdir())) == 3 * (1 + event_log.JOBS_KEPT)
    earlier = read_events(path.with_name("earlier-4-events.jsonl"))
    assert [(it["round"], it["event"]) for it in earlier] == [(3, 1), (3, 2), (3, 3)]


def test_entries_of_now_are_written_whatever_an_older_log_has(path: Path) -> None:
    with opened(path) as log:
        log.add(99, 0.0, [RoundStopped(0)])
    live(path, len(EVENTS))
    assert [it["kind"] for it in read_events(path)[:3]] == ["round_stopped", "entries_lost", "master_started"]


def test_a_file_of_somebody_else_beside_a_log_changes_nothing(path: Path) -> None:
    path.with_name("earlier-notes-events.txt").touch()
    with opened(path) as log:
        log.add(1, 0.0, [RoundStopped(0)])
    set_aside(path)
    assert path.with_name("earlier-1-events.jsonl").exists()


def test_a_log_that_cannot_be_set_aside_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(13, "Permission denied")

    path.touch()
    monkeypatch.setattr(Path, "replace", fail)
    set_aside(path)
    assert "of an earlier job cannot be renamed: Permission denied" in caplog.text


# A fault of the log is none of the job


def test_a_bug_of_the_log_is_told_once_and_ends_only_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    path.touch()
    monkeypatch.setattr(Chronicler, "after", fail)
    assert live(path, len(EVENTS)) == []
    with opened(path) as log:
        chronicle = Chronicle(log, JobMachine(JobConfig()).state)
        replay(path, JobConfig(max_nodes=4), journal(path, EVENTS, len(EVENTS)), chronicle)
        with monkeypatch.context() as broken:
            broken.setattr(EventLog, "commit", fail)
            chronicle.commit()
            chronicle.close()
    assert caplog.text.count("there is no event log from now on") == 2


def test_no_descriptor_of_others_is_closed_if_a_new_file_cannot_be_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(event_log, "FILE_BYTES", 1)
    with opened(path) as log:
        log.add(1, 0.0, [RoundStopped(1)])
        log.commit()
        with monkeypatch.context() as full:
            full.setattr(event_log, "_opened", fail)
            log.add(2, 0.0, [RoundStopped(2)])
            log.commit()
        other = os.open(path.parent, os.O_RDONLY)  # it would get a number that was closed too early
        log.add(3, 0.0, [RoundStopped(3)])
        log.commit()
        os.close(other)  # EBADF, or another file, if somebody has closed it
    found = read_events(path)
    assert [it["event"] for it in found if it["kind"] == "round_stopped"] == [1, 3]
    assert [it["count"] for it in found if it["kind"] == "entries_lost"] == [1]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_no_file_of_its_own_is_left_alone(
    path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    precious = path.with_name("precious")
    precious.write_text("no newline")
    if kind == "link":
        path.symlink_to(precious)
    else:
        os.mkfifo(path)
    with opened(path) as log:
        log.add(1, 0.0, [RoundStopped(1)])
    assert precious.read_text() == "no newline"
    assert "there will be no event log" in caplog.text


@pytest.mark.parametrize("last", [b'{"event": Infinity}', b"[" * 100_000, b'{"event": "a"}', b"[1]"])
def test_a_last_line_that_makes_no_sense_does_not_end_the_master(path: Path, last: bytes) -> None:
    path.write_bytes(last + b"\n")
    with opened(path) as log:
        assert log.last == 0


def test_an_older_file_that_is_none_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path.with_name("events.1.jsonl"))
    with opened(path) as log:
        assert log.last == 0


@pytest.mark.parametrize("at", ["Infinity", "NaN", '"soon"'])
def test_a_damaged_line_does_not_end_the_log_of_the_next_master(path: Path, at: str) -> None:
    live(path, 1)
    path.write_text(path.read_text().replace('"at":1.0', f'"at":{at}'))
    machine = JobMachine(JobConfig(max_nodes=4))
    with opened(path) as log:
        chronicle = Chronicle(log, machine.state)
        machine.handle(EVENTS[0], 1.0)
        chronicle.begin(machine.state, 1.0)
        status = JobStatus("job", JobPhase.RUNNING, 0, 1, 1, 0, 3)
        assert chronicle.accounted(status, 2.0) is status
        chronicle.note(2.0, [RoundStopped(0)])
        chronicle.commit()
    assert json.loads(path.read_text().splitlines()[-1])["kind"] == "round_stopped"


# Reading


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"nonsense\n", "line 1 .* is no entry"),
        (b"[" * 100_000 + b"\n", "line 1 .* is no entry"),
        (b'{"v":"1","event":1,"at":0,"time":0,"kind":"new"}\n', "line 1 .* is no entry"),
        (b'{"v":1,"event":1,"at":0,"time":1e300,"kind":"new"}\n', "line 1 .* is no entry"),
        (b'{"v":1,"event":1,"at":1%b,"time":0,"kind":"new"}\n' % (b"0" * 400), "line 1 .* is no entry"),
        (b'{"v":1}\n', "line 1 .* is no entry"),
        (b'{"v":2,"event":1,"at":0,"time":0,"kind":"new"}\n', "has version 2, and this elasticrun reads 1"),
        (None, "there is no event log"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        read_events(path)


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_a_log_that_cannot_be_read_is_refused_in_a_sentence(path: Path, kind: str) -> None:
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(UsageError, match="cannot read the event log"):
        read_events(path)
