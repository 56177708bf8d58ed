"""What the ranks of a job recorded with each saved step, and the history of the final model in it.

Theory. A rank records its positions *before* its part of that step is complete. So whatever a later round
restores was recorded by all ranks, unless a record was lost with its disk. Each round records which commit it
restored. From the last commit these links lead back to the beginning: that chain is the history of the model,
and ``audit.py`` counts the samples in it. Steps that were saved and never restored are not in the chain.

A round may have gone on from what another job left in the storage. Each job numbers its rounds from 0, so it
shows where a round went on from a commit of its own number, or of a later one: the run that the storage names
for that is another job's. There the history of this job begins, and what was taken before is not checked.

A step counts as a commit if all ranks of its round have recorded it. The master may not have heard of the
newest one; this makes no difference, as then no round has restored it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from elasticrun.core.data.audit import Audit, Commit, audit, lineage
from elasticrun.core.data.position import Position
from elasticrun.core.data.record import from_state, is_number
from elasticrun.core.data.shard_audit import Trail, audit_shards, from_line, joined
from elasticrun.core.protocol.commits import CommitId
from elasticrun.dataclass import dataclass
from elasticrun.errors import DataError

FORMAT = 1
#: The longest line of a record, in bytes. One has some 300, and the first one of shards all names of files.
MAX_LINE = 64 << 20
#: Names of what all ranks lack are listed up to so many.
NAMED = 5
#: The most ranks of a round that are gone through one by one.
MAX_WORLD = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """How a rank began a round: the first line of its record."""

    round: int
    rank: int
    world: int  # ranks of the round
    restored: CommitId | None = None  # what it went on from; None: from nothing
    run: str | None = None  # which wrote that, if it was in a storage; maybe an earlier job


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved step of a rank: a further line of its record."""

    step: int
    positions: Mapping[str, Position]  # by their name in the saved state
    shards: Mapping[str, Trail] = field(default_factory=dict)  # by their name there
    was_kept: bool = True  # else the rank could not save it

    def after(self, before: Saved) -> Saved:
        """The same, if that step was saved before."""
        trails = {
            name: joined(before.shards[name], each) if name in before.shards else each
            for name, each in self.shards.items()
        }
        return Saved(self.step, self.positions, {**before.shards, **trails}, self.was_kept or before.was_kept)


@dataclass(frozen=True, slots=True)
class RankRecord:
    """All that one rank recorded in one round."""

    start: Start
    saved: tuple[Saved, ...]  # by step


@dataclass(frozen=True, slots=True)
class Verdict:
    """The history of the final model."""

    final: CommitId
    rounds: tuple[int, ...]  # in which it was trained, oldest first
    audits: tuple[tuple[str, Audit], ...]  # by the names of what has a position
    begun: CommitId | None = None  # of another job, from which the first of these rounds went on

    @property
    def is_exact(self) -> bool:
        """Whether each sample is in the history exactly once."""
        return all(found.is_exact for _, found in self.audits)


# -- lines


def start_line(start: Start) -> dict[str, Any]:
    """The first line of a record, as plain values."""
    restored = None if start.restored is None else [start.restored.round, start.restored.step]
    line = {
        "format": FORMAT,
        "round": start.round,
        "rank": start.rank,
        "world": start.world,
        "restored": restored,
    }
    return line if start.run is None else {**line, "run": start.run}


def saved_line(
    step: int,
    states: Mapping[str, Any],
    shards: Mapping[str, Any] | None = None,
    was_kept: bool = True,
) -> dict[str, Any]:
    """A further line, as plain values. ``states``: positions as ``record.to_state`` makes them; ``shards``:
    lines of ``shard_audit.to_line``.
    """
    line = {"step": step, "data": dict(states)}
    more = {"shards": dict(shards)} if shards else {}
    return {**line, **more} if was_kept else {**line, **more, "kept": False}


