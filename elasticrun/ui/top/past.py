"""The past of a job, from its event log: the history at any moment, and the steps from one to the next.

Theory. A history is a fold, so an earlier one is made by folding anew. Each ``EACH`` entries the history is
kept as it was, so a step back costs at most so many entries, however long the log is.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence

from elasticrun.core.history.history import History
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.errors import UsageError
from elasticrun.rpc.event_lines import kind_of
from elasticrun.ui.events import TOLD

EACH = 2000
#: Kinds of entries at which a step stops: those that tell a story, and these.
MARKS = TOLD | {"round_started", "round_stopping", "hang_found", "state_saved"}


class Past:
    """The entries of a log, and the history up to one of them."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        """At the last entry. UsageError: there is none."""
        if not entries:
            raise UsageError("the event log has no entries that this elasticrun knows")
        self._entries = entries
        self._kept: dict[int, History] = {0: History()}  # as they were before so many entries
        self._clocks: list[float] = []  # the job's clock after each entry
        clock = entries[0].at
        for entry in entries:
            clock = max(clock, entry.at)
            self._clocks.append(clock)
        self._stops = [at for at, it in enumerate(entries, 1) if kind_of(type(it.told)) in MARKS] or [
            len(entries)
        ]
        self.history = History()
        self._taken = 0
        self.now: float | None = None  # the moment that was asked for; None: that of the last entry
        self._go(len(entries))

    @property
    def entry(self) -> LogEntry:
        """The last entry that has happened; the first one, if none has."""
        return self._entries[max(0, self._taken - 1)]

    def at(self, moment: float) -> None:
        """Go to a moment of the job's clock; before the first entry nothing has happened."""
        self._go(bisect_right(self._clocks, moment))
        over = self.history.outcome or self._taken == 0
        self.now = None if over else min(moment, self._clocks[-1])

    def wall(self, time: float) -> None:
        """Go to a moment of the wall clock of the master's host."""
        taken = sum(1 for entry in self._entries if entry.time <= time)
        before = self._entries[max(0, taken - 1)]
        self.at(before.at + max(0.0, time - before.time) if taken else self._clocks[0] - 1.0)

    def next(self) -> None:
        """Go to the next event that tells something."""
        later = bisect_right(self._stops, self._taken)
        self._stop(self._stops[min(later, len(self._stops) - 1)])

    def previous(self) -> None:
        """Go to the one before."""
        earlier = bisect_right(self._stops, self._taken - 1) - 1
        self._stop(self._stops[max(0, earlier)])

    def first(self) -> None:
        """Go to the first one."""
        self._stop(self._stops[0])

    def last(self) -> None:
        """Go to the last one."""
        self._stop(len(self._entries))

    def _stop(self, count: int) -> None:
        self._go(count)
        self.now = None

    def _go(self, count: int) -> None:
        """Have the history after so many entries."""
        if count < self._taken:
            begin = max(at for at in self._kept if at <= count)
            self.history, self._taken = copy.deepcopy(self._kept[begin]), begin
        while self._taken < count:
            self.history.take(self._entries[self._taken])
            self._taken += 1
            if self._taken % EACH == 0 and self._taken not in self._kept:
                self._kept[self._taken] = copy.deepcopy(self.history)
