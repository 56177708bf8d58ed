"""A position as plain values, as it is saved, and back. What was saved may be damaged or of other data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Epochs, Position, Span, Spans
from elasticrun.errors import DataError

FORMAT = 1
LEAST_SEED = -(1 << 63)


def to_state(position: Position) -> dict[str, Any]:
    """The position as plain values: numbers, texts and lists of them."""
    return {
        "format": FORMAT,
        "length": position.source.length,
        "seed": position.source.seed,
        "shuffle": position.source.shuffle,
        "epoch": position.epoch,
        "spans": _listed(position.spans),
        "ended": position.ended,
        "past": [[each.first, each.last, each.ended, _listed(each.spans)] for each in position.past],
        "resumed": position.resumed,
    }


def is_state(state: Any) -> bool:
    """Whether this is what ``to_state`` makes, as far as its form tells."""
    return isinstance(state, Mapping) and state.get("format") == FORMAT and "spans" in state


def from_state(state: Any) -> Position:
    """The position that was saved.

    Raises:
        DataError: this is no position, or one that cannot be.
    """
    if isinstance(state, Mapping) and "sampler" in state:
        raise DataError(f"the position was saved with sampler {state['sampler']}: load it with that sampler")
    if not isinstance(state, Mapping) or "format" not in state:
        raise DataError("the saved position in the data is none: it has no format")
    if state["format"] != FORMAT:
        raise DataError(
            f"the saved position in the data has format {state['format']!r}, this elasticrun reads {FORMAT}"
        )
    try:
        return _position(state)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the saved position in the data is damaged: {error!r}") from error


def check_source(saved: Source, here: Source) -> None:
    """Refuse a position in other data.

    Raises:
        DataError: length, seed or shuffling differ; the text has both values.
    """
    if saved.length != here.length:
        raise DataError(
            f"the dataset has {here.length} samples, and had {saved.length} when the position was saved:"
            " start anew, or give it the samples that it had"
        )
    if (saved.seed, saved.shuffle) != (here.seed, here.shuffle):
        raise DataError(
            f"the order has seed={here.seed}, shuffle={here.shuffle}, and had seed={saved.seed},"
            f" shuffle={saved.shuffle} when the position was saved: samples would be lost and repeated"
        )


def _listed(spans: Spans) -> list[list[int]]:
    return [[each.start, each.stop, each.world, each.block] for each in spans]


def _position(state: Mapping[str, Any]) -> Position:
    source = Source(
        _at_least(1, state["length"]), _at_least(LEAST_SEED, state["seed"]), _flag(state["shuffle"])
    )
    past = tuple(
        Epochs(_at_least(0, first), _at_least(first, last), _spans(spans), _flag(ended))
        for first, last, ended, spans in state["past"]
    )
    found = Position(
        source, _at_least(0, state["epoch"]), _spans(state["spans"]), _flag(state["ended"]), past
    )
    resumed = _at_least(0, state["resumed"])
    if resumed > found.places:
        raise ValueError(f"it resumes at {resumed} of {found.places}")
    return Position(source, found.epoch, found.spans, found.ended, past, resumed)


def _spans(listed: Sequence[Sequence[int]]) -> Spans:
    spans, at = [], 0
    for start, stop, world, block in listed:
        _at_least(start + 1, stop)
        _at_least(_at_least(1, world), block)
        if _at_least(0, start) != at:
            raise ValueError(f"a span begins at {start}, not at {at}")
        spans.append(Span(start, stop, world, block))
        at = stop
    return tuple(spans)


def is_number(value: object, least: int) -> bool:
    """Whether this is a whole number, and at least so much."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _at_least(least: int, value: Any) -> int:
    if not is_number(value, least):
        raise ValueError(f"{value!r} is no number from {least} on")
    return int(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither True nor False")
    return value
