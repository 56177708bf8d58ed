"""Lets ranks meet sooner where they come before rank 0's store listens, and meet again in a second group.

Theory. A client of torch's TCPStore that is refused comes back half a second later or more, however soon the
store listens. Workers that are forked come within some milliseconds of one another, so that pause would be
most of a restart. Here a rank other than 0 knocks first: it connects and hangs up, again and again while it
is refused. A pause between two knocks is a tenth of the time since the first one, so no rank is late by more
than that, and a late store is not stormed. With many ranks the pauses are longer, so that all knocks together
do not come too often. The store's name is looked up once.

Torch numbers groups from 0 again once all were destroyed. A store that the launcher serves outlives them, so
a second group would read the addresses of the first one's members, until each has written its own. Hence a
rank that has ended worlds of this size opens a part of the store, named after how many: the ranks of one
world have ended equally many. Before that, the store is the one that torch makes.

Invariants. Torch's own function is called in any case, with the arguments that it was given. Only refusals
are waited out, for at most a tenth of the store's timeout; torch reports whatever else happens.

It needs the standard library only, and is loaded by its path.
"""

from __future__ import annotations

import collections
import functools
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

FUNCTION = "_create_c10d_store"
PARAMETERS = ("hostname", "port", "rank", "world_size", "timeout")
#: Fractions: of the store's timeout, for all knocks; of the time since the first one, for a pause.
PATIENCE = 0.1
PAUSE = 0.1
SHORTEST, LONGEST = 0.001, 1.0  # seconds; of a pause
APART = 0.00005  # seconds between two knocks of all ranks; a refusal costs the store's host microseconds
REACH = 1.0  # seconds; a host that does not even refuse is not waited for
#: Where torch keeps the world, and the function by which it changes it.
GROUPS = "torch.distributed.distributed_c10d"
CHANGE = "_update_default_pg"
#: Milestones of ``marks.py``: who begins to meet has imported what it needs.
BEGINS, CONNECTED = range(2)
#: Set where the launcher serves the store.
SERVED = ("TORCHELASTIC_USE_AGENT_STORE", "True")


def imported(name: str, module: ModuleType, reach: Callable[[int], object] = bool) -> None:
    """Wrap the function of ``torch.distributed.rendezvous`` that opens the store.

    ``reach``: hears of the milestones of ``marks.py``; by default nobody does.
    """
    create = getattr(module, FUNCTION, None)
    if create is None:
        return  # another torch than those that we know
    ended = Ended(reach)

    @functools.wraps(create)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        tell(reach, BEGINS)
        knock_first(args, kwargs)
        ended.watch()
        return ended.part(create(*args, **kwargs), args, kwargs)

    setattr(module, FUNCTION, wrapper)


def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of torch's function by their names."""
    return {**dict(zip(PARAMETERS, args, strict=False)), **kwargs}


def tell(reach: Callable[[int], object], milestone: int) -> None:
    """Say how far this worker is."""
    try:
        reach(milestone)
    except Exception:  # noqa: BLE001 whatever it is, torch is called next
        return


class Ended:
    """How many worlds of each size this process has ended. ``reach``: hears that it is in one."""

    def __init__(self, reach: Callable[[int], object] = bool) -> None:
        self._reach = reach
        self.worlds: collections.Counter[int] = collections.Counter()
        self._is_watching = False

    def watch(self) -> None:
        """Count the worlds that end from now on; called before the first one begins."""
        groups: Any = sys.modules.get(GROUPS)
        change = getattr(groups, CHANGE, None)
        if change is None or self._is_watching:
            return
        self._is_watching = True

        @functools.wraps(change)
        def wrapper(group: Any) -> Any:
            if group is None:
                self.note(groups)
                return change(group)
            made = change(group)
            tell(self._reach, CONNECTED)
            return made

        setattr(groups, CHANGE, wrapper)

    def note(self, groups: Any) -> None:
        """Count the world that is about to end, if there is one."""
        try:
            self.worlds[groups._world.default_pg.size()] += 1
        except Exception:  # noqa: BLE001 there is none, or this process was no member
            return

    def part(self, store: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The next world's part of the store; all of it for the first world, or if rank 0 serves it."""
        count = self.worlds[named(args, kwargs).get("world_size", 0)]
        if not count or not is_served():
            return store
        return sys.modules[GROUPS].PrefixStore(f"again_{count}", store)


def knock_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Wait for the store that a call with these arguments will connect to; return at any error."""
    try:
        given = named(args, kwargs)
        if given["rank"] > 0 and not is_served_here():
            patience = given["timeout"].total_seconds() * PATIENCE
            knock(find(given["hostname"], given["port"]), given["world_size"], patience)
    except Exception:  # noqa: BLE001 whatever it is, torch is called next, and shows what is wrong
        return


def is_served() -> bool:
    """Whether the launcher serves the store."""
    name, value = SERVED
    return os.environ.get(name) == value


def is_served_here() -> bool:
    """Whether it does so on this node: then its port listened before any worker of this node was started."""
    return is_served() and os.environ.get("GROUP_RANK") == "0"


def find(host: str, port: int) -> list[Any]:
    """The addresses of the store, as ``getaddrinfo`` gives them; OSError if the host is unknown."""
    name = host.encode("ascii") if host.isascii() else host  # other names need tables that take milliseconds
    return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)


def knock(doors: list[Any], ranks: int, seconds: float) -> None:
    """Return once the store listens, or after ``seconds``; ``ranks`` processes do the same."""
    begun = time.monotonic()
    shortest = min(max(ranks * APART, SHORTEST), LONGEST)
    while is_refused(doors) and (waited := time.monotonic() - begun) < seconds:
        threading.Event().wait(min(max(waited * PAUSE, shortest), LONGEST))


def is_refused(doors: list[Any]) -> bool:
    """Whether nobody listens there; False as well if that cannot be told."""
    refusals = 0
    for family, kind, protocol, _, address in doors:
        try:
            with socket.socket(family, kind, protocol) as door:
                door.settimeout(REACH)
                door.connect(address)
        except ConnectionRefusedError:
            refusals += 1
        except OSError:
            continue
        else:
            return False
    return refusals > 0
