"""Operations for more or fewer replicas: one at a time, each done once, each with an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    ENDED,
    Decision,
    Operation,
    Phase,
    Record,
    Remove,
    Seen,
    Shape,
    Start,
    Wish,
)
from elasticrun.core.fleet.scaling import MOST_RESULTS

WISH = Wish(Shape(2, 5), 3)


class World:
    """A platform that does at once what it is told; new replicas run unless said otherwise."""

    def __init__(self, wish: Wish = WISH) -> None:
        self.wish = wish
        self.record = Record()
        self.seen: dict[int, Seen] = {}
        self.now = 1000.0
        self.are_slow = False  # to run
        self.look()
        self.look()

    def look(self, *operations: Operation) -> Decision:
        decision = decide(self.wish, self.seen.values(), self.record, self.now, "", operations)
        again = decide(self.wish, self.seen.values(), decision.record, self.now, "", operations)
        assert again.record == decision.record
        assert again.results == decision.results
        self.record = decision.record
        for action in decision.actions:
            if isinstance(action, Start):
                phase = Phase.PENDING if self.are_slow else Phase.RUNNING
                self.seen[action.index] = Seen(action.index, phase, action.slot)
            elif isinstance(action, Remove):
                self.seen[action.index] = replace(self.seen[action.index], leaves_by=self.now + 30.0)
        return decision

    def gone(self) -> None:
        """What was removed has ended."""
        self.seen = {index: each for index, each in self.seen.items() if not each.is_leaving}

    @property
    def live(self) -> list[int]:
        return [each.index for each in self.record.live]


def told(decision: Decision) -> list[tuple[str, str, str]]:
    return [(each.key, each.phase.value, each.text) for each in decision.results]


def test_out_ends_once_all_run() -> None:
    world, out = World(), Operation("a", 2)
    world.are_slow = True
    assert told(world.look(out)) == [("a", "Running", "until there are 5 replicas")]
    assert world.live == [0, 1, 2, 3, 4]
    decision = world.look(out)
    assert (told(decision)[0][1], decision.look_at, decision.wanted) == ("Running", 1600.0, 5)
    for index in (3, 4):
        world.seen[index] = replace(world.seen[index], phase=Phase.RUNNING)
    assert told(world.look(out)) == [("a", "Succeeded", "5 replicas, as was asked for")]
    assert told(world.look(out))[0][1] == "Succeeded"  # whoever was to tell it has died
    world.look()
    assert world.live == [0, 1, 2, 3, 4]


def test_out_that_is_not_there_in_time_is_taken_back() -> None:
    world, out = World(), Operation("a", 1, timeout=60.0)
    world.are_slow = True
    world.look(out)
    world.now += 60.0
    text = "3 of 4 replicas ran in time: there are as many wanted as before"
    assert told(world.look(out)) == [("a", "Failed", text)]
    assert world.live == [0, 1, 2]


def test_in_by_count_lets_the_newest_go() -> None:
    world, less = World(), Operation("a", -1)
    decision = world.look(less)
    assert (told(decision)[0][1], world.live, decision.wanted) == ("Running", [1, 0][::-1], 2)
    assert told(world.look(less))[0][1] == "Running"  # it still ends
    world.gone()
    assert told(world.look(less)) == [("a", "Succeeded", "2 replicas, as was asked for")]


def test_in_by_name_lets_these_go_and_nothing_takes_their_place() -> None:
    world, less = World(), Operation("a", indices=(1,))
    decision = world.look(less)
    assert decision.actions == (Remove(1, "it was asked to leave"),)
    world.gone()
    assert told(world.look(less))[0][1] == "Succeeded"
    world.look()
    assert world.live == [0, 2]
    world.look(Operation("b", 1))
    assert world.live == [0, 2, 3]  # no index is used twice


def test_in_that_does_not_end_in_time_says_so_and_stays() -> None:
    world, less = World(), Operation("a", -1, timeout=10.0)
    world.look(less)
    world.now += 10.0
    assert told(world.look(less)) == [("a", "Failed", "1 replicas did not end in time")]
    assert world.live == [0, 1]


def test_a_lost_replica_does_not_end_a_growth() -> None:
    world, out = World(), Operation("a", 1)
    world.look(out)
    del world.seen[1]
    assert told(world.look(out))[0][1] == "Running"
    assert world.live == [0, 2, 3, 4]
    assert told(world.look(out))[0][1] == "Succeeded"


def test_there_is_one_at_a_time() -> None:
    world, out, less = World(), Operation("a", 1), Operation("b", -1)
    assert told(world.look(out, less))[1] == ("b", "Waiting", "another operation is under way")
    assert [each[1] for each in told(world.look(out, less))] == ["Succeeded", "Running"]
    world.gone()
    assert [each[1] for each in told(world.look(out, less))] == ["Succeeded", "Succeeded"]
    assert world.live == [0, 1, 2]


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (Operation("a", 3), "there would be 6 replicas of at most 5"),
        (Operation("a", -2), "there would be 1 replicas of at least 2"),
        (Operation("a", indices=(7, 8)), "there is no replica 7, 8"),
        (Operation("a", indices=(1, 1)), "a replica is named twice"),
        (Operation("a"), "it asks for nothing"),
    ],
)
def test_what_cannot_be_is_refused(operation: Operation, text: str) -> None:
    world = World()
    assert told(world.look(operation)) == [("a", "Failed", text)]
    assert world.live == [0, 1, 2]


def test_a_new_number_in_the_job_replaces_what_operations_did() -> None:
    world, out = World(), Operation("a", 1)
    world.are_slow = True
    world.look(out)
    world.wish = replace(WISH, wanted=2)
    assert told(world.look(out)) == [("a", "Failed", "the job's own number of replicas was changed")]
    assert world.live == [0, 1]
    assert world.record.offset == 0


def test_a_suspended_job_and_one_that_is_over_take_none() -> None:
    world, out = World(), Operation("a", 1)
    world.are_slow = True
    world.look(out)
    world.wish = replace(WISH, suspended=True)
    assert told(world.look(out)) == [("a", "Failed", "the job is suspended")]
    world.wish = WISH
    world.gone()
    world.are_slow = False
    world.look()
    world.seen[world.live[0]] = replace(world.seen[world.live[0]], phase=Phase.ENDED, exit_code=0)
    assert told(world.look(Operation("b", 1))) == [("b", "Failed", "the job is over")]


def test_some_results_are_remembered() -> None:
    world = World()
    for number in range(MOST_RESULTS + 3):
        world.look(Operation(str(number)))
    assert len(world.record.results) == MOST_RESULTS + 1
    assert world.record.results[-1].key == str(MOST_RESULTS + 2)


def test_very_many_at_once_are_all_told_in_the_end_and_none_is_done_twice() -> None:
    world = World()
    many = [Operation(str(number), -1 if number == 1 else 0) for number in range(3 * MOST_RESULTS)]
    for _ in range(6):
        decision = world.look(*many)
        ended = {each.key for each in decision.results if each.phase in ENDED}
        many = [each for each in many if each.key not in ended]
        world.gone()
    assert not many
    assert world.live == [0, 1]


def test_a_result_that_was_not_told_is_not_forgotten() -> None:
    world, first = World(), Operation("first", -1)
    world.look(first)
    world.gone()
    world.look(first)  # which has ended, but whoever was to tell it has died
    for number in range(MOST_RESULTS):
        world.look(first, Operation(str(number)))
    assert world.live == [0, 1]
    assert told(world.look(first))[0][1] == "Succeeded"
