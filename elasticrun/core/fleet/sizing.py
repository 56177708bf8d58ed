"""What new replicas request, by what earlier ones used: for whoever has written no requests.

Theory. Without a request a scheduler takes a replica for one that needs nothing, and puts too many on a host.
What a replica needs is seen once some have run: the peak of any of them. A request is so large that the peak
is at most ``HOT`` of it, which is what a parameter server may use of its own before there have to be more
(``core/tensorflow/ps_sizing.py``). What runs keeps what it has; only what is started later gets the request.

A request that no host can hold would keep the job from running, so it is at most ``HOT`` of the least room
that any replica had: there the next one has room as well. And it is never above a cap, as figures come from
where anybody's code runs. They are rounded up to a few values for each doubling, so that the requests of a
job settle, and rarely change.

What was measured only helps to place replicas, and must not keep one from running. If a replica is refused,
or finds no host, while there are such requests, they are withdrawn until the job is resumed; replicas that
found no host are started again without them. A job that is resumed measures anew.

Invariants. A request grows with the peak, never falls while it is measured with the same room and cap, and is
never above either. The same figures again change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from elasticrun.core.fleet.replicas import Amounts, Record, Seen, Tally, Usage, Wish
from elasticrun.core.fleet.roles import names_of, role_of, tally_of, with_tally

#: The share of what it has that one may use at its peak.
HOT = 0.8
#: What is beside the workers of a replica, which is not measured: agent, master, and the parent of workers.
BESIDE = Amounts(256 << 20, 100)
#: Amounts are multiples of these.
UNIT = Amounts(64 << 20, 100)
#: What caps are if nobody gives some.
DEFAULT_CAPS = Amounts(64 << 30, 16_000)
#: Characters that are kept of why requests were withdrawn.
MOST_WORDS = 200


def size(wish: Wish, record: Record, usage: Usage) -> Record:
    """The record with the requests that follow from what was measured until now, of each role by itself."""
    if wish.suspended:
        return record
    shape, measured = record.shape or wish.shape, dict(usage.by_role)
    for name in names_of(shape):
        used = measured.get(name, Usage()) if name else usage
        record = with_tally(record, _size(role_of(wish, shape, name).caps, tally_of(record, name), used))
    return record


def _size(caps: Amounts, tally: Tally, usage: Usage) -> Tally:
    if tally.unsized:
        return tally
    known, now = tally.peak, usage.peak
    peak = Amounts(max(known.memory, now.memory), max(known.cpu, now.cpu))
    room, before = usage.room, tally.requests
    requests = Amounts(
        _request(peak.memory, room.memory, caps.memory, before.memory, BESIDE.memory, UNIT.memory),
        _request(peak.cpu, room.cpu, caps.cpu, before.cpu, BESIDE.cpu, UNIT.cpu),
    )
    return tally if requests == before else replace(tally, requests=requests, peak=peak)


def _request(peak: int, room: int, cap: int, before: int, beside: int, unit: int) -> int:
    """One amount; 0: none. Without room nothing is measured now, and it stays, unless the cap is lower."""
    if not room:
        return min(before, cap)
    if not peak or not cap:
        return 0
    wanted = coarse(int(peak / HOT) + beside, unit)
    return min(wanted, max(unit, int(room * HOT) // unit * unit), cap)


def why_too_much(tally: Tally, seen: Iterable[Seen], unstarted: str) -> str:
    """Why nothing may be requested by what was measured any more; "" if nothing speaks against it.

    A platform may bound requests in ways that are not seen here, and hosts may be full with what requests
    nothing. Without requests the job ran. So one start that was refused is enough, whatever it was for.
    """
    if tally.requests == Amounts():
        return ""
    if unstarted:
        return unstarted[:MOST_WORDS]
    homeless = next((each for each in seen if each.is_homeless), None)
    return "" if homeless is None else f"replica {homeless.index}: {homeless.trouble}"[:MOST_WORDS]


def coarse(amount: int, unit: int) -> int:
    """Rounded up: to a multiple of the unit, and from 16 of them on to one of 8 to 16 values a doubling."""
    step = max(unit, (1 << max(0, amount.bit_length() - 4)) // unit * unit)
    return -(-amount // step) * step


def coarse_usage(usage: Usage) -> Usage:
    """Usage whose small changes are none."""
    peak = usage.peak
    return replace(usage, peak=Amounts(coarse(peak.memory, UNIT.memory), coarse(peak.cpu, UNIT.cpu)))
