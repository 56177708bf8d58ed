"""The measurement of an idle job: what it counts and what it prints, not how much that is."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from scripts.benchmarks import idle
from scripts.benchmarks.idle import Count, IdleError, Report, Row, compare, count, total

TABLE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 71.43    0.000500           5       100        20 futex
 28.57    0.000200           4        50           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    0.000700           4       150        20 total
"""


def report(wakeups: float, cpu: float) -> Report:
    row = Row("agent 0 and master", 0, 17, cpu, wakeups)
    return Report(30.0, 2, (), row, row, {"futex": 4.0, "read": 9.0}, "")


def test_a_thread_that_waits_and_goes_on_woke_up() -> None:
    before = count(os.getpid())
    number = threading.get_native_id()
    for _ in range(20):
        thread = threading.Thread(target=threading.Event().wait, args=(0.001,))
        thread.start()
        thread.join()
    after = count(os.getpid())
    assert after.wakeups[number] > before.wakeups[number]
    assert after.cpu >= before.cpu


def test_who_has_ended_is_not_counted() -> None:
    assert set(idle.counts((os.getpid(), 0))) == {os.getpid()}


def test_what_was_used_in_between_counts_by_the_second() -> None:
    before, after = Count(1.0, {7: 100, 8: 5}), Count(1.5, {7: 130, 9: 10})
    row = compare("agent 0", 7, before, after, 20.0)
    assert row == Row("agent 0", 7, 2, 2.5, 2.0)  # thread 8 ended, 9 is new
    assert total("both", [row, row]) == Row("both", 0, 4, 5.0, 4.0)


def test_straces_summary_is_read() -> None:
    assert idle.calls_in(TABLE) == {"futex": 100, "epoll_wait": 50}


@pytest.mark.parametrize(
    ("wakeups", "cpu", "fits"), [(19.9, 0.99, True), (20.0, 0.1, False), (1.0, 1.0, False)]
)
def test_the_verdict_is_of_agent_and_master_together(wakeups: float, cpu: float, fits: bool) -> None:
    measured = report(wakeups, cpu)
    assert measured.is_within_bounds is fits
    assert ("NOT within the bounds" in idle.as_table(measured)) is not fits
    assert json.loads(idle.as_json(measured))["is_within_bounds"] is fits


def test_the_commonest_calls_come_first() -> None:
    assert "agent 0 and master: 13.0 (read 9.0, futex 4.0)" in idle.as_table(report(1.0, 0.1))


def test_without_strace_the_report_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IdleError, match="strace is not installed"):
        idle.trace((os.getpid(),), 1.0, tmp_path)


def test_a_job_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    status = idle.main(["--seconds=1", "--settle=0.1", "--cold", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert status == (0 if told["is_within_bounds"] else 1)
    assert [row["role"] for row in told["rows"]] == [
        *("master", "agent 0", "agent 1"),
        *("spawner 0", "spawner 1", "worker 0", "worker 1"),
    ]
    assert all(row["threads"] > 4 for row in told["rows"][:3])
    assert (told["calls"] is None) == bool(told["why_no_calls"])
