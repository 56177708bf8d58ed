"""The trace: what Perfetto and Chrome need of it holds for any log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticrun.core.protocol.chronicle import (
    HangFound,
    Happening,
    LogEntry,
    NodeChanged,
    NodeDetached,
    NodeJoined,
    OrderAnswered,
    RoundStarted,
    RoundStopping,
    StepsDone,
    WorkerFailed,
)
from elasticrun.ui.report import trace
from elasticrun.ui.report.trace import JOB, NODES, Track, chunks
from tests.support.long_log import Settings, log

Event = dict[str, Any]


def events(entries: object) -> list[Event]:
    text = "".join(chunks(entries))  # type: ignore[arg-type]
    found: list[Event] = json.loads(text)["traceEvents"]
    return found


def check(found: list[Event]) -> None:
    """Each track: instants never fall, each end ends a slice of the same name, nothing stays open."""
    newest: dict[tuple[int, int], int] = {}
    slices: dict[tuple[int, int], list[str]] = {}
    named = {(it["pid"], it["tid"]) for it in found if it["ph"] == "M"}
    for event in found:
        track = event["pid"], event["tid"]
        assert {"name", "ph", "ts", "pid", "tid", "args"} <= set(event)
        assert isinstance(event["ts"], int)
        assert track in named
        if event["ph"] == "M":
            continue
        assert event["ts"] >= newest.get(track, event["ts"])
        newest[track] = event["ts"]
        match event["ph"]:
            case "B":
                slices.setdefault(track, []).append(event["name"])
            case "E":
                assert slices[track].pop() == event["name"]
            case "i":
                assert event["s"] == "t"
            case other:
                assert other == "C"
    assert not any(slices.values())


@pytest.mark.parametrize(
    "settings",
    [
        Settings(rounds=40),
        Settings(rounds=10, steps=False),
        Settings(rounds=8, ends=False),
        Settings(rounds=5, nodes=1),
    ],
    ids=str,
)
def test_a_trace_is_well_formed(settings: Settings) -> None:
    found = events(log(settings))
    check(found)
    assert {it["pid"] for it in found} == {JOB, NODES}


def test_rounds_recoveries_and_nodes_are_slices_and_failures_instants() -> None:
    found = events(log(Settings(rounds=10)))
    begun = [(it["pid"], it["tid"], it["name"]) for it in found if it["ph"] == "B"]
    rounds = [name for pid, tid, name in begun if (pid, tid) == (JOB, Track.ROUNDS)]
    assert rounds == [f"round {number}" for number in range(10)]
    recoveries = [name for pid, tid, name in begun if (pid, tid) == (JOB, Track.RECOVERIES)]
    assert sum(name.startswith("recovery: ") for name in recoveries) == 9
    assert [name for name in recoveries if ":" not in name] == [
        "stop workers",
        "start workers",
        "first step",
    ] * 9
    assert {name for pid, _, name in begun if pid == NODES} == {"ready", "running", "stopping", "finished"}
    instants = {it["name"] for it in found if it["ph"] == "i"}
    assert {"worker failed", "first_step", "joined", "saved: storage", "running", "job succeeded"} <= instants


def test_a_late_entry_is_told_as_now() -> None:
    story = [
        LogEntry(1, 5.0, 1e9, NodeJoined("a", "h", 1, returns=False)),
        LogEntry(2, 9.0, 1e9, NodeChanged("a", "ready", -1)),
        LogEntry(3, 2.0, 1e9, NodeChanged("a", "running", 0)),
    ]
    found = events(story)
    check(found)
    assert [it["ts"] for it in found if it["ph"] == "B"] == [9_000_000, 9_000_000]


def test_odd_stories_are_well_formed_too() -> None:
    failed = WorkerFailed(7, "a", "h", 0, 0, 1, "exit", 1, 3, "it failed")
    told: list[Happening] = [
        RoundStarted(0, 1, 1, ("a",), 0, None, "why"),
        HangFound(0, 9.0),
        failed,  # of another round
        StepsDone(9, 1, 2.0),
        StepsDone(0, 1, None),
        RoundStopping(0, "hang", "it hangs"),
        RoundStopping(0, "hang", "it hangs"),
        OrderAnswered("DrainNode", True, "yes"),
        NodeDetached("a", "away"),
        NodeChanged("a", "running", 3),
        RoundStarted(1, 1, 1, ("a",), 0, None, "why"),
        RoundStarted(2, 2, 2, ("a",), 0, None, "why"),
    ]
    found = events(LogEntry(i, float(i), 1e9, it) for i, it in enumerate(told))
    check(found)
    assert [it["args"] for it in found if it["name"] == "steps per second"] == [{"rate": 2.0}]


def test_tracks_of_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_NODES", 2)
    found = events(LogEntry(i, 0.0, 1e9, NodeJoined(f"n{i}", "h", 1, returns=False)) for i in range(5))
    check(found)
    assert len({it["tid"] for it in found if it["pid"] == NODES} - {0}) == 2


def test_a_name_is_text() -> None:
    text = "".join(chunks([LogEntry(0, 0.0, 1e9, NodeJoined('a"\n</script>', "h", 1, returns=False))]))
    assert json.loads(text)
