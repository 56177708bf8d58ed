"""A job's replicas on a Ray cluster: each is an actor that runs a launcher.

Theory. The record lives in the driver, as the job does: if the driver ends, Ray ends its actors, and nothing
is left to be kept. So each replica has one task here, which follows it from the search for a place to its
end, and whatever that task learns leads to a pass of the keeper.

Ray finds out that a host is dead after some 15 s. The job's master hears nothing of the node there much
sooner. A node that the master misses, and whose actor does not answer either, is lost with its host: it is
replaced at once, elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass as mutable
from dataclasses import field, replace
from typing import Any

from elasticrun.core.fleet.replicas import (
    Cause,
    Decision,
    Note,
    Phase,
    Record,
    Remove,
    Seen,
    Start,
    Verdict,
    Wish,
)
from elasticrun.core.protocol.chronicle import JobEnded, LogEntry, NodeDetached, NodeGone
from elasticrun.core.protocol.messages import Outcome
from elasticrun.errors import ExitCode, MasterUnreachableError
from elasticrun.platforms.protocol import PlatformError, Sight
from elasticrun.platforms.ray.places import Places, Spot
from elasticrun.platforms.ray.words import Actor, Cluster, Needs, NodeLostError, Place

log = logging.getLogger(__name__)

#: Seconds that an actor may take to answer when the master misses its node.
DOUBT = 1.0
#: Seconds until people are told why a node does not run.
PATIENCE = 5.0


@mutable(slots=True)
class Replica:
    """One replica, and what is seen of it."""

    seen: Seen
    spot: Spot = field(default_factory=Spot)
    following: asyncio.Task[None] | None = None
    killing: asyncio.TimerHandle | None = None


class Hindrance:
    """Tells why nodes do not run, if that lasts: most find their place at once."""

    def __init__(self) -> None:
        self._text = ""
        self._telling: asyncio.TimerHandle | None = None

    def take(self, decision: Decision) -> None:
        """Learn what hinders the job now."""
        text = next((it.text for it in decision.conditions if it.kind == "Hindered" and it.holds), "")
        if text != self._text:
            self.close()
            self._text = text
            if text:
                loop = asyncio.get_running_loop()
                self._telling = loop.call_later(PATIENCE, log.warning, "%s", text)

    def close(self) -> None:
        """Tell nothing any more."""
        if self._telling is not None:
            self._telling.cancel()


class RayPlatform:
    """The replicas of one job, which has the name that it was made with. Made inside the running loop."""

    def __init__(
        self,
        job: str,
        cluster: Cluster,
        wish: Wish,
        needs: Needs,
        request: Callable[[Start, Place], Awaitable[bytes]],
        show: Callable[[Actor, int, Place, asyncio.Event], Coroutine[Any, Any, None]],
        tell: Callable[[Note], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep nothing yet: ``notify`` begins.

        ``request``: what a replica runs at this place. ``show``: shows what its launcher prints
        there, until that ends, or soon after the event that says that it has ended. ``tell``: tells people
        something.
        """
        self.over: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.code: int | None = None  # with which a replica has ended that says how the job did
        self._job = job
        self._wish = wish
        self._needs = needs
        self._request = request
        self._show = show
        self._tell = tell
        self._clock = clock
        self._record = Record()
        self._version = 0  # of the record
        self._replicas: dict[int, Replica] = {}
        self._places = Places(cluster, needs)
        self._hindrance = Hindrance()
        self._news = asyncio.Event()  # something is seen
        self._tasks = set[asyncio.Task[None]]()
        self._happened: Callable[[str], None] = lambda _: None

    # -- what the keeper asks

    async def look(self, job: str) -> Sight | None:
        """Everything is here."""
        if job != self._job or self.over.done():
            return None
        seen = tuple(each.seen for each in self._replicas.values())
        return Sight(self._wish, seen, self._record, token=self._version)

    async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
        """Remember the decision, and whether the job is over."""
        if sight.token != self._version:
            return False
        if decision.record != self._record:
            self._record, self._version = decision.record, self._version + 1
        self._hindrance.take(decision)
        is_final = decision.record.verdict not in (None, Verdict.AGAIN) or self._wish.suspended
        are_gone = all(each.seen.phase is Phase.ENDED for each in self._replicas.values())
        if is_final and are_gone and not decision.record.live and not self.over.done():
            self.over.set_result(decision.record)
        return True

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        """Begin to look for a place."""
        if start.index in self._replicas:
            return
        needs = replace(self._needs, memory=start.memory or self._needs.memory)
        trouble = f"waits for a host of the cluster with {needs} to spare"
        if kept := self._places.why_kept(needs):
            trouble = f"{trouble}; {kept}"
        seen = Seen(start.index, Phase.PENDING, start.slot, memory=needs.memory, trouble=trouble)
        replica = self._replicas[start.index] = Replica(seen)
        replica.following = self._begin(self._follow(replica, start, needs))
        self._happened(job)

    async def remove(self, job: str, remove: Remove) -> None:
        """SIGTERM, and after the grace the end of the actor; at once if nothing runs there any more."""
        replica = self._replicas.get(remove.index)
        if replica is not None and not replica.seen.is_leaving:
            self._leave(remove.index, replica)

    def _leave(self, index: int, replica: Replica) -> None:
        actor = replica.spot.actor
        if actor is None or replica.seen.phase is not Phase.RUNNING or replica.seen.cause is Cause.HOST_LOST:
            self._drop(index)
            return
        actor.signal(signal.SIGTERM)
        self._see(replica, leaves_by=self._clock() + self._wish.grace)
        replica.killing = asyncio.get_running_loop().call_later(self._wish.grace, self._drop, index)

    async def tell(self, job: str, sight: Sight, note: Note) -> None:
        """Tell whoever reads the driver's output."""
        self._tell(note)

    def notify(self, happened: Callable[[str], None]) -> None:
        """There is one job."""
        self._happened = happened
        happened(self._job)

    # -- what the driver asks

    def end(self) -> None:
        """Have all replicas leave; the job is over then."""
        self._wish = replace(self._wish, suspended=True)
        if self._record.verdict is not None:  # then the keeper would let them end by themselves
            for index, replica in list(self._replicas.items()):
                if replica.seen.phase is Phase.RUNNING and not replica.seen.is_leaving:
                    self._leave(index, replica)
        self._happened(self._job)

    def kill(self) -> None:
        """Do not wait for their grace."""
        for index in list(self._replicas):
            self._drop(index)

    def heard(self, entries: Sequence[LogEntry], _lines: Sequence[str] = ()) -> None:
        """Take what the job's master tells: a node that it misses may be lost with its host."""
        for entry in entries:
            match entry.told:
                case NodeDetached(node=node) | NodeGone(node=node):
                    self._begin(self._doubt(_index(node)))
                case JobEnded(outcome=outcome) if outcome == Outcome.STOPPED.value:
                    self.code = ExitCode.DRAINED
                    self.end()  # replicas that wait for a place are not to begin it anew

    async def close(self) -> None:
        """Give back all places."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.kill()
        self._places.close()
        self._hindrance.close()

    # -- the life of a replica

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.over.done():
            self.over.set_exception(error)  # a bug: it ends the job

    async def _follow(self, replica: Replica, start: Start, needs: Needs) -> None:
        try:
            place = await self._places.settle(replica.spot, f"{self._job}-{start.index}", needs, start)
            await self._gathered(replica, start.shape.min_replicas)
            self._see(replica, phase=Phase.RUNNING, host=place.name, trouble="")
            code = await self._run(replica.spot, start, place)
        except NodeLostError as error:
            self._see(replica, phase=Phase.ENDED, cause=error.cause, words=error.words, trouble="")
        except (PlatformError, MasterUnreachableError) as error:
            self._see(replica, phase=Phase.ENDED, cause=Cause.NOT_STARTED, words=str(error), trouble="")
        else:
            was_asked = replica.seen.is_leaving
            self._see(replica, phase=Phase.ENDED, exit_code=code)
            is_open = self._record.verdict in (None, Verdict.AGAIN) and not self._wish.suspended
            if code and not was_asked and is_open:
                self.code = code
        self._places.release(replica.spot)

    async def _gathered(self, replica: Replica, count: int) -> None:
        """Wait until so many have a place, or others run already: one alone would only wait in vain."""
        self._see(replica, trouble="has a place, and waits for the others")
        while True:
            others = [each for each in self._replicas.values() if each.seen.phase is not Phase.ENDED]
            are_running = any(each.seen.phase is Phase.RUNNING for each in others)
            if are_running or sum(each.spot.place is not None for each in others) >= count:
                return
            await self._news.wait()

    async def _run(self, spot: Spot, start: Start, place: Place) -> int:
        """Run the launcher, and show what it prints; returns once all that it has printed is shown."""
        assert spot.actor is not None
        request, ended = await self._request(start, place), asyncio.Event()
        shown = asyncio.create_task(self._show(spot.actor, start.index, place, ended))
        try:
            code = await spot.actor.run(request)
            ended.set()
            await shown
        finally:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)
        return code

    async def _doubt(self, index: int) -> None:
        """The master misses a node: see whether its actor answers."""
        replica = self._replicas.get(index)
        if replica is None or replica.spot.actor is None or replica.seen.phase is not Phase.RUNNING:
            return
        if not await replica.spot.actor.answers(DOUBT) and replica.seen.phase is Phase.RUNNING:
            self._see(replica, cause=Cause.HOST_LOST, words="neither its launcher nor its actor is heard of")

    def _see(self, replica: Replica, **fields: Any) -> None:
        replica.seen = replace(replica.seen, **fields)
        self._news.set()  # wakes who waits now
        self._news.clear()
        if replica.seen.cause is Cause.HOST_LOST:
            self._places.lose(replica.spot)
        self._happened(self._job)

    def _drop(self, index: int) -> None:
        """Forget a replica; what is left of it in the cluster ends."""
        replica = self._replicas.pop(index, None)
        if replica is None:
            return
        if replica.following is not None:
            replica.following.cancel()
        if replica.killing is not None:
            replica.killing.cancel()
        self._places.release(replica.spot)
        self._happened(self._job)


def _index(node: str) -> int:
    """A node's name ends with its rank, which is its replica's index here."""
    mark = node.rpartition("/")[2]
    return int(mark) if mark.isdecimal() else -1
