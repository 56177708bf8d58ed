"""What a person orders from the page, checked and passed on to the job.

What comes here was written by a browser, or by anybody with the token: it is checked as a whole before the
job hears of it. The job checks again.
"""

from __future__ import annotations

from typing import Any

from elasticrun.control import JobControl, LogPiece
from elasticrun.core.protocol.plain import plain
from elasticrun.errors import UsageError

#: Longest name of a node, and reason, that is passed on; most ranks and nodes.
MAX_NAME = 256
MAX_REASON = 500
MAX_NUMBER = 1_000_000
#: Most characters of stacks, or of a log, that are shown.
MAX_SHOWN = 400_000
#: Newest lines of each stream of a log that are shown.
LINES = 200
BY_PAGE = "an operator asked for it on the web page"


async def give(control: JobControl, order: Any) -> str:
    """Pass on an order. Returns what the master does about it. Raises UsageError, or what JobControl does."""
    if not isinstance(order, dict):
        raise UsageError("an order is a JSON object, such as {'order': 'restart'}")
    match order.get("order"):
        case "drain":
            return await control.drain(_text(order, "node", MAX_NAME), _reason(order))
        case "restart":
            return await control.restart(_reason(order))
        case "scale":
            low, high = _number(order, "min"), _number(order, "max")
            if low > high:
                raise UsageError(f"min is {low} and max is {high}: give a min that is not above max")
            return await control.scale(low, high)
        case "stacks":
            return await control.stacks()
        case other:
            known = "drain, restart, scale or stacks"
            raise UsageError(f"{str(other)[:40]!r} is no order of this page: give {known}")


async def stacks_of(control: JobControl, rank: int) -> str:
    """The stacks of one worker."""
    return _shown(await control.stacks_of(rank))


async def log_of(control: JobControl, rank: int) -> str:
    """The newest lines of one worker's log, each stream under its name."""
    pieces = await control.log(rank, lines=LINES)
    return _shown("\n".join(map(_piece, pieces)))


def _piece(piece: LogPiece) -> str:
    said = piece.note or piece.data.decode(errors="replace")
    return f"-- {piece.stream.value}\n{said}"


def rank_of(text: str | None) -> int:
    """A rank as it stands in a query. Raises UsageError."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise UsageError(f"rank {str(text)[:40]!r} is not valid: give a whole number of 0 or more")
    return int(text)


def _shown(text: str) -> str:
    return plain(text[-MAX_SHOWN:])


def _reason(order: dict[str, Any]) -> str:
    return _text(order, "reason", MAX_REASON) if order.get("reason") else BY_PAGE


def _text(order: dict[str, Any], name: str, most: int) -> str:
    value = order.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise UsageError(f"{name!r} of this order is not valid: give a text of 1 to {most} characters")
    return value


def _number(order: dict[str, Any], name: str) -> int:
    value = order.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NUMBER:
        raise UsageError(f"{name!r} of this order is not valid: give a whole number from 1 to {MAX_NUMBER}")
    return value
