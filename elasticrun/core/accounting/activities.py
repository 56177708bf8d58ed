"""What a node does with its time.

Each microsecond of a node's presence is spent on exactly one of these. The same holds for each microsecond of
the job, which is judged by its critical path: a job trains when its round does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Activity(Enum):
    """The values are what people read, and the keys of the JSON form."""

    PRODUCTIVE = "productive"  # steps that the job had not made before
    REDONE = "redone"  # steps that an earlier round had made, and work that was lost before it was a step
    SLOW = "slow"  # waiting for a straggler, in steps of either kind
    CHECKPOINT = "checkpoint stall"  # training waits for a save
    START = "start"  # preparing, health check, forking workers, building the model, the first step of a round
    IMPORT = "import"  # from the worker's first moment until its imports are done
    RENDEZVOUS = "rendezvous"  # until the process group is connected
    RESTORE = "restore"  # until the saved state is loaded
    WAITING = "waiting for nodes"  # ready, or finished: others are not
    STOPPED = "stopped"  # from the stop or the failure of a round until the node is ready again
    HUNG = "hung"  # no step is made, and this was found out


#: Microseconds of each activity; all activities are in it.
Spent = dict[Activity, int]


def nothing() -> Spent:
    """No time at all."""
    return dict.fromkeys(Activity, 0)


def add(to: Spent, more: Mapping[Activity, int]) -> None:
    """Add time to what was spent before."""
    for activity, micros in more.items():
        to[activity] += micros


def take_off(from_: Spent, less: Mapping[Activity, int]) -> None:
    """Take time off what was spent together."""
    for activity, micros in less.items():
        from_[activity] -= micros
