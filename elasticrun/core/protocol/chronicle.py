"""What happened in a job, for people and programs that look at it: the entries of the event log.

An entry is a fact with its reason, not an input of the job's machine: those are in the journal, which only
the version that wrote it can read. Readers of the log depend on these names and fields, so they only grow:
``VERSION`` grows when a field changes its meaning or goes. A reader passes over kinds and fields that it does
not know. ``elasticrun/manual/schemas/events.json`` describes the lines; a test keeps it true.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.dataclass import dataclass

VERSION = 1
#: The most names of nodes, or characters of a text, in one entry; the rest is counted, or cut off.
MAX_NAMES = 64
MAX_TEXT = 2000
#: The most shared datasets that the log tells of at a time, and characters of their names.
MAX_DATASETS = 16
MAX_DATASET = 100


class Place(Enum):
    """Where a saved state is."""

    MEMORY = "memory"  # all parts are in the memory of nodes that are here
    HOSTS = "hosts"  # and the loss of a host does not take it away
    STORAGE = "storage"  # it is in the storage


@dataclass(frozen=True, slots=True)
class MasterStarted:
    """A master took up the job; the first one founded it."""

    epoch: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node came, or came back after its stream had ended."""

    node: str
    host: str
    workers: int  # processes that it runs in a round
    returns: bool  # the same agent was here before


@dataclass(frozen=True, slots=True)
class NodeDetached:
    """The stream of a node ended, and it may come back."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is no part of the job any more."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """What an agent does changed, as it told itself: see ``AgentPhase``."""

    node: str
    phase: str
    round: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker failed by itself, as it was heard: an echo may come before its cause, which decisions name."""

    round: int
    node: str
    host: str
    rank: int
    local_rank: int
    pid: int
    how: str  # see ``FailureKind``
    exit_code: int  # negative: the number of the signal
    step: int  # the last training step that it reported; -1: none
    summary: str


@dataclass(frozen=True, slots=True)
class MilestoneReached:
    """All workers of a node got so far, as its agent told later: ``at`` may be before that of lines above."""

    node: str
    round: int
    milestone: str  # see ``Milestone`` of core/accounting/facts.py, in lower case


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The workers of a round have made all steps up to this one. A sample now and then."""

    round: int
    step: int
    rate: float | None  # steps per second, of late; None: not known


@dataclass(frozen=True, slots=True)
class SaveStalled:
    """Saves have held up the training of a round for so long, since it was told last."""

    round: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DataProgress:
    """How far the ranks of a round are with a dataset that they share. A sample now and then.

    What is trained on is told with the states that are saved, so a round that goes on from an earlier state
    begins with less than was told before.
    """

    round: int
    dataset: str  # as the script names it
    epoch: int  # the oldest one of which something is left
    done: int  # shards of it that were trained on to their ends
    leased: int  # that ranks read, or have read and not saved yet
    failed: int  # of which something is left out, as it cannot be read
    total: int  # of the epoch; 0: it has no end


@dataclass(frozen=True, slots=True)
class HangFound:
    """The workers of a round make no steps."""

    round: int
    silence: float  # seconds since the last one


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A node is slower than the others of its round; with a ``factor`` of 1 it is so no longer."""

    round: int
    node: str
    factor: float  # how many times as long as the others it takes


@dataclass(frozen=True, slots=True)
class CheckStarted:
    """The nodes are being checked before the next round."""

    reason: str


@dataclass(frozen=True, slots=True)
class CheckEnded:
    """The check is over; the job goes on, or ends."""


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The nodes of a new world were told to start their workers."""

    round: int
    nodes: int
    workers: int
    names: tuple[str, ...]  # of the first nodes, in the order of their ranks
    restart: int  # how many restarts of the budget were used
    restored_step: int | None  # the saved step that the workers start from; None: nothing is in memory
    reason: str


@dataclass(frozen=True, slots=True)
class RoundStopping:
    """The nodes of the round were told to stop their workers."""

    round: int
    cause: str  # see ``StopCause``
    reason: str


@dataclass(frozen=True, slots=True)
class RoundStopped:
    """No worker of the round is alive any more."""

    round: int


@dataclass(frozen=True, slots=True)
class StateSaved:
    """A saved state got to a place: the newest one there."""

    place: Place
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class OrderAnswered:
    """An operator's order, and what the master made of it."""

    order: str
    obeyed: bool
    answer: str


@dataclass(frozen=True, slots=True)
class ScaleStarted:
    """An order for fewer or more nodes is being carried out; one at a time."""

    order: int  # its number in the life of the job, by which ``ScaleEnded`` names it
    direction: str  # "scale in" or "scale out"
    count: int
    goal: int  # nodes of the world that it is to lead to


@dataclass(frozen=True, slots=True)
class ScaleEnded:
    """The nodes have left or come, or they did not come in time."""

    order: int
    reached: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision with its reason, as the master's own log has it."""

    phase: str  # of the job
    round: int
    text: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over."""

    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class EntriesLost:
    """Entries before this one could not be written, as the disk was full, or were written too long ago."""

    count: int  # 0: nobody knows


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of the event log."""

    event: int  # of the journal
    at: float  # seconds of the job's clock
    time: float  # of the wall clock of the master's host
    told: Happening


Happening = (
    MasterStarted
    | NodeJoined
    | NodeDetached
    | NodeGone
    | NodeChanged
    | WorkerFailed
    | MilestoneReached
    | StepsDone
    | SaveStalled
    | DataProgress
    | HangFound
    | StragglerFound
    | CheckStarted
    | CheckEnded
    | RoundStarted
    | RoundStopping
    | RoundStopped
    | StateSaved
    | OrderAnswered
    | ScaleStarted
    | ScaleEnded
    | Decision
    | JobEnded
    | EntriesLost
)
