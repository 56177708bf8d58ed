"""A job that was started from Python: wait for it, ask how it does, stop it, take what it returned.

Theory. A job is one launcher for each node, each a fork of this process's fork server, and the call that the
workers make. The handle owns both: once it is closed, nothing of the job is left, whether it had ended or
not.

Any thread may use the handle, and so may a handler of a signal.

Which failure is the cause is what the launchers say, as for any job: the first worker that failed by itself.
What the others raised after that is an echo.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, ExitCode, JobFailedError, UsageError, WorkerFailed
from elasticrun.launching.call import Answer, Call
from elasticrun.launching.hearing import Hearing
from elasticrun.launching.launchers import Launchers
from elasticrun.launching.lines import Line, Lines
from elasticrun.launching.node_faults import NodeFaults, Plan
from elasticrun.launching.output import Output

if TYPE_CHECKING:
    from elasticrun.core.protocol.status import JobStatus
    from elasticrun.launching.server import Server

#: Seconds that a cancelled job has before it is killed: as long as its workers have to stop, and some more.
PATIENCE = 35.0
_ASKING = 15.0  # seconds that its master may take to answer


@dataclass(frozen=True, slots=True)
class Result:
    """What one rank returned. Made by ``launch`` and ``Job.wait``."""

    rank: int  # the worker's, from 0 on
    value: Any = None  # None for a script


class Job:
    """A context manager: at its end the job is over. Made by ``elasticrun.start``."""

    def __init__(self, server: Server, plan: Plan, call: Call | None) -> None:
        """Start it. Raises NodeFaultError if the host refuses a process."""
        self._ranks = plan.nproc * len(plan.requests)  # at first
        self._owner = os.getpid()
        self._call = call
        self._answers: dict[int, Answer] | None = None  # once all have ended
        self._lines = Lines() if plan.is_streamed else None
        self._output = Output(self._lines)
        self._server = server
        self._launchers = Launchers(server)
        self._hearing = Hearing(self._launchers, call)
        self._faults: NodeFaults | None = None
        if call is not None:
            ask = self._hearing.ask

            def scale(fewest: int, most: int) -> str:
                return ask(lambda control: control.scale(fewest, most), _ASKING)

            self._faults = NodeFaults(plan, call, self._launchers, self._output, scale)
            self._hearing.faults = self._faults
        try:
            for request in plan.requests:
                self._launchers.start(request, self._output.descriptors)
        except BaseException:
            self.close()
            raise
        if not plan.joiners:
            self._output.hand_over()

    @property
    def has_begun(self) -> bool:
        """Whether all of its launchers run, or have run, as far as this process has heard."""
        return self._launchers.have_begun

    @property
    def is_over(self) -> bool:
        """Whether all of its launchers have ended, as far as this process has heard."""
        return self._launchers.are_over

    @property
    def is_abandoned(self) -> bool:
        """Whether the fork server has ended, and with it the job."""
        return self._launchers.is_abandoned

    @property
    def ranks(self) -> int:
        """How many ranks there are: in the newest round so far, else as it is to begin."""
        last = self._launchers.rounds().get(self.rounds - 1)
        return self._ranks if last is None else last.world_size

    @property
    def rounds(self) -> int:
        """How many rounds there were so far: worlds that its workers were in."""
        return max(self._launchers.rounds(), default=-1) + 1

    @property
    def restarts(self) -> int:
        """How many restarts were spent so far."""
        return max((begun.restarts for begun in self._launchers.rounds().values()), default=0)

    def why(self, number: int) -> str:
        """Why there was round ``number``: why the one before it stopped, and with whom it began, in words.

        Raises UsageError if there was no such round so far.
        """
        begun = self._launchers.rounds().get(number)
        if begun is None:
            raise UsageError(f"round {number!r} was given: this job had {self.rounds} rounds, from 0 on")
        return begun.why

    def wait(self, timeout: float | None = None) -> list[Result]:
        """What each rank returned, by rank, once the job has ended. May be called again.

        Ctrl-C, or any other exception in this thread, cancels the job first.

        Args:
            timeout: Seconds to wait; None: until it has ended.

        Raises:
            WorkerFailed: a worker failed, and with it the job; it is the first one that did.
            JobFailedError: the job ended in another way, as when it was cancelled.
            UsageError: an option is wrong.
            TimeoutError: it still runs after ``timeout`` seconds, and goes on.
        """
        try:
            self._hearing.hear_all(timeout)
        except TimeoutError:
            raise
        except BaseException:
            self.cancel()
            raise
        return self._results()

    def stream(self) -> Iterator[Line]:
        """What ranks and launchers print, line by line as it comes, until the job has ended.

        Lines that were read are gone. Raises UsageError unless the job was started with ``stream=True``.
        """
        if self._lines is None:
            raise UsageError("stream was called of a job that prints its output: give stream=True to start")
        while not self.is_over:
            yield from self._lines.take()
            self._hearing.hear(None, other=self._lines.bell)
        self._output.finish()
        yield from self._lines.take()

    def status(self, timeout: float = _ASKING) -> JobStatus:
        """How the job does, as its master says.

        ``timeout``: seconds within which it has to answer. Raises MasterUnreachableError if it does not, or
        if there is none, as after the end or in the first moments.
        """
        return self._hearing.ask(lambda control: control.status(), timeout)

    def stacks(self, rank: int, timeout: float = _ASKING) -> str:
        """The Python stacks of the threads of ``rank``, as text. ``timeout``, errors: as for ``status``."""
        return self._hearing.ask(lambda control: control.stacks_of(rank), timeout)

    def cancel(self, patience: float = PATIENCE) -> None:
        """Stop the job as SIGTERM stops ``elastic-run``; what runs after ``patience`` seconds is killed.

        A job that has not begun, as its fork server still imports what it needs, is given up at once.
        """
        try:
            if os.getpid() != self._owner:
                return  # the job is none of a fork's
            while self.hear(0.0):
                pass
            if self.has_begun:
                self._launchers.tell_all(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    self._hearing.hear_all(patience)
        finally:
            self.close()

    def close(self) -> None:
        """Kill the job if it runs, and let go of what it has left; a handle that is dropped does so."""

        def let_go() -> None:
            is_unread = self._launchers.are_known and self._answers is None
            if self._faults is not None:
                self._faults.close()
            self._output.close()
            if self._call is not None:
                self._call.close(keeps=is_unread)

        self._hearing.close(let_go)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_over:
            self.cancel()
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # it may have been refused before it was whole
            self.close()

    def hear(self, timeout: float | None) -> bool:
        """Wait until a launcher, or a rank that has answered, tells anything; False: none did.

        ``timeout``: seconds to wait at most; None: until something is told.
        """
        return self._hearing.hear(timeout)

    def answers(self) -> dict[int, Any]:
        """What ranks have returned so far in the newest round, by rank; those that raised are left out."""
        answers = self._answers
        if answers is None:
            answers = {} if self._call is None else self._launchers.newest(self._call.answers())
        return {rank: answer.value for rank, answer in answers.items() if not answer.raised}

    # -- what came of it

    def _results(self) -> list[Result]:
        launchers = self._launchers
        with self._hearing.turn:
            if self._answers is None:
                self._output.finish()
                found = {} if self._call is None else self._call.answers()
                self._server.learned.update(name for each in found.values() for name in each.imports)
                self._answers = launchers.newest(found)
                self.close()
        ends = launchers.decisive
        failed = [end for end in ends if end.failures] or [end for end in ends if end.status]
        if failed:
            raise _caused(failed[0].error, self._answers)
        if not launchers.are_known:
            raise JobFailedError("the job was cancelled", ExitCode.JOB_FAILED)
        if not ends:
            raise JobFailedError(
                "no node is left to end the job: have faults leave one that has the master",
                ExitCode.JOB_FAILED,
            )
        returned = self.answers()
        return [Result(rank, returned.get(rank)) for rank in range(self.ranks)]


def _caused(error: ElasticRunError, answers: Mapping[int, Answer]) -> ElasticRunError:
    """The error, with what the worker's function raised as its cause."""
    answer = answers.get(error.rank) if isinstance(error, WorkerFailed) else None
    if answer is not None and answer.raised and isinstance(answer.value, BaseException):
        error.__cause__ = answer.value
    return error
