"""Where the nodes of one job are: the reservation, hosts to be avoided, and places that are given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass as mutable

from elasticrun.core.fleet.replicas import Start
from elasticrun.platforms.ray.words import Actor, Cluster, Needs, Place

#: How many lost hosts are left out by name, until Ray itself knows that they are gone.
_MOST_LOST = 16


@mutable(slots=True)
class Spot:
    """What one node has of the cluster; what it has not yet is empty."""

    actor: Actor | None = None
    bundle: int = -1  # of the reservation; -1: none
    place: Place | None = None


class Places:
    """Finds places for the nodes of one job."""

    def __init__(self, cluster: Cluster, needs: Needs) -> None:
        """``needs``: what is reserved for each of the first nodes."""
        self._cluster = cluster
        self._needs = needs
        self._free = set[int]()  # bundles that no node has
        self._reserved: asyncio.Task[None] | None = None
        self._ids: dict[str, str] = {}  # the cluster's id of each host that was seen, by its name
        self._lost: list[str] = []  # ids of hosts that were lost, the newest last

    async def settle(self, spot: Spot, name: str, needs: Needs, start: Start) -> Place:
        """Find a place for a node; one on a host to be avoided is given back. Raises NodeLostError."""
        if self._reserved is None:
            self._reserved = asyncio.create_task(self._reserve(start.shape.min_replicas))
        await asyncio.shield(self._reserved)
        while True:
            spot.bundle = min(self._free, default=-1) if needs == self._needs else -1
            self._free.discard(spot.bundle)
            avoided = self._avoided(start.avoided)
            spot.actor = self._cluster.start(name, needs, spot.bundle, avoided)
            place = await spot.actor.place()
            if place.id not in avoided:
                break
            spot.actor.kill()  # its bundle, if it has one, is used no more
        self._ids[place.name] = place.id
        spot.place = place
        return place

    async def _reserve(self, count: int) -> None:
        await self._cluster.reserve(count, self._needs)
        self._free = set(range(count))

    def _avoided(self, names: Sequence[str]) -> list[str]:
        avoided = [self._ids[name] for name in names if name in self._ids]
        return [*avoided, *(each for each in self._lost if each not in avoided)]

    def lose(self, spot: Spot) -> None:
        """Its host is lost: nothing is placed there any more, and its bundle is Ray's to move."""
        spot.bundle = -1
        if spot.place is not None:
            self._lost = [*self._lost, spot.place.id][-_MOST_LOST:]

    def release(self, spot: Spot) -> None:
        """Give back what a node has."""
        if spot.actor is not None:
            spot.actor.kill()
        if spot.bundle >= 0:
            self._free.add(spot.bundle)
        spot.actor, spot.bundle = None, -1

    def close(self) -> None:
        """Wait for no reservation any more."""
        if self._reserved is not None:
            self._reserved.cancel()
