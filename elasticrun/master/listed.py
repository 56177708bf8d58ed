"""Who may keep a copy of the journal, or the key in it: the agent of each other listed host, and nobody else.

A journal tells all that the job's agents ever said, failures' texts included. An agent that wants a copy
names its place in the list of ``--rdzv-endpoint``. It gets one if it comes from an address of the host that
stands there. One that comes over the loopback is on this host, where the user's id is the boundary. If the
host's name cannot be resolved, the agent gets one only in a job with a token, which it has proven.

In a *cautious* job, without a token, the copy is no more than the journal's key, with which a master that
takes over proves to agents with running workers that it is this job's (``rpc/security/tickets.py``). Only the
first agent on its host gets it, before the job's first world: later anybody there could take the key, and
then the port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence

from elasticrun.core.protocol.messages import Hello, Trust

logger = logging.getLogger(__name__)


class Listed:
    """The hosts of ``--rdzv-endpoint``, seen from the master on one of them."""

    def __init__(self, hosts: Sequence[str], has_token: bool) -> None:
        self._hosts = hosts
        self._has_token = has_token
        self._first: dict[int, str] = {}  # the incarnation that was given something, by position

    def may_keep(self, hello: Hello, own: int, cautious: bool, has_begun: bool) -> bool:
        """Whether an agent claims another listed host than ``own``, and may be the first one there."""
        position = hello.info.position
        if position == own or not 0 <= position < len(self._hosts):
            return False
        first = self._first.get(position)
        is_itself = hello.trust is Trust.RETURNING
        is_early = first is None and not has_begun
        return not cautious or is_early or (is_itself and first in (None, hello.info.incarnation))

    def is_first(self, position: int, incarnation: str) -> bool:
        """Whether this agent is the first at a place where ``is_at`` found it; notes the first."""
        return self._first.setdefault(position, incarnation) == incarnation

    async def is_at(self, position: int, peer: str) -> bool:
        """Whether ``peer``, an address with a port, is the host at this place of the list."""
        host = self._hosts[position]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            if not self._has_token:
                logger.warning(
                    "%s gets no copy of the journal: the name %s cannot be resolved (%s)",
                    peer,
                    host,
                    error.strerror,
                )
            return self._has_token
        address = _numeric(peer.rpartition(":")[0])
        if address.is_loopback or address in {_numeric(str(each[4][0])) for each in found}:
            return True
        logger.warning("%s gets no copy of the journal: it is no address of %s", peer, host)
        return False


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
