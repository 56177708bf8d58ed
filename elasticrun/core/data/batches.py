"""A step of a constant number of samples, for any number of ranks: who computes what, and how it weighs.

Theory. A step takes a block of ``size`` places; its samples are the same for any world. Rank r of W takes
every W-th of them, so ranks differ by at most one sample. A rank computes its share in micro-batches of at
most ``micro`` samples, about equally large. All ranks make equally many of them, since each rank has to take
part in each exchange of gradients.

Each sample weighs the same: DistributedDataParallel averages the gradients of the ranks, and a loss is
the mean of its micro-batch. So the loss of a micro-batch of n samples is scaled by n * W / size, and the sum
of all gradients is that of the mean over the block. The last block of an epoch may be smaller; its scale is
that of its own size. A rank that has less samples than micro-batches (``micro=1``, or a last block smaller
than the world) computes one sample of the block again, with scale 0: padding, which changes no gradient.
"""

from __future__ import annotations

from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One micro-batch of one rank."""

    size: int  # samples
    scale: float  # what its mean loss is multiplied by; 0: it is padding
    is_last: bool  # of its step: exchange the gradients, then let the optimizer step


def micro_steps(samples: int, world: int, micro: int) -> int:
    """How many micro-batches each rank makes for a block of so many samples."""
    largest_share = -(-samples // world)
    return -(-largest_share // micro)


def parts(samples: int, world: int, rank: int, micro: int) -> tuple[Part, ...]:
    """The micro-batches of a rank for a block of so many samples."""
    count = micro_steps(samples, world, micro)
    each, more = divmod(len(range(rank, samples, world)), count)
    sizes = [each + (number < more) for number in range(count)]
    return tuple(
        Part(size or 1, size * world / samples, number == count - 1) for number, size in enumerate(sizes)
    )


def parts_in_epoch(length: int, at: int, size: int, world: int, micro: int, drop_last: bool) -> int:
    """How many micro-batches each rank makes of what is left of an epoch."""
    whole, rest = divmod(max(length - at, 0), size)
    last = 0 if drop_last or not rest else micro_steps(rest, world, micro)
    return whole * micro_steps(size, world, micro) + last


def places_of_parts(at: int, samples: int, world: int, rank: int, found: tuple[Part, ...]) -> list[range]:
    """The places of each micro-batch of a rank, for a block that begins at place ``at``."""
    share, start, places = range(at + rank, at + samples, world), 0, []
    for part in found:
        if part.scale:
            places.append(share[start : start + part.size])
            start += part.size
        else:
            again = at + rank % samples
            places.append(range(again, again + 1))
    return places
