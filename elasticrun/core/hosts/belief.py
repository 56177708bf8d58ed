"""What is believed of a list of hosts that is read again and again.

Theory. A host that appears is wanted at once: to start it in vain costs little. A host that is missing may be
missing by mistake, and to drain it costs the whole job a round. So it is *gone* only if two answers in a row
lacked it, the first of them ``grace`` seconds ago or more. A bad answer, or an empty one, is no answer: the
last good list stays in force, and nothing is counted.

Invariant: a host that the newest good answer has is not gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core.hosts.names import Host


class Belief:
    """The newest good answer, and for how long each host that it lacks has been missing."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._missing: dict[str, float] = {}  # since when
        self.wanted: dict[str, Host] = {}  # by name, in the order of the list

    def take(self, hosts: Iterable[Host], known: Iterable[str], now: float) -> list[str]:
        """Take a good answer. Returns which of the known hosts are gone."""
        self.wanted = {host.name: host for host in hosts}
        before = self._missing
        lacking = [name for name in known if name not in self.wanted]
        self._missing = {name: before.get(name, now) for name in lacking}
        return [name for name in lacking if name in before and now - before[name] >= self._grace]
