"""Where the nodes of one job are: the reservation, hosts to be avoided, and places that are given back.

Theory. Ray moves the bundle of a lost host to another one, once it knows that the host is gone. Until then an
actor for that bundle waits, though another host may have room; after that the bundle may have taken the very
room that an actor beside it waits for. So a replacement bids for both, and takes what comes first.

A node that needs more memory than is reserved gets a place of its own. Ray gives back a reservation only as
a whole, and ends what runs in it. So the bundle of such a node is kept until no node has one: then all are
given back. If nobody else has a place then, or looks for one, the job begins anew, with a reservation of the
larger size.

Hosts that were lost are left out by name for a while, by which Ray has decided whether they are gone. One
that only did not answer in time may be used again then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass as mutable

from elasticrun.core.fleet.replicas import Start
from elasticrun.platforms.protocol import PlatformError
from elasticrun.platforms.ray.words import Actor, Cluster, Needs, Place

#: Seconds for which a lost host is left out: Ray decides after some 15 s.
LEFT_OUT = 30.0


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
        self._needs = needs  # of one bundle
        self._nodes = 0  # how many have a place, or look for one
        self._taken = set[int]()  # bundles that a node has, or bids for
        self._free = set[int]()  # bundles that no node has
        self._moving = set[int]()  # the same, of hosts that were lost
        self._reserved: asyncio.Task[None] | None = None
        self._ids: dict[str, str] = {}  # the cluster's id of each host that was seen, by its name
        self._lost: dict[str, float] = {}  # until when hosts that were lost are left out, by id

    async def settle(self, spot: Spot, name: str, needs: Needs, start: Start) -> Place:
        """Find a place for a node; one on a host to be avoided is given back.

        Raises NodeLostError, and PlatformError if Ray refuses.
        """
        if not self.why_kept(needs):
            self._outgrow(needs)
        await self._reservation(start.shape.min_replicas)
        self._nodes += 1
        try:
            won, place = await self._look(name, needs, start.avoided)
        except BaseException:
            self._nodes -= 1
            raise
        self._ids[place.name] = place.id
        spot.actor, spot.bundle, spot.place = won.actor, won.bundle, place
        return place

    async def _look(self, name: str, needs: Needs, avoided: Sequence[str]) -> tuple[Spot, Place]:
        while True:
            won = await self._first(self._bid(name, needs, avoided))
            if won is None:
                continue  # what was left out when these bids were made need not be any more
            assert won.actor is not None and won.place is not None
            if won.place.id not in self._avoided(avoided):
                return won, won.place
            won.actor.kill()
            self._taken.discard(won.bundle)  # it is on a bad host, and is used no more

    def why_kept(self, needs: Needs) -> str:
        """Why what is reserved is kept though it is too small for a node; "" if it fits, or is not kept."""
        if needs == self._needs or not self._taken:
            return ""
        return "less is reserved, which Ray gives back only when no node of the job uses it"

    def _outgrow(self, needs: Needs) -> None:
        """Give back a reservation that is too small, and that nobody uses."""
        if needs == self._needs or not (self._reserved is not None and self._reserved.done()):
            return
        if self._free or self._moving or not self._nodes:
            self._cluster.release()
            self._free.clear()
            self._moving.clear()
        if not self._nodes:
            self._needs, self._reserved = needs, None

    async def _reservation(self, count: int) -> None:
        while True:
            if self._reserved is None:
                self._reserved = asyncio.create_task(self._reserve(count))
            mine = self._reserved
            try:
                return await asyncio.shield(mine)
            except PlatformError:
                if self._reserved is mine:  # one replica tells of it; the others wait for the next try
                    self._reserved = None
                    raise

    async def _reserve(self, count: int) -> None:
        await self._cluster.reserve(count, self._needs)
        self._free = set(range(count))

    def _bid(self, name: str, needs: Needs, avoided: Sequence[str]) -> list[Spot]:
        """Ask for a free bundle; else for any place, and for a bundle that Ray may have moved."""
        left_out = self._avoided(avoided)
        if needs != self._needs:
            wanted = [-1]
        elif self._free:
            wanted = [min(self._free)]
        else:
            wanted = [-1, *sorted(self._moving)[:1]]
        bids = list[Spot]()
        try:
            for bundle in wanted:
                bidder = f"{name}-reserved" if bids else name  # names are the cluster's own, once each
                bids.append(Spot(self._cluster.start(bidder, needs, bundle, left_out), bundle))
                self._take(bundle)
        except Exception:
            self._withdraw(bids)
            raise
        return bids

    def _take(self, bundle: int) -> None:
        if bundle >= 0:
            self._free.discard(bundle)
            self._moving.discard(bundle)
            self._taken.add(bundle)

    async def _first(self, bids: list[Spot]) -> Spot | None:
        """The bid that found its place first; None if none has while a lost host is left out.

        The others are withdrawn, whatever happens. Raises NodeLostError if one has failed and none is placed.
        """
        looks = {asyncio.ensure_future(bid.actor.place()): bid for bid in bids if bid.actor is not None}
        won: Spot | None = None
        try:
            patience = LEFT_OUT if self._lost else None
            done, _ = await asyncio.wait(looks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            failed = [look for look in done if look.exception() is not None]
            for look in done.difference(failed):
                won = looks[look]
                won.place = look.result()
            if won is None and failed:
                failed[0].result()
            return won
        finally:
            self._withdraw([bid for bid in bids if bid is not won])
            for look in looks:
                look.add_done_callback(lambda it: it.cancelled() or it.exception())  # it was looked at
                look.cancel()

    def _withdraw(self, bids: list[Spot]) -> None:
        for bid in bids:
            if bid.actor is not None:
                bid.actor.kill()
            self._leave(bid.bundle, self._moving)

    def _leave(self, bundle: int, others: set[int]) -> None:
        if bundle >= 0:
            self._taken.discard(bundle)
            others.add(bundle)

    def _avoided(self, names: Sequence[str]) -> list[str]:
        now = asyncio.get_running_loop().time()
        self._lost = {host: until for host, until in self._lost.items() if now < until}
        avoided = [self._ids[name] for name in names if name in self._ids]
        return [*avoided, *(host for host in self._lost if host not in avoided)]

    def lose(self, spot: Spot) -> None:
        """Its host is lost: nothing is placed there for a while, and its bundle is Ray's to move."""
        self._leave(spot.bundle, self._moving)
        spot.bundle = -1
        if spot.place is not None:
            self._lost[spot.place.id] = asyncio.get_running_loop().time() + LEFT_OUT

    def release(self, spot: Spot) -> None:
        """Give back what a node has."""
        if spot.actor is not None:
            spot.actor.kill()
            self._nodes -= 1
        self._leave(spot.bundle, self._free)
        spot.actor, spot.bundle = None, -1

    def close(self) -> None:
        """Wait for no reservation any more."""
        if self._reserved is not None:
            self._reserved.cancel()
