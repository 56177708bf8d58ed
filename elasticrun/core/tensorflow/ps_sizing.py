"""How many parameter servers a job should have, by the memory they use: a decision, carried out by others.

Theory. Each vote looks at the *share* of its requested memory that every parameter server (ps) uses. Growth
is immediate, because a ps that runs out of memory takes the chief with it. One ps above ``HOT`` adds
``STEP``. At least half of them above ``HIGH`` double the count up to ``DOUBLING``; from there on they add a
fifth, rounded up. If both hold, the larger count is taken, as it is enough for both. Too much room costs only
money, so the count is halved, rounded up, only if two votes in a row, the second on new samples, find more
than half below ``LOW``. After any change, ``COOL_DOWN`` passes without votes: shares mean nothing while
variables move.

These rules alone swing: four at 39 % become two at 78 %, which become four. So a halving must not lead to
growth. The new placement of variables is not known here, but one ps takes over from two, so at worst the
fullest holds what the two fullest hold together. The count is halved only if that is not above ``HIGH``.

Invariants. A change within the bounds stays within them, and no two are less than ``COOL_DOWN`` apart. As
long as the same memory is used, and no ps takes over whole variables of more than two others, growth never
follows a halving. A ps without a fresh sample counts in the total, but neither as full nor as empty: it never
causes growth and always prevents a halving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticrun.core.fleet.sizing import HOT
from elasticrun.dataclass import dataclass

#: One ps above the share ``HOT`` asks for ``STEP`` more.
STEP = 2
#: Half of all above this share ask for twice as many up to ``DOUBLING``, then for a fifth more.
HIGH = 0.6
DOUBLING = 4
#: More than half below this share, in two votes, ask for half as many.
LOW = 0.4
MIN_PS = 2
MAX_PS = 100
#: Seconds without a vote after a change.
COOL_DOWN = 300.0
#: Seconds after which a sample is too old: three heartbeats were missed.
STALE = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What was heard of one ps."""

    share: float  # memory in use, as a fraction of the request; may be above 1
    at: float  # when it was heard, in seconds of the master's monotonic clock


@dataclass(frozen=True, slots=True)
class Sizing:
    """What the policy remembers from one vote to the next."""

    count: int | None = None  # of ps at the last vote; None: there was none
    changed: float | None = None  # when the count was changed last, or was to be
    low: float | None = None  # time of a vote for fewer, which the next one may confirm


@dataclass(frozen=True, slots=True)
class Decision:
    """How many ps there should be; as many as there are if nothing is to be done."""

    count: int
    reason: str


def decide(state: Sizing, samples: Sequence[Sample | None], now: float) -> tuple[Sizing, Decision]:
    """Vote at ``now`` on the samples of all ps that should exist by now; None for one not heard of.

    ``now`` is in seconds of the master's monotonic clock. A decision that is not carried out is
    made again after the cool-down, if it still holds.
    """
    count = len(samples)
    if state.count not in (None, count):
        state = Sizing(count, now)
    state = replace(state, count=count)
    if not count:
        return replace(state, low=None), Decision(0, "there is no parameter server")
    if state.changed is not None and now - state.changed < COOL_DOWN:
        left = COOL_DOWN - (now - state.changed)
        return replace(state, low=None), Decision(count, f"the count was changed; no vote for {left:.0f} s")
    heard = [sample for sample in samples if sample is not None and _counts(sample, now)]
    larger = _larger(count, [sample.share for sample in heard])
    if larger is not None:
        return _settle(state, larger, now)
    return _smaller(state, count, heard, now)


def _counts(sample: Sample, now: float) -> bool:
    """Whether a sample is fresh, and its share a number."""
    return now - sample.at < STALE and sample.share >= 0.0


def _settle(state: Sizing, decision: Decision, now: float) -> tuple[Sizing, Decision]:
    """Forget an earlier low vote; a change begins a cool-down."""
    changed = now if decision.count != state.count else state.changed
    return replace(state, low=None, changed=changed), decision


# -- more


def _larger(count: int, shares: Sequence[float]) -> Decision | None:
    """The growth that the shares ask for, even if there may be no more; None if they ask for none."""
    hot, high = (sum(share > bound for share in shares) for bound in (HOT, HIGH))
    wanted = []
    if hot:
        wanted.append((count + STEP, f"{hot} of {count} ps use more than {HOT:.0%} of their memory"))
    if 2 * high >= count:
        wanted.append((_grown(count), f"{high} of {count} ps use more than {HIGH:.0%} of their memory"))
    if not wanted:
        return None
    target, reason = max(wanted, key=_first)
    if count >= MAX_PS:
        return Decision(count, f"{reason}, but there may be no more than {MAX_PS}")
    return Decision(min(target, MAX_PS), reason)


def _grown(count: int) -> int:
    return min(2 * count, DOUBLING) if count < DOUBLING else (6 * count + 4) // 5


def _first(pair: tuple[int, str]) -> int:
    return pair[0]


# -- fewer


def _smaller(state: Sizing, count: int, heard: Sequence[Sample], now: float) -> tuple[Sizing, Decision]:
    low = sum(sample.share < LOW for sample in heard)
    refusal = _refusal(count, low, [sample.share for sample in heard])
    if refusal:
        return _settle(state, Decision(count, refusal), now)
    found = f"{low} of {count} ps use less than {LOW:.0%} of their memory"
    if state.low is None:
        return replace(state, low=now), Decision(count, f"{found}; halved if the next vote finds the same")
    if min(sample.at for sample in heard) <= state.low:
        return state, Decision(count, f"{found}, but not every ps was heard of since the last vote")
    return _settle(state, Decision((count + 1) // 2, f"{found}, and did so at the last vote"), now)


def _refusal(count: int, low: int, shares: Sequence[float]) -> str:
    """Why there should be as many as there are; "" if there should be fewer."""
    if 2 * low <= count:
        return f"memory is well used: {low} of {count} ps use less than {LOW:.0%} of it"
    if count <= MIN_PS:
        return f"there may be no fewer than {MIN_PS} ps"
    if len(shares) < count:
        return f"{count - len(shares)} of {count} ps were not heard of for {STALE:.0f} s"
    fullest = sum(sorted(shares)[-2:])
    if fullest > HIGH:
        return (
            f"with half as many, one could use {fullest:.0%} of its memory, and the count would "
            "soon grow again"
        )
    return ""
