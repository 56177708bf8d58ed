"""The heirs of warm parents: each is forked from one, imports more, and then takes its place.

A worker that finds done what torch imports at an optimizer's first step is a second or two ahead. No request
waits for that: the parent serves until its heir can, and if the heir comes to nothing it just goes on.

Invariants. A key has at most one heir at a time, and never another one if that could not import or was killed
twice. A sweep spares an heir that has told its pid; it kills any other, and another one follows after the
next births. What heirs told is read before the end of a child is looked at, and only an heir that is still
there is ever signalled: one that refused ends by itself.
"""

from __future__ import annotations

import json
import socket
from array import array
from collections.abc import Callable, Iterator

from elasticrun.agent.spawner.warm_births import Host, Parent, readable, say
from elasticrun.agent.spawner.wire import Message

_ANSWER_BYTES = 4096


class Heirs:
    """All heirs of one spawner's warm parents."""

    def __init__(self, host: Host, take_over: Callable[[Parent, Message], None]) -> None:
        self._host = host
        self._take_over = take_over  # called once an heir can fork workers, with what it says of itself
        self._heirs: dict[str, Parent] = {}  # by key
        self._killed: set[str] = set()  # keys of which one was killed
        self._barren: set[str] = set()  # keys that shall have none any more

    def __iter__(self) -> Iterator[Parent]:
        return iter([*self._heirs.values()])

    def may_come(self, parent: Parent) -> bool:
        """Whether there is more to import, and nobody who does or has failed."""
        key = parent.recipe["key"]
        return parent.imports_later and key not in self._heirs and key not in self._barren

    def expect(self, parent: Parent) -> None:
        """Have a parent fork its heir."""
        control = parent.control
        if control is None:
            return  # its end follows
        try:
            ours = _send(control)
        except OSError:
            return  # then there are too many files, or nobody listens
        heir = Parent(parent.recipe, parent.stdin, is_heir=True, control=ours)
        self._heirs[parent.recipe["key"]] = heir
        self._host.poller.watch(ours.fileno(), lambda: self._heard(heir))

    def listen(self) -> None:
        """Hear all that heirs have told until now."""
        for heir in self:
            while heir in self and heir.control is not None and readable(heir.control.fileno()):
                self._heard(heir)

    def abandon(self, key: str) -> None:
        """No parent of this key is wanted any more."""
        heir = self._heirs.get(key)
        if heir is not None:
            self._drop(heir)
            heir.kill()

    def ended(self, heir: Parent, exit_code: int) -> None:
        """It was reaped before it could take over."""
        heir.pid = 0
        key = heir.recipe["key"]
        if exit_code < 0 and key not in self._killed:
            self._killed.add(key)
            self._drop(heir)
        else:
            self._fail(heir, f"it ended while it imported (exit code {exit_code})")

    def _heard(self, heir: Parent) -> None:
        assert heir.control is not None
        try:
            words = heir.control.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return  # ``listen`` was first
        except ConnectionError:
            words = b""
        message = json.loads(words) if words else {}
        if "pid" in message:
            heir.pid = message["pid"]
        elif "refused" in message:
            self._fail(heir, message["refused"])
        elif message:
            del self._heirs[heir.recipe["key"]]
            self._take_over(heir, message)
        elif heir.pid:
            heir.hang_up(self._host.poller)  # its end follows
        else:
            self._drop(heir)

    def _drop(self, heir: Parent) -> None:
        heir.hang_up(self._host.poller)
        del self._heirs[heir.recipe["key"]]

    def _fail(self, heir: Parent, reason: str) -> None:
        self._drop(heir)
        self._barren.add(heir.recipe["key"])
        say(self._host, False, f"the warm parent imports no more: {reason}")


def _send(control: socket.socket) -> socket.socket:
    """Ask a parent for an heir; our end of the heir's control socket. OSError if that cannot be done."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs:
        fds = array("i", [theirs.fileno()])
        try:
            control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError:
            ours.close()
            raise
    return ours
