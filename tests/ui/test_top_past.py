"""The past of a job: any moment of it, and steps from one event to another."""

from __future__ import annotations

import pytest

from elasticrun.errors import UsageError
from elasticrun.ui.top import past as module
from elasticrun.ui.top.past import Past
from elasticrun.ui.top.show import told
from tests.ui.top_build import BEGAN, entries, story


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH", 4)


def made() -> Past:
    return Past(entries(story("a", "b")))


def test_it_begins_at_the_end() -> None:
    past = made()
    assert past.history.current is not None and past.history.current.step == 1234
    assert past.now is None


def test_a_moment_shows_what_had_happened_by_then() -> None:
    past = made()
    past.at(95.0)
    assert (past.history.failed, past.now) == (0, 95.0)
    past.at(100.1)
    assert past.history.failed == 1
    past.at(-5.0)
    assert past.history.first is None and past.now is None
    past.at(1e9)
    assert past.now == 150.0


def test_a_moment_of_the_wall_clock() -> None:
    past = made()
    past.wall(BEGAN + 95.0)
    assert (past.history.failed, past.now) == (0, 95.0)
    past.wall(BEGAN - 1.0)
    assert past.history.first is None


def test_steps_go_from_event_to_event() -> None:
    past = made()
    seen = []
    past.first()
    for _ in range(5):
        seen.append(told(past))
        past.next()
    assert [it.partition(" ")[2] for it in seen] == [
        "round 0 starts with 2 nodes, 4 workers: all are ready",
        "rank 1 exited with 3",
        "round 0 stops (worker failed): rank 1 exited with 3",
        "round 1 starts with 2 nodes, 4 workers: all are ready",
        "round 1 starts with 2 nodes, 4 workers: all are ready",
    ]
    past.previous()
    assert past.history.restarts == 0 and past.history.failed == 1
    past.last()
    assert past.history.restarts == 1
    past.previous()
    assert "round 1 starts" in told(past)
    for _ in range(9):
        past.previous()
    assert told(past) == seen[0]


def test_a_log_without_entries_is_refused() -> None:
    with pytest.raises(UsageError, match="no entries"):
        Past([])
