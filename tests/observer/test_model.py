"""The state of the page from a history, and what changed in it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elasticrun.core.history.history import History
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures
from elasticrun.observer.changes import applied, changes, is_news
from elasticrun.observer.datasets import DataRow
from elasticrun.observer.figures import FigureRow, figures_of
from elasticrun.observer.model import MAX_NODES, MAX_ROWS, MAX_SENTENCE, State, view
from elasticrun.rpc.records import to_json
from tests.support.watched import Pretended


def seen(job: Pretended, sequence: int = 0) -> State:
    return view(job.history, job.status, job.now, sequence=sequence)


def test_nothing_is_known_of_a_job_that_was_not_heard() -> None:
    state = view(History(), None, 0.0, "nobody answers")
    assert (state.job.phase, state.job.round, state.job.trouble) == ("", -1, "nobody answers")
    assert (state.nodes, state.rounds, state.spent.nodes) == ((), (), ())


def test_a_state_depends_on_the_history_alone() -> None:
    first, second = Pretended(5, 3), Pretended(5, 3)
    assert seen(first) == seen(second)
    assert json.loads(json.dumps(to_json(seen(first)))) == to_json(seen(first))


def test_nodes_have_the_ranks_of_the_status_and_the_worst_state_first() -> None:
    job = Pretended(9, 1)
    job.status = job.describe()
    job.tell(chronicle.NodeDetached(job.name(2), "its stream ended"))
    job.tell(chronicle.NodeChanged(job.name(3), AgentPhase.FAILED.value, 0))
    job.tell(chronicle.NodeChanged(job.name(4), AgentPhase.READY.value, 0))
    rows = seen(job).nodes
    assert [row.rank for row in rows] == [*range(9)]
    states = ["running", "running", "away", "failed", "waiting", "slow", "running", "doubted", "running"]
    assert [row.state for row in rows] == states
    assert rows[5].slowness == 1.31
    assert "all-gather" in rows[7].doubt


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        (None, "running"),
        (chronicle.RoundStopping(0, "drain", "node0 leaves"), "stopping"),
        (chronicle.RoundStopped(0), "gathering"),
        (chronicle.CheckStarted("a node failed"), "checking"),
        (chronicle.JobEnded("succeeded", "all is done"), "succeeded"),
    ],
)
def test_the_phase_follows_the_entries(last: chronicle.Happening | None, phase: str) -> None:
    job = Pretended(2, 1)
    if last is not None:
        job.tell(last)
    assert seen(job).job.phase == phase


def test_restarts_are_those_of_the_round_if_it_is_newer_than_the_status() -> None:
    job = Pretended(2, 1)
    assert seen(job).job.restarts_used == 0
    job.status = job.describe()
    assert seen(job).job.restarts_used == 0
    job.tell(chronicle.RoundStarted(1, 2, 16, (job.name(0), job.name(1)), 1, None, "all nodes are ready"))
    assert seen(job).job.restarts_used == 1
    job.status = replace(job.describe(), restarts_used=0)  # the first one was refunded
    job.tell(chronicle.RoundStarted(2, 2, 16, (job.name(0), job.name(1)), 2, None, "all nodes are ready"))
    assert seen(job).job.restarts_used == 1


def test_a_state_is_bounded() -> None:
    job = Pretended(MAX_NODES + 3, 1)
    for number in range(1, MAX_ROWS + 10):
        job.tell(chronicle.Decision("running", number, "x" * 2 * MAX_SENTENCE))
    state = seen(job)
    assert len(state.nodes) == MAX_NODES
    assert state.job.unlisted == 3
    assert len(state.decisions) == MAX_ROWS
    assert len(state.decisions[-1].text) == MAX_SENTENCE


def test_saved_states_come_from_the_log_or_else_from_the_status() -> None:
    job = Pretended(2, 1)
    job.status = job.describe()
    assert [(row.place, row.at is None) for row in seen(job).saves] == [
        ("memory", False),
        ("hosts", False),
        ("storage", False),
    ]
    job.history.saved.clear()
    assert [(row.place, row.at) for row in seen(job).saves] == [
        ("memory", None),
        ("hosts", None),
        ("storage", None),
    ]


def test_figures_are_rounded_and_those_of_gpus_put_together() -> None:
    figures = NodeFigures(
        1.234, 8, 100, 200, 3.3, 4.4, (GpuFigures("a", 0.5, 1, 2), GpuFigures("b", None, 3, 4))
    )
    assert figures_of(figures) == FigureRow(1.23, 8, 100, 200, 3, 4, 2, 0.5, 4, 6)


def test_changes_turn_each_state_into_the_next() -> None:
    job = Pretended(6, 2)
    before = seen(job)
    for number in range(2, 2 * MAX_ROWS // 4):
        if number % 7 == 0:
            job.tell(chronicle.NodeGone(job.name(number % 6), "it was drained"))
            job.tell(chronicle.NodeJoined(job.name(50 + number), "new", 8, False))
        job.status = job.describe()
        job.round(number)
        after = seen(job, number)
        told = changes(before, after)
        assert applied(to_json(before), told) == to_json(after)
        before = after


def test_what_did_not_change_is_not_told() -> None:
    job = Pretended(1000, 2)
    before = seen(job, 1)
    assert changes(before, seen(job, 2)) == {"after": 1, "sequence": 2}
    later = changes(before, view(job.history, job.status, job.now + 1.0, sequence=2))
    assert later.keys() == {"after", "sequence", "clock", "spent"}
    assert not is_news(later)
    job.tell(chronicle.NodeDetached(job.name(17), "gone"))
    told = changes(before, seen(job, 2))
    assert [row["name"] for row in told["nodes"]["set"]] == [job.name(17)]
    assert is_news(told)
    assert len(json.dumps(told)) < 2000


def test_shared_data_are_shown_by_name_and_told_as_they_change() -> None:
    job = Pretended(2, 1)
    assert seen(job).data == ()
    job.tell(chronicle.DataProgress(0, "train", 1, 3, 2, 1, 9))
    before = seen(job)
    job.tell(chronicle.DataProgress(0, "test", 0, -1, 0, 0, 2**60))
    after = seen(job, 1)
    assert after.data == (DataRow("test", 0, 0, 0, 0, 2**53), DataRow("train", 1, 3, 2, 1, 9))
    told = changes(before, after)
    assert is_news(told)
    assert applied(to_json(before), told) == to_json(after)
