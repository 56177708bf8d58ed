"""Jobs with several roles: each is kept by itself, and what proves something of the job proves it of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.pauses import FIRST_PAUSE
from elasticrun.core.fleet.replicas import (
    Amounts,
    Bounds,
    Cause,
    Count,
    Decision,
    Live,
    Operation,
    Phase,
    Record,
    Remove,
    Role,
    Seen,
    Shape,
    Start,
    Tally,
    Usage,
    Verdict,
    Wish,
)
from elasticrun.core.fleet.roles import bounds_of, in_words, slots_of, tally_of
from elasticrun.core.fleet.sizing import DEFAULT_CAPS

GB = 1 << 30
SHAPE = Shape(4, 7, 3, (Bounds("chief", 1, 1), Bounds("ps", 2, 2), Bounds("worker", 1, 4)))
ROLES = (Role("chief", 1, memory=GB), Role("ps", 2, 2, memory=4 * GB), Role("worker", 2, memory=GB))
WISH = Wish(SHAPE, 5, roles=ROLES)


class World:
    """A platform that does what it is told at once."""

    def __init__(self, wish: Wish = WISH) -> None:
        self.wish = wish
        self.record = Record()
        self.seen: dict[int, Seen] = {}
        self.now = 1000.0
        self.look()
        self.last = self.look()

    def look(self, *operations: Operation, usage: Usage | None = None, unstarted: str = "") -> Decision:
        """Decide, and carry it out: what starts runs, what is removed is gone."""
        seen, used = self.seen.values(), usage or Usage()
        self.last = decide(self.wish, seen, self.record, self.now, "", operations, used, unstarted)
        self.record = self.last.record
        for action in self.last.actions:
            if isinstance(action, Start):
                role = next((it for it in self.wish.roles if it.name == action.role), Role("", 0))
                memory = action.memory or role.memory
                self.seen[action.index] = Seen(
                    action.index, Phase.RUNNING, action.slot, memory=memory, role=action.role
                )
            else:
                del self.seen[action.index]
        return self.last

    def end(self, index: int, code: int, cause: Cause = Cause.EXITED) -> Decision:
        self.seen[index] = replace(self.seen[index], phase=Phase.ENDED, exit_code=code, cause=cause)
        return self.look()

    def delete(self, index: int) -> Decision:
        del self.seen[index]
        return self.look()

    @property
    def live(self) -> dict[int, str]:
        return {each.index: each.role for each in self.record.live}


def starts(decision: Decision) -> list[tuple[int, str, int]]:
    """Index, role and slot."""
    return [(it.index, it.role, it.slot) for it in decision.actions if isinstance(it, Start)]


def notes(decision: Decision) -> list[str]:
    return [note.text for note in decision.notes]


FIRST = {0: "chief", 1: "ps", 2: "ps", 3: "worker", 4: "worker"}


def test_each_role_gets_what_it_wants_and_slots_go_to_those_that_there_always_are() -> None:
    decision = decide(WISH, (), Record(), 0.0)
    assert starts(decision) == [
        (0, "chief", 0),
        (1, "ps", 1),
        (2, "ps", 2),
        (3, "worker", -1),
        (4, "worker", -1),
    ]
    assert notes(decision) == ["replicas 0 of chief", "replicas 1, 2 of ps", "replicas 3, 4 of worker"]
    assert {it.shape for it in decision.actions if isinstance(it, Start)} == {SHAPE}
    assert decision.wanted == 5


def test_a_successor_has_the_role_and_the_slot_of_the_lost_one() -> None:
    world = World()
    assert starts(world.delete(2)) == [(5, "ps", 2)]
    assert notes(world.last)[0] == "replica 2 of ps was deleted"
    assert starts(world.delete(0)) == [(6, "chief", 0)]
    assert starts(world.delete(3)) == [(7, "worker", -1)]


def test_a_job_runs_once_each_role_has_its_least() -> None:
    world = World()
    assert (world.last.phase, world.last.running) == ("Running", 5)
    assert world.last.roles == (Count("chief", 1, 1), Count("ps", 2, 2), Count("worker", 2, 2))
    world.seen[1] = replace(world.seen[1], phase=Phase.PENDING, trouble="no host")
    assert world.look().phase == "Pending"  # four run, which would be enough if one of them were a ps
    conditions = {it.kind: it.text for it in world.last.conditions}
    assert conditions["Available"] == "chief 1 of 1:1, ps 1 of 2:2, worker 2 of 1:4 replicas run"
    assert conditions["Hindered"] == "replica 1 of ps: no host"


def test_only_the_role_that_lacked_memory_gets_more() -> None:
    world = World()
    assert starts(world.end(1, 137, Cause.OUT_OF_MEMORY)) == [(5, "ps", 1)]
    assert "new replicas of ps get 8 GiB, as one had too little" in notes(world.last)
    assert world.seen[5].memory == 8 * GB
    world.delete(3)
    assert world.seen[6].memory == GB
    assert (tally_of(world.record, "ps").failures, tally_of(world.record, "worker").failures) == (1, 0)
    assert world.record.failures == 0


def test_failures_of_a_role_pause_and_end_only_its_own_replacements() -> None:
    world = World()
    world.end(1, 70)
    world.end(2, 70)  # the second in a row
    assert world.live == {0: "chief", 3: "worker", 4: "worker", 5: "ps"}
    assert starts(world.delete(3)) == [(6, "worker", -1)]
    world.now += FIRST_PAUSE
    assert starts(world.look()) == [(7, "ps", 2)]
    world.end(7, 70)
    halted = {it.kind: it.text for it in world.last.conditions}["Hindered"]
    assert halted.startswith("replica 7 of ps ended with 70") and halted.endswith("2 replacements were spent")
    assert starts(world.delete(4)) == [(8, "worker", -1)]
    world.now += 1000.0
    assert starts(world.look()) == []


def test_a_role_that_is_given_up_ends_the_job_once_nothing_runs() -> None:
    world = World()
    world.seen = {
        index: replace(each, phase=Phase.PENDING) for index, each in world.seen.items() if index != 0
    }
    world.seen[0] = Seen(0, Phase.ENDED, exit_code=2, role="chief")
    decision = world.look()
    assert {it.index for it in decision.actions if isinstance(it, Remove)} == {1, 2, 3, 4}
    assert world.look().phase == "Failed"
    assert world.record.why.startswith("replica 0 of chief ended with 2")


def test_what_a_replica_proves_of_the_job_it_proves_in_any_role() -> None:
    world = World()
    assert world.end(3, 0).record.verdict is Verdict.SUCCEEDED
    assert world.record.why == "replica 3 of worker ended with 0"


def test_beginning_again_counts_for_the_whole_job() -> None:
    world = World()
    for index in FIRST:
        world.end(index, 3)
    assert world.record.verdict is None
    assert world.live == {5: "chief", 6: "ps", 7: "ps", 8: "worker", 9: "worker"}
    assert (world.record.failures, world.record.tallies and world.record.tallies[0].failures) == (1, 0)


def test_too_many_beginnings_end_the_job() -> None:
    world = World(replace(WISH, max_failures=0))
    for index in FIRST:
        world.end(index, 3)
    assert (world.last.phase, world.live) == ("Failed", {})


def test_an_operation_changes_its_role_alone() -> None:
    world = World()
    more = Operation("a", 2, role="worker")
    assert [it.text for it in world.look(more).results] == ["until there are 4 replicas of worker"]
    assert world.live == {**FIRST, 5: "worker", 6: "worker"}
    assert world.look(more).results[0].text == "4 replicas of worker, as was asked for"
    fewer = Operation("b", indices=(3, 5), role="worker")
    world.look(fewer)
    assert world.look(fewer).results[0].text == "2 replicas of worker, as was asked for"
    assert world.live == {0: "chief", 1: "ps", 2: "ps", 4: "worker", 6: "worker"}
    assert world.record.scaling is None and tally_of(world.record, "worker").offset == 0


def test_a_growth_that_is_not_there_in_time_is_taken_back_in_its_role() -> None:
    world, more = World(), Operation("a", 1, role="worker")
    world.look(more)
    world.seen[5] = replace(world.seen[5], phase=Phase.PENDING)
    world.now += 601.0
    text = "2 of 3 replicas of worker ran in time: there are as many wanted as before"
    assert world.look(more).results[0].text == text
    assert world.live == FIRST


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (Operation("a", 1), "the job has several roles: name one of chief, ps, worker"),
        (Operation("a", 1, role="x"), "the job has no role x: name one of chief, ps, worker"),
        (Operation("a", 1, role="ps"), "there would be 3 replicas of ps of at most 2"),
        (Operation("a", -1, role="ps"), "there would be 1 replicas of ps of at least 2"),
        (Operation("a", indices=(3,), role="ps"), "there is no replica 3 of ps"),
    ],
)
def test_what_cannot_be_is_refused(operation: Operation, text: str) -> None:
    world = World()
    assert world.look(operation).results[0].text == text
    assert world.live == FIRST


def test_a_job_with_one_role_knows_its_name() -> None:
    wish = Wish(Shape(1, 3), 1, name="worker")
    for role, text in (
        ("worker", "2 replicas"),
        ("", "2 replicas"),
        ("ps", "the job has no role ps"),
    ):
        record = decide(wish, (), Record(), 0.0).record
        seen = [Seen(0, Phase.RUNNING, 0)]
        result = decide(wish, seen, record, 1.0, "", [Operation("a", 1, role=role)]).results[0]
        assert text in result.text


def test_another_number_of_one_role_ends_its_operation_only() -> None:
    world, more = World(), Operation("a", 1, role="worker")
    world.seen[3] = replace(world.seen[3], phase=Phase.PENDING)
    world.look(more)
    assert world.record.scaling is not None
    chief, ps, worker = ROLES
    world.wish = replace(WISH, roles=(replace(chief, max_failures=3), replace(ps, wanted=1), worker))
    assert world.look(more).results[0].phase.value == "Running"
    world.wish = replace(WISH, roles=(chief, ps, replace(worker, wanted=4)))
    assert world.look(more).results[0].text == "the job's own number of replicas of worker was changed"
    assert sorted(world.live.values()) == ["chief", "ps", "ps", *["worker"] * 4]


def test_roles_stay_those_of_the_pods_that_run_until_none_does() -> None:
    world = World()
    bounds = (Bounds("chief", 1, 1), Bounds("worker", 2, 2))
    other = Wish(Shape(3, 3, 3, bounds), 3, roles=(ROLES[0], Role("worker", 2)))
    world.wish = other
    decision = world.look()
    assert world.live == FIRST  # a role that is not asked for any more keeps what it has
    text = {it.kind: it.text for it in decision.conditions}["Available"]
    assert text.endswith("replicas run; chief 1:1, worker 2:2 holds once it was suspended and resumed")
    world.end(1, 137, Cause.OUT_OF_MEMORY)
    world.wish = replace(other, suspended=True)
    world.look()
    assert world.look().phase == "Suspended"
    assert {it.role for it in world.record.tallies} <= {"chief", "worker"}
    world.wish = other
    assert [role for _, role, _ in starts(world.look())] == ["chief", "worker", "worker"]


def test_a_job_that_runs_keeps_its_numbers_when_it_gets_a_role_or_loses_one() -> None:
    plain = Wish(Shape(1, 4), 4, memory=GB)
    world = World(plain)
    world.wish = replace(WISH, shape=Shape(2, 2, 1, (Bounds("a", 1, 1), Bounds("b", 1, 1))), roles=())
    assert world.look().actions == ()
    world = World()
    world.wish = Wish(Shape(1, 8), 8, memory=GB)
    assert world.look().actions == ()


def test_a_role_that_was_renamed_is_scaled_from_what_it_had() -> None:
    spot = Bounds("spot", 1, 10)
    world = World(Wish(Shape(1, 10, 1, (spot,)), 3, roles=(Role("spot", 3),)))
    renamed = Bounds("cheap", 1, 10)
    world.wish = Wish(Shape(1, 10, 1, (renamed,)), 10, roles=(Role("cheap", 10),))
    decision = world.look(Operation("a", 1, role="spot"))
    assert [role for _, role, _ in starts(decision)] == ["spot"]
    assert len(world.live) == 4


def test_a_role_of_no_replicas_that_is_gone_starts_none() -> None:
    spot = Bounds("spot", 0, 10)
    first = Bounds("first", 1, 1)
    shape = Shape(1, 11, 1, (first, spot))
    world = World(Wish(shape, 1, roles=(Role("first", 1), Role("spot", 0))))
    world.wish = Wish(Shape(1, 1, 1, (first,)), 1, roles=(Role("first", 1),))
    assert world.look().actions == ()


def test_an_operation_for_a_role_that_is_gone_has_failed() -> None:
    world, more = World(), Operation("a", 1, role="worker")
    world.seen[3] = replace(world.seen[3], phase=Phase.PENDING)
    world.look(more)
    world.seen.clear()
    world.record = replace(world.record, live=(), shape=None)
    world.wish = Wish(Shape(1, 1), 1)
    assert world.look(more).results[0].text == "the job has no role worker any more"


def test_memory_is_what_a_suspension_leaves_of_a_role() -> None:
    world = World()
    world.end(1, 137, Cause.OUT_OF_MEMORY)
    world.wish = replace(WISH, suspended=True)
    world.look()
    world.look()
    assert tally_of(world.record, "ps") == Tally("ps", memory=8 * GB, base=2)
    world.wish = WISH
    world.look()
    assert [it.memory for it in world.last.actions if isinstance(it, Start) and it.role == "ps"] == [
        8 * GB
    ] * 2


def test_each_role_requests_what_its_own_replicas_used() -> None:
    room = Amounts(64 * GB, 32_000)
    measured = Usage(by_role=(("ps", Usage(Amounts(8 * GB, 800), room)), ("x", Usage(room, room))))
    roles = tuple(replace(role, caps=DEFAULT_CAPS) for role in ROLES)
    world = World(replace(WISH, roles=roles))
    world.look(usage=measured)
    world.delete(2)
    (start,) = (it for it in world.last.actions if isinstance(it, Start))
    assert start.role == "ps" and start.requests.memory > 10 * GB and start.requests.cpu == 1100
    world.delete(3)
    (start,) = (it for it in world.last.actions if isinstance(it, Start))
    assert (start.role, start.requests) == ("worker", Amounts())
    assert world.record.requests == Amounts()
    world.seen[1] = replace(world.seen[1], phase=Phase.PENDING, is_homeless=True, trouble="full")
    decision = world.look()
    assert "nothing of ps is requested by what was measured any more: replica 1: full" in notes(decision)
    assert [it.index for it in decision.actions if isinstance(it, Remove)] == [1]


def test_replicas_that_the_record_does_not_know_are_taken_over_in_their_roles() -> None:
    seen = [
        Seen(3, Phase.RUNNING, 0, role="chief"),
        Seen(4, Phase.RUNNING, role="worker"),
        Seen(5, Phase.RUNNING, role="stranger"),
    ]
    decision = decide(WISH, seen, Record(), 0.0)
    assert {it.index: it.role for it in decision.record.live} == {
        3: "chief",
        4: "worker",
        6: "ps",
        7: "ps",
        8: "worker",
    }
    assert [it.index for it in decision.actions if isinstance(it, Remove)] == [5]


def test_what_a_record_says_of_a_role_that_there_is_not_is_removed() -> None:
    record = Record(next_index=1, shape=SHAPE, live=(Live(0, seen=True, role="stranger"),))
    decision = decide(WISH, [Seen(0, Phase.RUNNING, role="stranger")], record, 0.0)
    assert 0 not in {it.index for it in decision.record.live}
    assert Remove(0, "it is not meant to run") in decision.actions


def test_in_a_job_with_one_role_a_label_means_nothing() -> None:
    decision = decide(Wish(Shape(1, 1), 1), [Seen(0, Phase.RUNNING, 0, role="ps")], Record(), 0.0)
    assert decision.record.live == (Live(0, 0, True),)
    assert decision.roles == ()


def test_bounds_and_slots_of_roles() -> None:
    assert [slots_of(SHAPE, name) for name in ("chief", "ps", "worker", "x")] == [
        range(1),
        range(1, 3),
        range(3, 3),
        range(0),
    ]
    assert bounds_of(Shape(2, 4), "") == Bounds("", 2, 4)
    assert (in_words(SHAPE), in_words(Shape(2, 4))) == ("chief 1:1, ps 2:2, worker 1:4", "2:4")
