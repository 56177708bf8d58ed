"""A worker's failure to its message, and back; see the package.

A message has room for the texts of MAX_FAILURES failures. Of tasks, many more may fail at once: those beyond
are *abridged*. One sentence is left of what such a failure says, and it does not repeat the names of its node
and its host, which are those of the first failure in its status.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core import bounds
from elasticrun.core.protocol import MAX_FAILURES, MAX_SUMMARY_TEXT, Failure, FailureKind
from elasticrun.rpc import checks
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.parts import few, member
from elasticrun.rpc.text import clean, head, tail

#: Bytes of UTF-8 that an abridged failure has for the name of its role.
_MAX_ROLE = 64
_KIND_OF = {pb.FailureKind.Value(f"FAILURE_KIND_{kind.name}"): kind for kind in FailureKind}


def failures_to_pb(failures: Iterable[Failure]) -> list[pb.Failure]:
    """The first MAX_FAILURES of them, whole."""
    return [failure_to_pb(failure) for failure in tuple(failures)[:MAX_FAILURES]]


def failure_to_pb(failure: Failure) -> pb.Failure:
    """A failure, whole."""
    return pb.Failure(
        node=clean(failure.node),
        host=clean(failure.host),
        rank=failure.rank,
        local_rank=failure.local_rank,
        role=clean(failure.role),
        pid=failure.pid,
        kind=f"FAILURE_KIND_{failure.kind.name}",
        exit_code=failure.exit_code,
        message=head(failure.message),
        traceback=tail(failure.traceback),
        stderr_tail=tail(failure.stderr_tail),
        error_file=tail(failure.error_file, checks.MAX_PATH),
        timestamp=bounds.TIMESTAMPS.clip(failure.timestamp),
        step=bounds.STEPS.clip(failure.step),
        oom_kills=bounds.COUNTS.clip(failure.oom_kills),
        host_oom=failure.host_oom,
        kernel_log=tail(failure.kernel_log),
        stacks=tail(failure.stacks, checks.MAX_PATH),
        stopped=failure.stopped,
        raised=bounds.TIMESTAMPS.clip(failure.raised),
    )


def abridged_to_pb(failure: Failure) -> pb.Failure:
    """A failure in a few hundred bytes, whatever it says."""
    return pb.Failure(
        rank=failure.rank,
        local_rank=failure.local_rank,
        role=head(failure.role, _MAX_ROLE),
        pid=failure.pid,
        kind=f"FAILURE_KIND_{failure.kind.name}",
        exit_code=failure.exit_code,
        message=head(failure.message, MAX_SUMMARY_TEXT),
        timestamp=bounds.TIMESTAMPS.clip(failure.timestamp),
        step=bounds.STEPS.clip(failure.step),
        oom_kills=bounds.COUNTS.clip(failure.oom_kills),
        host_oom=failure.host_oom,
        stopped=failure.stopped,
        raised=bounds.TIMESTAMPS.clip(failure.raised),
    )


def failures_in(failures: Iterable[pb.Failure]) -> tuple[Failure, ...]:
    """The failures of a message; raises ProtocolError."""
    return few("failures", MAX_FAILURES, map(failure_in, failures))


def failure_in(failure: pb.Failure, first: Failure | None = None) -> Failure:
    """One failure; ``first`` has the names that one which is abridged lacks. Raises ProtocolError."""
    if first is not None and not failure.node and not failure.host:
        return _failure(failure, first.node, first.host)
    return _failure(failure, failure.node, failure.host)


def _failure(failure: pb.Failure, node: str, host: str) -> Failure:
    return Failure(
        node=checks.name("failure.node", node),
        host=checks.name("failure.host", host),
        rank=checks.within("failure.rank", failure.rank, bounds.RANKS),
        local_rank=checks.within("failure.local_rank", failure.local_rank, bounds.RANKS),
        role=checks.name("failure.role", failure.role),
        pid=checks.within("failure.pid", failure.pid, bounds.PIDS),
        kind=member("failure.kind", _KIND_OF, failure.kind),
        exit_code=failure.exit_code,
        message=checks.text("failure.message", failure.message),
        traceback=checks.text("failure.traceback", failure.traceback),
        stderr_tail=checks.text("failure.stderr_tail", failure.stderr_tail),
        error_file=checks.text("failure.error_file", failure.error_file, checks.MAX_PATH),
        timestamp=checks.within("failure.timestamp", failure.timestamp, bounds.TIMESTAMPS),
        step=checks.within("failure.step", failure.step, bounds.STEPS),
        oom_kills=checks.within("failure.oom_kills", failure.oom_kills, bounds.COUNTS),
        host_oom=failure.host_oom,
        kernel_log=checks.text("failure.kernel_log", failure.kernel_log),
        stacks=checks.text("failure.stacks", failure.stacks, checks.MAX_PATH),
        stopped=failure.stopped,
        raised=checks.within("failure.raised", failure.raised, bounds.TIMESTAMPS),
    )
