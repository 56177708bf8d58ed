"""Which commits exist, and which of them can be restored: what the master knows.

A commit of the newest round becomes *held* once each member of that round says that it holds its own part;
only the member itself is believed. From then on what it said of its part is fixed: another node's replica of
a part counts only if it has the digest that the part's own node told. A held commit is *whole* while each
part that has something of its own (shards of tensors), and each kind of shared contents, is in the memory of
at least one node that is here. A part without is not missed: its other values are particulars of ranks that
are gone.

Invariants. A commit that never was held is never restored. Only a commit that is whole is restored. No node
can make a commit held by claiming another node's part. Of its own part each node is believed, so one that
lies can make a commit look whole that is not; who restores it finds that out by the digests, if its parts
have them. Of a commit that is adopted (see below) every word is believed.

A master without a journal does not know who was in the rounds before its first one, and where several hosts
may run the master, one that takes over may not know of the newest rounds. It *adopts* their commits: such a
commit is held once somebody has told of each of its parts.

Hearing one node costs time in proportion to what that node holds, whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace

from elasticrun.core.protocol.commits import CommitId, Holding, Part

Need = int | str  # a part, by group rank; or a kind of shared contents


class Commit:
    """Who holds what of one commit. No dataclass: each master loads this, and most jobs save nothing."""

    def __init__(self, size: int) -> None:
        self.size = size  # how many parts it has
        self.origins: dict[int, Part] = {}  # by group rank, as a part's own node told it
        self.copies: dict[Need, int] = {}  # of each part and kind; no zeros
        self.parts = 0  # how many parts somebody holds
        self.own: set[int] = set()  # parts that a restore needs; fixed once it is held
        self.kinds: set[str] = set()  # of shared contents that a restore needs; fixed then
        self.absent = 0  # how many of all these nobody holds
        self.is_held = False

    @property
    def is_whole(self) -> bool:
        """Whether it can be restored from the memory of the nodes that are here."""
        return self.is_held and not self.absent and self.parts > 0

    def is_enough(self, here: Set[Need]) -> bool:
        """Whether it can be restored from this."""
        return self.is_held and self.own <= here and self.kinds <= here

    def needs(self, need: Need) -> bool:
        """Whether a restore needs this."""
        return need in (self.own if isinstance(need, int) else self.kinds)

    def in_claim(self, claim: Holding) -> Iterator[Need]:
        """The parts that a claim names, and the kinds of shared contents that came with them."""
        for part in claim.parts:
            yield from self.in_part(part.group_rank)

    def in_part(self, rank: int) -> Iterator[Need]:
        """A part, and the kind of shared contents that came with it."""
        yield rank
        if kind := self.origins[rank].shared:
            yield kind

    def add(self, need: Need) -> None:
        """One more node holds this."""
        self.copies[need] = self.copies.get(need, 0) + 1
        if self.copies[need] == 1:
            self.parts += isinstance(need, int)
            self.absent -= self.needs(need)

    def remove(self, need: Need) -> None:
        """One node less holds this."""
        self.copies[need] -= 1
        if not self.copies[need]:
            del self.copies[need]
            self.parts -= isinstance(need, int)
            self.absent += self.needs(need)

    def hold(self) -> None:
        """Each part is there: what its nodes said is fixed from now on."""
        self.is_held = True
        self.own = {part.group_rank for part in self.origins.values() if part.own}
        self.kinds = {part.shared for part in self.origins.values() if part.shared}
        self.absent = self.count_absent()

    @property
    def missing(self) -> int:
        """How many parts are needed, and nobody holds them."""
        needed = self.own if self.parts else range(self.size)
        return sum(rank not in self.copies for rank in needed)

    @property
    def here(self) -> dict[int, str]:
        """What is shared in each part that somebody holds, by group rank."""
        return {rank: part.shared for rank, part in self.origins.items() if rank in self.copies}

    def count_absent(self) -> int:
        """How many of what a restore needs nobody holds."""
        return len(self.own - self.copies.keys()) + len(self.kinds - self.copies.keys())


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
        # Some of them, so that no node's word takes time in proportion to all:
        self._held: set[CommitId] = set()
        self._open: set[CommitId] = set()  # of the newest round, neither held nor void
        self._empty: set[CommitId] = set()  # nobody has any part of these
        self._told: dict[str, tuple[Holding, ...]] = {}  # by node: the claims that were counted
        self._highest = -1  # the highest step that a member of the newest round has told of
        self._void = -1  # commits of the newest round up to this step are held by now, or never
        self.safe: CommitId | None = None  # the newest that was on enough hosts; it may come back

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
        self._open, self._empty = set(), {name for name in self._empty if name in self._commits}
        self._highest = self._void = -1

    def hear(self, node: str, holdings: Sequence[Holding]) -> None:
        """Replace what a node told before by what it tells now."""
        if self._told.get(node, ()) == tuple(holdings):  # all of it was believed, and is counted already
            return
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
        return _newest(self._held)

    def newest_whole(self) -> CommitId | None:
        """The newest commit that the nodes that are here hold all of; None if there is none."""
        return _newest(self.whole())

    def whole(self) -> Iterator[CommitId]:
        """All commits that the nodes that are here hold all of."""
        return (name for name in self._held if self._commits[name].is_whole)

    def newest_among(self, members: Iterable[str]) -> CommitId | None:
        """The newest commit that ``members`` hold all of, without the help of other nodes."""
        found: dict[CommitId, set[Need]] = {}
        for claim in (claim for member in members for claim in self._told.get(member, ())):
            found.setdefault(claim.commit, set()).update(self._commits[claim.commit].in_claim(claim))
        return _newest(name for name, here in found.items() if self._commits[name].is_enough(here))

    def newest_void(self) -> CommitId | None:
        """The newest commit of this round that can never be held, as a member went on without it."""
        return CommitId(self._round, self._void) if self._void >= 0 else None

    def holders(self, commit: CommitId) -> dict[Need, dict[str, int]]:
        """Who has what a restore of a commit needs: by node, the part that has it; its own node comes first.

        The commit is a known one. Takes time in proportion to all that nodes hold.
        """
        found: dict[Need, dict[str, int]] = {}
        known = self._commits[commit]
        for node, claims in self._told.items():
            owned = self._group_ranks.get(node) if commit.round == self._round else None
            for part in (part for claim in claims if claim.commit == commit for part in claim.parts):
                rank = part.group_rank
                for need in filter(known.needs, known.in_part(rank)):
                    others = found.get(need, {})
                    found[need] = {node: rank, **others} if rank == owned else {**others, node: rank}
        return found

    def parts(self, commit: CommitId) -> dict[int, list[str]]:
        """The nodes that have each part of a known commit, by group rank; its own node comes first.

        Takes time in proportion to all that nodes hold.
        """
        found: dict[int, list[str]] = {}
        for node, claims in self._told.items():
            owned = self._group_ranks.get(node) if commit.round == self._round else None
            for part in (part for claim in claims if claim.commit == commit for part in claim.parts):
                nodes = found.setdefault(part.group_rank, [])
                nodes.insert(0 if part.group_rank == owned else len(nodes), node)
        return found

    def known(self, commit: CommitId) -> Commit:
        """What is known of a commit; KeyError if nothing is. To be read only."""
        return self._commits[commit]

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
                self._pass(name.step)  # a member was further before anybody told of this
        if holding.size != commit.size:
            return None
        if owner is not None and name.step <= self._void and not commit.is_held:
            return None
        claim = _believed(commit, holding, owner, adopts)
        if not claim.parts:
            return None
        self._commits[name] = commit
        self._empty.discard(name)
        for need in commit.in_claim(claim):
            commit.add(need)
        if not commit.is_held and commit.parts == commit.size:
            commit.hold()
            self._held.add(name)
            self._open.discard(name)
        elif not commit.is_held and name.round == self._round and name.step > self._void:
            self._open.add(name)
        return claim

    def _adopts(self, commit: CommitId) -> bool:
        if self._first is None or commit.round < self._first:
            return True
        return self._takes_turns and commit.round not in self._begun

    def _discount(self, claim: Holding) -> None:
        commit = self._commits[claim.commit]
        for need in commit.in_claim(claim):
            commit.remove(need)
        if not commit.copies:
            self._empty.add(claim.commit)
        if not commit.is_held:
            for part in claim.parts:
                if part.group_rank not in commit.copies:
                    del commit.origins[part.group_rank]

    def _void_passed(self, node: str) -> None:
        """A member that has a later step will never have those that it does not have by now."""
        if node not in self._group_ranks:
            return
        has = {claim.commit for claim in self._told.get(node, ()) if claim.commit.round == self._round}
        newest = max((commit.step for commit in has), default=-1)
        self._highest = max(self._highest, newest)
        self._pass(max((it.step for it in self._open - has if it.step < newest), default=-1))

    def _pass(self, step: int) -> None:
        """Commits up to this step are held by now, or never."""
        if step > self._void:
            self._void = step
            self._open = {name for name in self._open if name.step > step}

    def _forget_lost(self) -> None:
        """Drop commits that nobody holds any part of, if nobody needs them should their nodes come back.

        What is as new as the newest whole one may be needed then, and what is safe, and the newest that was
        held. So few are kept: whoever makes new ones has a whole one. What was adopted, of which anybody can
        make any number up, would be adopted again.
        """
        kept, whole = (self.safe, self.newest_held()), self.newest_whole()
        for name in [*self._empty]:
            is_old = whole is not None and name.age < whole.age
            if name not in kept and (is_old or name not in self._held or self._adopts(name)):
                del self._commits[name]
                self._empty.discard(name)
                self._held.discard(name)
                self._open.discard(name)

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        told: dict[CommitId, dict[Need, int]] = {name: {} for name in self._commits}
        for claims in self._told.values():
            for claim in claims:
                for need in self._commits[claim.commit].in_claim(claim):
                    told[claim.commit][need] = told[claim.commit].get(need, 0) + 1
        commits, round_ = self._commits.values(), self._round
        open_ = {
            name
            for name, commit in self._commits.items()
            if not commit.is_held and name.round == round_ and name.step > self._void
        }
        rules = {
            "copies are those that nodes told of": all(
                commit.copies == told[name] for name, commit in self._commits.items()
            ),
            "parts are numbered below their number": all(
                need < commit.size for commit in commits for need in commit.copies if isinstance(need, int)
            ),
            "who is held was told of whole": all(
                len(commit.origins) == commit.size for commit in commits if commit.is_held
            ),
            "what is held, open or empty is listed": (
                self._held == {name for name, commit in self._commits.items() if commit.is_held}
                and self._empty == {name for name, commit in self._commits.items() if not commit.copies}
                and self._open == open_
            ),
            "what is absent is counted": all(commit.absent == commit.count_absent() for commit in commits),
        }
        return [rule for rule, holds in rules.items() if not holds]


def _newest(names: Iterable[CommitId]) -> CommitId | None:
    return max(names, key=lambda name: name.age, default=None)


def _believed(commit: Commit, holding: Holding, owner: int | None, adopts: bool) -> Holding:
    """What of a claim is believed. Of the part of ``owner`` its node is, and what it says is noted."""
    parts = []
    for part in holding.parts:
        rank = part.group_rank
        if rank not in commit.origins and (rank == owner or adopts):
            commit.origins[rank] = part
        if rank in commit.origins and commit.origins[rank].digest == part.digest:
            parts.append(part)
    return replace(holding, parts=tuple(parts))
