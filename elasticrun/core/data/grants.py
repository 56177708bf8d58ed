"""How many leases a rank asks for ahead, and how many it gets at once.

Theory. Leases that are ahead of a loop are part of each saved state, so all ranks together may have only so
many. Ranks ask for twice as many each time the loop has to wait for an answer, and for one fewer each time it
does not: so a rank holds about what it reads in the time that an answer takes.

Towards the end of an epoch nobody may hold much more than its share of what is left, else it reads on alone
while the others have nothing. So each grant is at most half of that share, and in the end one lease; as one
grant is read while the next one comes, a rank holds two.
"""

from __future__ import annotations

from elasticrun.core.protocol.data import MAX_PIECES, MAX_WANTED

#: How many leases are asked for ahead at first.
AHEAD = 2


def most_ahead(readers: int) -> int:
    """How many leases each of so many ranks may have ahead. The other half is for what is being read."""
    return max(1, min(MAX_WANTED, MAX_PIECES // (2 * readers)))


def next_ahead(ahead: int, is_late: bool, readers: int) -> int:
    """How many to have ahead from now on. ``is_late``: the loop came before the answer."""
    return max(1, min(2 * ahead if is_late else max(AHEAD, ahead - 1), most_ahead(readers)))


def granted(wanted: int, readers: int, waiting: int) -> int:
    """How many leases a rank gets. ``waiting``: shards that nobody has leased in its epoch."""
    return min(wanted, most_ahead(readers), max(1, waiting // (2 * readers)))
