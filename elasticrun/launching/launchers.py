"""The launchers of a job, one for each node, as the process that started them knows them.

A channel to each launcher brings its pid and its exit status; a file in memory brings what it knows: each
round as it starts, and at its end how that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticrun.core.protocol.failure import Failure
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, ExitCode, JobFailedError, UsageError, WorkerFailed
from elasticrun.launching.call import Answer, read_all
from elasticrun.rpc.records import from_json

if TYPE_CHECKING:
    from elasticrun.launching.server import Server

_WORDS = 4096  # bytes of a message on a channel


@dataclass(frozen=True, slots=True)
class Begun:
    """A round, as the master has told one node of it."""

    world_size: int
    restarts: int  # that were spent by then
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """How a launcher ended; ``failures`` begin with the root cause."""

    status: int
    reason: str
    failures: tuple[Failure, ...] = ()

    @property
    def error(self) -> ElasticRunError:
        """What its caller is told, if the status is not 0."""
        if self.status == ExitCode.USAGE:
            return UsageError(self.reason)
        if not self.failures:
            return JobFailedError(self.reason, self.status)
        first, *others = self.failures
        return WorkerFailed(
            first.rank,
            first.summary,
            first.exit_code,
            traceback=first.traceback,
            output=first.stderr_tail,
            others=tuple(each.summary for each in others),
        )


class Launchers:
    """They are numbered as their nodes were when they started. To be closed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._owner = os.getpid()
        self.ends: dict[int, End] = {}  # of those that have ended
        self.pids: dict[int, int] = {}
        self.channels: dict[int, socket.socket] = {}  # of those that run
        #: Those whose failure is none of the job's, as it was brought about; of these, those that no one
        #: waits for, as they never end.
        self.hit: set[int] = set()
        self.gone: set[int] = set()
        #: Ranks that were taken away with their nodes, by round and rank: what they answer is nothing.
        self.lost: set[tuple[int, int]] = set()
        self._ended: list[socket.socket] = []  # channels that are over
        self._has_hung_up = False
        self._started = 0
        self._outcomes: list[int] = []
        self._kept: list[list[dict[str, Any]]] = []  # what they have told, once the outcomes are closed
        #: Whether the fork server has ended, and with it the job.
        self.is_abandoned = False

    def start(self, request: Mapping[str, Any], std: Sequence[int]) -> int:
        """Start one more; returns its number. ``std``: its stdin, stdout and stderr.

        Raises NodeFaultError if the host refuses a process.
        """
        number, self._started = self._started, self._started + 1
        self._outcomes.append(os.memfd_create("elasticrun-outcome", os.MFD_CLOEXEC))
        self.channels[number] = self._server.ask(request, self._outcomes[number], std)
        return number

    @property
    def have_begun(self) -> bool:
        """Whether all of them run, or have run, as far as this process has heard."""
        return len({*self.pids, *self.ends}) == self._started

    @property
    def are_over(self) -> bool:
        """Whether all have ended that are waited for, as far as this process has heard.

        A node that was hit, and without which the others went on, only looks for its master once they have
        ended.
        """
        running = self.channels.keys() - self.gone
        return not running or (running <= self.hit and not running & self._newest())

    @property
    def are_known(self) -> bool:
        """Whether it is known of all that are waited for how they have ended."""
        unknown = {*range(self._started)} - self.ends.keys() - self.gone
        return not unknown or (unknown <= self.hit and not unknown & self._newest())

    @property
    def decisive(self) -> list[End]:
        """The ends that say how the job was: of nodes that were hit only if there is no other."""
        unhit = self.ends.keys() - self.hit
        return [
            self.ends[number] for number in sorted(unhit or self.ends.keys() & self._newest() - self.gone)
        ]

    def has_begun(self, number: int) -> bool:
        """Whether a launcher was told of a round."""
        return any("round" in told for told in self._all_told()[number])

    def number_of(self, pid: int) -> int | None:
        """The launcher with this pid; None: there is none."""
        return next((number for number, each in self.pids.items() if each == pid), None)

    def hear(self, number: int) -> None:
        """Take in what a launcher's channel has to say."""
        try:
            words = self.channels[number].recv(_WORDS).decode()
        except ConnectionError:
            words = ""
        kind, _, rest = words.partition(" ")
        if kind == "pid":
            self.pids[number] = int(rest)
            return
        channel = self.channels.pop(number)
        self._ended.append(channel)
        if kind == "over":
            with contextlib.suppress(OSError):  # it has just ended
                channel.send(b"let go")
            self.ends[number] = self._end(number, int(ExitCode.OK), "")
            return
        if self._has_hung_up and not kind:
            return  # it was this process
        self.is_abandoned |= not kind
        status = int(rest) if kind == "ended" else int(ExitCode.NODE_FAULT)
        self.ends[number] = self._end(number, status, rest if kind == "problem" else "")

    def tell(self, number: int, signum: signal.Signals) -> None:
        """Send a signal to a launcher, unless it has ended."""
        channel = self.channels.get(number)
        if channel is not None:
            with contextlib.suppress(OSError):  # it has just ended
                channel.send(str(int(signum)).encode())

    def tell_all(self, signum: signal.Signals) -> None:
        """Send a signal to all that run."""
        for number in [*self.channels]:  # another thread may hear that one has ended
            self.tell(number, signum)

    def processes(self, number: int) -> Iterator[int]:
        """The pids of a launcher and of all below it."""
        found = [self.pids[number]]
        while found:
            pid = found.pop()
            yield pid
            with contextlib.suppress(OSError):  # it has just ended
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (thread / "children").read_text().split())

    def rounds(self) -> dict[int, Begun]:
        """The rounds that they were told of so far, by number; where nodes differ, as the first says."""
        found: dict[int, Begun] = {}
        for told in (told for lines in self._all_told() for told in lines):
            if "round" in told:
                begun = Begun(told["world_size"], told["restarts"], told["why"])
                found.setdefault(told["round"], begun)
        return found

    def newest(self, answers: Mapping[int, Answer]) -> dict[int, Answer]:
        """Answers of the newest round, by rank, but none of a node that was taken away in it."""
        number = max(self.rounds(), default=-1)
        return {
            rank: it for rank, it in answers.items() if it.round == number and (number, rank) not in self.lost
        }

    def hang_up(self) -> None:
        """Kill those that run: the server kills the launcher whose channel is shut down."""
        self._has_hung_up = True
        if os.getpid() == self._owner:
            for channel in [*self.channels.values()]:
                with contextlib.suppress(OSError):  # it has ended; else forks of ours may have copies
                    channel.shutdown(socket.SHUT_RDWR)

    def forget_ended(self) -> None:
        """Close the channels of those that have ended."""
        while self._ended:
            self._ended.pop().close()

    def close(self) -> None:
        """Hang up, and let go of what they have left."""
        self.hang_up()
        self._ended += self.channels.values()
        self.channels.clear()
        self.forget_ended()
        self._kept = self._all_told()
        outcomes, self._outcomes = self._outcomes, []
        for outcome in outcomes:
            os.close(outcome)

    def _all_told(self) -> list[list[dict[str, Any]]]:
        """What each launcher has told so far."""
        return [_lines(outcome) for outcome in self._outcomes] or self._kept

    def _newest(self) -> set[int]:
        """The launchers that were told of the newest round."""
        newest = max(self.rounds(), default=-1)
        return {
            number
            for number, lines in enumerate(self._all_told())
            if any(told.get("round") == newest for told in lines)
        }

    def _end(self, number: int, status: int, problem: str) -> End:
        """What a launcher has told of its end; ``problem``: why there was none."""
        told = next((told for told in _lines(self._outcomes[number]) if "status" in told), None)
        if told is None:
            return End(status, problem or _unsaid(status))
        failures = tuple(from_json(Failure, each) for each in told["failures"])
        return End(status, told["reason"], failures)


def _lines(outcome: int) -> list[dict[str, Any]]:
    """The whole lines; a launcher that was killed may have left another."""
    return [json.loads(line) for line in read_all(outcome).splitlines(keepends=True) if line.endswith(b"\n")]


def _unsaid(status: int) -> str:
    if status == ExitCode.OK:
        return ""
    return (
        f"the launcher was killed by signal {-status}" if status < 0 else "the launcher ended without a word"
    )
