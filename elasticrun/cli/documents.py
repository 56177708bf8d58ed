"""What ``elastic-ctl --json`` prints, as values, and the JSON schemas that describe it.

The schemas lie in ``elasticrun/manual/schemas``. They are made from the values below and their annotations
(``python -m elasticrun.cli.documents NAME`` prints one), so a test sees when one is out of date. A version
stays as long as its fields keep their meaning; new fields may come within it.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from elasticrun.cli.json_schema import DIALECT, of_dataclass
from elasticrun.core.advice.rules import Advice
from elasticrun.core.protocol.bounds import LIVES, PIDS, ROUNDS_HEARD, Counted, Label, Range
from elasticrun.core.protocol.questions import LogStream, Rank
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.core.review.document import Report
from elasticrun.dataclass import dataclass
from elasticrun.observer.model import State
from elasticrun.rpc.records import to_json
from elasticrun.ui.top.frame import Frame

if TYPE_CHECKING:
    from elasticrun.rpc.nearby import NearbyJob

VERSION = 1
FOLDER = Path(__file__).parent.parent / "manual" / "schemas"


@dataclass(frozen=True, slots=True)
class StatusDocument:
    """What elastic-ctl status --json prints."""

    version: int
    job: JobStatus


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job of this user whose master is on this host."""

    job_id: Label
    phase: JobPhase
    round: Annotated[int, Range(-1, 2**63 - 1)]  # the newest; -1: there was none
    nodes: Counted
    min_nodes: Counted
    max_nodes: Counted
    endpoint: str | None  # HOST:PORT; null: it can be asked on this host only
    since: str | None  # when it began, in UTC by ISO 8601; null: not known, as its master was started again
    pid: Annotated[int, PIDS]  # of the launcher that started the master


@dataclass(frozen=True, slots=True)
class JobsDocument:
    """What elastic-ctl ps --json prints."""

    version: int
    jobs: tuple[ListedJob, ...]


@dataclass(frozen=True, slots=True)
class AdviceDocument:
    """What elastic-ctl advice --json prints: the largest loss first."""

    version: int
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class OrderDocument:
    """What a verb that changes something prints with --json, once it is obeyed."""

    version: int
    order: str  # the verb, such as "scale in"
    answer: str  # what the master does, in words
    ended: str | None = None  # how it ended, in words; null: the verb does not wait for that


class LineKind(Enum):
    """What a line of elastic-ctl logs --json is."""

    LINE = "line"  # the worker printed it
    NOTE = "note"  # about what was printed, or was not


@dataclass(frozen=True, slots=True)
class LogLineDocument:
    """A line of what elastic-ctl logs --json prints."""

    version: int
    rank: Rank
    kind: LineKind
    stream: LogStream | None  # null: the note is about all streams
    round: Annotated[int, ROUNDS_HEARD]  # in which it was printed; -1: nothing was
    attempt: Annotated[int, LIVES]  # of a task that starts again within a round
    text: str  # without the newline


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of one rank's threads."""

    rank: Rank
    stacks: str  # "": none
    problem: str  # why there are none


@dataclass(frozen=True, slots=True)
class StacksDocument:
    """What elastic-ctl stacks --json prints."""

    version: int
    ranks: tuple[RankStacks, ...]


DOCUMENTS: dict[str, type] = {
    "status": StatusDocument,
    "ps": JobsDocument,
    "advice": AdviceDocument,
    "report": Report,
    "logs": LogLineDocument,
    "stacks": StacksDocument,
    "order": OrderDocument,
    "top": Frame,
    "web": State,
}

#: Of those that no verb prints.
TITLES = {"web": "GET /api/state of elastic-run --web"}


def listed(job: NearbyJob) -> ListedJob:
    """A job as ``ps`` shows it."""
    status, about = job.status, job.about
    since = (
        None if about.since is None else datetime.fromtimestamp(int(about.since), timezone.utc).isoformat()
    )
    return ListedJob(
        job_id=status.job_id,
        phase=status.phase,
        round=status.round,
        nodes=len(status.nodes) + status.unlisted,
        min_nodes=status.min_nodes,
        max_nodes=status.max_nodes,
        endpoint=about.endpoint or None,
        since=since,
        pid=about.launcher,
    )


def text_of(
    document: StatusDocument
    | JobsDocument
    | AdviceDocument
    | Report
    | OrderDocument
    | StacksDocument
    | Frame,
) -> str:
    """The text to print."""
    return json.dumps(to_json(document), indent=2)


def line_of(document: LogLineDocument) -> str:
    """The same in one line."""
    return json.dumps(to_json(document), separators=(",", ":"))


def schema_text(name: str) -> str:
    """The schema of a document of this name, as its file holds it."""
    definitions: dict[str, Any] = {}
    body = of_dataclass(DOCUMENTS[name], definitions)
    body["properties"]["version"] = {"const": VERSION}
    head = {
        "$schema": DIALECT,
        "title": f"{TITLES.get(name, f'elastic-ctl {name} --json')}, version {VERSION}",
    }
    return json.dumps({**head, **body, "$defs": dict(sorted(definitions.items()))}, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text(sys.argv[1]))
