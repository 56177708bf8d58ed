"""The spans of a job, as a collector gets them that speaks OTLP over HTTP."""

from __future__ import annotations

import logging
import sys
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from elasticrun.core.protocol.chronicle import JobEnded, LogEntry, MasterStarted, RoundStopped, StepsDone
from elasticrun.errors import UsageError
from elasticrun.observer import traces
from elasticrun.observer.traces import START, Tracer
from tests.core.story import LASTS, SPAN, WALL, entry, failed, running, stopping, story
from tests.observer.collector import Collector
from tests.support.ports import free_port

PHASES = ["detect", "stop", "start", "import", "rendezvous", "restore", "first step"]


def send(collector: Collector, entries: list[LogEntry], job_id: str = "job") -> None:
    tracer = Tracer(collector.url, job_id)
    tracer.take(entries)
    tracer.close()


def values(attributes: Any) -> dict[str, Any]:
    """Attributes without their prefix."""
    return {
        it.key.removeprefix("elasticrun."): getattr(it.value, it.value.WhichOneof("value"))
        for it in attributes
    }


def seconds(span: Span) -> tuple[float, float]:
    """When a span began and ended, by the job's clock."""
    begin, end = (each - int(WALL) * 10**9 for each in (span.start_time_unix_nano, span.end_time_unix_nano))
    return begin / 1e9, end / 1e9


def whole() -> list[LogEntry]:
    """A job of two rounds that succeeds."""
    return [*story(2), entry(50, RoundStopped(1)), entry(51, JobEnded("succeeded", "all is done"))]


def test_a_job_is_one_trace(collector: Collector) -> None:
    send(collector, whole())
    assert collector.paths == {"/v1/traces"}
    assert collector.services == {"elasticrun"}
    assert len({span.trace_id for span in collector.spans}) == 1
    root = collector.get("job")
    assert not root.parent_span_id
    assert seconds(root) == (0, 51)
    about = values(root.attributes)
    assert about.pop("goodput") > 0
    assert about == {
        "job_id": "job",
        "outcome": "succeeded",
        "reason": "all is done",
        "is_over": True,
        "restarts": 1,
    }
    assert root.status.code == Status.STATUS_CODE_OK
    assert sorted(span.name for span in collector.below(root)) == ["recovery", "round 0", "round 1"]


def test_a_round_has_its_failures_as_events(collector: Collector) -> None:
    send(collector, whole())
    first, second = collector.get("round 0"), collector.get("round 1")
    assert (seconds(first), seconds(second)) == ((0, LASTS + 0.5), (SPAN, 50))
    assert values(first.attributes) == {
        "round": 0,
        "nodes": 2,
        "workers": 4,
        "restart": 0,
        "restored_step": 10,
        "reason": "all are here",
        "cause": "worker failed",
        "stop_reason": "rank 1 was killed",
    }
    [event] = first.events
    assert event.name == "worker failed"
    assert event.time_unix_nano == (int(WALL) + int(LASTS)) * 10**9
    assert values(event.attributes)["summary"] == first.status.message == "rank 1 died"
    assert values(event.attributes)["exit_code"] == -9
    assert first.status.code == Status.STATUS_CODE_ERROR
    assert second.status.code == Status.STATUS_CODE_UNSET
    assert not second.events


def test_a_recovery_has_its_phases(collector: Collector) -> None:
    send(collector, whole())
    recovery = collector.get("recovery")
    assert seconds(recovery) == (LASTS, LASTS + 5.5)
    assert values(recovery.attributes) == {
        "cause": "worker failed",
        "reason": "rank 1 was killed",
        "is_failure": True,
        "round": 1,
        "nodes": 2,
        "workers": 4,
    }
    phases = sorted(collector.below(recovery), key=lambda span: PHASES.index(span.name))
    assert [span.name for span in phases] == PHASES
    assert all(one.end_time_unix_nano == other.start_time_unix_nano for one, other in pairwise(phases))
    assert phases[0].start_time_unix_nano == recovery.start_time_unix_nano
    assert phases[-1].end_time_unix_nano == recovery.end_time_unix_nano


