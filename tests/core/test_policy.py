"""The action for each class, the same error again, backing off, and restarts that are earned back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elasticrun.config import Action, FailureClass, Policy, PolicyRule
from elasticrun.core.protocol.messages import Failure, FailureKind
from elasticrun.core.recovery.budget import Budget, StopCause
from elasticrun.core.recovery.policy import (
    MAX_START,
    RepeatedError,
    action_for,
    backoff_delay,
    count_fast,
    refilled,
)
from elasticrun.core.recovery.settlement import Ending, Recovery, settle
from elasticrun.rpc.records import from_json, to_json
from tests.core.build import failure

DEFAULT = Policy()


def error(
    message: str = "bad", step: int = 7, rank: int = 0, kind: str = "ValueError", line: int = 3
) -> Failure:
    """A worker that ended by this exception."""
    traceback = (
        "Traceback (most recent call last):\n"
        f'  File "/home/me/train.py", line {line}, in main\n    work()\n{kind}: {message}\n'
    )
    return replace(failure(rank=rank), message=f"{kind}: {message}", traceback=traceback, step=step)


def killed(rank: int = 0) -> Failure:
    return replace(failure(rank=rank, code=-9), message="killed by SIGKILL (9)")


def after(*rounds: list[Failure], policy: Policy = DEFAULT, lasted: float = 1.0) -> tuple[RepeatedError, str]:
    tracker, verdict = RepeatedError(), ""
    for failures in rounds:
        tracker, verdict = tracker.after(failures, policy, lasted)
    return tracker, verdict


def test_every_class_has_an_action() -> None:
    assert {action_for(DEFAULT, each) for each in FailureClass} == set(Action) - {Action.GIVE_UP}


def test_a_rule_of_the_policy_comes_before_the_table() -> None:
    policy = Policy(rules=(PolicyRule(FailureClass.USER_ERROR, Action.GIVE_UP),))
    assert action_for(policy, FailureClass.USER_ERROR) is Action.GIVE_UP
    assert action_for(policy, FailureClass.UNKNOWN) is Action.RESTART


def test_a_node_leaves_on_proof_only() -> None:
    assert action_for(DEFAULT, FailureClass.HARDWARE) is Action.LEAVE
    assert action_for(DEFAULT, FailureClass.HARDWARE, sure=False) is Action.RECHECK
    assert action_for(DEFAULT, FailureClass.USER_ERROR, sure=False) is Action.RESTART


# --- the same error again


def test_the_third_round_with_the_same_error_at_the_same_step_ends_the_job() -> None:
    assert after([error("batch 1")], [error("batch 2", rank=5)])[1] == ""
    tracker, verdict = after([error("batch 1")], [error("batch 2", rank=5)], [error("batch 3")])
    assert verdict == (
        "3 rounds in a row failed at step 7 with the same error and no progress in between: "
        "ValueError: batch 3 at train.py:3 in main"
    )
    assert tracker.rounds == 3


def test_so_does_an_error_before_the_first_step() -> None:
    verdict = after(*[[error(step=-1)]] * 3)[1]
    assert verdict.startswith("3 rounds in a row failed before any step with")


def test_a_program_that_reports_no_steps_may_have_made_some_in_a_long_round() -> None:
    unseen = [error(step=-1)]
    assert after(unseen, unseen, unseen, lasted=MAX_START - 1)[1] != ""
    assert after(unseen, unseen, unseen, lasted=MAX_START) == (RepeatedError(), "")
    assert after(*[[error()]] * 3, lasted=MAX_START)[1] != "", "what was reported counts"
    assert RepeatedError().after(unseen, DEFAULT)[0].rounds == 1


def test_cuda_out_of_memory_comes_back_as_well() -> None:
    text = "CUDA out of memory. Tried to allocate 20.00 MiB."
    assert after(*[[error(text, kind="torch.OutOfMemoryError")]] * 3)[1] != ""


@pytest.mark.parametrize(
    "between",
    [
        [error(step=8)],  # progress
        [error(step=-1)],
        [error("other")],
        [error(line=4)],
        [killed()],
        [error("Connection reset by peer", kind="RuntimeError")],
    ],
)
def test_progress_or_another_failure_starts_the_count_anew(between: list[Failure]) -> None:
    same = [error()]
    tracker, verdict = after(same, same, between, same, same)
    assert (tracker.rounds, verdict) == (2, "")
    assert after(same, same, between, same, same, same)[1] != ""


def test_a_round_that_failed_otherwise_is_no_round_of_the_row() -> None:
    assert after([error()], [killed()])[0] == RepeatedError()


def test_a_round_without_failures_changes_nothing() -> None:
    same = [error()]
    assert after(same, [], same, [], same)[1] != ""
    assert after(same, [])[0] == after(same)[0]


def test_ranks_fail_in_any_order() -> None:
    first, second = error("one", rank=0), error("two", rank=1)
    assert after([first, second], [second, first], [first])[1].endswith("one at train.py:3 in main")
    assert after([first, second], [second], [first])[0].rounds == 1


def test_echoes_of_an_error_do_not_hide_it() -> None:
    echo = error("Connection closed by peer", kind="RuntimeError", rank=1)
    assert after([error()], [echo, error()], [error(), echo])[1] != ""
    assert after([error()], [error()], [killed(), echo])[1] == ""


def test_the_number_of_rounds_is_the_policys() -> None:
    same = [error()]
    assert after(*[same] * 50, policy=Policy(same_error_rounds=0))[1] == ""
    assert after(same, policy=Policy(same_error_rounds=1))[1].startswith("1 round failed at step 7")
    assert after(same, same, policy=Policy(same_error_rounds=2))[1] != ""


def test_an_error_without_a_signature_is_never_the_same() -> None:
    lost = replace(failure(code=3), stderr_tail="CUDA error: device-side assert triggered")
    assert after([lost], [lost], [lost]) == (RepeatedError(), "")


def test_what_is_remembered_fits_into_a_journal() -> None:
    tracker = after([error("one"), error("two", step=8)])[0]
    assert len(tracker.errors) == 2
    assert from_json(RepeatedError, json.loads(json.dumps(to_json(tracker)))) == tracker


# --- backing off


def test_the_first_fast_failures_are_free_then_each_waits_longer() -> None:
    delays = [backoff_delay(count, DEFAULT)[0] for count in range(12)]
    assert delays == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff_delay(2, DEFAULT) == (0.0, "")
    reason = "4 rounds in a row failed within 10 s, before the first step: the next one starts in 2 s"
    assert backoff_delay(4, DEFAULT) == (2.0, reason)


def test_backing_off_at_the_edges() -> None:
    assert backoff_delay(1, Policy(fast_failures_free=0))[1].startswith("1 round failed within 10 s")
    assert backoff_delay(10**9, DEFAULT)[0] == 60.0
    assert backoff_delay(10**9, Policy(backoff_factor=1.0))[0] == 1.0
    assert backoff_delay(50, Policy(backoff_first=0.0)) == (0.0, "")
    assert backoff_delay(3, Policy(backoff_first=90.0))[0] == 60.0


UNSEEN = error(step=-1)
NETWORK = error("Connection refused", kind="ConnectionRefusedError", step=-1)
CHILD_KILLED = error("", kind="concurrent.futures.process.BrokenProcessPool", step=-1)


@pytest.mark.parametrize(
    ("root", "lasted", "expected"),
    [
        # of the program, or of what it needs: counted, if it was fast
        (UNSEEN, 9.9, 3),
        (NETWORK, 9.9, 3),
        (failure(code=3), 9.9, 3),
        (failure(code=-11), 9.9, 3),  # a crash in native code
        (replace(killed(), oom_kills=1), 9.9, 3),
        (replace(killed(), host_oom=True), 9.9, 3),
        (replace(CHILD_KILLED, oom_kills=1), 9.9, 3),
        # from outside: says nothing
        (None, 9.9, 2),
        (killed(), 9.9, 2),
        (failure(code=137), 9.9, 2),  # a shell says so of its child
        (failure(code=-15), 9.9, 2),
        (failure(code=-2), 9.9, 2),
        (CHILD_KILLED, 9.9, 2),
        # it got going
        (UNSEEN, 10.0, 0),
        (None, 10.0, 0),
        (killed(), 10.0, 0),
        (error(step=0), 1.0, 0),
        (replace(killed(), step=0), 1.0, 0),
    ],
)
def test_rounds_that_fail_fast_by_themselves_are_counted(
    root: Failure | None, lasted: float, expected: int
) -> None:
    assert count_fast(2, root, lasted, DEFAULT) == expected


def test_no_failure_is_fast_enough_for_a_policy_that_does_not_want_to_wait() -> None:
    assert count_fast(2, UNSEEN, 0.0, Policy(fast_failure=0.0)) == 0


def delays(*rounds: tuple[StopCause, list[Failure], float]) -> list[float]:
    """How long a job waits after each of these rounds: why it stopped, what failed, how long it lasted."""
    recovery, found = Recovery(Budget(99)), []
    for cause, failures, lasted in rounds:
        settled = settle(recovery, Policy(same_error_rounds=0), cause, failures, lasted)
        recovery = settled.recovery
        found.append(settled.delay)
    return found


@pytest.mark.parametrize(
    ("policy", "end"),
    [
        (Policy(rules=(PolicyRule(FailureClass.USER_ERROR, Action.GIVE_UP),)), Ending.BUDGET_SPENT),
        (Policy(same_error_rounds=1), Ending.ERROR_REPEATED),
        (Policy(), None),
    ],
)
def test_a_job_with_restarts_left_may_have_to_end(policy: Policy, end: Ending | None) -> None:
    settled = settle(Recovery(Budget(9)), policy, StopCause.WORKER_FAILED, [error()], 60.0)
    assert settled.end is end


FAST = (StopCause.WORKER_FAILED, [UNSEEN], 1.0)


def test_a_job_waits_for_longer_and_longer() -> None:
    assert delays(*[FAST] * 5) == [0, 0, 1, 2, 4]


@pytest.mark.parametrize(
    "between",
    [
        (StopCause.WORKER_FAILED, [killed()], 1.0),
        (StopCause.NODE_JOINED, [], 1.0),
        (StopCause.MEMBER_LOST, [UNSEEN], 1.0),
        (StopCause.PORT_TAKEN, [failure(kind=FailureKind.PORT_TAKEN)], 1.0),
    ],
)
def test_after_a_round_that_was_ended_from_outside_nobody_waits(
    between: tuple[StopCause, list[Failure], float],
) -> None:
    assert delays(*[between] * 5) == [0] * 5
    assert delays(FAST, FAST, FAST, between, FAST) == [0, 0, 1, 0, 2]


def test_a_node_that_has_to_leave_takes_the_reason_with_it() -> None:
    ecc = error("uncorrectable ECC error encountered", kind="RuntimeError", step=-1)
    broken = (StopCause.WORKER_FAILED, [ecc], 1.0)
    assert delays(FAST, FAST, broken, FAST) == [0, 0, 0, 1]


def test_rounds_that_only_a_newcomer_ended_add_up_to_time_without_a_failure() -> None:
    policy = Policy(refill_after=100.0)
    recovery = Recovery(Budget(9, used=3))
    spent = []
    for cause, failures, lasted in [
        (StopCause.NODE_JOINED, [], 60.0),
        (StopCause.NODE_JOINED, [], 60.0),  # 120 s: one is earned
        (StopCause.MEMBER_LOST, [], 80.0),  # 200 s: another one
        (StopCause.NODE_JOINED, [], 99.0),
        (StopCause.WORKER_FAILED, [error()], 0.5),  # 99.5 s, and one is spent
        (StopCause.NODE_JOINED, [], 99.0),  # counted anew
    ]:
        recovery = settle(recovery, policy, cause, failures, lasted).recovery
        spent.append(recovery.budget.spent)
    assert spent == [3, 2, 1, 1, 2, 2]


def test_a_round_that_got_going_starts_the_count_anew() -> None:
    assert delays(FAST, FAST, (StopCause.NODE_JOINED, [], 60.0), FAST, FAST, FAST) == [0, 0, 0, 0, 0, 1]
    assert delays(FAST, FAST, (StopCause.WORKER_FAILED, [error()], 1.0), FAST) == [0, 0, 0, 0]


# --- refill


@pytest.mark.parametrize(
    ("used", "seconds", "every", "expected"),
    [
        (3, 99.9, 100.0, 3),
        (3, 100.0, 100.0, 2),
        (3, 250.0, 100.0, 1),
        (3, 1e9, 100.0, 0),
        (0, 1e9, 100.0, 0),
        (3, 1e9, 0.0, 3),
        (3, 1e9, 5e-324, 0),
    ],
)
def test_training_without_a_failure_gives_restarts_back(
    used: int, seconds: float, every: float, expected: int
) -> None:
    assert refilled(used, seconds, Policy(refill_after=every)) == expected
