"""Which ends are failures of their own, which are kept, and which is the cause of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.core.protocol.messages import MAX_FAILURES, Failure, FailureKind
from elasticrun.core.recovery.cause import root_cause, was_failing
from elasticrun.core.recovery.own_failures import Stopping, is_own, kept, sounds_like_echo

TERM, KILL = 15, 9
PEER_LOST = "RuntimeError: [/gloo/pair.cc:598] Connection closed by peer [127.0.0.1]:4711"
XID_79 = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."
NOTES = "wandb: run finished\n[rank1]: a warning"


def traceback(last: str, function: str = "<module>") -> str:
    return (
        f'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in {function}\n'
        f"    main()\n{last}\n"
    )


def ended(code: int = 1, stderr: str = "", host: str = "a", **changes: Any) -> Failure:
    kind = FailureKind.SIGNAL if code < 0 else FailureKind.EXIT
    return replace(Failure(host, host, 0, 0, "default", 1, kind, code, stderr_tail=stderr), **changes)


def told(*signals: int, since: float = 100.0) -> Stopping:
    return Stopping(frozenset(signals), since)


def recorded(last: str = "ValueError: bad", raised: float = 99.0, code: int = -TERM, **more: Any) -> Failure:
    text = traceback(last)
    return ended(code, message=last, traceback=text, error_file="/e", raised=raised, stopped=True, **more)


@pytest.mark.parametrize("code", [1, 3, -TERM, -KILL, 143])
def test_without_a_stop_signal_every_bad_end_is_its_own(code: int) -> None:
    assert is_own(ended(code))
    assert is_own(ended(code), Stopping(since=5.0))


@pytest.mark.parametrize(
    ("failure", "signals", "own"),
    [
        (ended(-TERM, stopped=True), (TERM,), False),
        (ended(1, stopped=True), (TERM,), False),  # as a handler of SIGTERM may end it
        (ended(143, stopped=True), (TERM,), False),
        (ended(-KILL), (TERM,), True),  # not by us
        (ended(-11), (TERM,), True),
        (ended(-13), (TERM,), False),  # SIGPIPE: it wrote to somebody whom we have stopped
        (ended(-KILL, stopped=True), (TERM, KILL), False),  # the sweep
        (ended(-TERM, traceback("ValueError: bad"), stopped=True), (TERM,), True),
        (ended(1, traceback("ValueError: bad") + NOTES, stopped=True), (TERM,), True),
        (ended(1, traceback("ValueError: bad") + f"[W] {PEER_LOST}", stopped=True), (TERM,), True),
        (ended(-KILL, traceback("ValueError: bad"), stopped=True), (TERM, KILL), True),
        (ended(-TERM, traceback("ValueError: bad", "step"), stopped=True), (TERM,), False),  # it was caught
        (ended(-TERM, "Traceback (most recent call last):\n...", stopped=True), (TERM,), False),
        (ended(1, traceback(PEER_LOST), stopped=True), (TERM,), False),  # perhaps one whom we have stopped
        (ended(1, traceback("KeyboardInterrupt"), stopped=True), (TERM,), False),
        (ended(1, traceback("RuntimeError: received signal 15"), stopped=True), (TERM,), False),
        (ended(1, traceback("Stop: SIGTERM"), stopped=True), (TERM,), False),
        (recorded(), (TERM,), True),
        (recorded(raised=100.5), (TERM,), False),  # by a handler
        (recorded("Stop: got a signal"), (TERM,), False),
        (recorded(PEER_LOST), (TERM,), False),
        (ended(1, kind=FailureKind.PORT_TAKEN), (TERM,), True),
    ],
)
def test_after_a_stop_signal_it_takes_evidence(failure: Failure, signals: tuple[int, ...], own: bool) -> None:
    assert is_own(failure, told(*signals)) is own


GLOO = (
    "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:4711: Connection reset by peer. "
)


def gloo(prefix: str = "", after: str = "", **changes: Any) -> Failure:
    lines = traceback(GLOO).splitlines()
    return ended(-TERM, "\n".join(prefix + line for line in lines) + after, stopped=True, **changes)


@pytest.mark.parametrize(
    "survivor", [gloo(), gloo("[rank1]: "), gloo(after="\n[W1123] destroy_process_group() was not called")]
)
def test_the_echo_of_gloo_is_told_with_the_tables_and_without(
    survivor: Failure, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not was_failing(survivor)
    monkeypatch.setattr("elasticrun.core.recovery.cause.was_failing", pytest.fail)
    assert not is_own(survivor, told(TERM))


@pytest.mark.parametrize(
    "stopped",
    [
        gloo(kernel_log=XID_79),
        gloo(after="\nDataLoader worker (pid 7) is killed by signal: Killed", oom_kills=1),
        gloo(after="\nDataLoader worker (pid 7) is killed by signal: Killed"),
        gloo(after="\nand CUDA out of memory"),
        gloo(error_file="/e", message="ValueError: bad"),
        replace(gloo(), stopped=False),
        replace(gloo(), exit_code=-6, stderr_tail=f"GPU is lost\n{traceback(GLOO)}"),
        ended(
            1, traceback("ConnectionError: Max retries exceeded with url: Connection refused"), stopped=True
        ),
        ended(1, traceback("torch.OutOfMemoryError: Connection reset by peer"), stopped=True),
        ended(1, traceback(f"ValueError: bad\n{GLOO}"), stopped=True),
        ended(1, "Traceback (most recent call last):", stopped=True),
    ],
)
def test_whatever_else_is_known_of_a_stopped_worker_counts(stopped: Failure) -> None:
    assert is_own(stopped, told(TERM, 6)) is was_failing(stopped)


def test_echoes_make_way_for_the_others() -> None:
    echo = ended(1, traceback(PEER_LOST))
    assert sounds_like_echo(echo)
    failures: tuple[Failure, ...] = ()
    for rank in range(2 * MAX_FAILURES):
        failures = kept(failures, replace(echo, rank=rank))
    assert [failure.rank for failure in failures] == [*range(MAX_FAILURES)]
    assert kept(failures, failures[0]) == failures
    late = kept(failures, ended(-9, rank=99))
    assert [failure.rank for failure in late] == [*range(MAX_FAILURES - 1), 99]
    assert kept(late, failures[-1]) == late
    for rank in range(100, 100 + 2 * MAX_FAILURES):
        late = kept(late, ended(-9, rank=rank))
    assert [failure.rank for failure in late] == [*range(99, 99 + MAX_FAILURES)]


def cause(*failures: Failure) -> Failure:
    """The cause, which does not depend on the order in which one host's failures were heard of."""
    found, _ = root_cause(failures)
    if len({failure.host for failure in failures}) == 1:
        assert root_cause(failures[::-1])[0] is found
    return found


