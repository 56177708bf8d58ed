"""Tells the master how far the workers of this node are: with each heartbeat, and at once when they got on.

Theory. All is in the page, so a message is a look at it. A worker that reaches a milestone rings a bell, a
pipe in which bytes mean nothing. What several workers reach together makes one message: after a look the bell
is not heard for ``PAUSE``, and a worker that rings on and on costs no more than a look in each of them.

A milestone is reached once all workers that make steps have reached it. But the first step of one of them is
that of all, as ranks step together; some may never report, as those that only evaluate.

Invariant. Each message says all of the round, so none has to arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence

from elasticrun.agent.monitors.page import Marks
from elasticrun.agent.monitors.progress import HangWatch
from elasticrun.core.progress.own_time import StepMeter
from elasticrun.core.protocol.bounds import SECONDS
from elasticrun.core.protocol.round_progress import Milestone, Reached, RoundProgress
from elasticrun.core.protocol.usage import WINDOW

PAUSE = 0.02  # seconds; the milestones say themselves when they were reached
_BYTES = 4096
_SAMPLES = 64  # that a rate is taken from, at most


class Teller:
    """Of the node whose workers ``watch`` looks at, on the running loop.

    ``on_news`` is called from the loop when the workers have reached another milestone.
    """

    def __init__(self, watch: HangWatch, on_news: Callable[[], object]) -> None:
        self._watch = watch
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self._told = (-1, 0)  # the round, and how many milestones
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)  # steps done, and when
        self._of = -1  # the round of the samples
        self._meter = StepMeter()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(watch.page.bell, self._rung)

    def progress(self) -> RoundProgress | None:
        """How far the workers are; None: no round was begun, or nobody reports."""
        page, round_, ranks = self._watch.page, self._watch.round, self._watch.judged
        marks = [told for rank in sorted(ranks) if (told := page.marks(rank)) is not None]
        if round_ < 0 or not marks:
            return None
        now = self._loop.time()
        instants = ((each, _when(each, marks, len(ranks))) for each in Milestone)
        reached = tuple(Reached(int(each), SECONDS.clip(now - at)) for each, at in instants if at is not None)
        stalled = max(each.stalled for each in marks)
        measured = {rank: it for rank in ranks if (it := page.own_time(rank)) is not None}
        times = self._meter.measure(round_, measured)
        last = min((each for each in marks if each.done >= 0), key=lambda it: it.done, default=None)
        if last is None:
            return RoundProgress(round_, reached, stalled=stalled, times=times)
        rate, ago = self._rate(round_, last), SECONDS.clip(now - last.done_at)
        return RoundProgress(round_, reached, last.done, rate, stalled, ago, times)

    def close(self) -> None:
        """Hear the bell no more; the page is closed after that."""
        self._loop.remove_reader(self._watch.page.bell)
        if self._pause is not None:
            self._pause.cancel()

    def _rung(self) -> None:
        self._loop.remove_reader(self._watch.page.bell)
        self._pause = self._loop.call_later(PAUSE, self._listen)
        with contextlib.suppress(BlockingIOError):
            os.read(self._watch.page.bell, _BYTES)
        progress = self.progress()
        if progress is None or not progress.reached:
            return
        told = progress.round, len(progress.reached)
        if told != self._told:
            self._told = told
            self._on_news()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._watch.page.bell, self._rung)

    def _rate(self, round_: int, last: Marks) -> float | None:
        """Steps per second since the oldest sample of late; None: not known yet."""
        samples = self._samples
        if self._of != round_ or (samples and last.done < samples[-1][1]):
            samples.clear()
            self._of = round_
        if not samples or last.done > samples[-1][1]:
            samples.append((last.done_at, last.done))
        while len(samples) > 2 and samples[0][0] < last.done_at - WINDOW:
            samples.popleft()
        (begin, first), (end, upto) = samples[0], samples[-1]
        return (upto - first) / (end - begin) if end > begin else None


def _when(milestone: Milestone, marks: Sequence[Marks], workers: int) -> float | None:
    """When the workers have reached a milestone; None: they have not."""
    instants = [each.reached[milestone] for each in marks if milestone in each.reached]
    if milestone is Milestone.FIRST_STEP:
        return min(instants, default=None)
    return max(instants) if len(instants) == workers else None
