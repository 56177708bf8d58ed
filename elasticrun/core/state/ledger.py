"""Which commits exist, and which of them can be restored: what the master knows.

A commit of the newest round becomes *held* once each member of that round says that it holds its own part;
only the member itself is believed. From then on its digests are fixed: another node's replica of a part
counts only if it has the digest that the part's own node told. A held commit is *whole* while each part that
has something of its own (shards of tensors), and each kind of shared contents, is in the memory of at least
one node that is here. A part without is not missed: its other values are particulars of ranks that are gone.
A commit is *safe* while each part that is needed is in the memory of as many nodes as the job wants.

Invariants. A commit that never was held is never restored. Only a commit that is whole is restored. No node
can make a commit held or whole by claiming another node's part, so a node that lies harms only its own part;
but of a commit that is adopted (see below) every word is believed.

A master without a journal does not know who was in the rounds before its first one, and where several hosts
may run the master, one that takes over may not know of the newest rounds. It *adopts* their commits: such a
commit is held once somebody has told of each of its parts.

Hearing one node costs time in proportion to what that node holds, whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from elasticrun.core.protocol.commits import CommitId, Holding


class Commit:
    """Who holds what of one commit. No dataclass: each master loads this, and most jobs save nothing."""

    def __init__(self, size: int) -> None:
        self.size = size  # how many parts it has
        self.copies: dict[int, int] = {}  # of each part, by group rank; no zeros
        self.shared: dict[str, int] = {}  # copies of each kind of shared contents; no zeros
        self.digests: dict[int, str] = {}  # of each part, as its own node told it
        self.kinds: set[str] = set()  # of shared contents that its nodes have, or had
        self.own: set[int] = set()  # parts with tensors that no other part has
        self.is_held = False

    @property
    def is_whole(self) -> bool:
        """Whether it can be restored from the memory of the nodes that are here."""
        is_here = self.own <= self.copies.keys() and self.kinds <= self.shared.keys()
        return self.is_held and is_here and bool(self.copies)

    def is_safe(self, copies: int) -> bool:
        """Whether all that is needed is in the memory of so many nodes."""
        found = [self.copies.get(rank, 0) for rank in self.own]
        found += [self.shared.get(kind, 0) for kind in self.kinds]
        return self.is_whole and all(number >= copies for number in found)


class CommitLedger:
    """The commits of one job."""

    def __init__(self, takes_turns: bool = False) -> None:
        """``takes_turns``: several hosts may run the master."""
        self._takes_turns = takes_turns
        self._first: int | None = None  # the first round that was begun; commits of earlier ones are adopted
        self._begun: set[int] = set()  # rounds of which the members were known, since the newest held commit
        self._round = -1  # the newest, whose members may make commits
        self._group_ranks: dict[str, int] = {}  # of its members
        self._commits: dict[CommitId, Commit] = {}
        self._told: dict[str, tuple[Holding, ...]] = {}  # by node: the claims that were counted
        self._highest = -1  # the highest step that a member of the newest round has told of
        self._void = -1  # commits of the newest round up to this step are held by now, or never

    def begin(self, round_: int, order: Sequence[str]) -> None:
        """Take up a new round whose members are, by group rank, those of ``order``."""
        self._round = round_
        self._first = round_ if self._first is None else self._first
        last = self.newest_held()
        self._begun = {round_, *(each for each in self._begun if last is None or each >= last.round)}
        self._group_ranks = {name: rank for rank, name in enumerate(order)}
        self._commits = {
            name: commit for name, commit in self._commits.items() if commit.is_held or self._adopts(name)
        }
        self._told = {
            node: kept
            for node, claims in self._told.items()
            if (kept := tuple(claim for claim in claims if claim.commit in self._commits))
        }
        self._highest = self._void = -1

    def hear(self, node: str, holdings: Sequence[Holding]) -> None:
        """Replace what a node told before by what it tells now."""
        for holding in self._told.pop(node, ()):
            self._discount(holding)
        counted = tuple(claim for holding in holdings if (claim := self._count(node, holding)) is not None)
        if counted:
            self._told[node] = counted
        self._void_passed(node)
        self._forget_lost()

    def lose(self, node: str) -> None:
        """Forget what a node holds: it is gone."""
        self.hear(node, ())

    # -- queries

    @property
    def nodes(self) -> Set[str]:
        """The nodes that hold something."""
        return self._told.keys()

    def newest_held(self) -> CommitId | None:
        """The newest commit that all members of its round have saved."""
        return _newest(name for name, commit in self._commits.items() if commit.is_held)

    def newest_whole(self) -> CommitId | None:
        """The commit to restore; None if the nodes that are here hold none."""
        return _newest(name for name, commit in self._commits.items() if commit.is_whole)

    def newest_safe(self, copies: int) -> CommitId | None:
        """The newest commit of which each part is in the memory of at least ``copies`` nodes."""
        return _newest(name for name, commit in self._commits.items() if commit.is_safe(copies))

    def newest_void(self) -> CommitId | None:
        """The newest commit of this round that can never be held, as a member went on without it."""
        return CommitId(self._round, self._void) if self._void >= 0 else None

    def size(self, commit: CommitId) -> int:
        """How many parts a known commit has."""
        return self._commits[commit].size

    def missing(self, commit: CommitId) -> int:
        """How many parts of a known commit are needed, and nobody holds them."""
        known = self._commits[commit]
        needed = known.own if known.copies else range(known.size)
        return sum(rank not in known.copies for rank in needed)

    # -- claims

    def _count(self, node: str, holding: Holding) -> Holding | None:
        """Count a claim, or the part of it that is believed, which is returned."""
        name, commit = holding.commit, self._commits.get(holding.commit)
        owner = self._group_ranks.get(node) if name.round == self._round else None
        adopts = self._adopts(name)
        if commit is None:
            if not adopts and (owner is None or holding.size != len(self._group_ranks)):
                return None
            commit = Commit(holding.size)
            if owner is not None and name.step < self._highest:
                self._void = max(self._void, name.step)  # a member was further before anybody told of this
        if holding.size != commit.size:
            return None
        if owner is not None and name.step <= self._void and not commit.is_held:
            return None
        parts = tuple(
            part
            for part in holding.parts
            if (part.group_rank == owner and not commit.is_held)
            or (adopts and part.group_rank not in commit.digests)
            or commit.digests.get(part.group_rank) == part.digest
        )
        if not parts:
            return None
        self._commits[name] = commit
        for part in parts:
            commit.digests[part.group_rank] = part.digest
            if part.own and not commit.is_held:
                commit.own.add(part.group_rank)
            commit.copies[part.group_rank] = commit.copies.get(part.group_rank, 0) + 1
        claim = replace(holding, parts=parts)
        if holding.shared:
            commit.shared[holding.shared] = commit.shared.get(holding.shared, 0) + 1
            if not commit.is_held:
                commit.kinds.add(holding.shared)
        commit.is_held = commit.is_held or len(commit.copies) == commit.size
        return claim

    def _adopts(self, commit: CommitId) -> bool:
        if self._first is None or commit.round < self._first:
            return True
        return self._takes_turns and commit.round not in self._begun

    def _discount(self, claim: Holding) -> None:
        commit = self._commits[claim.commit]
        for part in claim.parts:
            _decrease(commit.copies, part.group_rank)
            if not commit.is_held and part.group_rank not in commit.copies:
                del commit.digests[part.group_rank]
        if claim.shared:
            _decrease(commit.shared, claim.shared)

    def _void_passed(self, node: str) -> None:
        """A member that has a later step will never have those that it does not have by now."""
        if node not in self._group_ranks:
            return
        has = {claim.commit for claim in self._told.get(node, ()) if claim.commit.round == self._round}
        newest = max((commit.step for commit in has), default=-1)
        self._highest = max(self._highest, newest)
        for name, commit in self._commits.items():
            if name.round == self._round and name.step < newest and name not in has and not commit.is_held:
                self._void = max(self._void, name.step)

    def _forget_lost(self) -> None:
        """Drop commits that nobody holds any part of; but the newest one may come back with its nodes."""
        last = self.newest_held()
        for name in [name for name, commit in self._commits.items() if not commit.copies and name != last]:
            del self._commits[name]

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        told: dict[tuple[CommitId, int], int] = {}
        for claims in self._told.values():
            for claim in claims:
                for part in claim.parts:
                    key = claim.commit, part.group_rank
                    told[key] = told.get(key, 0) + 1
        counted = {
            (name, rank): copies
            for name, commit in self._commits.items()
            for rank, copies in commit.copies.items()
        }
        known = {key: copies for key, copies in told.items() if key[0] in self._commits}
        commits = self._commits.values()
        rules = {
            "copies are those that nodes told of": counted == known,
            "parts are numbered below their number": all(
                rank < commit.size for commit in commits for rank in commit.copies
            ),
            "who is held was told of whole": all(
                len(commit.digests) == commit.size for commit in commits if commit.is_held
            ),
        }
        return [rule for rule, holds in rules.items() if not holds]


def _newest(names: Iterable[CommitId]) -> CommitId | None:
    return max(names, key=lambda name: name.age, default=None)


def _decrease(counts: dict[str, int] | dict[int, int], key: str | int) -> None:
    left: dict[str | int, int] = counts  # type: ignore[assignment]
    left[key] -= 1
    if not left[key]:
        del left[key]
