"""What whoever keeps jobs counts of its own work, for those who run it.

Counting is a few additions for each pass, request and question, so it is always done, whether anybody reads
it or not.

Invariants. No count falls. What is counted apart is a fixed set of words, so the memory, and the number of
series that are shown, do not grow with the jobs; only ``jobs`` holds a name for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass as mutable
from dataclasses import field

from elasticrun.core.durations import Durations

#: How a pass ends: as it should, as the platform refuses or does not answer, or by a fault of ours.
DONE, FAILED, FAULTY = "done", "failed", "faulty"
#: Upper bounds, in seconds, of the buckets of a pass; and of the wait for one.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: What a request is called, by its method.
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
#: What the API server answers; a conflict is one of 4xx, and no error: somebody else was faster.
CONFLICT, OTHER, SILENT = "409", "other", "none"
ANSWERS = ("2xx", CONFLICT, "4xx", "5xx", OTHER, SILENT)
#: How a question to a master ends, beside the reasons of ``StatusFresh``.
ANSWERED = "Answered"
REPLIES = (ANSWERED, "Unreachable", "NoToken", "Refused", "Senseless", "Fault")


@mutable(slots=True)
class Figures:
    """Counts since the program began."""

    passes: dict[str, Durations] = field(
        default_factory=lambda: {result: Durations(BUCKETS) for result in (DONE, FAILED, FAULTY)}
    )
    waits: Durations = field(default_factory=lambda: Durations(BUCKETS))  # from a notice to its pass
    requests: dict[tuple[str, str], int] = field(
        default_factory=lambda: {(verb, answer): 0 for verb in VERBS.values() for answer in ANSWERS}
    )
    questions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REPLIES, 0))
    waiting: int = 0  # jobs that have been noticed, and whose pass has not begun
    jobs: set[str] = field(default_factory=set)  # that are kept

    def requested(self, method: str, status: int) -> None:
        """The API server was asked; ``status`` is that of HTTP, and 0 if it did not answer."""
        self.requests[VERBS[method], _answer(status)] += 1


def _answer(status: int) -> str:
    if status == 0:
        return SILENT
    if status == 409:
        return CONFLICT
    found = f"{status // 100}xx"
    return found if found in ANSWERS else OTHER
