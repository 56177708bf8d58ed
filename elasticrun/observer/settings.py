"""What an observer is told: which job to follow, and how to show it."""

from __future__ import annotations

from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.dataclass import dataclass
from elasticrun.observer.access import Reading


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """Written to the observer's stdin as one line of JSON: it holds the job's token."""

    job_id: str | None  # None: the only one on this host
    launcher: int | None  # pid of the launcher of a job that is only on this host
    endpoints: tuple[Endpoint, ...]  # where the master may be, if it is not on this host
    security: SecurityConfig
    timeout: float
    listener: int  # the number of a listening socket; -1: no page is served
    host: str  # by which the page was asked for
    reading: Reading
    traces: str  # the URL that gets traces; "": none does
    channel: int = -1  # of masters only