def read_start(line: Any) -> Start:
    """The first line of a record.

    Raises:
        DataError: it is none.
    """
    if not isinstance(line, Mapping) or line.get("format") != FORMAT:
        raise DataError(f"this is no record of data positions of format {FORMAT}")
    restored = line.get("restored")
    numbers: list[Any] = [line.get(name) for name in ("round", "rank", "world")]
    round_, rank, world = numbers
    if not all(is_number(each, 0) for each in numbers) or rank >= world:
        raise DataError(f"the record's first line is damaged: round, rank and world are {numbers}")
    if restored is None:
        return Start(round_, rank, world)
    if not isinstance(restored, list) or len(restored) != 2 or not all(is_number(n, 0) for n in restored):
        raise DataError(f"the record's first line is damaged: it restored {restored!r}")
    run = line.get("run")
    return Start(round_, rank, world, CommitId(*restored), None if run is None else str(run))


def read_saved(line: Any) -> Saved:
    """A further line of a record.

    Raises:
        DataError: it is damaged.
    """
    if not isinstance(line, Mapping) or not isinstance(line.get("data"), Mapping):
        raise DataError("it has no positions")
    if not is_number(line.get("step"), 0):
        raise DataError(f"a step is a number from 0 on, got {line.get('step')!r}")
    shards = line.get("shards", {})
    if not isinstance(shards, Mapping):
        raise DataError("it has no shards")
    return Saved(
        line["step"],
        {str(name): from_state(state) for name, state in line["data"].items()},
        {str(name): from_line(each) for name, each in shards.items()},
        line.get("kept") is not False,
    )


# -- the history


