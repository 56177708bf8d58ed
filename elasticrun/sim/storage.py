"""The storage of one simulated job: what is in it, and what goes wrong with it.

It outlives every node and every master. A file is there once all of it is written; the marker that finishes a
commit comes last. A writer asks before each file, and each marker, what will become of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.storing import StoreOrder, StorePart
from elasticrun.core.state.retrying import Trouble
from elasticrun.sim.copies import Stamp
from elasticrun.sim.scenario import StorageSpec

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator

Name = tuple[CommitId, str]  # a commit, and the run of the job


class Fate(Enum):
    """What becomes of a write."""

    DONE = "done"
    FAILS = "fails"
    HANGS = "hangs"
    CRASHES = "crashes"  # its node is lost meanwhile


@dataclass(frozen=True)
class File:
    """One part of a commit, as it was written."""

    ranks: tuple[Stamp, ...]
    shared: str  # the kind of what is shared in it
    which: int  # share of that
    of: int  # shares


@dataclass
class Folder:
    """One commit."""

    files: dict[int, File] = field(default_factory=dict)  # by number
    count: int = 0  # of files that make it, once it is finished
    number: int = 0  # grows with each commit that is finished; 0: it is not

    @property
    def made_of(self) -> list[File]:
        """The files of a finished commit."""
        return [self.files[number] for number in range(self.count)]


class SimStorage:
    """What all nodes of a job share."""

    def __init__(self, sim: Simulator) -> None:
        self.spec = sim.scenario.storage or StorageSpec()
        self.is_there = sim.scenario.storage is not None
        #: Its own chance, so that a job without a storage goes on as before.
        self.rng = random.Random(f"storage {sim.scenario.seed}")
        self.folders: dict[Name, Folder] = {}
        self.failed_at = -1.0  # when something last went wrong
        self.hanging = 0  # writers
        self.lost_at = -1.0  # when a node was last lost that wrote
        self._sim = sim
        self._kernel = sim.kernel

    @property
    def is_away(self) -> bool:
        """Whether it can neither be read nor written now."""
        return self.was_away(self._kernel.now)

    def was_away(self, since: float) -> bool:
        """Whether it was away at some time since then."""
        return any(gone <= self._kernel.now and since < back for gone, back in self.spec.away)

    def newest(self) -> Name | None:
        """The commit that was finished last: workers restore that."""
        found = [(folder.number, name) for name, folder in self.folders.items() if folder.number]
        return max(found, key=lambda each: each[0])[1] if found else None

    # -- writers

    def fate(self, node: str) -> Fate:
        """What becomes of the next write of a node."""
        spec, rng, draw = self.spec, self.rng, self.rng.random()
        if self.is_away:
            fate = Fate.HANGS if draw < 0.3 else Fate.FAILS
        elif draw < spec.fails:
            fate = Fate.FAILS
        elif draw < spec.fails + spec.hangs:
            fate = Fate.HANGS
        else:
            fate = Fate.CRASHES if rng.random() < spec.crashes and self._may_crash(node) else Fate.DONE
        if fate is not Fate.DONE:
            self.failed_at = self._kernel.now
        return fate

    def _may_crash(self, node: str) -> bool:
        """Faults end some time, and hosts of masters are lost as the scenario says only."""
        scenario = self._sim.scenario
        return self._kernel.now < scenario.quiet_from and node not in scenario.hosts

    def trouble(self) -> Trouble:
        """Why a write fails."""
        self.failed_at = self._kernel.now
        return Trouble.GONE if self.is_away else self.rng.choice([*Trouble])

    def write(self, order: StoreOrder, part: StorePart, file: File) -> None:
        """A part is written, unless it was before."""
        folder = self.folders.setdefault((order.commit, order.run), Folder())
        if not folder.number and not self._is_same(folder.files.get(part.number), file):
            self._kernel.say("storage", f"{order.commit} of {order.run}: {part.number} is {file}")
            folder.files[part.number] = file

    @staticmethod
    def _is_same(found: File | None, file: File) -> bool:
        return found == file

    def next_number(self) -> int:
        """For the commit that is finished next."""
        return 1 + max((folder.number for folder in self.folders.values()), default=0)

    def obstacle(self, order: StoreOrder) -> str:
        """Why a commit cannot be finished; "" if it can."""
        files = self.folders.setdefault((order.commit, order.run), Folder()).files
        if missing := [number for number in range(order.files) if number not in files]:
            return f"part {missing[0]} of {order.files} is not there"
        found = [files[number] for number in range(order.files)]
        ranks = sorted(rank for file in found for _, rank in file.ranks)
        expected = sorted(set(ranks)) if order.partial else [*range(len(ranks))]
        if ranks != expected:
            return f"it has parts of ranks {ranks}"
        return "" if is_complete(found) else "something that is shared is missing"

    def finish(self, order: StoreOrder, number: int) -> None:
        """The marker of a commit is written."""
        folder = self.folders[order.commit, order.run]
        if not folder.number:
            self._kernel.say("storage", f"{order.commit} of {order.run} is finished")
            folder.count, folder.number = order.files, number


def is_complete(files: list[File]) -> bool:
    """Whether all shares of what is shared are in these files."""
    kinds: dict[str, list[File]] = {}
    for file in files:
        kinds.setdefault(file.shared, []).append(file)
    return all(
        {file.of for file in same} == {len(same)}
        and sorted(file.which for file in same) == [*range(len(same))]
        for kind, same in kinds.items()
        if kind
    )
