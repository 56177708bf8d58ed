"""How far a shared dataset is: the shards of one epoch, by what became of them.

A shard counts once: as failed if something of it is left out, else as leased if somebody holds a part of it,
else as waiting if a part of it is free or was not dealt, else as done. So the four add up to all shards.

The epoch is the oldest one of which something is left. If nothing of what was dealt is left, it is the one
that was dealt last: what ends stays in sight until the next epoch begins.
"""

from __future__ import annotations

from typing import NamedTuple

from elasticrun.core.data.leases import Ledger
from elasticrun.core.data.shards import ENDLESS


class Standing(NamedTuple):
    """Numbers of shards."""

    epoch: int
    done: int
    leased: int
    failed: int
    total: int  # of the epoch; 0: it has no end


def standing(ledger: Ledger, total: int, epoch: int | None = None) -> Standing:
    """Of a ledger whose epochs have ``total`` shards each. ``epoch``: of that one, if it was dealt."""
    at, place = ledger.cursor
    left = ledger.left()
    if epoch is None:
        newest = at if place or not at else at - 1
        epoch = min((piece.epoch for piece in left), default=newest)
    dealt = min(place, total) if epoch == at else total
    failed = {each.piece.place for each in ledger.failed if each.piece.epoch == epoch}
    rest = {piece.place for piece in left if piece.epoch == epoch} | failed
    leased = {piece.place for piece in ledger.open() if piece.epoch == epoch} - failed
    done = max(0, dealt - len(rest))
    return Standing(epoch, done, len(leased), len(failed), total if total < ENDLESS else 0)
