"""What holds of diagnosis and policy whatever failed, with whatever text."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.config import Action, FailureClass, Policy, PolicyRule
from elasticrun.core.protocol.messages import MAX_FAILURES, Failure, FailureKind
from elasticrun.core.recovery.cause import root_cause
from elasticrun.core.recovery.diagnosis import diagnose, error_signature
from elasticrun.core.recovery.own_failures import kept, sounds_like_echo
from elasticrun.core.recovery.policy import RepeatedError, action_for, backoff_delay, refilled
from tests.core.build import failure
from tests.strategies import texts

#: Pieces of which real output is made; in any order they are the hardest input for the reader of tracebacks.
PIECES = (
    "Traceback (most recent call last):\n",
    '  File "/home/me/train.py", line 3, in main\n',
    '  File "/venv/site-packages/x.py", line 9, in f\n',
    "    work()\n",
    "ValueError: 17 is bad\n",
    "[rank0]: ",
    "  | ",
    "  + Exception Group Traceback (most recent call last):\n",
    "CUDA out of memory\n",
    "Connection reset by peer",
    "Watchdog caught collective operation timeout",
    "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.\n",
    "NVRM: Xid (PCI:0000:44:00): 31, x\n",
    "Memory cgroup out of memory: Killed process 1 (python)\n",
    "\n",
    "\x1b[0m\r",
)
outputs = st.one_of(texts, st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
failures = st.builds(
    Failure,
    node=st.just("a"),
    host=st.just("a"),
    rank=st.integers(0, 9),
    local_rank=st.just(0),
    role=st.just("default"),
    pid=st.integers(0, 5),
    kind=st.sampled_from(FailureKind),
    exit_code=st.integers(-64, 255),
    message=outputs,
    traceback=outputs,
    stderr_tail=outputs,
    error_file=st.sampled_from(["", "/error.json"]),
    step=st.integers(-1, 3),
    oom_kills=st.integers(0, 2),
    host_oom=st.booleans(),
    kernel_log=outputs,
    stopped=st.booleans(),
)
rounds = st.lists(failures, min_size=1, max_size=4)
policies = st.builds(
    Policy,
    rules=st.dictionaries(st.sampled_from(FailureClass), st.sampled_from(Action)).map(
        lambda rules: tuple(PolicyRule(*rule) for rule in rules.items())
    ),
    same_error_rounds=st.integers(0, 4),
    refill_after=st.floats(0, 1e6),
    backoff_first=st.floats(0, 100),
    backoff_factor=st.floats(1, 10),
    backoff_longest=st.floats(0, 1000),
    fast_failures_free=st.integers(0, 5),
)


@given(failures)
def test_a_diagnosis_is_one_printable_line(failed: Failure) -> None:
    found = diagnose(failed)
    assert found.evidence
    assert found.evidence.isprintable()
    assert len(found.evidence) < 200


@given(failures, st.integers(0, 99), st.integers(1, 99999))
def test_who_failed_is_no_part_of_what_failed(failed: Failure, rank: int, pid: int) -> None:
    other = replace(failed, rank=rank, node="b", host="b", timestamp=9.0)
    assert diagnose(other) == diagnose(failed)
    assert error_signature(replace(other, pid=pid)) == error_signature(failed)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_no_part_of_a_signature(one: int, other: int, third: float) -> None:
    signatures = {
        error_signature(replace(failure(), error_file="e", message=f"ValueError: {number} is 0x{one:x} bad"))
        for number in (one, other, third)
    }
    assert len(signatures) == 1


@given(rounds)
def test_the_root_cause_is_one_of_the_failures_and_no_echo_if_there_is_another(failed: list[Failure]) -> None:
    root, found = root_cause(failed)
    assert root in failed
    assert found == diagnose(root)
    if not all(diagnose(each).echo for each in failed):
        assert not found.echo or root.kind in (FailureKind.PORT_TAKEN, FailureKind.SPAWN, FailureKind.HANG)


@given(st.lists(failures, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_arrival_is_no_part_of_the_cause_on_one_host(failed: list[Failure], rng: Random) -> None:
    timed = [replace(each, timestamp=1.0 + n) for n, each in enumerate(failed)]
    shuffled = rng.sample(timed, len(timed))
    assert root_cause(shuffled)[0] == root_cause(timed)[0]


@given(failures, st.lists(failures, max_size=12))
def test_no_more_failures_are_kept_than_a_message_carries(heard: Failure, before: list[Failure]) -> None:
    found: tuple[Failure, ...] = ()
    for each in (*before, heard):
        found = kept(found, each)
    assert len(found) <= MAX_FAILURES
    assert set(found) <= {heard, *before}
    assert all(map(sounds_like_echo, before)) <= (heard in found or sounds_like_echo(heard))


@given(policies, st.sampled_from(FailureClass))
def test_nobody_leaves_on_a_hint(policy: Policy, failure_class: FailureClass) -> None:
    assert action_for(policy, failure_class, sure=False) is not Action.LEAVE


@given(policies, st.lists(rounds, max_size=6))
def test_the_same_error_is_counted_in_a_row(policy: Policy, history: list[list[Failure]]) -> None:
    tracker = RepeatedError()
    for failed in history:
        before = tracker
        tracker, verdict = tracker.after(failed, policy)
        assert tracker.rounds in (0, 1, before.rounds + 1)
        assert bool(tracker.errors) == (tracker.rounds > 0)
        assert bool(verdict) == (0 < policy.same_error_rounds <= tracker.rounds)
        if tracker.rounds > 1:
            assert set(tracker.errors) <= set(before.errors)


@given(rounds, st.integers(1, 5))
def test_the_same_round_again_and_again_is_the_same_error(failed: list[Failure], times: int) -> None:
    tracker = RepeatedError()
    for _ in range(times):
        tracker, _verdict = tracker.after(failed, Policy())
    assert tracker.rounds in (0, times)


@given(policies, st.integers(0, 200))
def test_a_delay_grows_up_to_its_limit(policy: Policy, count: int) -> None:
    delay, reason = backoff_delay(count, policy)
    assert 0 <= delay <= policy.backoff_longest
    assert delay <= backoff_delay(count + 1, policy)[0]
    assert bool(reason) == (count > policy.fast_failures_free and policy.backoff_first > 0)


@given(policies, st.integers(0, 100), st.floats(0, 1e9))
def test_a_refill_only_gives_back(policy: Policy, used: int, lasted: float) -> None:
    assert 0 <= refilled(used, lasted, policy) <= used
