"""All of a log, taken in one entry at a time, in bounded memory: its history, and how its ratios went.

Theory. A log may have any length, so the samples of the ratios are thinned: when there are ``SAMPLES``, the
least time between two is doubled, and those go that are closer. So they are spread evenly over the time until
now, there are never more, and each costs O(nodes).
"""

from __future__ import annotations

from dataclasses import dataclass as mutable
from dataclasses import field

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.history.history import KEPT, History
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.dataclass import dataclass

SAMPLES = 256
#: Seconds between two samples at first.
EACH = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """Where the time had gone until then, in seconds."""

    at: float
    productive: float  # of the job
    job: float
    nodes_productive: float  # of all nodes
    nodes: float


@mutable(slots=True)
class Series:
    """Samples of a history."""

    samples: list[Sample] = field(default_factory=list)
    every: float = EACH

    def look(self, history: History) -> None:
        """Take a sample, if it is time."""
        at = history.last[0]
        if self.samples and at < self.samples[-1].at + self.every:
            return
        self.add(history)
        while len(self.samples) >= SAMPLES:
            self.every *= 2
            kept = self.samples[:1]
            for sample in self.samples[1:]:
                if sample.at >= kept[-1].at + self.every:
                    kept.append(sample)
            self.samples = kept

    def add(self, history: History) -> None:
        """Take a sample of now."""
        summary = history.summary()
        self.samples.append(
            Sample(
                history.last[0],
                summary.job[Activity.PRODUCTIVE] / 1e6,
                sum(summary.job.values()) / 1e6,
                summary.total[Activity.PRODUCTIVE] / 1e6,
                sum(summary.total.values()) / 1e6,
            )
        )


@mutable(slots=True)
class Review:
    """Takes entries, in the order of the log."""

    history: History = field(default_factory=History)
    series: Series = field(default_factory=Series)
    hosts: dict[str, str] = field(default_factory=dict)  # of the newest nodes that ever came
    entries: int = 0
    lost: int = 0  # entries that are known to be missing
    begins_late: bool = False  # the log does not begin with the job

    def take(self, entry: LogEntry) -> None:
        """Take in the next entry."""
        self.entries += 1
        match entry.told:
            case chronicle.MasterStarted() as started if self.entries == 1:
                self.begins_late = not started.is_first
            case chronicle.EntriesLost() as lost:
                self.begins_late = self.begins_late or self.entries == 1
                self.lost += lost.count
            case _ if self.entries == 1:
                self.begins_late = True
            case chronicle.NodeJoined() as joined:
                self._host(joined)
            case _:
                pass
        self.history.take(entry)
        self.series.look(self.history)

    def _host(self, joined: chronicle.NodeJoined) -> None:
        self.hosts.pop(joined.node, None)
        self.hosts[joined.node] = joined.host
        if len(self.hosts) > KEPT:
            self.hosts.pop(next(iter(self.hosts)))
