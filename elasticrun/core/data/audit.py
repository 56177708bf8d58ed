"""Proves from the positions in a job's commits that each sample is in the model's history exactly once.

Theory. The history of a model is a chain of commits: each is what the commit before it became by training.
A position says which places of which epochs were taken, and at which of them its process began (``resumed``).
A process claims only what it took itself; so if it began elsewhere than the commit from which its model was
restored, places are missing or counted twice. Nothing is concluded from rules: the places that each rank
took between two commits are marked, one byte for each place, and the bytes are counted.

A history may begin with the model of another job. Then nothing that was taken before is known, and the first
position says how much that was: these places count as taken once, and as none of this job's samples.

Padding lies beyond the length, and is counted apart. What ``drop_last`` dropped is counted apart as well.
Cost: 4 s for an epoch of 10**9 samples (2 cores, Python 3.11); memory for ``WINDOW`` places at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from elasticrun.core.data.order import Order
from elasticrun.core.data.position import Epochs, Position, Span
from elasticrun.core.protocol.commits import CommitId
from elasticrun.dataclass import dataclass

#: How many of the samples that are wrong are named.
NAMED = 5
WINDOW = 1 << 20  # places
# What becomes of each byte, which is how often a place was taken; 255: that often or more.
_ONE_MORE = bytes([*range(1, 256), 255])
_IS_MISSING = bytes([1] + 255 * [0])
_IS_REPEATED = bytes([0, 0] + 254 * [1])


@dataclass(frozen=True, slots=True)
class Commit:
    """The positions in one commit."""

    id: CommitId
    positions: tuple[Position, ...]  # by rank; at least one


@dataclass(frozen=True, slots=True)
class Wrong:
    """Samples of which something is wrong."""

    count: int = 0
    first: tuple[int | str, ...] = ()  # the first few, by their index in the dataset, or in words
    named: int | None = None  # how many these are; None: as many as there are entries

    def __str__(self) -> str:
        more = ", ..." if self.count > (len(self.first) if self.named is None else self.named) else ""
        return f"{self.count} ({', '.join(map(str, self.first))}{more})" if self.count else "0"


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """What the model's history has of one epoch."""

    epoch: int
    samples: int  # that are due: all, or of the last epoch those before its position
    padding: int  # samples that were repeated to fill the last batch
    dropped: int  # samples that drop_last left out
    missing: Wrong
    repeated: Wrong
    left: int | None = 0  # samples that are still to come; None: nobody has counted them

    def __str__(self) -> str:
        if self.missing.count or self.repeated.count:
            found = f"missing: {self.missing}; more than once: {self.repeated}"
        else:
            found = f"each of {self.samples} samples exactly once"
        extra = [f"{n} as padding" for n in (self.padding,) if n]
        extra += [f"{n} dropped by drop_last" for n in (self.dropped,) if n]
        if self.left != 0:
            extra.append(f"{'an unknown number' if self.left is None else self.left} still to come")
        return f"epoch {self.epoch}: {', '.join([found, *extra])}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict on a job."""

    epochs: tuple[EpochAudit, ...]
    problems: tuple[str, ...]  # what speaks against the record as such, as sentences

    @property
    def is_exact(self) -> bool:
        """Whether each sample is in the history exactly once, but for padding and what drop_last dropped."""
        return not self.problems and all(not (e.missing.count or e.repeated.count) for e in self.epochs)


def lineage(
    commits: Iterable[CommitId], restored: Mapping[int, CommitId | None], final: CommitId
) -> tuple[CommitId, ...]:
    """The history of ``final``, oldest first. ``restored``: what each round started from; None: from nothing.

    Raises:
        KeyError: a round is not in ``restored``, or ``final`` is no commit.
        ValueError: a round restored a commit that is not of an earlier one.
    """
    steps: dict[int, list[int]] = {}
    for each in commits:
        steps.setdefault(each.round, []).append(each.step)
    chain, end = list[CommitId](), final
    while True:
        if end.step not in steps.get(end.round, ()):
            raise KeyError(end)
        earlier = (step for step in steps[end.round] if step <= end.step)
        chain += [CommitId(end.round, step) for step in sorted(earlier, reverse=True)]
        restored_from = restored[end.round]
        if restored_from is None:
            return tuple(reversed(chain))
        if restored_from.round >= end.round:
            raise ValueError(f"round {end.round} cannot go on from {restored_from}")
        end = restored_from


def audit(chain: Sequence[Commit], goes_on: bool = False) -> Audit:
    """Check the history of a model, oldest commit first; at least one.

    ``goes_on``: it began with the model of another job. What that had taken is believed.
    """
    final = chain[-1].positions[0]
    begun = _begun(chain[0].positions[0]) if goes_on else {}
    problems, taken = [], dict[int, list[range]]()
    before: Commit | None = None
    for commit in chain:
        if any(each.source != final.source for each in commit.positions):
            problems.append(
                f"{commit.id} has a position in other data than the last one, or in another order"
            )
            continue
        problems += _disagreement(commit)
        for epoch, places in _newly_taken(before, commit):
            _add(taken.setdefault(epoch, []), places)
        before = commit
    dropped = dict(_dropped(final))
    epochs = (
        _check(final, epoch, taken.get(epoch, []), dropped.get(epoch, 0), begun.get(epoch, 0))
        for epoch in _due(final, taken, begun)
    )
    checked = (each for each in epochs if each.samples or each.epoch in taken or each.epoch not in begun)
    return Audit(tuple(checked), tuple(problems))


