"""Sums over a whole history: incidents by kind, classes of failures, saves that got to the storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticrun.core.history import incidents as module
from elasticrun.core.history.history import History
from elasticrun.core.history.incidents import CLASSES, Incidents, Kind, Sums, class_text
from elasticrun.core.protocol.chronicle import (
    Happening,
    JobEnded,
    LogEntry,
    MasterStarted,
    MilestoneReached,
    NodeChanged,
    NodeGone,
    NodeJoined,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    StateSaved,
    StepsDone,
    StragglerFound,
    WorkerFailed,
)


def history(*told: tuple[float, Happening]) -> History:
    found = History()
    for at, happening in told:
        found.take(LogEntry(1, at, 1e9 + at, happening))
    return found


def sums(found: History) -> dict[Kind, Sums]:
    at = found.last[0]
    return found.incidents.sums(at, found.summary(at).job)


def started(number: int, nodes: int = 1, restored: int | None = None) -> RoundStarted:
    return RoundStarted(number, nodes, nodes, tuple("ab"[:nodes]), number, restored, "why")


def failed(text: str = "rank 0 (local rank 0, pid 1, h) exited with 3", **more: object) -> WorkerFailed:
    fields: dict[str, object] = {
        "round": 0,
        "node": "a",
        "host": "h",
        "rank": 0,
        "local_rank": 0,
        "pid": 1,
        "how": "exit",
        "exit_code": 3,
        "step": 4,
        "summary": text,
    }
    return WorkerFailed(**(fields | more))  # type: ignore[arg-type]  # the names are those above


def running(number: int, at: float, first_step: float) -> Iterator[tuple[float, Happening]]:
    yield at, NodeChanged("a", "running", number)
    for name in ("spawned", "imported", "connected", "restored"):
        yield at, MilestoneReached("a", number, name)
    yield first_step, MilestoneReached("a", number, "first_step")


BEGIN: tuple[tuple[float, Happening], ...] = (
    (0.0, MasterStarted(1, is_first=True)),
    (0.0, NodeJoined("a", "h", 1, returns=False)),
    (0.0, NodeChanged("a", "ready", -1)),
    (1.0, started(0)),
    *running(0, 2.0, 3.0),
)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("worker failed", Kind.FAILED),
        ("hang", Kind.FAILED),
        ("store lost", Kind.FAILED),
        ("port taken", Kind.FAILED),
        ("of a later version", Kind.FAILED),
        ("member lost", Kind.LOST),
        ("member left", Kind.CHANGED),
        ("node joined", Kind.CHANGED),
        ("resized", Kind.CHANGED),
        ("restart ordered", Kind.CHANGED),
        ("state saved", Kind.CHANGED),
    ],
)
def test_a_cause_is_of_a_kind(cause: str, kind: Kind) -> None:
    assert Kind.of(cause) is kind


def test_an_incident_is_summed_up_when_the_next_begins() -> None:
    story = [
        *BEGIN,
        (13.0, StepsDone(0, 10, 1.0)),
        (13.5, failed()),
        (13.5, RoundStopping(0, "worker failed", "it failed")),
        (14.0, NodeChanged("a", "ready", 0)),
        (16.0, started(1, restored=8)),
        *running(1, 16.5, 17.5),
        (20.5, StepsDone(1, 12, 1.0)),
    ]
    found = sums(history(*story))[Kind.FAILED]
    assert (found.count, found.seconds) == (1, 4.0)
    assert found.waiting == 2.0  # from ready until the round began
    assert found.coverable == 2.0
    assert found.redone > 1.0  # half a step was lost, and two of step 8 on were made again
    again = history(
        *story, (21.0, RoundStopping(1, "node joined", "b")), (22.0, started(2)), *running(2, 22.0, 23.0)
    )
    both = sums(again)
    assert both[Kind.FAILED] == found
    assert (both[Kind.CHANGED].count, both[Kind.CHANGED].seconds) == (1, 2.0)


def test_a_job_that_ends_leaves_no_incident_open() -> None:
    end = ((13.0, failed()), (13.0, RoundStopping(0, "worker failed", "")), (13.5, RoundStopped(0)))
    found = history(*BEGIN, *end, (14.0, JobEnded("failed", "the budget is spent")))
    assert sums(found)[Kind.FAILED].count == 0


def test_a_recovery_without_steps_is_over_when_the_workers_run() -> None:
    begin = [it for it in BEGIN if not isinstance(it[1], MilestoneReached)]
    found = history(
        *begin,
        (10.0, RoundStopping(0, "hang", "")),
        (11.0, started(1)),
        (12.0, NodeChanged("a", "running", 1)),
        (50.0, StateSaved(Place.MEMORY, 1, 3)),
    )
    assert sums(found)[Kind.FAILED].seconds == 2.0


def test_an_incident_whose_round_never_ran_lasts_until_the_next_one() -> None:
    found = history(
        *BEGIN,
        (10.0, RoundStopping(0, "hang", "")),
        (11.0, started(1)),
        (14.0, RoundStopping(1, "member lost", "")),
        (15.0, started(2)),
    )
    assert sums(found)[Kind.FAILED].seconds == 4.0
    assert sums(found)[Kind.LOST].seconds == 1.0  # until now


def test_only_the_loss_of_one_node_can_be_covered_by_one_spare() -> None:
    two = (
        *BEGIN,
        (5.0, NodeJoined("b", "g", 1, returns=False)),
        (6.0, NodeGone("b", "lost")),
        (6.0, NodeGone("c", "lost")),
        (6.0, RoundStopping(0, "member lost", "")),
        (6.5, NodeChanged("a", "ready", 0)),
        (9.0, started(1)),
    )
    found = history(*two)
    assert sums(found)[Kind.LOST].waiting == 2.5
    assert sums(found)[Kind.LOST].coverable == 0.0
    assert found.incidents.losses == {"b": 1, "c": 1}


@pytest.mark.parametrize(("after", "replaced"), [(2, 1), (1, 0)])
def test_a_lost_node_was_replaced_if_no_fewer_train_after_it(after: int, replaced: int) -> None:
    found = history(
        (1.0, started(0, 2)),
        (5.0, RoundStopping(0, "member lost", "why")),
        (6.0, RoundStopped(0)),
        (7.0, started(1, after)),
        *running(1, 8.0, 9.0),
        (20.0, JobEnded("succeeded", "")),
    )
    assert (sums(found)[Kind.LOST].count, sums(found)[Kind.LOST].replaced) == (1, replaced)


def test_imports_of_the_first_round_are_known() -> None:
    story = (
        *BEGIN[:4],
        (2.0, NodeChanged("a", "running", 0)),
        (2.0, MilestoneReached("a", 0, "spawned")),
        (6.0, MilestoneReached("a", 0, "imported")),
        (7.0, MilestoneReached("a", 0, "first_step")),
        (9.0, failed()),
    )
    assert history(*story).incidents.first_import == 4.0


def test_work_that_was_not_in_the_storage_is_counted_from_when_it_was_made() -> None:
    found = history(
        *BEGIN,
        (5.0, StepsDone(0, 2, 1.0)),
        (5.0, StateSaved(Place.MEMORY, 0, 2)),
        (5.0, StateSaved(Place.HOSTS, 0, 2)),
        (9.0, StateSaved(Place.STORAGE, 0, 2)),  # it took four seconds to write
        (13.0, RoundStopping(0, "worker failed", "")),
        (13.0, started(1, restored=2)),
        *running(1, 13.0, 14.0),
    )
    assert sums(found)[Kind.FAILED].undone == 8.0
    assert found.totals.saves == {Place.MEMORY: 1, Place.HOSTS: 1, Place.STORAGE: 1}


def test_a_save_straight_to_the_storage_counts_from_then() -> None:
    found = history(
        *BEGIN,
        (9.0, StateSaved(Place.STORAGE, 0, 2)),
        (13.0, RoundStopping(0, "worker failed", "")),
        (13.0, started(1)),
    )
    assert sums(found)[Kind.FAILED].undone == 4.0


def test_steps_that_never_get_to_the_storage_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNDERWAY", 2)
    found = history(*BEGIN, *((4.0 + step, StateSaved(Place.MEMORY, 0, step)) for step in range(5)))
    assert len(found.incidents._made) == 2


def test_failures_that_differ_in_numbers_only_are_one_class() -> None:
    texts = (
        "rank 3 (local rank 1, pid 77, h) exited with 1: ValueError: step 5 at 0x7fa",
        "rank 4 (local rank 2, pid 99, g) exited with 1: ValueError: step 812 at 0x1",
        "rank 4 (local rank 2, pid 99, g) exited with 1: KeyError: 'a'",
    )
    found = history(
        *BEGIN, *((5.0 + i, failed(text, host=f"h{i}")) for i, text in enumerate(texts))
    ).incidents
    counts = [
        (it.count, it.first.summary, it.first_at, it.last_at, it.hosts) for it in found.classes.values()
    ]
    assert counts == [(2, texts[0], 5.0, 6.0, {"h0", "h1"}), (1, texts[2], 7.0, 7.0, {"h2"})]
    assert class_text(texts[0]) == "exited with #: ValueError: step # at #"


def test_classes_hosts_and_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN", 10)
    letters = [chr(ord("a") + i % 26) * (1 + i // 26) for i in range(CLASSES + 20)]
    found = history(
        *BEGIN, *((5.0, failed(text, host=text, rank=i)) for i, text in enumerate(letters))
    ).incidents
    assert len(found.classes) == CLASSES + 1
    others = found.classes["others", 0, ""]
    assert (others.count, others.how) == (20, "others")
    assert len(found.hosts) == len(found.ranks) == 10
    same = history(*BEGIN, *((5.0, failed(host=str(i))) for i in range(CLASSES + 20))).incidents
    assert [len(it.hosts) for it in same.classes.values()] == [CLASSES]


def test_stragglers_are_known_by_their_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN", 1)
    factors = (1.5, 2.5, 1.0, float("nan"), float("inf"))
    found = history(*BEGIN, *((5.0, StragglerFound(0, "a", it)) for it in factors)).incidents
    assert found.slow == {"a": 1000.0}
    more = history(*BEGIN, (5.0, StragglerFound(0, "a", 2.0)), (5.0, StragglerFound(0, "b", 2.0)))
    assert set(more.incidents.slow) == {"a"}


def test_nothing_has_no_sums() -> None:
    assert Incidents().sums(0.0, History().summary().job) == {kind: Sums() for kind in Kind}
