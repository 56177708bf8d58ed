"""Keeps jobs as they should be: looks, decides, keeps the record, acts; again at each notice.

Theory. Nothing is remembered here but refusals, to show them. Each pass starts from what is there now, so a
keeper that dies, sleeps or misses a notice leaves nothing half done: the next pass finds the difference. The
record is kept before anything is done, and only if nobody else kept one meanwhile. Hence two keepers beside
each other do each thing once, or do it twice under one name, which is the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.figures import DONE, FAILED, FAULTY, Figures
from elasticrun.core.fleet.replicas import Decision, Remove, Start
from elasticrun.platforms.protocol import Platform, PlatformError, Sight

log = logging.getLogger(__name__)

#: Seconds until a refused start is tried again.
REFUSED_AGAIN = 15.0
#: Seconds before a pass that failed is tried again; doubles up to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: How often in a row a pass is begun anew as somebody else has kept a record meanwhile: others wait for it.
TRIES = 8
#: After so many refused starts, or removals, a pass leaves out the rest: the platform may be away.
MOST_REFUSALS = 8


class Keeper:
    """One pass after the other."""

    def __init__(
        self,
        platform: Platform,
        clock: Callable[[], float] = time.time,
        figures: Figures | None = None,
    ) -> None:
        self._platform = platform
        self._clock = clock
        self._figures = figures or Figures()
        self._refused: dict[str, str] = {}
        self._unstarted: set[str] = set()  # jobs of which a start was refused

    async def reconcile(self, job: str) -> float | None:
        """Bring one job nearer to what it should be; the seconds until the next look, None: at a notice.

        Raises PlatformError.
        """
        for _ in range(TRIES):
            sight = await self._platform.look(job)
            if sight is None:
                self._refused.pop(job, None)
                self._unstarted.discard(job)
                self._figures.jobs.discard(job)
                return None
            self._figures.jobs.add(job)
            refused = self._refused.get(job, "")
            decision = decide(
                sight.wish,
                sight.seen,
                sight.record,
                self._clock(),
                refused,
                sight.operations,
                sight.usage,
                refused if job in self._unstarted else "",
                sight.stranded,
            )
            if await self._platform.keep(job, sight, decision):
                break
        else:
            raise PlatformError(f"somebody else has changed it {TRIES} times in the midst of a pass")
        was_refused = bool(refused)
        await self._act(job, sight, decision)
        if job in self._refused:
            return REFUSED_AGAIN if was_refused else 0.0  # at once only to show it
        return None if decision.look_at is None else max(0.0, decision.look_at - self._clock())

    async def _act(self, job: str, sight: Sight, decision: Decision) -> None:
        refusals: dict[type, list[str]] = {Remove: [], Start: []}
        for action in decision.actions:
            if len(refusals[type(action)]) == MOST_REFUSALS:
                continue
            try:
                if isinstance(action, Remove):
                    await self._platform.remove(job, action)
                else:
                    await self._platform.start(job, sight, action)
            except PlatformError as error:
                refusals[type(action)].append(str(error))
        self._unstarted.discard(job)
        if refusals[Start]:
            self._unstarted.add(job)
        if told := [*refusals[Start], *refusals[Remove]]:
            # The first text stays: one that differs each time would be kept, which itself leads to a pass.
            self._refused.setdefault(job, told[0])
        else:
            self._refused.pop(job, None)
        for note in decision.notes:
            log.info("%s: %s: %s", job, note.reason, note.text)
            await self._platform.tell(job, sight, note)


class Queue:
    """Has a pass for each notice: one at a time for each job, and of all jobs a bounded number."""

    def __init__(
        self,
        work: Callable[[str], Awaitable[float | None]],
        at_a_time: int = 8,
        figures: Figures | None = None,
    ) -> None:
        self._work = work
        self._figures = figures or Figures()
        self._slots = asyncio.Semaphore(at_a_time)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._noticed: dict[str, float] = {}  # jobs whose next pass has not begun: when that was first due
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._is_closed = False

    def notice(self, job: str) -> None:
        """Something happened to a job: have a pass soon, after the present one if there is one."""
        if self._is_closed:
            return
        self._noticed.setdefault(job, time.monotonic())
        self._figures.waiting = len(self._noticed)
        if job in self._tasks:
            return
        if timer := self._timers.pop(job, None):
            timer.cancel()
        self._tasks[job] = asyncio.get_running_loop().create_task(self._run(job))

    async def _run(self, job: str) -> None:
        delay: float | None = LONGEST_PAUSE  # if the pass ends in a way that nobody has thought of
        try:
            async with self._slots:
                self._figures.waits.add(time.monotonic() - self._noticed.pop(job))
                self._figures.waiting = len(self._noticed)
                delay = await self._try(job)
        finally:
            del self._tasks[job]
            if job in self._noticed:
                delay = delay if job in self._failures else 0.0
            if delay is not None and not self._is_closed:
                self._timers[job] = asyncio.get_running_loop().call_later(delay, self._due, job)

    async def _try(self, job: str) -> float | None:
        began, result = time.monotonic(), DONE
        try:
            delay = await self._work(job)
        except PlatformError as error:
            result = FAILED
            failures = self._failures[job] = self._failures.get(job, 0) + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 30))
            log.warning("%s: %s; tried again in %g s", job, error, pause)
            return pause
        except Exception:
            result = FAULTY
            log.exception("%s: a fault of this program; tried again in %g s", job, LONGEST_PAUSE)
            self._failures.setdefault(job, 1)
            return LONGEST_PAUSE
        finally:
            self._figures.passes[result].add(time.monotonic() - began)
        self._failures.pop(job, None)
        return delay

    def _due(self, job: str) -> None:
        del self._timers[job]
        self.notice(job)

    async def close(self) -> None:
        """End: nothing is started any more, and what runs is cancelled."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._noticed.clear()
        self._figures.waiting = 0
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
