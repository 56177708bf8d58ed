"""What the master and the agents say of saved states that go to a storage.

The master gives each node at most one *order* at a time: to write some parts of a commit that it has in
memory, or, once all parts are written, to finish the commit. A node tells how its newest order fares.
"""

from enum import Enum
from typing import Annotated

from elasticrun.core.protocol.bounds import RANKS, SEQUENCES, WORLD_SIZES, Counted, Epoch, Length, Sentence
from elasticrun.core.protocol.commits import MAX_PARTS, CommitId
from elasticrun.dataclass import dataclass

#: The most characters of a run's name.
MAX_RUN = 32

Run = Annotated[str, Length(MAX_RUN)]


@dataclass(frozen=True, slots=True)
class StorePart:
    """One part to write. The nodes that have saved the same shared contents write an equal share each."""

    group_rank: Annotated[int, RANKS]  # of the part, in the round of its commit
    number: Annotated[int, RANKS]  # of its file, among those of the commit
    which: Annotated[int, RANKS] = 0  # share
    of: Annotated[int, WORLD_SIZES] = 1  # shares


StoreParts = Annotated[tuple[StorePart, ...], Length(MAX_PARTS)]


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """What one node has to do for the storage now."""

    number: Counted  # grows with each order of a run
    run: Run  # of the job: each numbers its rounds from 0
    commit: CommitId
    parts: StoreParts = ()  # to write; (): all are written, and the commit has to be finished
    files: Annotated[int, WORLD_SIZES] = 1  # that the commit has
    partial: bool = False  # parts that a restore does not need are lost, and left out
    urgent: bool = False  # somebody waits for it, and nothing trains: not at the lowest priority


@dataclass(frozen=True, slots=True)
class WriteState:
    """The order in force for this node; None: nothing has to be written, or kept for that."""

    epoch: Epoch
    order: StoreOrder | None = None


class StoreStage(Enum):
    """How an order fares."""

    WRITING = "writing"
    WRITTEN = "written"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoreReport:
    """How the newest order of a node fares."""

    number: Annotated[int, SEQUENCES]  # of the order
    run: Run
    stage: StoreStage
    reason: Sentence = ""  # why it has failed
