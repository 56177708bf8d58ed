"""What follows a round that has stopped: another one, and on which terms, or the end of the job.

One function puts together the four rules: what the stop costs (``core/recovery/budget.py``), what went
wrong and what the policy says about it (``core/recovery/diagnosis.py``, ``core/recovery/policy.py``),
whether the same error keeps coming back, and how long to wait when failures come fast. What they remember
from round to round is one immutable value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum

from elasticrun.config import Action, FailureClass, Policy
from elasticrun.core.hangs import Restarts
from elasticrun.core.protocol.messages import Failure
from elasticrun.core.recovery.budget import Budget, StopCause
from elasticrun.core.recovery.cause import root_cause
from elasticrun.core.recovery.diagnosis import Diagnosis
from elasticrun.core.recovery.policy import RepeatedError, action_for, backoff_delay, count_fast, refilled
from elasticrun.dataclass import dataclass
from elasticrun.faults import Trait


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the job remembers of its failures."""

    budget: Budget
    repeated: RepeatedError = field(default_factory=RepeatedError)
    fast_failures: int = 0  # in a row
    trained: float = 0.0  # seconds since the last failure, over all rounds, that gave no restart back yet


class Ending(Enum):
    """Why no round follows."""

    BUDGET_SPENT = "budget spent"
    ERROR_REPEATED = "error repeated"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What follows a stopped round."""

    recovery: Recovery
    reason: str
    end: Ending | None = None  # why the job ends; None: another round
    delay: float = 0.0  # seconds to wait before it
    excluded: str = ""  # the node that has to leave
    suspect: str = ""  # the node that has to be checked first
    suspects_all: bool = False  # all others that took part, too: the one that complains is seldom at fault
    failures: tuple[Failure, ...] = ()  # all of the round, its cause first; (): no failure was its cause


def settle(
    recovery: Recovery, policy: Policy, cause: StopCause, failures: Sequence[Failure], lasted: float
) -> Settlement:
    """What follows a round that was told to stop for ``cause`` after ``lasted`` seconds.

    ``failures`` are those heard of, in this order.
    """
    kept = _refill(recovery, policy, lasted)
    if cause is StopCause.SAVED and failures:
        return _resume(kept, policy, failures[0], lasted)
    if cause not in (StopCause.WORKER_FAILED, StopCause.HANG) or not failures:
        fast = count_fast(kept.fast_failures, None, lasted, policy)
        return _charge(replace(kept, fast_failures=fast), cause, None, "")
    root, diagnosis = root_cause(failures)
    others = (failure for failure in failures if failure is not root)
    return _judge(kept, policy, cause, (root, *others), diagnosis, lasted)


def _judge(
    kept: Recovery,
    policy: Policy,
    cause: StopCause,
    failures: tuple[Failure, ...],
    diagnosis: Diagnosis,
    lasted: float,
) -> Settlement:
    """What follows a round that workers failed in; of ``failures``, the first is the cause of the others."""
    root, before = failures[0], kept.fast_failures
    action = action_for(policy, diagnosis.failure_class, diagnosis.sure)
    why = _explain(diagnosis, action)
    repeated, circles = kept.repeated.after(failures, policy, lasted)
    kept = replace(kept, repeated=repeated, trained=0.0)
    if action is Action.GIVE_UP:
        return Settlement(kept, why, Ending.BUDGET_SPENT, failures=failures)
    if circles:
        return Settlement(kept, circles, Ending.ERROR_REPEATED, failures=failures)
    if action is Action.LEAVE:
        return Settlement(kept, f"free: {why}", excluded=root.node, failures=failures)
    fast = count_fast(before, root, lasted, policy)
    settlement = _charge(replace(kept, fast_failures=fast), cause, diagnosis, why)
    settlement = replace(settlement, failures=failures)
    if settlement.end is not None:
        return settlement
    delay, patience = backoff_delay(fast, policy) if fast > before else (0.0, "")
    reason = _join(settlement.reason, patience)
    if action is not Action.RECHECK:
        return replace(settlement, reason=reason, delay=delay)
    shared = Trait.SHARED in diagnosis.failure_class.traits
    return replace(settlement, reason=reason, delay=delay, suspect=root.node, suspects_all=shared)


def restarts_left(recovery: Recovery, policy: Policy, lasted: float) -> Restarts:
    """Whether a round that failed after ``lasted`` seconds could be followed by another one."""
    if recovery.budget.max_restarts == 0:
        return Restarts.NEVER
    kept = _refill(recovery, policy, lasted).budget
    return Restarts.LEFT if kept.spent < kept.max_restarts else Restarts.SPENT


def _resume(kept: Recovery, policy: Policy, saved: Failure, lasted: float) -> Settlement:
    """What follows a worker that saved its state: a free restart, slowed down if it does nothing else."""
    fast = count_fast(kept.fast_failures, saved, lasted, policy)
    settlement = _charge(replace(kept, fast_failures=fast), StopCause.SAVED, None, "")
    delay, patience = backoff_delay(fast, policy) if fast > kept.fast_failures else (0.0, "")
    return replace(settlement, reason=_join(settlement.reason, patience), delay=delay)


def _refill(recovery: Recovery, policy: Policy, lasted: float) -> Recovery:
    """Give back the restarts earned until the end of a round; rounds without a failure add up."""
    budget, trained = recovery.budget, recovery.trained + lasted
    spent = refilled(budget.spent, trained, policy)
    used_up = (budget.spent - spent) * policy.refill_after
    return replace(recovery, budget=budget.refund(spent), trained=trained - used_up)


def _charge(recovery: Recovery, cause: StopCause, diagnosis: Diagnosis | None, why: str) -> Settlement:
    budget, verdict = recovery.budget.settle(cause)
    if budget is None:
        return Settlement(recovery, _join(verdict, _name(diagnosis)), Ending.BUDGET_SPENT)
    return Settlement(replace(recovery, budget=budget), _join(verdict, why))


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


_WORDS = {
    Action.RESTART: "restart in place",
    Action.RECHECK: "check the node, then restart",
    Action.LEAVE: "the node leaves",
    Action.GIVE_UP: "the job ends",
}


def _name(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None or diagnosis.failure_class is FailureClass.UNKNOWN:
        return ""
    return f"diagnosis {diagnosis.failure_class.value} ({diagnosis.evidence})"


def _explain(diagnosis: Diagnosis, action: Action) -> str:
    name = _name(diagnosis)
    return f"{name}: {_WORDS[action]}" if name or action is not Action.RESTART else ""