def test_an_observer_that_starts_anew_goes_on_with_the_trace(collector: Collector) -> None:
    send(collector, whole())
    before = {(span.name, span.span_id, span.trace_id) for span in collector.spans}
    collector.spans.clear()
    later = [each for each in whole() if each.at >= SPAN]  # older entries are not in the master's memory
    send(collector, later)
    assert collector.get("round 1").trace_id == next(iter(before))[2]
    after = {(span.name, span.span_id, span.trace_id) for span in collector.spans}
    assert after == {each for each in before if each[0] in ("job", "round 1")}


@pytest.mark.parametrize(("job_id", "later"), [("another", 0.0), ("job", 2 * START)])
def test_another_job_has_another_trace(collector: Collector, job_id: str, later: float) -> None:
    send(collector, whole())
    send(collector, [LogEntry(it.event, it.at, it.time + later, it.told) for it in whole()], job_id)
    assert len({span.trace_id for span in collector.spans}) == 2
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)


def test_a_job_that_goes_on_is_told_as_far_as_it_is_known(collector: Collector) -> None:
    send(collector, [*story(1), entry(70, StepsDone(0, 50, 1.0))])
    root = collector.get("job")
    assert seconds(root) == seconds(collector.get("round 0")) == (0, 70)
    assert values(root.attributes)["is_over"] is False
    assert root.status.code == Status.STATUS_CODE_UNSET


def test_times_follow_a_master_on_another_host(collector: Collector) -> None:
    moved = LogEntry(0, 30.0, WALL + 40.0, MasterStarted(2, False))  # 10 s without a master
    ended = LogEntry(0, 50.0, WALL + 60.0, JobEnded("failed", "too many restarts"))
    send(collector, [*story(1), moved, ended])
    assert seconds(collector.get("job")) == (0, 60)
    assert collector.get("job").status.code == Status.STATUS_CODE_ERROR


def test_absurd_entries_and_hostile_texts(collector: Collector) -> None:
    hostile = "\ud800\x1b[2J\n" + "x" * 3000
    odd = [
        entry(5, failed(3)),  # of a round that nobody knows
        entry(6, RoundStopped(3)),
        *stopping(0, LASTS, hostile),
        *running(0, 22),  # without an end
        *running(1, 24),
        entry(30, failed(1, hostile, hostile, hostile)),
        entry(31, JobEnded("failed", hostile)),
        entry(32, RoundStopped(1)),
    ]
    odd.insert(1, entry(1e30, failed(0)))
    send(collector, [*story(1), *odd], hostile)
    assert collector.get("round 1").events
    assert "\x1b" not in values(collector.get("job").attributes)["job_id"]


def test_nothing_is_sent_of_nothing(collector: Collector) -> None:
    send(collector, [])
    assert not collector.spans


def test_what_cannot_be_sent_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "TIMEOUT", 0.2)
    url = f"http://127.0.0.1:{free_port()}"
    tracer = Tracer(url)
    with caplog.at_level(logging.DEBUG):
        for number in range(600):
            tracer.take(list(running(number, number)))  # two batches
        tracer.close()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert told[0].startswith(f"traces cannot be sent to {url}/v1/traces: ")


def test_a_collector_that_refuses_is_told_of(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.answer = 400
    send(collector, whole())
    assert [record.name for record in caplog.records] == [traces.logger.name]
    assert logging.getLogger(traces._NOISY[0]).filters == []


@pytest.mark.parametrize(
    "url", ["", "collector:4318", "ftp://host", "http://", "http://host:port", "http://[::1"]
)
def test_an_endpoint_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"give http://HOST:PORT"):
        Tracer(url)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("https://host/", "https://host/v1/traces"),
        ("http://[::1]:1/own/path", "http://[::1]:1/own/path"),
    ],
)
def test_the_path_of_otlp_is_meant(endpoint: str, url: str) -> None:
    assert traces._url(endpoint) == url


def test_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match=r"pip install 'elasticrun\[traces\]'"):
        Tracer("http://host:1")
