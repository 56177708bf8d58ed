"""Whatever replicas of several roles do, each role keeps its bounds and slots; one is as good as none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    Bounds,
    Cause,
    Decision,
    Operation,
    Phase,
    Record,
    Remove,
    Role,
    Seen,
    Shape,
    Start,
    Verdict,
    Wish,
)
from elasticrun.core.fleet.roles import slots_of
from tests.property.test_fleet import CODES

#: What may happen between two decisions, to which replica or role, and how.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["end", "end", "leave", "vanish", "time", "suspend", "scale", "want"]),
        st.integers(0, 7),
        st.sampled_from(CODES),
        st.sampled_from(list(Cause)),
    ),
    max_size=25,
)
BOUNDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=4)


def wish_of(bounds: list[tuple[int, int]]) -> Wish:
    """A job with a role for each of these, of at least one replica the first."""
    (low, more), *others = bounds
    limits = [(low + 1, low + 1 + more), *((least, max(1, least + extra)) for least, extra in others)]
    roles = tuple(Bounds(f"r{number}", *pair) for number, pair in enumerate(limits))
    least, most = sum(it.least for it in roles), sum(it.most for it in roles)
    asked = tuple(Role(it.role, it.most, 3, memory=1 << 20) for it in roles)
    return Wish(Shape(least, most, min(3, least), roles), most, max_failures=3, roles=asked)


class Platform:
    """Carries decisions out at once."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.record = Record()
        self.seen: dict[int, Seen] = {}
        self.now = 0.0
        self.operations: list[Operation] = []
        self.decision = self.decide()

    def happen(self, kind: str, number: int, code: int | None, cause: Cause) -> None:
        indices = sorted(index for index, it in self.seen.items() if it.phase is not Phase.ENDED)
        index = indices[number % len(indices)] if indices else -1
        role = self.wish.roles[number % len(self.wish.roles)] if self.wish.roles else None
        match kind:
            case "time":
                self.now += 50.0 * number
            case "suspend":
                self.wish = replace(self.wish, suspended=not self.wish.suspended)
            case "scale":
                key, name = str(len(self.operations)), role.name if role else ""
                more = 1 if number % 2 else -1
                self.operations.append(Operation(key, more, timeout=100.0, role=name))
            case "want" if role is not None:
                others = (replace(it, wanted=number % 3) if it is role else it for it in self.wish.roles)
                self.wish = replace(self.wish, wanted=number % 3, roles=tuple(others))
            case "want":
                self.wish = replace(self.wish, wanted=number % 3)
            case "end" if index >= 0:
                it = self.seen[index]
                self.seen[index] = replace(it, phase=Phase.ENDED, exit_code=code, cause=cause)
            case "leave" if index >= 0:
                self.seen[index] = replace(self.seen[index], leaves_by=self.now + 30.0)
            case "vanish" if index in {it.index for it in self.record.live if it.seen}:
                del self.seen[index]

    def decide(self) -> Decision:
        operations = tuple(self.operations)
        decision = decide(self.wish, self.seen.values(), self.record, self.now, "", operations)
        self.record = decision.record
        for action in decision.actions:
            if isinstance(action, Start):
                self.seen[action.index] = Seen(
                    action.index, Phase.RUNNING, action.slot, memory=1 << 20, role=action.role
                )
            elif self.seen[action.index].phase is Phase.ENDED:
                del self.seen[action.index]
            else:
                it = self.seen[action.index]
                self.seen[action.index] = replace(it, leaves_by=self.now + 30.0)
        self.decision = decision
        return decision


@given(BOUNDS, EVENTS)
@settings(max_examples=200)
def test_each_role_keeps_its_bounds_and_slots(
    bounds: list[tuple[int, int]], events: list[tuple[str, int, int | None, Cause]]
) -> None:
    platform = Platform(wish_of(bounds))
    known: dict[int, str] = {}
    for event in events:
        platform.happen(*event)
        decision = platform.decide()
        shape = decision.record.shape or platform.wish.shape
        limits = {it.role: it.most for it in shape.roles}
        live = decision.record.live
        for each in live:
            assert known.setdefault(each.index, each.role) == each.role  # an index keeps its role
            assert each.slot < 0 or each.slot in slots_of(shape, each.role)
        assert len({it.slot for it in live if it.slot >= 0}) == sum(it.slot >= 0 for it in live)
        for role, most in limits.items():
            assert sum(it.role == role for it in live) <= most
        assert len(decision.record.tallies) <= len(limits)
    platform.wish = replace(platform.wish, suspended=False)
    for _ in range(8 + 3 * len(platform.operations)):
        platform.now += 400.0
        platform.seen = {i: it for i, it in platform.seen.items() if not it.is_leaving}
        decision = platform.decide()
    if decision.record.verdict is None:
        halted = {it.role for it in decision.record.tallies if it.halted}
        assert all(it.running == it.wanted or it.role in halted for it in decision.roles)
    else:
        assert decision.record.verdict is not Verdict.AGAIN or decision.record.live


@given(st.integers(1, 3), st.integers(0, 3), EVENTS)
@settings(max_examples=200)
def test_a_job_whose_only_role_has_a_name_is_kept_as_one_without(
    low: int, more: int, events: list[tuple[str, int, int | None, Cause]]
) -> None:
    shape = Shape(low, low + more, min(3, low))
    plain = Platform(Wish(shape, low + more, max_failures=3, memory=1 << 20))
    bounds = (Bounds("worker", low, low + more),)
    role = Role("worker", low + more, 3, memory=1 << 20)
    named = Platform(
        Wish(replace(shape, roles=bounds), low + more, max_failures=100, memory=1 << 20, roles=(role,))
    )
    for event in events:
        if event[2] == 3:
            continue  # what counts for the whole job
        for platform in (plain, named):
            platform.happen(*event)
        one, other = plain.decide(), named.decide()
        assert [_plain(it) for it in other.actions] == [_plain(it) for it in one.actions]
        assert (other.phase, other.running, other.wanted) == (one.phase, one.running, one.wanted)
        assert other.look_at == one.look_at
        assert [it.phase for it in other.results] == [it.phase for it in one.results]


def _plain(action: Start | Remove) -> tuple[object, ...]:
    if isinstance(action, Start):
        return action.index, action.slot, action.memory, action.avoided
    return (action.index,)
