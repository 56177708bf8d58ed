"""Lines of the event log: back and forth, and those of other versions or of no log at all."""

from __future__ import annotations

import json

import pytest

from elasticrun.core.protocol.chronicle import (
    DataProgress,
    LogEntry,
    MilestoneReached,
    Place,
    RoundStarted,
    StateSaved,
    StepsDone,
)
from elasticrun.rpc.event_lines import from_line, kind_of, to_line

ENTRIES = [
    LogEntry(3, 1.25, 1e9, StepsDone(0, 7, None)),
    LogEntry(4, 2.5, 1e9, MilestoneReached("a", 0, "first_step")),
    LogEntry(5, 3.0, 1e9, RoundStarted(1, 2, 4, ("a", "b"), 1, 30, "all are ready")),
    LogEntry(6, 4.0, 1e9, StateSaved(Place.HOSTS, 1, 40)),
    LogEntry(7, 5.0, 1e9, DataProgress(1, "da\u00fcta", 2, 3, 1, 0, 9)),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: kind_of(type(entry.told)))
def test_a_line_is_read_as_it_was_written(entry: LogEntry) -> None:
    line = to_line(entry)
    assert from_line(line) == entry
    assert json.loads(line)["kind"] == kind_of(type(entry.told))
    assert "\n" not in line


def test_a_kind_is_named_in_words() -> None:
    assert kind_of(MilestoneReached) == "milestone_reached"


@pytest.mark.parametrize(
    "change", [{"kind": "of_later"}, {"step": "many"}, {"step": None}], ids=["kind", "value", "nothing"]
)
def test_a_line_of_another_version_is_passed_over(change: dict[str, object]) -> None:
    assert from_line(json.dumps({**json.loads(to_line(ENTRIES[0])), **change})) is None


@pytest.mark.parametrize(
    "change",
    [
        *({"at": each} for each in (float("nan"), float("inf"), "soon", None, -1e12, 10**400)),
        *({"time": each} for each in (float("nan"), -1.0, 1e12)),
        *({"rate": each} for each in (float("nan"), float("inf"), 10**400)),
        *({"event": each} for each in ("first", 1.5, 10**40)),
        {"v": "1"},
    ],
    ids=lambda change: json.dumps(change)[:30],
)
def test_numbers_to_reckon_with_are_numbers(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is no entry of an event log"):
        from_line(json.dumps({**json.loads(to_line(ENTRIES[0])), **change}))


@pytest.mark.parametrize("line", ["", "no json", "[]", "3", "{}", '{"kind": []}', "[" * 100_000])
def test_what_is_no_line_of_a_log_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_line(line)
