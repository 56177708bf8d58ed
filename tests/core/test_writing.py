"""How one node carries out its order for the storage."""

from __future__ import annotations

from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.storing import StoreOrder, StoreReport, StoreStage
from elasticrun.core.state.events import Pinned
from elasticrun.core.state.retrying import PATIENCE, Trouble
from elasticrun.core.state.writing import (
    DEATH_PATIENCE,
    Ended,
    KillWriter,
    Moved,
    Ordered,
    Retry,
    StartWriter,
    Tell,
    Tick,
    Writing,
    WritingEffect,
    WritingEvent,
)

STEP, NEXT = CommitId(0, 7), CommitId(0, 9)
ORDER, LATER = StoreOrder(1, "run7", STEP), StoreOrder(2, "run7", NEXT)


class Node:
    """One node. ``now`` stands still unless moved."""

    def __init__(self) -> None:
        self.writing = Writing()
        self.now = 100.0

    def do(self, event: WritingEvent) -> list[WritingEffect]:
        return self.writing.handle(event, self.now)

    def pass_time(self, seconds: float) -> list[WritingEffect]:
        self.now += seconds
        return self.do(Tick())

    @property
    def left(self) -> float | None:
        deadline = self.writing.next_deadline()
        return None if deadline is None else deadline - self.now


def ordered() -> Node:
    node = Node()
    began = [Pinned(STEP), Tell(StoreReport(1, "run7", StoreStage.WRITING)), StartWriter(1, ORDER)]
    assert node.do(Ordered(ORDER)) == began
    return node


def outcome(stage: StoreStage, reason: str = "") -> Tell:
    return Tell(StoreReport(1, "run7", stage, reason))


def test_an_order_is_carried_out_and_pinned_until_the_next_one() -> None:
    node = ordered()
    assert node.do(Ordered(ORDER)) == [], "it is in force"
    assert node.do(Ended(1)) == [outcome(StoreStage.WRITTEN)]
    assert node.left is None
    assert node.do(Ordered(ORDER)) == [], "it was carried out"
    assert node.do(Ordered(None)) == [Pinned(None), Tell(None)]
    assert node.do(Ordered(None)) == []


def test_a_new_order_takes_the_place_of_one_that_is_under_way() -> None:
    node = ordered()
    told = Tell(StoreReport(2, "run7", StoreStage.WRITING))
    assert node.do(Ordered(LATER)) == [KillWriter(1), Pinned(NEXT), told, StartWriter(2, LATER)]
    assert node.do(Ended(1)) == [], "of another order"
    assert node.do(Moved(1)) == []
    assert node.do(Ended(2)) == [Tell(StoreReport(2, "run7", StoreStage.WRITTEN))]


AGAIN = StoreOrder(2, "run7", STEP)


def test_a_writer_waits_for_one_of_an_earlier_order_that_writes_the_same_commit() -> None:
    node = ordered()
    told = Tell(StoreReport(2, "run7", StoreStage.WRITING))
    assert node.do(Ordered(AGAIN)) == [KillWriter(1), Pinned(STEP), told]
    assert node.left == DEATH_PATIENCE
    assert node.do(Ended(1)) == [StartWriter(2, AGAIN)]
    assert node.left == PATIENCE
    assert node.do(Ended(2)) == [Tell(StoreReport(2, "run7", StoreStage.WRITTEN))]


def test_a_writer_of_an_earlier_order_is_waited_for_although_nothing_was_to_be_done_meanwhile() -> None:
    node = ordered()
    node.do(Ordered(None))
    told = Tell(StoreReport(2, "run7", StoreStage.WRITING))
    assert node.do(Ordered(AGAIN)) == [Pinned(STEP), told]
    assert node.do(Ended(7)) == [], "no writer of ours"
    assert node.do(Ordered(None)) == [Pinned(None), Tell(None)]
    assert node.do(Ended(1)) == []
    assert node.do(Ordered(ORDER))[-1] == StartWriter(2, ORDER)


def test_an_order_fails_if_a_writer_of_an_earlier_one_cannot_be_killed() -> None:
    node = ordered()
    node.do(Ordered(AGAIN))
    stuck = "the process that writes hangs in the storage, and cannot be killed"
    assert node.pass_time(DEATH_PATIENCE) == [Tell(StoreReport(2, "run7", StoreStage.FAILED, stuck))]
    assert node.do(Ended(1)) == []
    assert node.left is None


def test_a_writer_that_is_told_off_ends_nothing() -> None:
    node = ordered()
    assert node.do(Ordered(None)) == [KillWriter(1), Pinned(None), Tell(None)]
    assert node.do(Ended(1, Trouble.OTHER, "killed")) == []
    assert node.left is None


def test_a_failed_writer_is_started_again_after_a_pause() -> None:
    node = ordered()
    assert node.do(Ended(1, Trouble.FULL, "no room")) == [
        Retry("no room; failed 1 of 3 times (full): again in 1 s")
    ]
    assert node.pass_time(0.5) == []
    assert node.do(Ended(1)) == [], "it has ended before"
    assert node.pass_time(0.5) == [StartWriter(2, ORDER)]
    assert node.left == PATIENCE
    node.do(Ended(2, Trouble.FULL, "no room"))
    assert node.pass_time(2) == [StartWriter(3, ORDER)]
    why = "no room; failed 3 times (full): the storage does without this commit"
    assert node.do(Ended(3, Trouble.FULL, "no room")) == [outcome(StoreStage.FAILED, why)]
    assert node.left is None


def test_a_writer_that_is_silent_is_killed_and_started_again() -> None:
    node = ordered()
    node.now += PATIENCE - 1
    assert node.do(Moved(1)) == []
    assert node.pass_time(PATIENCE - 1) == []
    assert node.pass_time(1) == [KillWriter(1)]
    assert node.left == DEATH_PATIENCE
    assert node.do(Moved(1)) == [], "its last words"
    assert node.left == DEATH_PATIENCE
    [retry] = node.do(Ended(1, Trouble.OTHER, "killed by SIGKILL"))
    assert retry == Retry("nothing was written for 120 s; failed 1 of 6 times (stuck): again in 1 s")
    assert node.pass_time(1) == [StartWriter(2, ORDER)]


def test_a_writer_that_was_done_when_it_was_killed_has_done_it() -> None:
    node = ordered()
    assert node.pass_time(PATIENCE) == [KillWriter(1)]
    assert node.do(Ended(1)) == [outcome(StoreStage.WRITTEN)]


def test_a_writer_that_cannot_be_killed_fails_the_order() -> None:
    """Nobody else may write its files while it may still write them."""
    node = ordered()
    node.pass_time(PATIENCE)
    stuck = "the process that writes hangs in the storage, and cannot be killed"
    assert node.pass_time(DEATH_PATIENCE) == [outcome(StoreStage.FAILED, stuck)]
    assert node.do(Ended(1)) == []
    assert node.left is None
    assert node.pass_time(1000) == []
