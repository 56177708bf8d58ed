"""Ranks, choice of a world, budget and deadlines against what they promise, or against a naive model."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core import timers
from elasticrun.core.membership.ranks import RoundTerms, assign_ranks, order_by_seat, order_members
from elasticrun.core.membership.rendezvous import Candidate, WorldLimits, choose_world
from elasticrun.core.protocol.messages import NodeInfo
from elasticrun.core.recovery.budget import Budget, StopCause
from elasticrun.core.timers import Deadlines

names = st.lists(st.sampled_from("abcdefghij"), unique=True)
some_ranks = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 5))
limits = st.builds(WorldLimits, st.integers(1, 8), st.integers(1, 12), st.integers(1, 4)).filter(
    lambda it: it.smallest <= it.largest
)


@given(names, names)
def test_seats(selected: list[str], previous: list[str]) -> None:
    ordered = order_by_seat(selected, previous)
    assert sorted(ordered) == sorted(selected)
    survivors = [name for name in previous if name in selected]
    assert [name for name in ordered if name in previous] == survivors
    newcomers = [name for name in selected if name not in previous]
    assert [name for name in ordered if name not in previous] == newcomers
    if survivors:
        assert ordered[0] == survivors[0]


@given(names, st.data())
def test_nobody_moves_while_seats_only_change_hands(previous: list[str], data: st.DataObject) -> None:
    """As long as rank 0 stays and as many come as go, each survivor keeps its very own."""
    gone = data.draw(st.sets(st.sampled_from(previous[1:]))) if previous[1:] else set[str]()
    newcomers = [f"new {number}" for number in range(len(gone))]
    ordered = order_by_seat([*newcomers, *(name for name in previous if name not in gone)], previous)
    for index, name in enumerate(previous):
        if name not in gone:
            assert ordered[index] == name


@given(names, names, some_ranks)
def test_given_ranks_override(selected: list[str], previous: list[str], given_ranks: dict[str, int]) -> None:
    ranks = {name: given_ranks.get(name) for name in selected}
    ordered = order_members(selected, previous, ranks)
    assert sorted(ordered) == sorted(selected)
    given_first = [ranks[name] for name in ordered]
    known = [rank for rank in given_first if rank is not None]
    assert given_first == sorted(known) + [None] * (len(selected) - len(known))
    free = [name for name in ordered if ranks[name] is None]
    assert free == [name for name in order_by_seat(selected, previous) if ranks[name] is None]


@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["x", "y", "z"])), min_size=1, max_size=12))
def test_assigned_ranks_are_exact(shapes: list[tuple[int, str]]) -> None:
    members = [
        NodeInfo(f"n{number}", "i", "h", "a", size, role) for number, (size, role) in enumerate(shapes)
    ]
    given = assign_ranks(members, RoundTerms(3, "a", 1, 0, 0))
    ranks, role_ranks = list[int](), dict[str, list[int]]()
    for member in members:
        own, size = given[member.node], member.local_world_size
        ranks += range(own.first_rank, own.first_rank + size)
        role_ranks.setdefault(member.role, []).extend(range(own.role_first_rank, own.role_first_rank + size))
        assert own.role_world_size == sum(size for size, role in shapes if role == member.role)
        assert (own.world_size, own.group_world_size) == (sum(size for size, _ in shapes), len(shapes))
    assert ranks == list(range(len(ranks)))
    assert all(found == list(range(len(found))) for found in role_ranks.values())
    assert [each.group_rank for each in given.values()] == list(range(len(shapes)))


@given(names, names, some_ranks, limits)
def test_choice(present: list[str], previous: list[str], ranks: dict[str, int], within: WorldLimits) -> None:
    candidates = [Candidate(name, number, ranks.get(name)) for number, name in enumerate(present)]
    chosen, reason = choose_world(candidates, previous, within)
    possible = [
        size
        for size in range(within.min_nodes, min(len(present), within.max_nodes) + 1)
        if size % within.node_unit == 0
    ]
    assert len(chosen) == max(possible, default=0)
    assert len(set(chosen)) == len(chosen)
    assert reason
    if any(name not in previous for name in chosen):
        assert all(name in chosen for name in previous if name in present)


@given(st.lists(st.sampled_from(list(StopCause))), st.integers(0, 5))
def test_budget(causes: list[StopCause], most: int) -> None:
    budget, charged = Budget(most), 0
    for cause in causes:
        after, _ = budget.settle(cause)
        charged += cause is StopCause.WORKER_FAILED
        if after is None:
            assert budget.used == most
            assert cause in (StopCause.WORKER_FAILED, StopCause.HANG, StopCause.PORT_TAKEN)
            return
        assert 0 <= after.used - budget.used <= 1
        assert after.used <= most
        if cause in (StopCause.MEMBER_LOST, StopCause.NODE_JOINED):
            assert after.used == budget.used
        budget = after
    assert budget.used >= charged


steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "set_default", "cancel", "pop_due", "first_due", "next"]),
        st.sampled_from("abcd"),
        st.integers(0, 9).map(float),
    )
)


@given(steps)
def test_deadlines_behave_like_a_dictionary(todo: list[tuple[str, str, float]]) -> None:
    found: Deadlines[str] = Deadlines()
    model: dict[str, float] = {}
    for what, name, at in todo:
        if what == "set":
            found.set(name, at)
            model[name] = at
        elif what == "set_default":
            found.set_default(name, at)
            model.setdefault(name, at)
        elif what == "cancel":
            found.cancel(name)
            model.pop(name, None)
        elif what == "pop_due":
            due = found.pop_due(at)
            assert sorted(due) == sorted(name for name, instant in model.items() if instant <= at)
            assert [model[name] for name in due] == sorted(model[name] for name in due)
            for gone in due:
                del model[gone]
        elif what == "first_due":
            first = found.first_due(at)
            earliest = min(model.values(), default=10.0)
            assert (first is None) == (earliest > at)
            assert first is None or model[first] == earliest
        assert found.next() == min(model.values(), default=None)
        assert all((name in found) == (name in model) for name in "abcd")


class CountingHeap:
    """heapq with its operations counted."""

    def __init__(self) -> None:
        self.operations = 0

    def heappush(self, heap: list[tuple[float, int, str]], item: tuple[float, int, str]) -> None:
        self.operations += 1
        heapq.heappush(heap, item)

    def heappop(self, heap: list[tuple[float, int, str]]) -> tuple[float, int, str]:
        self.operations += 1
        return heapq.heappop(heap)


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_deadline_that_moves_costs_two_heap_operations_at_most(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    heap = CountingHeap()
    monkeypatch.setattr(timers, "heapq", heap)
    deadlines: Deadlines[int] = Deadlines()
    for beat in range(20):
        for node in range(count):
            deadlines.set(node, 30.0 + beat)
            deadlines.next()
    assert heap.operations <= 2 * 20 * count
    assert len(deadlines._heap) <= count
