"""Positions in the partitions of a stream: who reads which, and what is saved of them.

Theory. A partition is read by one rank at a time, so its position is one number: the offset of the first
record that is not trained on. Ranks do not take equally many records, so no rank can compute the position of
another one. They tell each other when a state is made, after the same step; so each rank's state has the
positions of *all* partitions, and any rank of any later world can go on with any of them.

Two rules keep this exact while the number of partitions grows. Who reads what is decided from what all ranks
have told, never from what one of them sees. And a partition that is in no state begins at its oldest record,
as nothing of it is in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from elasticrun.core.data.record import is_number
from elasticrun.errors import DataError

FORMAT = 1
#: Offsets are below it: the ids of Redis have 128 bits.
MAX_OFFSET = 1 << 128


class Gap(NamedTuple):
    """Records that were removed before they were trained on: from ``wanted`` to ``oldest``."""

    partition: str
    wanted: int
    oldest: int


class Failed(NamedTuple):
    """A record that is left out."""

    partition: str
    offset: int
    reason: str


class Told(NamedTuple):
    """What a rank tells the others when a state is made."""

    positions: Mapping[str, int]  # of the partitions that it reads
    seen: tuple[str, ...] = ()  # all partitions that there are, by what it knows
    failed: tuple[Failed, ...] = ()  # since it began
    gaps: tuple[Gap, ...] = ()


class Standing(NamedTuple):
    """Where a training stands in a stream."""

    positions: Mapping[str, int]
    failed: tuple[Failed, ...] = ()
    gaps: tuple[Gap, ...] = ()
    round: int = 0  # that saved it


def common(seen: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """The partitions that all ranks see. The others are taken in later, as new ones."""
    return tuple(sorted(set(seen[0]).intersection(*seen[1:])))


def share(partitions: Sequence[str], rank: int, world: int, others: int = 0) -> tuple[str, ...]:
    """What a rank reads of sorted partitions. ``others``: how many were dealt before these."""
    return tuple(name for number, name in enumerate(partitions, others) if number % world == rank)


def merge(before: Standing, told: Sequence[Told], round_: int) -> Standing:
    """What all ranks know together. ``before``: what all of them began with.

    Raises:
        DataError: two ranks read the same partition.
    """
    positions = dict[str, int]()
    for rank, each in enumerate(told):
        if both := positions.keys() & each.positions.keys():
            raise DataError(
                f"rank {rank} and one before it both read {min(both)}: give each rank the same partitions to"
                " choose from, and the ranks that share them one group"
            )
        positions |= each.positions
    failed = tuple(one for each in told for one in each.failed)
    gaps = tuple(one for each in told for one in each.gaps)
    return Standing(positions, (*before.failed, *failed), (*before.gaps, *gaps), round_)


def grown(told: Sequence[Told]) -> tuple[str, ...]:
    """The partitions that all ranks see, and none reads."""
    read = {name for each in told for name in each.positions}
    return tuple(name for name in common([each.seen for each in told]) if name not in read)


def to_state(standing: Standing) -> dict[str, Any]:
    """As plain values: numbers, texts and lists of them."""
    return {
        "format": FORMAT,
        "round": standing.round,
        "positions": dict(sorted(standing.positions.items())),
        "failed": [list(each) for each in standing.failed],
        "gaps": [list(each) for each in standing.gaps],
    }


def from_state(state: Any) -> Standing:
    """What was saved.

    Raises:
        DataError: it is damaged, or none.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or "positions" not in state:
        raise DataError(
            "the saved position in the stream is none: it has no format that this elasticrun reads"
        )
    try:
        return Standing(
            {_text(name): _offset(at) for name, at in state["positions"].items()},
            tuple(Failed(_text(name), _offset(at), _text(why)) for name, at, why in state["failed"]),
            tuple(Gap(_text(name), _offset(at), _offset(oldest)) for name, at, oldest in state["gaps"]),
            _offset(state["round"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the saved position in the stream is damaged: {error!r}") from error


def _offset(value: Any) -> int:
    if not is_number(value, 0) or value >= MAX_OFFSET:
        raise ValueError(f"{value!r} is no offset")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
