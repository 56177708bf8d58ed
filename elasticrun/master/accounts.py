"""The account of the job's time that a master keeps, for whoever asks how the job does.

It takes each entry of the event log as it is written, at a cost that does not grow. A master that was started
again reads the log once, when it is asked for the first time, if it is not long. Nothing is known while
nobody has reported a step: the time of a job that trains in silence looks like that of one that starts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from elasticrun.core.accounting.books import Books
from elasticrun.core.accounting.from_log import facts_of, micros
from elasticrun.core.protocol.chronicle import LogEntry, RoundStarted, RoundStopping, StepsDone
from elasticrun.core.protocol.status import JobStatus
from elasticrun.errors import UsageError
from elasticrun.master.event_reader import open_file
from elasticrun.rpc.event_lines import from_line

#: Bytes of a log that is read again; some tens of milliseconds.
LONGEST = 2 << 20


class Accounts:
    """Of one job."""

    def __init__(self) -> None:
        self._books: Books | None = None
        self._began = 0.0  # on the job's clock
        self._step: StepsDone | None = None  # the newest of this round
        self._sees_steps = False
        self._cause = ""  # why the last round that stopped did
        self._is_complete = True  # it has all entries
        self._is_damaged = False  # the log, so that it cannot be read

    def interrupted(self) -> None:
        """An earlier master wrote entries that are not here."""
        self._is_complete = False

    def take(self, entry: LogEntry) -> None:
        """Take in the next entry; while earlier ones are missing, it is left to ``read``."""
        if isinstance(entry.told, RoundStopping):
            self._cause = entry.told.reason  # which needs no earlier ones
        if self._is_complete:
            self._take(entry)

    def read(self, files: list[Path]) -> None:
        """Catch up with the files of the log, if entries are missing; they may stay missing."""
        if self._is_complete or self._is_damaged:
            return
        try:
            if sum(file.stat().st_size for file in files) > LONGEST:
                return
            entries = [from_line(line) for file in files for line in _lines(file)]
        except (OSError, UsageError):
            return
        except ValueError:  # no look will be better
            self._is_damaged = True
            return
        for entry in entries:
            if entry is not None:
                self._take(entry)
        self._is_complete = self._books is not None

    def add_to(self, status: JobStatus, now: float) -> JobStatus:
        """The status with what is known of the job's time until now, on its clock."""
        if self._cause:
            status = replace(status, cause=self._cause)
        if self._books is None or not self._is_complete:
            return status
        status = replace(status, uptime=max(0.0, now - self._began))
        if not self._sees_steps:
            return status
        summary, step = self._books.summary(micros(now)), self._step
        return replace(
            status,
            goodput=summary.goodput,
            ettr=summary.ettr,
            step=None if step is None else step.step,
            steps_rate=None if step is None else step.rate,
        )

    def _take(self, entry: LogEntry) -> None:
        if self._books is None:
            self._books, self._began = Books(micros(entry.at)), entry.at
        for fact in facts_of(entry):
            self._books.take(fact)
        match entry.told:
            case StepsDone():
                self._step, self._sees_steps = entry.told, True
            case RoundStarted():
                self._step = None
            case RoundStopping(reason=reason):
                self._cause = reason
            case _:
                pass


def _lines(path: Path) -> list[str]:
    """What is in a file of the log. Raises OSError or UsageError if it cannot be read."""
    with open_file(path) as file:
        return file.read().decode(errors="replace").splitlines()
