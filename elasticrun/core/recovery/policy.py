"""What is done about a failure: the action by its class, and the rules that keep a job from burning restarts.

Everything is a pure function of the policy and of what happened; what has to be remembered from round to
round is an immutable value. Three rules stand beside the table of actions:

* **The same error again.** An exception that comes back at the same step in ``same_error_rounds`` failed
  rounds in a row, with no progress in between, will come back for ever. Ranks fail in any order, so a round
  is identified by the set of its errors, not by one failure; rounds in a row have at least one in common.
  Where no step was reported, "no progress" is assumed only of a short round: the program may be one that
  reports none.
* **Backing off.** Rounds that fail fast strain what they fail against (a file server, a scheduler). A
  round is fast if a worker failed by itself in the first few seconds, before a step. The first few in a row
  are free, then each waits longer than the one before, up to a limit. A round that was ended from outside (a
  node came, left or was lost; somebody sent a signal) says nothing of the program: it is not counted, and
  the next round does not wait. A round that got going, however it ended, starts the count anew.
* **Refill.** A job that has trained for long enough without a failure has earned a restart back, so that a
  long job is judged by its rate of failures and not by their number.

A node leaves for good, so that takes proof: where the diagnosis is not sure, the node is checked instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from elasticrun.config import Action, FailureClass, Policy
from elasticrun.core.protocol.messages import Failure
from elasticrun.core.recovery.cause import root_cause
from elasticrun.core.recovery.diagnosis import (
    Diagnosis,
    diagnose,
    error_signature,
    error_text,
    is_from_outside,
)
from elasticrun.dataclass import dataclass
from elasticrun.faults import Trait

#: Seconds after which workers that report no step are taken to be of a program that reports none.
MAX_START = 600.0


def action_for(policy: Policy, failure_class: FailureClass, sure: bool = True) -> Action:
    """What to do about a failure of this class; ``sure`` is the diagnosis's."""
    rules = {rule.failure: rule.action for rule in policy.rules}
    action = rules.get(failure_class, failure_class.action)
    return Action.RECHECK if action is Action.LEAVE and not sure else action


@dataclass(frozen=True, slots=True)
class KnownError:
    """An exception, as told from others, and where in the training it happened."""

    signature: str
    step: int  # the last one that was reported; -1: none
    text: str = field(default="", compare=False)  # as it was the last time, for users


@dataclass(frozen=True, slots=True)
class RepeatedError:
    """Counts failed rounds in a row that have an error in common. Immutable; ``after`` gives the next one."""

    rounds: int = 0
    errors: tuple[KnownError, ...] = ()  # that each of these rounds had, in order; none if ``rounds`` is 0

    def after(
        self, failures: Sequence[Failure], policy: Policy, lasted: float = 0.0
    ) -> tuple[RepeatedError, str]:
        """The count after a round stopped, and a sentence if that is reason to end the job.

        The round ran for ``lasted`` seconds. One without failures (a node came or went) proves nothing either
        way and changes nothing.
        """
        if not failures:
            return self, ""
        errors = [error for error in _errors(failures) if error.step >= 0 or lasted < MAX_START]
        common = [error for error in errors if error in self.errors]
        rounds = self.rounds + 1 if common else min(1, len(errors))
        known = RepeatedError(rounds, tuple(sorted(common or errors, key=_order)))
        is_over = 0 < policy.same_error_rounds <= rounds
        return known, known.verdict if is_over else ""

    @property
    def verdict(self) -> str:
        """``3 rounds in a row failed at step 7 with the same error, ...``; there must be an error."""
        error = self.errors[0]
        at = f" at step {error.step}" if error.step >= 0 else " before any step"
        times = "1 round" if self.rounds == 1 else f"{self.rounds} rounds in a row"
        what = error.text or error.signature
        return f"{times} failed{at} with the same error and no progress in between: {what}"


def _errors(failures: Sequence[Failure]) -> list[KnownError]:
    """The exceptions of a round; none if something else was its cause."""
    if not _can_repeat(root_cause(failures)[1]):
        return []
    found = [failure for failure in failures if _can_repeat(diagnose(failure))]
    errors = [KnownError(error_signature(each), each.step, error_text(each)) for each in found]
    return [error for error in dict.fromkeys(errors) if error.signature]


def _can_repeat(found: Diagnosis) -> bool:
    return Trait.REPEATABLE in found.failure_class.traits


def _order(error: KnownError) -> tuple[int, str]:
    return error.step, error.signature


def count_fast(before: int, root: Failure | None, lasted: float, policy: Policy) -> int:
    """How many rounds in a row have failed fast, after one that was told to stop after ``lasted`` seconds.

    ``before`` is the count until then; ``root`` is the failure that stopped the round; None if no worker's.
    """
    if lasted >= policy.fast_failure or (root is not None and root.step >= 0):
        return 0
    return before if root is None or is_from_outside(root) else before + 1


def backoff_delay(fast_failures: int, policy: Policy) -> tuple[float, str]:
    """Seconds to wait after the last of so many fast failures in a row, with the reason."""
    exponent = fast_failures - policy.fast_failures_free - 1
    if exponent < 0 or policy.backoff_first <= 0:
        return 0.0, ""
    delay = policy.backoff_first
    for _ in range(exponent):
        if delay >= policy.backoff_longest or policy.backoff_factor <= 1:
            break
        delay *= policy.backoff_factor
    delay = min(delay, policy.backoff_longest)
    rounds = "1 round" if fast_failures == 1 else f"{fast_failures} rounds in a row"
    why = f"{rounds} failed within {policy.fast_failure:g} s, before the first step"
    return delay, f"{why}: the next one starts in {delay:g} s"


def refilled(used: int, seconds_of_progress: float, policy: Policy) -> int:
    """How many restarts count as used after so many seconds of training without a failure."""
    if policy.refill_after <= 0:
        return used
    earned = seconds_of_progress // policy.refill_after
    return 0 if earned >= used else used - int(earned)
