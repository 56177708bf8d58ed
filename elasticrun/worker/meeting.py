"""How the ranks of a world meet sooner: one that comes before rank 0's store listens waits at its door.

Theory. A client of torch's TCPStore that is refused comes back half a second later or more, however soon the
store listens. Workers that are forked come within some milliseconds of one another, so that pause would be
most of a restart. Here a rank other than 0 knocks first: it connects and hangs up, again and again while it
is refused. A pause between two knocks is a tenth of the time since the first one, so nobody is late by more
than that, and a store that is long in coming is not stormed.

Invariants. Torch's own function is called in any case, with the arguments that it was given. Only a refusal
is waited for, and not for more than a tenth of the store's timeout; whatever else happens is torch's to tell.

It needs the standard library only, and is loaded by its path.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FUNCTION = "_create_c10d_store"
PARAMETERS = ("hostname", "port", "rank", "world_size", "timeout")
#: Of the store's timeout, for all knocks; and of the time since the first one, for a pause.
PATIENCE = 0.1
PAUSE = 0.1
SHORTEST, LONGEST = 0.001, 1.0  # seconds; of a pause
REACH = 1.0  # seconds; a host that does not even refuse is not waited for


def imported(name: str, module: ModuleType) -> None:
    """``torch.distributed.rendezvous`` has been executed."""
    create = getattr(module, FUNCTION, None)
    if create is None:
        return  # another torch than those that we know

    @functools.wraps(create)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        knock_first(args, kwargs)
        return create(*args, **kwargs)

    setattr(module, FUNCTION, wrapper)


def knock_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Wait for the store that a call with these arguments will connect to; return if there is any doubt."""
    try:
        given = {**dict(zip(PARAMETERS, args, strict=False)), **kwargs}
        if given["rank"] > 0:
            knock(given["hostname"], given["port"], given["timeout"].total_seconds() * PATIENCE)
    except Exception:  # noqa: BLE001 whatever it is, torch is called next, and shows what is wrong
        return


def knock(host: str, port: int, seconds: float) -> None:
    """Return once somebody listens, or after so many seconds."""
    begun = time.monotonic()
    while is_refused(host, port) and (waited := time.monotonic() - begun) < seconds:
        threading.Event().wait(min(max(waited * PAUSE, SHORTEST), LONGEST))


def is_refused(host: str, port: int) -> bool:
    """Whether nobody listens there; False as well if that cannot be told."""
    try:
        socket.create_connection((host, port), REACH).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
