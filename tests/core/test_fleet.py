"""Which replicas of a job run: one decision after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.core.fleet.cleaning import MOST_KEPT
from elasticrun.core.fleet.decide import OVER, decide
from elasticrun.core.fleet.fates import Fate, in_words, judge
from elasticrun.core.fleet.pauses import FIRST_PAUSE, LONGEST_PAUSE
from elasticrun.core.fleet.places import OVERDUE
from elasticrun.core.fleet.replicas import (
    Cause,
    CleanPolicy,
    Condition,
    Decision,
    Live,
    Phase,
    Record,
    Remove,
    Seen,
    Shape,
    Start,
    Verdict,
    Wish,
)
from elasticrun.errors import ExitCode

GB = 1 << 30
WISH = Wish(Shape(2, 4), 4, memory=GB)


def begin(
    index: int, slot: int = -1, memory: int = 0, avoided: tuple[str, ...] = (), shape: Shape = WISH.shape
) -> Start:
    """A start, of a replica without anything special if not said otherwise."""
    return Start(index, slot, memory, avoided, shape)


class World:
    """A platform that does what it is told at once."""

    def __init__(self, wish: Wish = WISH) -> None:
        self.wish = wish
        self.record = Record()
        self.seen: dict[int, Seen] = {}
        self.now = 1000.0
        self.last = Decision(self.record, (), "", (), (), None, 0)

    def look(self, now: float | None = None, stranded: int = 0) -> Decision:
        """Decide, and carry it out: what starts runs, what is removed is gone."""
        self.now = self.now if now is None else now
        self.last = decide(self.wish, self.seen.values(), self.record, self.now, stranded=stranded)
        self.record = self.last.record
        for action in self.last.actions:
            match action:
                case Start(index=index, slot=slot, memory=memory):
                    host, memory = f"host{index}", memory or self.wish.memory
                    self.seen[index] = Seen(index, Phase.RUNNING, slot, host=host, memory=memory)
                case Remove(index=index):
                    del self.seen[index]
        return self.last

    def change(self, index: int, **fields: Any) -> None:
        self.seen[index] = replace(self.seen[index], **fields)

    def end(
        self, index: int, code: int | None = None, cause: Cause = Cause.EXITED, **fields: Any
    ) -> Decision:
        """A replica ends; what is decided then."""
        self.change(index, phase=Phase.ENDED, exit_code=code, cause=cause, **fields)
        return self.look()

    @property
    def live(self) -> list[int]:
        return [each.index for each in self.record.live]

    def condition(self, kind: str) -> tuple[bool, str]:
        return next((each.holds, each.text) for each in self.last.conditions if each.kind == kind)

    @property
    def notes(self) -> str:
        return "\n".join(note.text for note in self.last.notes)


def begun(wish: Wish = WISH) -> World:
    """A world in which all that is wanted runs, and was seen."""
    world = World(wish)
    world.look()
    world.look()
    return world


def test_it_starts_what_is_wanted_and_then_nothing() -> None:
    wish = replace(WISH, shape=Shape(2, 4, 2))
    world = World(wish)
    first = world.look()
    assert first.actions == tuple(
        begin(index, slot, shape=wish.shape) for index, slot in enumerate((0, 1, -1, -1))
    )
    assert (first.phase, first.running) == ("Pending", 0)
    assert world.notes == "replicas 0, 1, 2, 3"
    second = world.look()
    assert (second.actions, second.notes, second.phase, second.running) == ((), (), "Running", 4)
    assert second.look_at is None
    assert world.condition("Available") == (True, "4 of 2:4 replicas run")


@pytest.mark.parametrize(("wanted", "runs"), [(1, 2), (3, 3), (9, 4)])
def test_what_is_wanted_is_brought_within_the_bounds(wanted: int, runs: int) -> None:
    assert len(begun(replace(WISH, wanted=wanted)).live) == runs


def test_fewer_are_wanted_and_the_newest_go() -> None:
    world = begun()
    world.wish = replace(world.wish, wanted=2)
    assert list(world.look().actions) == [
        Remove(2, "2 replicas are wanted"),
        Remove(3, "2 replicas are wanted"),
    ]
    world.wish = replace(world.wish, wanted=3)
    assert world.look().actions == (begin(4),)


def test_a_name_is_kept_for_longest_and_goes_to_the_replacement() -> None:
    world = begun()
    assert world.end(0, 137, Cause.HOST_LOST).actions == (begin(4, 0),)
    world.wish = replace(world.wish, wanted=2)
    world.look()
    assert world.live == [1, 4]


def test_a_start_that_was_not_carried_out_is_decided_again_under_the_same_index() -> None:
    wish = replace(WISH, wanted=2)
    first = decide(wish, (), Record(), 0.0)
    again = decide(wish, (), first.record, 1.0)
    assert again.actions == first.actions
    assert again.record == first.record
    assert not again.notes


def test_a_replica_that_was_seen_and_is_gone_was_deleted() -> None:
    world = begun()
    del world.seen[2]
    assert world.look().actions == (begin(4),)
    assert "replica 2 was deleted" in world.notes
    assert world.record.failures == 0


def test_a_replica_that_is_being_deleted_is_replaced_once_it_has_ended() -> None:
    world = begun()
    world.change(1, leaves_by=1030.0, cause=Cause.DELETED)
    waiting = world.look()
    assert (waiting.actions, world.live, waiting.look_at) == ((), [0, 2, 3], 1030.0 + OVERDUE)
    assert world.end(1, 143).actions == (begin(4),)


def test_a_replica_that_is_being_deleted_is_replaced_at_once_where_there_is_room() -> None:
    world = begun(replace(WISH, wanted=3))
    world.change(1, leaves_by=1030.0, cause=Cause.DELETED)
    assert world.look().actions == (begin(3),)


def test_a_name_is_free_once_who_had_it_has_ended() -> None:
    world = begun(replace(WISH, shape=Shape(2, 4, 2), wanted=3))
    world.change(0, leaves_by=1030.0)
    assert world.look().actions == ()
    world.change(2, phase=Phase.ENDED, cause=Cause.EVICTED)
    assert world.look().actions == (begin(3, shape=Shape(2, 4, 2)),)
    assert world.end(0, 143).actions == (begin(4, 0, shape=Shape(2, 4, 2)),)


def test_a_replica_that_does_not_go_holds_its_place_for_a_while_only() -> None:
    world = begun()
    world.change(1, leaves_by=1030.0)
    world.look()
    assert world.look(1030.0 + OVERDUE).actions == (begin(4),)


def test_a_replica_on_a_lost_host_is_replaced_although_it_has_not_ended() -> None:
    world = begun()
    world.change(1, cause=Cause.HOST_LOST)
    decision = world.look()
    assert begin(4) in decision.actions
    assert "replica 1 is lost with its host on host1" in world.notes


@pytest.mark.parametrize("cause", [Cause.EVICTED, Cause.HOST_LOST, Cause.PREEMPTED, Cause.DELETED])
def test_what_the_platform_did_costs_nothing(cause: Cause) -> None:
    world = begun()
    assert world.end(1, 137, cause).actions == (begin(4),)
    assert world.record.failures == 0


def test_what_deletes_all_that_is_started_is_not_fed_without_end() -> None:
    world = begun()
    first = world.now
    while world.now == first:
        for index in world.live:
            world.change(index, phase=Phase.ENDED, cause=Cause.DELETED)
        decision = world.look()
        world.look(world.now if world.live else decision.look_at)
    assert world.now == first + 10.0
    assert world.record.next_index == 4 + 16 + 4  # the last four after a pause
    assert (world.record.failures, len(world.live)) == (0, 4)
    world.now += 60.0
    assert world.end(world.live[0], 137, Cause.EVICTED).actions[-1] == begin(24, 0)  # none in a row


def test_what_goes_on_beside_a_replica_that_has_ended_is_removed_and_holds_its_name_till_then() -> None:
    world = begun(replace(WISH, shape=Shape(2, 4, 2)))
    ended = world.end(0, 137, lingers=True)
    assert ended.actions == (Remove(0, "it is not meant to run"),)
    assert world.look().actions == (begin(4, 0, shape=Shape(2, 4, 2)),)


def test_a_faulty_host_is_avoided_at_no_cost() -> None:
    world = begun()
    assert world.end(1, ExitCode.EXCLUDED).actions == (begin(4, -1, 0, ("host1",)),)
    assert world.record.failures == 0
    assert world.end(4, ExitCode.NODE_FAULT).actions == (begin(5, -1, 0, ("host1", "host4")),)
    assert world.record.failures == 1


def test_few_hosts_are_avoided_and_each_once() -> None:
    world = begun(replace(WISH, max_failures=100))
    for index in range(20):
        world.end(world.live[-1], ExitCode.EXCLUDED, host=f"host{max(index, 1)}")
    assert len(world.record.avoided) == 16
    assert world.record.avoided[-1] == "host19"


# -- memory


def test_a_replica_out_of_memory_comes_back_with_twice_as_much() -> None:
    world = begun()
    assert world.end(1, 137, Cause.OUT_OF_MEMORY).actions == (begin(4, -1, 2 * GB, ()),)
    assert "reached its memory limit of 1 GiB" in world.notes
    assert "new replicas get 2 GiB" in world.notes
    # Another one with the old limit asks for no more than the first.
    world.end(2, 137, Cause.OUT_OF_MEMORY)
    assert world.record.memory == 2 * GB


def test_memory_has_a_cap_and_then_nothing_is_replaced() -> None:
    world = begun(replace(WISH, max_memory=3 * GB))
    world.end(3, 137, Cause.OUT_OF_MEMORY)
    world.look()
    world.end(4, 137, Cause.OUT_OF_MEMORY)
    assert world.record.memory == 3 * GB
    world.look(world.now + LONGEST_PAUSE)
    world.look()
    assert world.end(5, 137, Cause.OUT_OF_MEMORY).actions == ()
    assert "there may be no more than 3 GiB" in world.condition("Hindered")[1]
    for index in (0, 1, 2):
        world.end(index, 137, Cause.OUT_OF_MEMORY, memory=3 * GB)
    assert world.last.phase == "Failed"
    assert world.condition("Failed")[0]


def test_without_another_cap_it_is_eight_times_the_first() -> None:
    world = begun(replace(WISH, memory=0))
    world.end(1, 137, Cause.OUT_OF_MEMORY, memory=GB)
    assert world.record.memory == 2 * GB
    world = begun()
    world.end(1, 137, Cause.OUT_OF_MEMORY, memory=5 * GB)
    assert world.record.memory == 8 * GB
    assert world.end(2, 137, Cause.OUT_OF_MEMORY, memory=8 * GB).record.halted


def test_a_host_out_of_memory_is_avoided_as_there_is_no_limit_to_raise() -> None:
    world = begun(replace(WISH, memory=0))
    assert world.end(1, 137, Cause.OUT_OF_MEMORY).actions == (begin(4, -1, 0, ("host1",)),)


# -- failures


def test_failures_in_a_row_are_replaced_after_growing_pauses() -> None:
    world = begun()
    assert world.end(0, 70).actions
    world.look()
    decision = world.end(4, 70)
    assert (decision.actions, decision.look_at) == ((), world.now + FIRST_PAUSE)
    assert world.look(world.now + FIRST_PAUSE).actions == (begin(5, 0),)
    world.look()
    decision = world.end(5, 70)
    assert decision.look_at == world.now + 2 * FIRST_PAUSE
    world.look(decision.look_at)
    world.look()
    assert world.end(6, None).look_at == world.now + 4 * FIRST_PAUSE
    world.look(world.now + LONGEST_PAUSE)
    assert world.live == [1, 2, 3, 7]
    world.look(world.now + 1000.0)
    assert world.end(7, 70).actions  # the next row


def test_a_job_that_is_given_up_does_not_wait_for_what_never_ran() -> None:
    world = begun(replace(WISH, shape=Shape(2, 3), wanted=3))
    world.change(2, phase=Phase.PENDING, trouble="there is no room")
    assert world.end(0, ExitCode.USAGE).record.halted
    assert world.live == [1, 2]  # one that runs may still take it in
    decision = world.end(1, ExitCode.USAGE)
    assert decision.actions == (Remove(2, "nothing is replaced any more, and none runs"),)
    assert world.look().phase == "Failed"


def test_a_job_that_is_given_up_waits_for_those_that_are_enough() -> None:
    world = begun(replace(WISH, max_failures=0))
    for index in (1, 2, 3):
        world.change(index, phase=Phase.PENDING, trouble="its image is being read")
    assert world.end(0, ExitCode.NODE_FAULT).record.halted
    assert (world.live, world.record.verdict) == ([1, 2, 3], None)


def test_replacements_are_bounded_and_the_others_go_on() -> None:
    world = begun(replace(WISH, max_failures=1))
    world.end(0, 70)
    world.look()
    decision = world.end(4, 70)
    assert decision.actions == ()
    assert "1 replacements were spent" in decision.record.halted
    assert (decision.phase, world.live) == ("Running", [1, 2, 3])
    for index in (1, 2, 3):
        decision = world.end(index, 70)
    assert decision.phase == "Failed"
    assert decision.look_at is None


def test_a_hopeless_replica_is_not_replaced_and_the_others_go_on() -> None:
    world = begun()
    assert world.end(3, ExitCode.WRONG_VERSION).actions == ()
    assert world.last.phase == "Running"
    assert world.condition("Hindered")[0]
    world.end(2, ExitCode.WRONG_VERSION)
    assert world.live == [0, 1]


def test_an_empty_job_that_is_hopeless_fails() -> None:
    world = begun(replace(WISH, wanted=2))
    world.end(0, ExitCode.USAGE)
    decision = world.end(1, ExitCode.USAGE)
    assert decision.phase == "Failed"
    assert "the command line" in world.condition("Failed")[1]


# -- the end of a job


def test_agents_that_end_with_0_end_the_job() -> None:
    world = begun()
    decision = world.end(2, 0)
    assert (decision.actions, decision.phase, decision.look_at) == ((), "Ending", world.now + OVER)
    for index in (0, 1):
        world.end(index, 0)
    assert world.end(3, ExitCode.MASTER_LOST).phase == "Succeeded"
    assert world.condition("Complete") == (True, "replica 2 ended with 0")
    assert world.look().actions == ()


@pytest.mark.parametrize("code", [ExitCode.JOB_FAILED, ExitCode.REPEATED_ERROR, ExitCode.UNHEALTHY])
def test_agents_say_that_the_job_has_failed(code: int) -> None:
    world = begun()
    assert world.end(2, code).phase == "Ending"
    for index in (0, 1, 3):
        world.end(index, code)
    assert world.last.phase == "Failed"
    assert "replica 2 ended on host2" in world.condition("Failed")[1]


def test_success_is_believed_whatever_was_said_before() -> None:
    world = begun()
    world.end(2, 1)
    world.end(1, 0)
    assert world.record.verdict is Verdict.SUCCEEDED
    world.end(0, 1)
    assert world.record.verdict is Verdict.SUCCEEDED


def test_what_does_not_end_with_its_job_is_removed() -> None:
    world = begun()
    world.end(2, 0)
    decision = world.look(world.now + OVER)
    assert [action.index for action in decision.actions] == [0, 1, 3]
    assert decision.phase == "Succeeded"


def test_what_has_not_begun_when_its_job_ends_is_removed_at_once() -> None:
    world = begun()
    world.change(3, phase=Phase.PENDING)
    assert world.end(2, 0).actions == (Remove(3, "the job is over"),)
    world = begun(replace(WISH, clean=CleanPolicy.NONE))
    world.change(3, phase=Phase.PENDING)
    assert world.end(2, 0).actions == ()


def test_a_removal_that_was_not_carried_out_is_decided_again() -> None:
    world = begun()
    world.end(2, 0)
    first = decide(world.wish, world.seen.values(), world.record, world.now + OVER)
    again = decide(world.wish, world.seen.values(), first.record, world.now + OVER)
    assert [each.index for each in again.actions] == [each.index for each in first.actions]


@pytest.mark.parametrize(
    ("policy", "removed"),
    [(CleanPolicy.ALL, [0, 1, 2, 3]), (CleanPolicy.RUNNING, [0, 1, 3]), (CleanPolicy.NONE, [])],
)
def test_what_is_cleaned(policy: CleanPolicy, removed: list[int]) -> None:
    world = begun(replace(WISH, clean=policy))
    world.end(2, 0)
    decision = world.look(world.now + OVER)
    assert [action.index for action in decision.actions] == removed
    assert decision.phase == "Succeeded"
    assert world.look().actions == ()


def test_the_end_forgets_starts_that_were_not_carried_out() -> None:
    world = begun(replace(WISH, wanted=3))
    world.wish = WISH
    decision = decide(world.wish, world.seen.values(), world.record, world.now)
    world.record = decision.record  # whoever decided it has died then
    assert world.end(0, 0).actions == ()
    assert world.live == [1, 2]


@pytest.mark.parametrize(("policy", "left"), [(CleanPolicy.RUNNING, 20), (CleanPolicy.ALL, 0)])
def test_the_logs_of_a_large_job_stay_after_its_end_unless_all_is_to_go(
    policy: CleanPolicy, left: int
) -> None:
    world = begun(Wish(Shape(2, 20), 20, clean=policy))
    for index in range(20):
        assert not any(isinstance(it, Remove) for it in world.last.actions)
        world.end(index, 0)
    world.look()
    assert (world.last.phase, len(world.seen)) == ("Succeeded", left)


def test_only_some_of_what_has_ended_is_kept() -> None:
    world = begun(replace(WISH, max_failures=100))
    for _ in range(MOST_KEPT + 3):
        world.end(world.live[-1], 137, Cause.EVICTED)
        world.look()
    ended = [index for index, each in world.seen.items() if each.phase is Phase.ENDED]
    assert len(ended) == MOST_KEPT
    world.change(ended[0], leaves_by=1.0)
    world.change(world.live[-1], phase=Phase.ENDED, cause=Cause.EVICTED)
    assert not any(isinstance(action, Remove) for action in world.look().actions)


# -- again


def test_too_few_nodes_begin_again_once_all_have_ended() -> None:
    world = begun(replace(WISH, wanted=2))
    assert world.end(1, ExitCode.RENDEZVOUS_TIMEOUT).phase == "Ending"
    decision = world.end(0, ExitCode.RENDEZVOUS_TIMEOUT)
    assert list(decision.actions) == [begin(2, 0), begin(3)]
    assert world.record.failures == 1
    assert decision.phase == "Pending"


@pytest.mark.parametrize("clean", list(CleanPolicy))
def test_one_that_was_cut_off_from_healthy_others_is_replaced_alone(clean: CleanPolicy) -> None:
    world = begun(replace(WISH, shape=Shape(2, 3, 2), wanted=3, clean=clean))
    decision = world.end(1, ExitCode.RENDEZVOUS_TIMEOUT)
    assert (decision.actions, decision.look_at) == ((), world.now + OVER)
    assert world.look(world.now + OVER).actions == (begin(3, 1, shape=Shape(2, 3, 2)),)
    assert (world.last.phase, world.live, world.record.failures) == ("Running", [0, 2, 3], 1)


def test_being_cut_off_again_and_again_is_bounded_and_the_others_go_on() -> None:
    world = begun(replace(WISH, max_failures=1))
    for index in (3, 4):
        world.end(index, ExitCode.RENDEZVOUS_TIMEOUT)
        world.look(world.now + OVER)
        world.look()
    assert (world.last.actions, world.last.phase, world.live) == ((), "Running", [0, 1, 2])
    assert "1 replacements were spent" in world.condition("Hindered")[1]


def test_beginning_again_is_bounded() -> None:
    world = begun(Wish(Shape(1, 1), 1, max_failures=0))
    assert world.end(0, ExitCode.RENDEZVOUS_TIMEOUT).phase == "Failed"


def test_a_suspended_job_does_not_begin_again_before_it_is_resumed() -> None:
    world = begun(replace(WISH, wanted=2))
    world.end(1, ExitCode.RENDEZVOUS_TIMEOUT)
    world.wish = replace(world.wish, suspended=True)
    assert world.look().actions == (Remove(0, "the job is suspended"),)
    assert world.look().phase == "Suspended"
    world.wish = replace(world.wish, suspended=False)
    assert [action.index for action in world.look().actions] == [2, 3]


def test_a_job_whose_master_lacks_those_that_are_gone_begins_again_at_once() -> None:
    world = begun()
    world.end(1, cause=Cause.EVICTED)
    world.end(2, cause=Cause.EVICTED)
    assert world.live == [0, 3, 4, 5]
    world.change(5, phase=Phase.PENDING, host="")  # it cannot know the last world
    removed = world.look(stranded=3)
    assert removed.phase == "Ending"
    assert world.notes.startswith("too few of the last world are left among the 3 that run")
    assert [each.index for each in removed.actions if isinstance(each, Remove)] == [0, 3, 4, 5]
    again = world.look()
    assert [each.index for each in again.actions] == [6, 7, 8, 9]
    assert (world.record.failures, world.record.verdict) == (1, None)


def test_it_does_not_begin_again_before_the_stranded_have_ended() -> None:
    world = begun()
    first = decide(world.wish, world.seen.values(), world.record, world.now, stranded=4)
    leaving = [replace(each, leaves_by=world.now + 45.0) for each in world.seen.values()]
    assert decide(world.wish, leaving, first.record, world.now, stranded=4).actions == ()


@pytest.mark.parametrize("stranded", [0, 3])
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.PENDING])  # it has a host: it may run by now
def test_a_master_without_one_that_may_run_may_only_be_cut_off(stranded: int, phase: Phase) -> None:
    world = begun()
    world.change(3, phase=phase)
    assert world.look(stranded=stranded).actions == ()


def test_while_some_save_and_leave_the_others_are_not_taken_for_stranded() -> None:
    world = begun()
    world.end(0, 14)
    world.end(1, 14)
    waiting = world.look(stranded=2)
    assert (waiting.actions, waiting.look_at) == ((), world.now + 45.0)
    world.look(world.now + 45.0, stranded=2)
    again = world.look()
    assert [each.index for each in again.actions if isinstance(each, Start)] == [4, 5, 6, 7]
    assert (world.record.failures, world.record.verdict) == (1, None)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ENDED])
def test_a_job_that_is_over_or_suspended_does_not_begin_again(phase: Phase) -> None:
    world = begun()
    world.wish = replace(world.wish, suspended=phase is Phase.RUNNING)
    world.change(3, phase=phase, exit_code=0)
    world.look(stranded=9)
    assert (world.record.failures, world.record.verdict) in ((0, None), (0, Verdict.SUCCEEDED))


# -- drains


def test_a_replica_that_was_told_to_leave_is_replaced_if_the_others_stay() -> None:
    world = begun()
    decision = world.end(1, ExitCode.DRAINED)
    assert (decision.actions, decision.look_at) == ((), world.now + WISH.grace)
    assert world.look(world.now + WISH.grace).actions == (begin(4),)
    assert world.record.drained_at is None
    assert world.record.failures == 0


def test_a_job_whose_replicas_were_all_told_to_leave_was_stopped() -> None:
    world = begun(replace(WISH, wanted=2))
    world.end(0, ExitCode.DRAINED)
    assert world.end(1, ExitCode.DRAINED).phase == "Stopped"
    assert world.look(world.now + 1000.0).actions == ()


def test_a_job_that_loses_its_last_replica_after_a_drain_was_not_stopped() -> None:
    world = begun(replace(WISH, wanted=2))
    world.end(0, ExitCode.DRAINED)
    assert len(world.end(1, 137, Cause.EVICTED).actions) == 2


# -- suspend


def test_suspend_removes_all_and_resume_starts_others() -> None:
    world = begun()
    world.end(3, 137, Cause.OUT_OF_MEMORY)
    world.look()
    world.wish = replace(world.wish, suspended=True)
    decision = world.look()
    assert [action.index for action in decision.actions] == [0, 1, 2, 4]
    assert decision.phase == "Suspending"
    assert world.look().phase == "Suspended"
    assert world.condition("Suspended")[0]
    assert world.record.failures == 0  # resuming gives the job another chance
    world.wish = replace(world.wish, suspended=False)
    starts = [(it.index, it.slot, it.memory) for it in world.look().actions if isinstance(it, Start)]
    assert starts == [(5, 0, 2 * GB), (6, -1, 2 * GB), (7, -1, 2 * GB), (8, -1, 2 * GB)]


def test_a_job_that_is_over_stays_so_when_it_is_suspended() -> None:
    world = begun(replace(WISH, wanted=2))
    world.end(0, 0)
    world.wish = replace(world.wish, suspended=True)
    assert world.look().phase == "Ending"
    assert world.end(1, 0).phase == "Succeeded"


def test_a_resume_waits_for_those_that_still_leave() -> None:
    world = begun()
    for index in range(4):
        world.change(index, leaves_by=1030.0)
    assert world.look().actions == ()
    world.end(0, 143)
    assert world.live == [4]


# -- a record that was lost


def test_replicas_that_the_record_does_not_know_are_taken_over() -> None:
    world = begun()
    world.change(3, phase=Phase.ENDED, exit_code=70)
    world.change(2, leaves_by=1030.0)
    world.record = Record()
    decision = world.look()
    assert "replicas 0, 1, 2, 3 are not in the record" in world.notes
    assert decision.record.live[:2] == (Live(0, 0, True), Live(1, -1, True))
    assert [action.index for action in decision.actions] == [4]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (ExitCode.REPEATED_ERROR, "Failed")])
def test_a_job_that_was_over_does_not_run_again_if_its_record_is_lost(code: int, phase: str) -> None:
    world = begun(replace(WISH, wanted=2))
    for index in (0, 1):
        world.end(index, code)
    world.record = Record()
    assert (world.look().actions, world.last.phase, world.record.next_index) == ((), phase, 2)


def test_a_replica_that_is_not_meant_to_run_is_removed() -> None:
    world = begun()
    world.record = replace(world.record, live=world.record.live[1:])
    world.wish = replace(world.wish, wanted=3)
    assert world.look().actions == (Remove(0, "it is not meant to run"),)


def test_other_bounds_hold_once_nothing_runs_that_knows_the_old_ones() -> None:
    world = begun()
    world.wish = replace(WISH, shape=Shape(3, 6, 3), wanted=6)
    assert world.look().actions == ()
    assert world.condition("Available")[1].endswith(
        "4 of 2:4 replicas run; 3:6 holds once it was suspended and resumed"
    )
    assert world.end(1, 137, Cause.EVICTED).actions == (begin(4),)
    world.wish = replace(world.wish, suspended=True)
    world.look()
    world.look()
    world.wish = replace(world.wish, suspended=False)
    assert world.look().actions == tuple(
        begin(index, slot, shape=Shape(3, 6, 3))
        for index, slot in zip(range(5, 11), (0, 1, 2, -1, -1, -1), strict=True)
    )


def test_trouble_of_replicas_is_told() -> None:
    world = begun()
    world.change(1, phase=Phase.PENDING, trouble="the image is missing")
    world.look()
    assert world.condition("Hindered") == (True, "replica 1: the image is missing")


def test_what_the_platform_refused_is_told() -> None:
    decision = decide(WISH, (), Record(), 0.0, "the quota is spent")
    assert decision.conditions[1] == Condition("Hindered", True, "Refused", "the quota is spent")


# -- fates


@pytest.mark.parametrize(
    ("seen", "fate", "avoid", "text"),
    [
        (
            Seen(1, Phase.ENDED, exit_code=5, host="a"),
            Fate.FAILED,
            True,
            "ended on a with 5: another program",
        ),
        (Seen(1, Phase.ENDED, exit_code=139), Fate.FAILED, False, "ended with 139: signal 11"),
        (Seen(1, Phase.ENDED, exit_code=99), Fate.FAILED, False, "ended with 99"),
        (Seen(1, Phase.ENDED), Fate.FAILED, False, "ended without an exit code"),
        (Seen(1, Phase.ENDED, cause=Cause.NOT_STARTED), Fate.FAILED, False, "was refused"),
        (Seen(1, Phase.ENDED, cause=Cause.EVICTED, words="no disk"), Fate.FREE, False, "something (no disk)"),
        (Seen(1, Phase.ENDED, cause=Cause.PREEMPTED), Fate.FREE, False, "was preempted"),
        (Seen(1, Phase.RUNNING, leaves_by=1.0), Fate.FREE, False, "was deleted"),
        (Seen(1, Phase.ENDED, exit_code=14, leaves_by=1.0), Fate.FREE, False, "ended with 14"),
        (Seen(1, Phase.ENDED, exit_code=1, leaves_by=1.0), Fate.JOB_FAILED, False, "ended with 1"),
        (Seen(1, Phase.ENDED, exit_code=1, cause=Cause.EVICTED), Fate.FREE, False, "was evicted"),
        (Seen(1, Phase.ENDED, exit_code=137, cause=Cause.OUT_OF_MEMORY), Fate.FAILED, True, "not set"),
    ],
)
def test_fates(seen: Seen, fate: Fate, avoid: bool, text: str) -> None:
    found = judge(seen)
    assert (found.fate, found.avoid) == (fate, avoid)
    assert text in found.text


@pytest.mark.parametrize(
    ("memory", "words"), [(GB * 3 // 2, "1.5 GiB"), (5 << 20, "5 MiB"), (2048, "2 KiB"), (7, "7 bytes")]
)
def test_memory_in_words(memory: int, words: str) -> None:
    assert in_words(memory) == words
