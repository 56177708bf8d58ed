"""How one commit after the other is copied."""

from __future__ import annotations

import pytest

from elasticrun.core.protocol.commits import CommitId, Copy, Holding, Inlet, Part, Sent
from elasticrun.core.state.replication import Replication, Transport

INLET = Inlet(29500, b"k" * 32)
FIRST, SECOND = CommitId(0, 5), CommitId(0, 6)
DONE = Sent(FIRST, 1)


def told(commit: CommitId, *ranks: int) -> list[Holding]:
    return [Holding(commit, 2, tuple(Part(rank, f"d{rank}", True) for rank in ranks))]


def to(node: str, rank: int) -> Transport:
    return node, Copy(rank, node, INLET)


def busy(replication: Replication) -> bool:
    """Whether some sender may still send."""
    return replication.is_arriving and not replication.is_sent


@pytest.fixture
def both() -> Replication:
    """Nodes a and b send each other their parts."""
    made = Replication()
    made.begin(FIRST, {"a": [to("b", 0)], "b": [to("a", 1)]})
    return made


def test_all_has_arrived_once_each_receiver_tells_of_it(both: Replication) -> None:
    assert both.orders("a") == (Copy(0, "b", INLET),)
    assert both.orders("z") == ()
    assert not both.hear("a", told(FIRST, 0), None)
    assert not both.hear("a", told(FIRST, 0, 1), None)
    assert busy(both)
    assert not both.hear("z", told(FIRST, 0), None), "nobody expects anything of it"
    assert both.hear("b", told(FIRST, 0, 1), None)
    assert not busy(both)
    assert not both.hear("b", told(FIRST, 0, 1), None), "once is enough"


def test_another_commit_is_not_what_was_sent(both: Replication) -> None:
    both.hear("a", told(SECOND, 0, 1), None)
    assert not both.hear("b", told(SECOND, 0, 1), None)


def test_the_next_one_may_begin_once_all_senders_are_done(both: Replication) -> None:
    both.hear("a", [], DONE)
    assert busy(both)
    both.hear("b", [], Sent(FIRST, 0))
    assert busy(both), "that was the one before"
    both.hear("b", [], DONE)
    assert not busy(both)
    both.begin(SECOND, {"a": [to("b", 0)]})
    assert busy(both)
    assert (both.copying, both.orders("b")) == (SECOND, ())


def test_nobody_waits_for_a_node_that_is_gone(both: Replication) -> None:
    both.begin(FIRST, {"a": [to("b", 0)], "b": [to("a", 1), to("c", 1)]})
    both.lose("a")
    assert (both.orders("a"), busy(both)) == ((), True)
    both.lose("c")
    assert (len(both.orders("b")), busy(both)) == (2, False)


def test_a_sender_that_is_gone_keeps_nobody_from_the_next_one() -> None:
    made = Replication()
    made.begin(FIRST, {"a": [to("b", 0)], "c": [to("b", 2)]})
    made.lose("c")
    assert busy(made)
    made.hear("a", [], DONE)
    assert not busy(made)


def test_a_new_round_stops_it(both: Replication) -> None:
    both.stop()
    assert (both.copying, both.orders("a")) == (None, ())
    assert not busy(both)
    assert not both.hear("a", told(FIRST, 0, 1), DONE)


def test_a_commit_that_is_sent_to_others_is_another_order(both: Replication) -> None:
    """Who was done with the first one is not done with the second."""
    both.hear("a", [], DONE)
    both.begin(FIRST, {"a": [to("c", 0)]})
    both.hear("a", [], DONE)
    assert busy(both)
    both.hear("a", [], Sent(FIRST, 2))
    assert not busy(both)


def test_what_was_sent_is_waited_for_and_what_was_missed_is_not(both: Replication) -> None:
    """The word of a sender may come before that of the receiver."""
    both.begin(FIRST, {"a": [to("b", 0), to("c", 0), to("c", 2)]})
    both.hear("a", [], Sent(FIRST, 2, missed=(1, 7)))
    assert (both.is_sent, both.is_arriving) == (True, True)
    both.hear("b", told(FIRST, 0, 1), None)
    assert both.is_arriving
    both.hear("a", [], Sent(FIRST, 2, missed=(2, 1)))
    assert not both.is_arriving


def test_who_has_not_told_in_time_is_waited_for_no_longer(both: Replication) -> None:
    both.hear("a", [], DONE)
    assert not both.is_sent, "b may still send"
    both.hear("b", [], DONE)
    both.expect_nothing()
    assert (both.is_sent, both.is_arriving) == (False, False)
    assert not both.hear("a", told(FIRST, 0, 1), None)


def test_what_a_lost_sender_was_to_send_does_not_arrive() -> None:
    made = Replication()
    made.begin(FIRST, {"a": [to("b", 0)], "c": [to("b", 2)]})
    made.lose("c")
    made.hear("b", told(FIRST, 0, 1), None)
    assert not made.is_arriving