def _disagreement(commit: Commit) -> list[str]:
    """That the ranks have not taken the same, in words."""
    places = [(each.epoch, each.at) for each in commit.positions]
    if len(set(commit.positions)) == 1:
        return []
    if len(set(places)) == 1:
        return [f"the ranks of {commit.id} came to one place by different ways"]
    (low_epoch, low), (high_epoch, high) = min(places), max(places)
    return [
        f"the ranks of {commit.id} are at different places:"
        f" rank {places.index(min(places))} at {low} of epoch {low_epoch},"
        f" rank {places.index(max(places))} at {high} of epoch {high_epoch}"
    ]


def _newly_taken(before: Commit | None, commit: Commit) -> Iterator[tuple[int, range]]:
    """What the ranks took after ``before``, by their own account: (epoch, places)."""
    of_round = before.positions if before is not None and before.id.round == commit.id.round else ()
    claims = [(each, each.resumed) for each in commit.positions]
    for rank, (known, (position, since)) in enumerate(zip(of_round, claims, strict=False)):
        if known.resumed == since and known.places <= position.places:
            claims[rank] = position, known.places
    if len(set(claims)) == 1:  # then the shares of the ranks make up the whole
        for epoch, span in _newer(*claims[0]):
            yield epoch, range(span.start, span.stop)
        return
    for rank, claim in enumerate(claims):
        for epoch, span in _newer(*claim):
            for places in span.share(rank):
                yield epoch, places


def _newer(position: Position, since: int) -> list[tuple[int, Span]]:
    """What was taken of a history after its first ``since`` places, as (epoch, span), oldest first."""
    found, end = list[tuple[int, Span]](), position.places
    now = Epochs(position.epoch, position.epoch, position.spans, position.ended)
    for run in (now, *reversed(position.past)):
        for epoch in range(run.last, run.first - 1, -1):
            if end <= since:
                break
            end -= run.at
            found += [
                (epoch, each.after(since - end)) for each in reversed(run.spans) if end + each.stop > since
            ]
    return found[::-1]


def _add(taken: list[range], places: range) -> None:
    """Add places, as one range with those before them if they follow."""
    if taken and taken[-1].step == places.step == 1 and taken[-1].stop == places.start:
        places = range(taken.pop().start, places.stop)
    taken.append(places)


def _dropped(final: Position) -> Iterator[tuple[int, int]]:
    """How many samples ``drop_last`` left out, by epoch."""
    now = Epochs(final.epoch, final.epoch, final.spans, final.ended)
    for run in (*final.past, now):
        if run.ended and run.at < final.source.length:
            yield from ((epoch, final.source.length - run.at) for epoch in range(run.first, run.last + 1))


def _begun(position: Position) -> dict[int, int]:
    """How many places of each epoch were taken before the process of a position began, the last one last."""
    found, rest = dict[int, int](), position.resumed
    now = Epochs(position.epoch, position.epoch, position.spans, position.ended)
    for run in (*position.past, now):
        for epoch in range(run.first, run.last + 1):
            if rest > 0:
                found[epoch] = max(found.pop(epoch, 0), min(run.at, rest))
                rest -= run.at
    return found


def _due(final: Position, taken: Mapping[int, list[range]], begun: Mapping[int, int]) -> list[int]:
    """The epochs to check: all that the last position knows of, and all of which something was taken.

    Of those of another job only the last one, which it may have left early.
    """
    known = {epoch for run in final.past for epoch in range(run.first, run.last + 1)}
    known |= {final.epoch} if final.at or final.ended else set()
    return sorted((known - set([*begun][:-1])) | taken.keys())


def _check(final: Position, epoch: int, taken: list[range], dropped: int, begun: int) -> EpochAudit:
    length, order = final.source.length, Order(final.source, epoch)
    is_over = epoch != final.epoch or final.ended
    due = length - dropped if is_over else min(final.at, length)
    missing, repeated = Wrong(), Wrong()
    for first, counts in _counted([*taken, range(begun)], length):
        missing = _more(missing, order, first, counts[: max(0, due - first)].translate(_IS_MISSING))
        repeated = _more(repeated, order, first, counts.translate(_IS_REPEATED))
    padding = sum(len(each) - len(range(each.start, min(each.stop, length), each.step)) for each in taken)
    left = 0 if is_over else length - due
    return EpochAudit(epoch, due - min(begun, due), padding, dropped, missing, repeated, left)


def _counted(taken: Sequence[range], length: int) -> Iterator[tuple[int, bytearray]]:
    """How often each place was taken: (first place, a byte for each place from there on)."""
    for first in range(0, length, WINDOW):
        counts = bytearray(min(WINDOW, length - first))
        for each in taken:
            skipped = max(0, -((each.start - first) // each.step))
            start, stop = each.start + skipped * each.step - first, each.stop - first
            if start < len(counts) and stop > 0:
                part = slice(start, min(stop, len(counts)), each.step)
                counts[part] = counts[part].translate(_ONE_MORE)
        yield first, counts


def _more(wrong: Wrong, order: Order, first: int, flags: bytearray) -> Wrong:
    """The same with the places that are flagged, the first of which is ``first``."""
    count, named, at = flags.count(1), list(wrong.first), flags.find(1)
    while at >= 0 and len(named) < NAMED:
        named.append(order.index(first + at))
        at = flags.find(1, at + 1)
    return Wrong(wrong.count + count, tuple(named)) if count else wrong
