"""Where the time of a recovery goes: stages between marks that agent, workers and this process set. Pure.

The agent's marks are its events (``--event-log-handler console``), in milliseconds of the wall clock; the
others are on the monotonic clock, and the offset of the two is taken right after the recovery. Each mark is
that of the last process that sets it, so the stages follow one another and add up to the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from scripts.benchmarks.run import Event

#: Stage -> the mark that ends it. A stage without a mark is left out: "device" is only marked on GPUs.
STAGES = {
    "detect": "failed",  # the agent has seen the death, and told the master
    "stop": "ready",  # every other worker is dead
    "rendezvous": "running",  # the next round has come, and its workers are being started
    "start": "line",
    "import": "imported",
    "device": "device",
    "group": "group",
    "step": "reduced",
}
MILLISECOND = 0.001
_AGENT = "elasticrun.agent."


def agent_marks(output: str, offset: float) -> list[tuple[str, float]]:
    """(phase, when on the monotonic clock) of each event; ``offset``: the wall clock less that clock."""
    found = []
    for line in output.splitlines():
        if line.startswith("{") and _AGENT in line:
            event = json.loads(line)
            found.append((event["name"].removeprefix(_AGENT), event["timestamp"] / 1000 - offset))
    return found


def split(killed: float, agent: Iterable[tuple[str, float]], workers: Sequence[Event]) -> dict[str, float]:
    """Seconds of each stage whose end was marked; ``workers`` are the events of the new world."""
    marks = {phase: at for phase, at in agent if at > killed - MILLISECOND}
    for event in workers:
        marks[event.what] = max(event.at, marks.get(event.what, 0.0))
    found, before = {}, killed
    for stage, mark in STAGES.items():
        if mark in marks:
            found[stage] = marks[mark] - before
            before = marks[mark]
    return found
