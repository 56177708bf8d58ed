"""Claims by which processes of one user on one host keep out of one another's way.

A claim is a socket with a name in the abstract namespace, whose scope is that of TCP ports: one network
namespace. The kernel drops it with the process, so none is ever stale.

Every user of the host can take such a name, so only the kernel's word about its holder counts: the user. A
name whose holder is another user, or unknown, is skipped and the next one is tried. Squatting all of them
gains nothing, as the port itself decides then.
"""

from __future__ import annotations

import os
import socket
import struct

_NAMES = 8
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ClaimedError(Exception):
    """Another process of this user has the claim."""


def claim(what: str) -> socket.socket:
    """Hold the claim until the socket is closed, or the process is gone. Raises ClaimedError."""
    for number in range(_NAMES):
        name = f"\0elasticrun.{what}.{number}"
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(name)
            held.listen()  # so that others can ask the kernel who we are
            return held
        except OSError:
            held.close()
        if _holder(name) == os.geteuid():
            raise ClaimedError(what)
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _holder(name: str) -> int | None:
    """The user who listens at a name; None if nobody does, or it cannot be known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            said = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    uid: int = _CREDENTIALS.unpack(said)[1]
    return uid