ECHO = ended(1, traceback(PEER_LOST), timestamp=10.0)
TIMEOUT = ended(1, "Watchdog caught collective operation timeout", timestamp=9.0)
SLOW = ended(-TERM, traceback("ValueError: bad"), stopped=True, timestamp=12.0)
RAISED = ended(1, traceback("TypeError: bad"), timestamp=11.0)
KILLED = ended(-KILL, timestamp=11.5)
RECORDED = recorded(raised=10.5, timestamp=10.0)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ((ECHO, SLOW), SLOW),
        ((ECHO, TIMEOUT, KILLED), KILLED),
        ((ECHO, TIMEOUT), TIMEOUT),  # the first of them
        ((SLOW, RAISED), RAISED),  # who ended by itself is the surer
        ((RECORDED, RAISED), RECORDED),  # but who has said when he failed is as sure
        ((recorded(raised=11.2), RAISED), RAISED),
        ((RAISED, KILLED), RAISED),
        ((ended(-KILL, timestamp=10.9), RAISED), ended(-KILL, timestamp=10.9)),
        ((RAISED, ended(1, timestamp=20.0, kernel_log=XID_79)), ended(1, timestamp=20.0, kernel_log=XID_79)),
        ((ECHO, ended(1, kind=FailureKind.PORT_TAKEN)), ended(1, kind=FailureKind.PORT_TAKEN)),
        # No peer is lost by a download that fails.
        (
            (ECHO, ended(1, traceback("ConnectionError: Max retries exceeded with url: /x"), timestamp=11.0)),
            ended(1, traceback("ConnectionError: Max retries exceeded with url: /x"), timestamp=11.0),
        ),
    ],
)
def test_the_cause(failures: tuple[Failure, ...], expected: Failure) -> None:
    assert cause(*failures) == expected


def test_clocks_of_two_hosts_are_not_compared() -> None:
    early = replace(KILLED, host="b", timestamp=1.0)
    assert cause(KILLED, early) is KILLED, "the host that was heard of first"
    assert cause(early, KILLED) is early
    assert cause(early, RAISED) is RAISED, "what an error of a peer looks like least"
    assert cause(KILLED, early, RAISED) is RAISED, "the first of its host"
