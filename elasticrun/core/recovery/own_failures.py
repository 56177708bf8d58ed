"""Which ends of workers are failures of their own, and which of them are kept.

A worker fails *of its own* if it would have failed without the launcher. Until the launcher stops a group,
every bad end is of that kind. Afterwards most are not: workers die by the stop signal, or their handler of
it ends them with some exit code. But one that had failed before may be slow to end (it closes a process
group, or runs an ``atexit`` function), while its peers notice that it is gone and end first. Its end comes
after the stop signal, and it is the one that the user has to hear of. So an end after a signal of ours needs
evidence:

* a signal that nobody sends to end a program in good order, and that we have not sent, is evidence enough;
* so is an exception that ended the program, from an error file or at the end of stderr. It must not be the
  stop signal's own effect (a handler raised it, or it says so), nor a lost connection: that may be one to a
  peer that we have stopped. After a lost node nearly every survivor has gloo say that, so gloo's words are
  told by a look at them, before the tables of all classes are loaded.

An exit code alone is no evidence, as handlers of SIGTERM give any.

Of one round only MAX_FAILURES failures are kept. In a large world thousands of ranks report that they lost a
peer, and the peer may be the last to be heard of. So failures that *sound like an echo* make way for the
others. This only makes room, by a cheap look at the text; ``core/recovery/cause.py`` finds the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.core.protocol.messages import MAX_FAILURES, Failure, FailureKind
from elasticrun.dataclass import dataclass

SIGABRT = 6
#: Signals that tell of a crash or a kill: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV.
CRASHES = frozenset({4, SIGABRT, 7, 8, 9, 11})

#: Words of workers that lost a peer. Plain substrings: there may be thousands of such reports.
LOST_PEER = (
    "onnection closed by",
    "onnection reset by peer",
    "roken pipe",
    "onnection refused",
    "remote process exited",
    "failed to recv, got 0 bytes",
    "DistNetworkError",
    "Timed out waiting",
    "collective operation timeout",
)
#: How gloo says that a peer is gone: with its own source file in brackets.
_GLOO = ("RuntimeError: [", "/gloo/transport/", ("Connection closed by peer", "Connection reset by peer"))
#: What may stand on stderr if a child was killed for memory.
_CHILD_KILLED = ("DataLoader worker", "BrokenProcessPool", "SIGKILL")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Stopping:
    """The signals that the launcher sent to a worker while it lived."""

    signals: frozenset[int] = frozenset()
    since: float = 0.0  # wall clock of the host when the first was sent


NOT_STOPPED = Stopping()


def is_own(failure: Failure, stopping: Stopping = NOT_STOPPED) -> bool:
    """Whether this worker failed of its own, and not because it was told to stop."""
    if not stopping.signals or failure.kind is FailureKind.PORT_TAKEN:
        return True
    if -failure.exit_code in CRASHES - stopping.signals:
        return True
    if failure.raised > stopping.since or not _has_words(failure) or _ends_as_gloo_does(failure):
        return False
    from elasticrun.core.recovery.cause import was_failing  # few stops need its tables

    return was_failing(failure)


def _has_words(failure: Failure) -> bool:
    return bool(failure.error_file) or _TRACEBACK in failure.stderr_tail


def _ends_as_gloo_does(failure: Failure) -> bool:
    """Whether a stopped worker's last words are gloo's that a peer is gone, and nothing else is known of it.

    Then ``was_failing`` says no: no other text of ``faults.SAID`` is in these words.
    """
    facts = failure.kernel_log or failure.error_file or failure.oom_kills or failure.host_oom
    if facts or not failure.stopped or failure.exit_code == -SIGABRT:
        return False
    if any(killed in failure.stderr_tail for killed in _CHILD_KILLED):
        return False
    lines = [_unmarked(line) for line in failure.stderr_tail.rpartition(_TRACEBACK)[2].splitlines()[1:]]
    said = [line for line in lines if line and not line[0].isspace()]  # behind the frames
    start, source, lost = _GLOO
    return (
        bool(said)
        and said[0].startswith(start)
        and source in said[0]
        and any(words in said[0] for words in lost)
        and all(line.startswith("[") for line in said[1:])  # warnings, which do not belong to it
    )


def _unmarked(line: str) -> str:
    """The line without ``[rank0]: ``, which torch puts in front."""
    return line.partition("]: ")[2] if line.startswith("[rank") else line


def kept(failures: Sequence[Failure], heard: Failure) -> tuple[Failure, ...]:
    """The failures to keep after one more, in the order in which they were heard; at most MAX_FAILURES."""
    if heard in failures:
        return tuple(failures)
    if len(failures) < MAX_FAILURES:
        return (*failures, heard)
    echoes = [index for index, failure in enumerate(failures) if sounds_like_echo(failure)]
    if not echoes or sounds_like_echo(heard):
        return tuple(failures)
    return (*failures[: echoes[-1]], *failures[echoes[-1] + 1 :], heard)


def sounds_like_echo(failure: Failure) -> bool:
    """Whether the worker says that it lost a peer."""
    said = (failure.message, failure.traceback, failure.stderr_tail)
    return any(lost in text for text in said for lost in LOST_PEER)
