"""What was taken of a dataset, and what a rank takes next.

Theory. The places of an epoch's order are dealt to the ranks in turn, as cards are: rank r of W takes places
r, r + W, r + 2W and so on. All ranks take equally many, so what was taken is all places below one number, and
the rest can be dealt to another number of ranks from there: no sample is lost, and none comes twice. A batch
of all ranks together has the same samples, whatever their number.

The end of an epoch follows torch's DistributedSampler. If the last places do not go round, places beyond the
length are dealt as well: they are *padding*, the first samples of the epoch once more. Or, with
``drop_last``, the last places are dropped. After a change of the world this holds for what is left.

A step of a constant size (``batches.py``) need not go round: then each *block* of so many places is dealt to
the ranks anew, beginning with rank 0.

Invariants of a ``Position``. The spans of an epoch follow one another, the first begins at place 0. It
grows with the changes of the world, not with the epochs: epochs of which the same was taken are one entry.
"""

from __future__ import annotations

from collections.abc import Iterator

from elasticrun.core.data.order import Source
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Places ``start`` to ``stop`` of an epoch, dealt in blocks to the ranks of one world."""

    start: int
    stop: int  # beyond the length of the dataset: padding
    world: int  # ranks
    block: int  # places that are dealt before rank 0 is first again

    def share(self, rank: int) -> Iterator[range]:
        """The places that a rank took, one range for each block."""
        block = self.stop - self.start if self.block % self.world == 0 else self.block
        for first in range(self.start, self.stop, block):
            yield range(first + rank, min(first + block, self.stop), self.world)

    def after(self, start: int) -> Span:
        """The rest of it from a place on, where a block begins."""
        return Span(max(self.start, start), self.stop, self.world, self.block)


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Epochs:
    """What was taken of epochs that lie behind: the same of each of them."""

    first: int
    last: int
    spans: Spans
    ended: bool  # the ranks were told of the end: what is missing was dropped

    @property
    def at(self) -> int:
        """The first place that was not taken, of each of them."""
        return self.spans[-1].stop if self.spans else 0

    @property
    def places(self) -> int:
        """How many places were taken, of all these epochs."""
        return (self.last - self.first + 1) * self.at


@dataclass(frozen=True, slots=True)
class Position:
    """What was taken of a dataset, from the first epoch until now."""

    source: Source
    epoch: int = 0
    spans: Spans = ()  # of this epoch
    ended: bool = False  # the ranks were told of this epoch's end
    past: tuple[Epochs, ...] = ()
    resumed: int = 0  # places that were taken before this process began: it claims the rest for itself

    @property
    def at(self) -> int:
        """The first place of this epoch that was not taken."""
        return self.spans[-1].stop if self.spans else 0

    @property
    def places(self) -> int:
        """How many places were taken, of all epochs."""
        return sum(each.places for each in self.past) + self.at

    def advance(self, count: int, world: int, block: int = 0) -> Position:
        """The position after all ranks together took ``count`` more places. ``block`` 0: one for each."""
        if not count:
            return self
        new, kept = Span(self.at, self.at + count, world, block or world), self.spans
        if kept:
            last = kept[-1]
            goes_on = (last.stop - last.start) % last.block == 0
            if goes_on and (last.world, last.block) == (new.world, new.block):
                new, kept = Span(last.start, new.stop, last.world, last.block), kept[:-1]
        return Position(self.source, self.epoch, (*kept, new), False, self.past, self.resumed)

    def end(self) -> Position:
        """The position after the ranks were told that the epoch is over."""
        return Position(self.source, self.epoch, self.spans, True, self.past, self.resumed)

    def turn(self, epoch: int) -> Position:
        """The position at the beginning of another epoch, or of the same one again."""
        past = self.past
        if self.spans or self.ended:
            done = Epochs(self.epoch, self.epoch, self.spans, self.ended)
            last = past[-1] if past else None
            if last and (last.last + 1, last.spans, last.ended) == (done.first, done.spans, done.ended):
                past, done = past[:-1], Epochs(last.first, done.last, done.spans, done.ended)
            past = (*past, done)
        return Position(self.source, epoch, past=past, resumed=self.resumed)

    def resume(self) -> Position:
        """The same position, as the beginning of what another process takes."""
        return Position(self.source, self.epoch, self.spans, self.ended, self.past, self.places)


def samples_left(length: int, at: int, world: int, drop_last: bool) -> int:
    """How many samples each rank still gets of an epoch, padding included, from place ``at`` on."""
    left = max(length - at, 0)
    return left // world if drop_last else -(-left // world)


def places_of(rank: int, at: int, count: int, world: int) -> range:
    """The next ``count`` places of a rank, from place ``at`` on."""
    return range(at + rank, at + rank + count * world, world)
