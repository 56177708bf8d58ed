"""Preloaded replacements of warm parents: each is forked from one, imports more, and then takes its place.

What torch imports at an optimizer's first step costs a worker a second or two, unless it is imported already.
No request waits for that: the parent serves until its replacement can. If there never is one, the parent goes
on.

Invariants. A key has at most one replacement at a time, and no further one after one that could not import
or two that were killed. A sweep spares a replacement that has told its pid; it kills any other, and another
one follows after the next forks. Messages of replacements are read before the end of a child is handled. A
replacement is signalled only while it is there: one that refused ends by itself.
"""

from __future__ import annotations

import json
import socket
from array import array
from collections.abc import Callable, Iterator

from elasticrun.agent.spawner.fork_requests import Host, Parent, readable, say
from elasticrun.agent.spawner.wire import Message

_ANSWER_BYTES = 4096


class Replacements:
    """All replacements of one spawner's warm parents."""

    def __init__(self, host: Host, take_over: Callable[[Parent, Message], None]) -> None:
        self._host = host
        self._take_over = take_over  # called once a replacement can fork workers, with what it says of itself
        self._replacements: dict[str, Parent] = {}  # by key
        self._killed: set[str] = set()  # keys with one replacement that was killed
        self._without: set[str] = set()  # keys that get no further one

    def __iter__(self) -> Iterator[Parent]:
        return iter([*self._replacements.values()])

    def may_come(self, parent: Parent) -> bool:
        """Whether there is more to import, and no replacement imports it or has failed to."""
        key = parent.recipe["key"]
        return parent.imports_later and key not in self._replacements and key not in self._without

    def expect(self, parent: Parent) -> None:
        """Have a parent fork its replacement."""
        control = parent.control
        if control is None:
            return  # its end follows
        try:
            ours = _send(control)
        except OSError:
            return  # too many open files, or nobody listens
        replacement = Parent(parent.recipe, parent.stdin, is_replacement=True, control=ours)
        self._replacements[parent.recipe["key"]] = replacement
        self._host.poller.watch(ours.fileno(), lambda: self._heard(replacement))

    def listen(self) -> None:
        """Read all messages of replacements that have come."""
        for replacement in self:
            while replacement in self and replacement.control and readable(replacement.control.fileno()):
                self._heard(replacement)

    def abandon(self, key: str) -> None:
        """Drop and kill the replacement of this key, if there is one."""
        replacement = self._replacements.get(key)
        if replacement is not None:
            self._drop(replacement)
            replacement.kill()

    def ended(self, replacement: Parent, exit_code: int) -> None:
        """Handle a replacement that was reaped before it took over."""
        replacement.pid = 0
        key = replacement.recipe["key"]
        if exit_code < 0 and key not in self._killed:
            self._killed.add(key)
            self._drop(replacement)
        else:
            self._fail(replacement, f"it ended while it imported (exit code {exit_code})")

    def _heard(self, replacement: Parent) -> None:
        assert replacement.control is not None
        try:
            words = replacement.control.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return  # ``listen`` has read it
        except ConnectionError:
            words = b""
        message = json.loads(words) if words else {}
        if "pid" in message:
            replacement.pid = message["pid"]
        elif "refused" in message:
            self._fail(replacement, message["refused"])
        elif message:
            del self._replacements[replacement.recipe["key"]]
            self._take_over(replacement, message)
        elif replacement.pid:
            replacement.hang_up(self._host.poller)  # its end follows
        else:
            self._drop(replacement)

    def _drop(self, replacement: Parent) -> None:
        replacement.hang_up(self._host.poller)
        del self._replacements[replacement.recipe["key"]]

    def _fail(self, replacement: Parent, reason: str) -> None:
        self._drop(replacement)
        self._without.add(replacement.recipe["key"])
        say(self._host, False, f"the warm parent's replacement failed, the parent stays as it is: {reason}")


def _send(control: socket.socket) -> socket.socket:
    """Ask a parent for a replacement; return our end of its control socket. Raises OSError."""
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
