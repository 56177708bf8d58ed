"""A job that was started from Python: wait for it, ask how it does, stop it, take what it returned.

Theory. A job is one launcher for each node, each a fork of this process's fork server, and the call that the
workers make. The handle owns both: once it is closed, nothing of the job is left, whether it had ended or
not. A channel to each launcher brings its pid and its exit status; a file in memory brings what it knew at
its end.

Which failure is the cause is what the launchers say, as for any job: the first worker that failed by itself.
What the others raised after that is an echo.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from elasticrun.core.protocol.failure import Failure
from elasticrun.dataclass import dataclass
from elasticrun.errors import (
    ElasticRunError,
    ExitCode,
    JobFailedError,
    MasterUnreachableError,
    UsageError,
    WorkerFailed,
)
from elasticrun.launching.call import Answer, Call, read_all
from elasticrun.launching.output import Output
from elasticrun.rpc.records import from_json

if TYPE_CHECKING:
    from elasticrun.control import JobControl
    from elasticrun.core.protocol.status import JobStatus
    from elasticrun.launching.server import Server

#: Seconds that a cancelled job has before it is killed: as long as its workers have to stop, and some more.
PATIENCE = 35.0
_WORDS = 4096  # bytes of a message on a channel
_BELL = -1  # stands for it among the numbers of launchers


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """What one rank returned; ``value`` is None for a script."""

    rank: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class _End:
    """How a launcher ended; ``failures`` begin with the root cause."""

    status: int
    reason: str
    failures: tuple[Failure, ...] = ()
    rounds: int = 0
    restarts: int = 0


class Job:
    """A context manager: at its end the job is over. Made by ``elasticrun.start``."""

    def __init__(
        self,
        server: Server,
        requests: Sequence[Mapping[str, Any]],
        call: Call | None,
        ranks: int,
    ) -> None:
        """``requests``: one for each launcher. Raises NodeFaultError if the host refuses a process."""
        self.ranks = ranks
        self._owner = os.getpid()
        self._size = len(requests)
        self._call = call
        self._ends: dict[int, _End] = {}
        self._pids: dict[int, int] = {}  # of launchers, by number
        self._channels: dict[int, socket.socket] = {}  # of those that run
        self._outcomes: list[int] = []
        self._answers: dict[int, Answer] | None = None  # once all have ended
        #: Whether the fork server has ended, and with it the job.
        self.is_abandoned = False
        self._output = Output()
        try:
            for number, request in enumerate(requests):
                self._outcomes.append(os.memfd_create("elasticrun-outcome", os.MFD_CLOEXEC))
                std = self._output.descriptors
                self._channels[number] = server.ask(request, self._outcomes[number], std)
        except BaseException:
            self.close()
            raise
        self._output.hand_over()

    @property
    def has_begun(self) -> bool:
        """Whether all of its launchers run, or have run, as far as this process has heard."""
        return len({*self._pids, *self._ends}) == self._size

    @property
    def is_over(self) -> bool:
        """Whether all of its launchers have ended, as far as this process has heard."""
        return not self._channels

    @property
    def rounds(self) -> int:
        """How many rounds there were, once the job is over: worlds that its workers were in."""
        return max((end.rounds for end in self._ends.values()), default=0)

    @property
    def restarts(self) -> int:
        """How many restarts were spent, once the job is over."""
        return max((end.restarts for end in self._ends.values()), default=0)

    def wait(self, timeout: float | None = None) -> list[Result]:
        """What each rank returned, by rank, once the job has ended. May be called again.

        Ctrl-C, or any other exception in this thread, cancels the job first.

        Raises:
            WorkerFailed: a worker failed, and with it the job; it is the first one that did.
            JobFailedError: the job ended in another way, as when it was cancelled.
            UsageError: an option is wrong.
            TimeoutError: it still runs after so many seconds, and goes on.
        """
        try:
            self._listen(timeout)
        except TimeoutError:
            raise
        except BaseException:
            self.cancel()
            raise
        return self._results()

    def status(self, timeout: float = 15.0) -> JobStatus:
        """How the job does, as its master says.

        Raises MasterUnreachableError if it has no master, as after its end or in its first moments.
        """
        return self._ask(lambda control: control.status(), timeout)

    def stacks(self, rank: int, timeout: float = 15.0) -> str:
        """The Python stacks of a rank's threads, as text. Raises as ``status``."""
        return self._ask(lambda control: control.stacks_of(rank), timeout)

    def _ask(self, question: Callable[[JobControl], Coroutine[Any, Any, T]], timeout: float) -> T:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from elasticrun.control import JobControl

        while self.hear(0.0):
            pass
        if self.is_over or not self._pids:
            raise MasterUnreachableError("the job has ended, or has only just begun: it has no master")

        async def ask() -> T:
            control = await JobControl.on_this_host(launcher=self._pids[min(self._pids)], timeout=timeout)
            return await question(control)

        with ThreadPoolExecutor(1) as pool:  # a notebook's own thread has a loop that runs already
            return pool.submit(asyncio.run, ask()).result()

    def cancel(self, patience: float = PATIENCE) -> None:
        """Stop the job as SIGTERM stops ``elastic-run``; what still runs after so many seconds is killed."""
        try:
            if os.getpid() == self._owner:  # the job is none of a fork's
                self._stop(patience)
        finally:
            self.close()

    def _stop(self, patience: float) -> None:
        for channel in self._channels.values():
            with contextlib.suppress(OSError):  # it has just ended
                channel.send(str(int(signal.SIGTERM)).encode())
        with contextlib.suppress(TimeoutError):
            self._listen(patience)

    def close(self) -> None:
        """Kill the job if it runs, and let go of what it has left; a handle that is dropped does so."""
        is_unread = self.is_over and self._answers is None
        while self._channels:
            _, channel = self._channels.popitem()
            if os.getpid() == self._owner:
                with contextlib.suppress(OSError):  # it has ended; else forks of ours may have copies
                    channel.shutdown(socket.SHUT_RDWR)
            channel.close()  # the server kills the launcher whose channel is closed
        self._output.close()
        if self._call is not None:
            self._call.close(keeps=is_unread)
        while self._outcomes:
            os.close(self._outcomes.pop())

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self._channels:
            self.cancel()
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # it may have been refused before it was whole
            self.close()

    # -- what launchers tell

    def _listen(self, timeout: float | None) -> None:
        """Wait until all launchers have ended. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._channels:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.hear(left) and left == 0.0:
                raise TimeoutError(f"the job still runs after {timeout:g} s")

    def hear(self, timeout: float | None) -> bool:
        """Wait until a launcher, or a rank that has answered, tells anything; False: none did."""
        if not self._channels:
            return False
        with selectors.DefaultSelector() as selector:
            for number, channel in self._channels.items():
                selector.register(channel, selectors.EVENT_READ, number)
            if self._call is not None:
                selector.register(self._call.bell, selectors.EVENT_READ, _BELL)
            ready = [key.data for key, _ in selector.select(timeout)]
        for number in ready:
            if number != _BELL:
                self._heard(number)
            elif self._call is not None:
                os.read(self._call.bell, _WORDS)
        return bool(ready)

    def answers(self) -> dict[int, Any]:
        """What ranks have returned so far, by rank; those that raised are left out."""
        answers = self._answers
        if answers is None:
            answers = {} if self._call is None else self._call.answers()
        return {rank: answer.value for rank, answer in answers.items() if not answer.raised}

    def _heard(self, number: int) -> None:
        try:
            words = self._channels[number].recv(_WORDS).decode()
        except ConnectionError:
            words = ""
        kind, _, rest = words.partition(" ")
        if kind == "pid":
            self._pids[number] = int(rest)
            return
        self._channels.pop(number).close()
        self.is_abandoned |= not kind
        status = int(rest) if kind == "ended" else int(ExitCode.NODE_FAULT)
        self._ends[number] = _end(self._outcomes[number], status, rest if kind == "problem" else "")

    # -- what came of it

    def _results(self) -> list[Result]:
        if self._answers is None:
            self._output.finish()
            found = {} if self._call is None else self._call.answers()
            newest = self.rounds - 1  # what is left of a round before is no answer of this one
            self._answers = {rank: it for rank, it in found.items() if it.round == newest}
            self.close()
        ends = [self._ends[number] for number in sorted(self._ends)]
        failed = [end for end in ends if end.failures] or [end for end in ends if end.status]
        if failed:
            raise _error(failed[0], self._answers)
        if len(ends) < self._size:
            raise JobFailedError("the job was cancelled", ExitCode.JOB_FAILED)
        returned = self.answers()
        return [Result(rank, returned.get(rank)) for rank in range(self.ranks)]


def _end(outcome: int, status: int, problem: str) -> _End:
    """What a launcher has told of its end; ``problem``: why there was none."""
    lines = read_all(outcome).splitlines()
    if not lines:
        return _End(status, problem or _unsaid(status))
    told = json.loads(lines[-1])
    failures = tuple(from_json(Failure, each) for each in told["failures"])
    return _End(status, told["reason"], failures, told.get("rounds", 0), told.get("restarts", 0))


def _unsaid(status: int) -> str:
    if status == ExitCode.OK:
        return ""
    return (
        f"the launcher was killed by signal {-status}" if status < 0 else "the launcher ended without a word"
    )


def _error(end: _End, answers: Mapping[int, Answer]) -> ElasticRunError:
    if end.status == ExitCode.USAGE:
        return UsageError(end.reason)
    if not end.failures:
        return JobFailedError(end.reason, end.status)
    first, *others = end.failures
    error = WorkerFailed(
        first.rank,
        first.summary,
        first.exit_code,
        traceback=first.traceback,
        output=first.stderr_tail,
        others=tuple(each.summary for each in others),
    )
    answer = answers.get(first.rank)
    if answer is not None and answer.raised and isinstance(answer.value, BaseException):
        error.__cause__ = answer.value
    return error
