"""The rule for hangs against workers that train, evaluate and hang at will, on a clock of numbers."""

from __future__ import annotations

import bisect
from collections.abc import Container, Sequence
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.progress.activity import Footprint
from elasticrun.core.progress.silence import (
    FLOOR,
    LAST_BOUND,
    LOOKS,
    STEPS_TO_ARM,
    HangMachine,
    HangTerms,
    Looked,
    Resumed,
    StacksTaken,
    Stalled,
    TakeStacks,
    WorkerProgress,
)
from elasticrun.core.protocol.messages import Evidence, Stall

ROUNDING = 1e-6  # seconds


def stack(line: int, waits: bool = False) -> str:
    frame = f'File "t.py", line {line} in f'
    if waits:
        frame = 'File "torch/distributed/distributed_c10d.py", line 5 in barrier'
    return f"Current thread 0x1 (most recent call first):\n  {frame}\n"


class Trainer:
    """A worker that makes steps at the given instants; after the last one it hangs.

    While it works its stack is never the same twice.
    """

    def __init__(self, local_rank: int, gaps: Sequence[float], waits: bool = False) -> None:
        self.local_rank = local_rank
        self.waits = waits  # when it hangs, for others
        self.steps = list(accumulate(gaps))
        self.silences = [0.0, 0.0, *gaps[2:]]  # as the reporter learns: not from the first two steps

    @property
    def end(self) -> float:
        return self.steps[-1]

    def progress(self, now: float) -> WorkerProgress:
        made = bisect.bisect_right(self.steps, now)
        sign_at = self.steps[made - 1] if made else 0.0
        longest = max(self.silences[:made], default=0.0)
        return WorkerProgress(self.local_rank, made, made - 1, sign_at, longest)

    def stack(self, now: float) -> str:
        return stack(0, self.waits) if now >= self.end else stack(round(now * 1e6) + 1)

    def footprint(self, now: float) -> Footprint:
        """It computes while it works."""
        return Footprint(now, min(now, self.end), 0, frozenset({(self.local_rank, 0)}))


def run(
    trainers: Sequence[Trainer],
    terms: HangTerms,
    delays: Sequence[float],
    until: float,
    wanted: Container[Evidence] = tuple(Evidence),
) -> list[Stall]:
    """Do as the agent does, up to ``until``, or a stall with evidence that is ``wanted``.

    ``delays`` are how long stacks take, over and over.
    """
    machine = HangMachine(0, range(len(trainers)), terms)
    now, taken, looks = 0.0, 0, 0
    stalls: list[Stall] = []
    event: Looked | StacksTaken = Looked(tuple(trainer.progress(now) for trainer in trainers))
    while now <= until and not stalls:
        looks += 1
        assert looks < 10_000, "it polls"
        effects = machine.handle(event, now)
        asked = [effect for effect in effects if isinstance(effect, TakeStacks)]
        found = [effect.stall for effect in effects if isinstance(effect, Stalled)]
        stalls = [stall for stall in found if stall.evidence in wanted]
        assert not any(isinstance(effect, Resumed) for effect in effects)
        deadline = machine.next_deadline()
        texts = {trainer.local_rank: trainer.stack(now) for trainer in trainers}
        before = {trainer.local_rank: trainer.footprint(now) for trainer in trainers}
        assert bool(asked) == (deadline is None)
        if deadline is None:
            now += delays[taken % len(delays)]
            taken += 1
        else:
            assert deadline > now
            now = deadline
        workers = tuple(trainer.progress(now) for trainer in trainers)
        after = {trainer.local_rank: trainer.footprint(now) for trainer in trainers}
        event = StacksTaken(workers, texts, before, after) if asked else Looked(workers)
    return stalls


gap = st.floats(min_value=0.01, max_value=5.0)
long_gap = st.floats(min_value=5.0, max_value=500.0)  # an evaluation, say
gaps = st.lists(st.one_of(gap, gap, gap, long_gap), min_size=STEPS_TO_ARM, max_size=30)
delays = st.lists(st.floats(min_value=0.0, max_value=FLOOR / LOOKS), min_size=1, max_size=5)


@given(st.lists(gaps, min_size=1, max_size=3), delays)
def test_a_hang_is_found_within_three_times_the_learnt_silence_and_work_never_is(
    all_gaps: list[list[float]], delays: list[float]
) -> None:
    trainers = [Trainer(rank, gaps) for rank, gaps in enumerate(all_gaps)]
    last = max(trainer.end for trainer in trainers)
    (stall,) = run(trainers, HangTerms(), delays, until=1e6)
    youngest = stall.silence - (last - trainers[stall.local_rank].end)
    assert 2 * stall.allowed - ROUNDING <= youngest <= 3 * stall.allowed + ROUNDING
    longest = max(trainer.progress(1e9).longest for trainer in trainers)
    assert stall.allowed >= max(FLOOR, 8 * longest)
    assert stall.step == min(trainer.progress(1e9).step for trainer in trainers)


@given(gaps, delays, st.floats(min_value=1.0, max_value=100.0))
def test_a_fixed_timeout_holds_for_any_worker(gaps: list[float], delays: list[float], timeout: float) -> None:
    trainer = Trainer(0, gaps)
    (stall,) = run([trainer], HangTerms(timeout=timeout), delays, until=1e6)
    latest = timeout + 3 * max(delays) + ROUNDING  # one taking may have begun before the last sign
    assert timeout - ROUNDING <= stall.silence <= latest
    before, after = gaps[1 : stall.step + 1], gaps[stall.step + 1 :]
    assert all(gap <= latest for gap in before)  # or it would have been found there
    assert not after or after[0] > stall.silence - ROUNDING


@given(gaps, delays)
def test_with_no_timeout_nothing_is_ever_a_hang(gaps: list[float], delays: list[float]) -> None:
    machine = HangMachine(0, range(1), HangTerms(timeout=0.0))
    assert machine.handle(Looked((Trainer(0, gaps).progress(1e6),)), 1e6) == []
    assert machine.next_deadline() is None


@given(st.lists(st.tuples(gaps, st.booleans()), min_size=1, max_size=3), delays)
def test_evidence_comes_early_only_if_every_rank_waits_for_others(
    ranks: list[tuple[list[float], bool]], delays: list[float]
) -> None:
    trainers = [Trainer(rank, gaps, waits) for rank, (gaps, waits) in enumerate(ranks)]
    last = max(trainer.end for trainer in trainers)
    wanted = set(Evidence) - {Evidence.NONE}
    (stall,) = run(trainers, HangTerms(), delays, until=1e6, wanted=wanted)
    silence = stall.silence - (last - trainers[stall.local_rank].end)
    if all(trainer.waits for trainer in trainers):
        assert stall.evidence is Evidence.STILL
        assert stall.allowed <= stall.lasting + ROUNDING
        assert silence <= 4.5 * stall.allowed  # a look at work makes it begin anew, not later than 3 times
    else:
        assert stall.evidence is Evidence.LAST_BOUND
        assert silence >= max(LAST_BOUND, 2 * stall.allowed) - ROUNDING
