"""Whatever replicas do and whenever whoever decides dies, the rules of core/fleet hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    ENDED,
    Cause,
    CleanPolicy,
    Decision,
    Operation,
    Phase,
    Record,
    Remove,
    ScalePhase,
    Seen,
    Shape,
    Start,
    Verdict,
    Wish,
)

CODES = (0, 1, 2, 3, 4, 8, 10, 12, 13, 14, 70, 137, 143, None)
#: What may happen between two decisions.
EVENTS = st.one_of(
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(CODES), st.sampled_from(list(Cause))),
    st.tuples(st.just("leave"), st.integers(0, 5), st.none(), st.none()),
    st.tuples(st.just("vanish"), st.integers(0, 5), st.none(), st.none()),
    st.tuples(st.just("time"), st.integers(1, 400), st.none(), st.none()),
    st.tuples(st.just("suspend"), st.just(0), st.none(), st.none()),
    st.tuples(st.just("want"), st.integers(0, 6), st.none(), st.none()),
    st.tuples(st.just("bounds"), st.integers(1, 6), st.none(), st.none()),
    st.tuples(st.just("scale"), st.integers(-2, 2), st.none(), st.none()),
    st.tuples(st.just("strand"), st.integers(1, 6), st.none(), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 3), st.none(), st.none()),
)
WISHES = st.builds(
    lambda low, more, wanted, slots, failures, clean: Wish(
        Shape(low, low + more, min(slots, low)), wanted, max_failures=failures, memory=1 << 20, clean=clean
    ),
    *(st.integers(1, 3), st.integers(0, 3), st.integers(0, 6), st.integers(1, 3), st.integers(0, 4)),
    st.sampled_from(list(CleanPolicy)),
)


class Platform:
    """Carries decisions out, as far as the one who decides lives; checks each of them."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.record = Record()
        self.seen: dict[int, Seen] = {}
        self.started: set[int] = set()
        self.now = 0.0
        self.operations: list[Operation] = []  # that were not told to have ended
        self.ended: dict[str, ScalePhase] = {}  # whether that was told or not
        self.asked = 0
        self.stranded = 0  # as a master says, until it is decided on

    def happen(self, kind: str, number: int, code: int | None, cause: Cause | None) -> None:
        indices = sorted(index for index, it in self.seen.items() if it.phase is not Phase.ENDED)
        index = indices[number % len(indices)] if indices else -1
        match kind:
            case "time":
                self.now += number
            case "suspend":
                self.wish = replace(self.wish, suspended=not self.wish.suspended)
            case "strand":
                self.stranded = number
            case "want":
                self.wish = replace(self.wish, wanted=number)
            case "scale":
                self.asked += 1
                self.operations.append(Operation(str(self.asked), number, timeout=100.0))
            case "bounds":
                self.wish = replace(self.wish, shape=Shape(1 + number // 3, 1 + number, 1 + number // 3))
            case "end" if index >= 0:
                it = self.seen[index]
                self.seen[index] = replace(it, phase=Phase.ENDED, exit_code=code, cause=cause or Cause.EXITED)
            case "leave" if index >= 0:
                self.seen[index] = replace(self.seen[index], leaves_by=self.now + 30.0)
            case "vanish" if index in {it.index for it in self.record.live if it.seen}:
                # Before it was seen, it would be started again under the same index.
                del self.seen[index]

    def decide(self, survives: int = 99) -> None:
        """Decide; whoever does dies after so many actions."""
        before = self.record
        asked = tuple(self.operations)
        seen, stranded = list(self.seen.values()), self.stranded
        decision = decide(self.wish, seen, before, self.now, "", asked, stranded=stranded)
        again = decide(self.wish, seen, decision.record, self.now, "", asked, stranded=stranded)
        self.stranded = 0
        self._check_results(decision)
        starts = {it.index for it in decision.actions if isinstance(it, Start)}
        removals = {it.index for it in decision.actions if isinstance(it, Remove)}
        if again.results == decision.results:  # else an operation has ended, or the next one has begun
            assert {it.index for it in again.actions if isinstance(it, Start)} == starts
            assert again.record == decision.record
            assert removals == {it.index for it in again.actions if isinstance(it, Remove)}
        assert {it.shape for it in decision.actions if isinstance(it, Start)} <= {decision.record.shape}
        self._check(decision.record, starts, removals, before)
        self.record = decision.record
        if survives:
            self.operations = [it for it in self.operations if it.key not in self.ended]
        for action in decision.actions[:survives]:
            if isinstance(action, Start):
                self.started.add(action.index)
                self.seen[action.index] = Seen(action.index, Phase.RUNNING, action.slot, memory=1 << 20)
            else:
                gone = self.seen[action.index]
                if gone.phase is Phase.ENDED:
                    del self.seen[action.index]
                else:
                    self.seen[action.index] = replace(gone, leaves_by=self.now + 30.0)

    def _check_results(self, decision: Decision) -> None:
        assert [it.key for it in decision.results] == [it.key for it in self.operations]
        assert sum(it.phase is ScalePhase.RUNNING for it in decision.results) <= 1
        for result in decision.results:
            if result.phase in ENDED:
                assert self.ended.setdefault(result.key, result.phase) is result.phase
            else:
                assert result.key not in self.ended

    def are_alive(self, before: Record) -> bool:
        """Whether something runs that knows the bounds."""
        known = {it.index for it in before.live}
        return any(
            index in known and it.phase is not Phase.ENDED and not it.is_leaving
            for index, it in self.seen.items()
        )

    def _check(self, record: Record, starts: set[int], removals: set[int], before: Record) -> None:
        live = [it.index for it in record.live]
        assert live == sorted(set(live))
        assert all(index < record.next_index for index in live)
        assert record.next_index >= before.next_index
        assert len(live) <= (record.shape or self.wish.shape).max_replicas
        if self.are_alive(before):
            assert record.shape == (before.shape or self.wish.shape)
        assert not starts & self.started
        assert not starts & set(self.seen)
        assert starts <= set(live)
        assert not removals & set(live)
        slots = [it.slot for it in record.live if it.slot >= 0]
        assert len(slots) == len(set(slots))
        assert all(slot < (record.shape or self.wish.shape).slots for slot in slots)
        running = {i for i, it in self.seen.items() if it.phase is not Phase.ENDED and not it.is_leaving}
        if self.wish.suspended and record.verdict in (None, Verdict.AGAIN):
            assert not starts
            assert running <= removals
        if before.verdict not in (None, Verdict.AGAIN):
            assert not starts
            assert record.verdict in (before.verdict, Verdict.SUCCEEDED)
        assert record.failures <= self.wish.max_failures + 1 + 7  # those that were live


Events = list[tuple[str, int, int | None, Cause | None]]


def after(wish: Wish, events: Events) -> Platform:
    """A platform on which these have happened, with a decision after each of them."""
    platform = Platform(wish)
    platform.decide()
    for kind, number, code, cause in events:
        platform.happen(kind, number, code, cause)
        platform.decide(number if kind == "crash" else 99)
    return platform


@given(WISHES, st.lists(EVENTS, max_size=30))
@settings(max_examples=300)
def test_the_rules_hold_whatever_happens(wish: Wish, events: Events) -> None:
    after(wish, events)


@given(WISHES, st.lists(EVENTS, max_size=15))
@settings(max_examples=200)
def test_once_nothing_happens_any_more_what_is_wanted_runs_or_the_job_is_over(
    wish: Wish, events: Events
) -> None:
    platform = after(wish, events)
    platform.wish = replace(platform.wish, suspended=False)
    for _ in range(8 + 3 * platform.asked):
        platform.now += 400.0
        platform.seen = {i: it for i, it in platform.seen.items() if not it.is_leaving}
        platform.decide()
    record, wanted = platform.record, platform.wish.wanted
    shape = record.shape or platform.wish.shape
    wanted = min(max(wanted + record.offset, shape.min_replicas), shape.max_replicas)
    assert not platform.operations
    assert len(record.live) == wanted or record.halted or record.verdict not in (None, Verdict.AGAIN)
    if record.verdict is None:
        assert {it.index for it in record.live} == {
            i for i, it in platform.seen.items() if it.phase is not Phase.ENDED
        }
