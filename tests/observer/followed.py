"""A job that is followed, without a master: what a scrape looks at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from elasticrun.core.history.history import History
from elasticrun.core.protocol.chronicle import DataProgress, LogEntry, Place, StateSaved
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.follower import Follower
from elasticrun.observer import metrics
from tests.core.story import entry, story

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """A scrape as Prometheus reads it: values by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@dataclass
class Followed:
    """What a scrape looks at of a follower."""

    history: History = field(default_factory=History)
    status: JobStatus | None = None
    trouble: str = ""
    later: float = 0.0  # seconds since the newest entry

    @property
    def now(self) -> float:
        return self.history.last[0] + self.later

    def take(self, *some: Iterable[LogEntry]) -> Followed:
        for entries in some:
            for each in entries:
                self.history.take(each)
        return self

    def render(self) -> str:
        return metrics.render(cast(Follower, self))[0].decode()

    def samples(self) -> Samples:
        return parsed(self.render())

    def __getitem__(self, name: str) -> float:
        """The value of a metric, such as ``nodes{state=ready}``."""
        found = re.fullmatch(r"(\w+)(?:\{(\w+)=(.*)\})?", name)
        assert found is not None
        labels = frozenset({(found[2], found[3])} if found[2] else ())
        return self.samples()["elasticrun_" + found[1], labels]


def status(job_id: str = "job") -> JobStatus:
    return JobStatus(job_id, JobPhase.RUNNING, 0, 1, 4, 1, 3)


GPU = GpuFigures("H100", 0.5, 20, 80)
USED = (
    NodeFigures(1.5, 8, 100, 400, 10.0, 20.0, (GPU, GPU)),
    NodeFigures(2.0, 8, 300, 400, 1.0, 2.0, (GpuFigures("H100", None, 40, 80),)),
)


def using(*figures: NodeFigures | None) -> JobStatus:
    """A status with what nodes use, as masters tell that know it."""
    nodes = [NodeStatus(f"n{rank}", rank, AgentPhase.RUNNING, figures=it) for rank, it in enumerate(figures)]
    return replace(status(), nodes=tuple(nodes))


def everything() -> Followed:
    """A job of which each metric is known."""
    saves = [entry(99, StateSaved(place, 2, 9)) for place in Place]
    data = entry(99, DataProgress(2, "data", 1, 3, 1, 0, 9))
    return Followed(status=using(*USED)).take(story(3), saves, [data])
