"""How one worker failed, as a value that agents and the master exchange."""

from enum import Enum
from typing import Annotated

from elasticrun.core.protocol.bounds import (
    COUNTS,
    EXIT_CODES,
    PIDS,
    RANKS,
    STEPS,
    TIMESTAMPS,
    Name,
    Path,
    Text,
    TextEnd,
)
from elasticrun.dataclass import dataclass

#: Longest part of a failure's message, in characters, that its summary repeats.
MAX_SUMMARY_TEXT = 200


class FailureKind(Enum):
    """How a worker failed."""

    EXIT = "exit"  # ended by itself with a status other than 0
    SIGNAL = "signal"  # ended by a signal that we did not send
    SPAWN = "spawn"  # could not be started at all
    PORT_TAKEN = "port_taken"  # the store's port was taken between choosing and binding it
    HANG = "hang"  # it stopped making steps and was stopped for that
    STORE_LOST = "store_lost"  # not of a worker: the launcher's process that serves the round's store ended


@dataclass(frozen=True, slots=True)
class Failure:
    """One worker that failed by itself; a worker that the launcher merely stopped is no failure."""

    node: Name
    host: Name
    rank: Annotated[int, RANKS]
    local_rank: Annotated[int, RANKS]
    role: Name
    pid: Annotated[int, PIDS]
    kind: FailureKind
    exit_code: Annotated[int, EXIT_CODES]  # as in subprocess: negative is the number of the signal
    message: Text = ""  # from the error file, else one sentence about the exit
    traceback: TextEnd = ""  # from the error file
    stderr_tail: TextEnd = ""
    error_file: Path = ""
    # Wall clock of the worker's host in seconds; compared only within one host.
    timestamp: Annotated[float, TIMESTAMPS] = 0.0
    step: Annotated[int, STEPS] = -1  # the last training step that the worker reported; -1: none
    oom_kills: Annotated[int, COUNTS] = 0  # OOM kills that the cgroup counted in this round
    host_oom: bool = False  # the host ran out of memory in this round
    kernel_log: TextEnd = ""  # what the kernel's log said of hardware or memory in this round
    stacks: Path = ""  # of a hang: the directory on its host in which all stacks were saved
    stopped: bool = False  # it was failing, but a signal of the launcher reached it before it had ended
    # When its error file was written, on the wall clock of its host in seconds; 0: unknown.
    raised: Annotated[float, TIMESTAMPS] = 0.0

    @property
    def summary(self) -> str:
        """One line: which worker, where, and how it ended."""
        pid = f"pid {self.pid}, " if self.pid else ""
        if self.kind is FailureKind.STORE_LOST:
            return f"the workers' store ({pid}{self.host}) is lost: {self._told}"
        return f"rank {self.rank} (local rank {self.local_rank}, {pid}{self.host}) {self._ending}"

    @property
    def _ending(self) -> str:
        told = self._told
        if self.kind in (FailureKind.SPAWN, FailureKind.HANG):
            return told
        if self.stopped:
            cause = f": {told}" if self.error_file else ""
            return f"was already failing when the launcher stopped it{cause}"
        if self.exit_code < 0 and not told.startswith("killed by "):
            return f"was killed by signal {-self.exit_code}"
        if self.exit_code < 0:
            return f"was {told}"
        return f"exited with {self.exit_code}" + (f": {told}" if self.traceback else "")

    @property
    def _told(self) -> str:
        return headline(self.message)[:MAX_SUMMARY_TEXT]


def headline(text: str) -> str:
    """The line that says what went wrong: the first, and the last one too if the first only announces it."""
    first, _, rest = text.partition("\n")
    last = rest.strip().rpartition("\n")[2].strip()
    return f"{first} {last}" if first.endswith(":") and last else first