class History:
    """The records of a job, by round."""

    def __init__(self, records: Iterable[RankRecord]) -> None:
        """DataError if the ranks of a round disagree on what it is."""
        self._rounds: dict[int, dict[int, RankRecord]] = {}
        for each in records:
            ranks = self._rounds.setdefault(each.start.round, {})
            _check_alike(each.start, next(iter(ranks.values())).start if ranks else each.start)
            ranks[each.start.rank] = each
        starts = [self._any(number) for number in self._rounds]
        others = {each.run for each in starts if each.restored and each.restored.round >= each.round} - {None}
        #: What rounds went on from that is of another job.
        self._begun = {each.round: each.restored for each in starts if each.run in others}
        self._restored = {each.round: None if each.round in self._begun else each.restored for each in starts}
        self._commits = {id: each for number in self._rounds for id, each in self._commits_of(number)}

    def verdict(self, step: int | None = None) -> Verdict:
        """Audit the model of the newest commit, or of the newest one of this step.

        Raises:
            DataError: there is no such commit, or a part of its history was not recorded.
        """
        final = self._newest() if step is None else self._newest_of(step)
        rounds = self._way_to(final)
        restored = {number: self._restored[number] for number in rounds}
        chain = lineage(self._commits, restored, final)
        positions = [self._commits[each] for each in chain]
        names = {name for ranks in positions for saved in ranks for name in saved.positions}
        shards = {name for ranks in positions for saved in ranks for name in saved.shards} - names
        if not names and not shards:
            raise DataError(
                "no position in data was saved: give the Checkpointer's state an"
                " elasticrun.data.ElasticDataLoader, ElasticDistributedSampler or ShardedDataset"
            )
        found = {name: self._audit(name, chain) for name in names}
        found |= {name: self._audit_shards(name, rounds, final) for name in shards}
        return Verdict(final, rounds, tuple(sorted(found.items())), self._begun.get(rounds[0]))

    def _newest(self) -> CommitId:
        if not self._rounds:
            raise DataError("no rank has recorded anything")
        newest = max(self._rounds)
        steps = [id.step for id in self._commits if id.round == newest]
        found = CommitId(newest, max(steps)) if steps else self._restored[newest]
        if found is None:
            raise DataError(f"{self._nobody(newest)}: there is no model to audit")
        return found

    def _newest_of(self, step: int) -> CommitId:
        found = [id for id in self._commits if id.step == step]
        if not found:
            raise DataError(f"no round has a record of step {step} from all of its ranks")
        return max(found, key=lambda id: id.round)

    def _way_to(self, final: CommitId) -> tuple[int, ...]:
        """The rounds that lead to a commit, oldest first."""
        way, end = list[int](), final
        while True:
            if end not in self._commits:
                raise DataError(f"the history leads to {end}, {self._lack(end)}")
            way.append(end.round)
            before = self._restored[end.round]
            if before is None:
                return tuple(reversed(way))
            if before.round >= end.round:
                raise DataError(f"round {end.round} cannot have gone on from {before}")
            end = before

    def _lack(self, id: CommitId) -> str:
        ranks = self._rounds.get(id.round)
        if not ranks:
            return "and no rank of that round left a record"
        world = self._any(id.round).world
        have = {
            rank
            for rank, each in ranks.items()
            if any(saved.step == id.step and saved.was_kept for saved in each.saved)
        }
        if world > MAX_WORLD:
            return f"and all but {len(have)} of its {world} ranks left no record of it"
        lack = [rank for rank in range(world) if rank not in have]
        more = ", ..." if len(lack) > NAMED else ""
        return f"of which these ranks left no record: {', '.join(map(str, lack[:NAMED]))}{more}"

    def _nobody(self, number: int) -> str:
        begun = self._begun.get(number)
        how = f"went on from step {begun.step} of another job" if begun else "began with nothing"
        return f"round {number} {how}, and no step of it has a record of all ranks"

    def _any(self, number: int) -> Start:
        return next(iter(self._rounds[number].values())).start

    def _commits_of(self, number: int) -> list[tuple[CommitId, tuple[Saved, ...]]]:
        ranks = self._rounds[number]
        if len(ranks) < self._any(number).world:
            return []
        by_rank = [{each.step: each for each in ranks[rank].saved if each.was_kept} for rank in sorted(ranks)]
        steps = set(by_rank[0]).intersection(*by_rank[1:])
        return [(CommitId(number, step), tuple(each[step] for each in by_rank)) for step in sorted(steps)]

    def _audit(self, name: str, chain: Sequence[CommitId]) -> Audit:
        """The audit of what has this name. A commit without it is named, as a problem."""
        commits, lacking = list[Commit](), list[str]()
        for id in chain:
            found = [each.positions.get(name) for each in self._commits[id]]
            whole = tuple(each for each in found if each is not None)
            if len(whole) == len(found):
                commits.append(Commit(id, whole))
            else:
                lacking.append(f"{id} has no position of {name} on rank {found.index(None)}")
        if not commits:
            return Audit((), tuple(lacking))
        counted = audit(commits, chain[0].round in self._begun)
        return Audit(counted.epochs, (*lacking, *counted.problems))

    def _audit_shards(self, name: str, rounds: Sequence[int], final: CommitId) -> Audit:
        """The audit of the shards of this name."""
        ends = [self._restored[number] for number in rounds[1:]] + [final]
        trails = [
            saved.shards[name]
            for end in ends
            if end is not None
            for each in self._rounds[end.round].values()
            for saved in each.saved
            if saved.step <= end.step and name in saved.shards
        ]
        last = [each.shards[name] for each in self._commits[final] if name in each.shards]
        if len(last) < len(self._commits[final]):
            return Audit((), (f"not all ranks of {final} have written down what is left of {name}",))
        if rounds[0] not in self._begun:
            return audit_shards(trails, last)
        first = self._rounds[rounds[0]].values()
        of_first = (saved.shards[name] for each in first for saved in each.saved if name in saved.shards)
        begun = next((each.begun for each in of_first if each.begun is not None), None)
        if begun is None:
            return Audit((), (f"nobody has written down what was left of {name} when this job went on",))
        return audit_shards(trails, last, begun)


def _check_alike(one: Start, other: Start) -> None:
    if (one.world, one.restored, one.run) != (other.world, other.restored, other.run):
        raise DataError(
            f"the ranks of round {one.round} disagree: rank {other.rank} was one of {other.world} and went on"
            f" from {other.restored or 'nothing'}, rank {one.rank} was one of {one.world} and went on from"
            f" {one.restored or 'nothing'}"
        )
