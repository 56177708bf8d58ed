"""How a commit gets from the nodes' memory into a storage: what the master knows of it.

Theory. One commit is written at a time. Each of its parts has a file of its own, and is written by one node
that has it in memory, its own node if that is free. A node has at most one order at a time. Once all parts
are written, one node *finishes* the commit: it writes what makes the files a commit, the marker last. Then
the commit is *durable*. If a node is lost, what it had to write goes to another one that has it. If there is
none, or a node gives up, the commit is given up: it stays in memory, and a later one is written anew.

A part that a restore does not need may be gone with its node. The commit is then written without it, from the
start if that part was lost meanwhile: the others have to write the share of it that is theirs by then.

Invariants. A commit is called durable only if each of its parts was told to be written, and then that it was
finished. Of its own orders each node is believed; who finishes looks at all parts. Two nodes may write the
same part, if one was lost for the master only: both write the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from elasticrun.core.protocol.commits import MAX_PARTS, CommitId
from elasticrun.core.protocol.storing import StoreOrder, StorePart, StoreReport, StoreStage


class Step(Enum):
    """What a node's report means."""

    NOTHING = "nothing"
    WRITTEN = "written"  # this node is done
    FINISHED = "finished"  # the commit is durable
    FAILED = "failed"


class Storing:
    """What one job writes to its storage. No dataclass: each master loads this, and few jobs need it."""

    def __init__(self) -> None:
        self.commit: CommitId | None = None  # that is being written
        self.considered: CommitId | None = None  # the newest that was to be written
        self.durable: CommitId | None = None  # the newest that was finished
        self.flushed: CommitId | None = None  # the newest that an end of the job, or of nodes, waited for
        self.run = ""
        self.problem = ""  # why the one before was given up; "": it was not
        self._number = 0  # of the newest order
        self._rest: dict[int, StorePart] = {}  # parts that nobody writes, by group rank
        self._orders: dict[str, StoreOrder] = {}  # that are under way, by node
        self._involved: dict[str, None] = {}  # nodes that had an order of this commit
        self._files = 0
        self._is_partial = False
        self._is_urgent = False

    @property
    def needs_writers(self) -> bool:
        """Whether there are parts that nobody writes."""
        return bool(self._rest)

    @property
    def may_finish(self) -> bool:
        """Whether all parts are written, and nobody finishes the commit yet."""
        return self.commit is not None and not self._rest and not self._orders

    @property
    def is_under_way(self) -> bool:
        """Whether somebody has an order."""
        return bool(self._orders)

    @property
    def involved(self) -> list[str]:
        """The nodes that had an order of this commit, and are here."""
        return list(self._involved)

    def order(self, node: str) -> StoreOrder | None:
        """The order in force for a node."""
        return self._orders.get(node)

    def begin(
        self, commit: CommitId, run: str, kinds: Mapping[int, str], size: int, is_urgent: bool = False
    ) -> None:
        """Have a commit written that had ``size`` parts. ``kinds``: what is shared in those that are left."""
        alike: dict[str, list[int]] = {}
        for rank in sorted(kinds):
            alike.setdefault(kinds[rank] or str(rank), []).append(rank)
        self.commit = self.considered = commit
        self.run = run
        self._rest = {
            rank: StorePart(rank, number, same.index(rank), len(same))
            for number, rank in enumerate(sorted(kinds))
            for same in (alike[kinds[rank] or str(rank)],)
        }
        self._files, self._is_partial, self._is_urgent = len(kinds), len(kinds) < size, is_urgent

    def assign(self, holders: Mapping[int, Sequence[str]]) -> tuple[list[str], str]:
        """Give the parts that nobody writes to nodes that have them and are free; ``holders``: by part.

        Returns the nodes with new orders, and why the commit cannot be written; "" if it can.
        """
        chosen: dict[str, list[StorePart]] = {}
        for rank, part in self._rest.items():
            nodes = holders.get(rank, ())
            if not nodes:
                return [], f"nobody here has part {rank} of it any more"
            free = [node for node in nodes if node not in self._orders]
            node = next((it for it in free if len(chosen.get(it, ())) < MAX_PARTS), None)
            if node is not None:
                chosen.setdefault(node, []).append(part)
        for node, parts in chosen.items():
            self._give(node, tuple(parts))
            for part in parts:
                del self._rest[part.group_rank]
        return list(chosen), ""

    def finish(self, node: str) -> None:
        """Have a node finish the commit."""
        self._give(node, ())

    def _give(self, node: str, parts: tuple[StorePart, ...]) -> None:
        assert self.commit is not None, "nothing is being written"
        self._number += 1
        self._involved[node] = None
        self._orders[node] = StoreOrder(
            self._number,
            self.run,
            self.commit,
            parts,
            self._files,
            self._is_partial,
            self._is_urgent,
        )

    def hear(self, node: str, report: StoreReport | None) -> Step:
        """Take in how a node's newest order fares."""
        order = self._orders.get(node)
        if order is None or report is None or (report.number, report.run) != (order.number, order.run):
            return Step.NOTHING
        if report.stage is StoreStage.WRITING:
            return Step.NOTHING
        if report.stage is StoreStage.FAILED:
            return Step.FAILED
        del self._orders[node]
        return Step.WRITTEN if order.parts else Step.FINISHED

    def lose(self, node: str) -> None:
        """A node is gone: somebody else has to do what it had to."""
        self._involved.pop(node, None)
        order = self._orders.pop(node, None)
        for part in order.parts if order is not None else ():
            self._rest[part.group_rank] = part

    def end(self, problem: str = "") -> CommitId:
        """The commit is durable, or given up because of a problem."""
        assert self.commit is not None, "nothing is being written"
        ended, self.commit = self.commit, None
        self.problem = problem
        if not problem:
            self.durable = ended
        self._rest, self._orders, self._involved = {}, {}, {}
        return ended

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        given = [part.group_rank for order in self._orders.values() for part in order.parts]
        rules = {
            "a part has one writer": len(set(given)) == len(given) and not set(given) & self._rest.keys(),
            "who has an order is involved": self._orders.keys() <= self._involved.keys(),
            "orders are for the commit that is written": all(
                order.commit == self.commit for order in self._orders.values()
            ),
            "a commit is finished by one node, and last": not self._finishers()
            or (len(self._orders) == 1 and not self._rest),
        }
        return [rule for rule, holds in rules.items() if not holds]

    def _finishers(self) -> list[str]:
        return [node for node, order in self._orders.items() if not order.parts]
