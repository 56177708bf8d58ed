"""The launcher's own face: one calm line at the bottom of a terminal that says what this node does.

Theory. The line says what no lasting line does: how long something goes on. It is drawn once a second, and
soon after something changed; nothing is drawn in the first moments, so a quick start shows none. Each node
has its own: an agent knows its own phase, what the master told it to wait for, and its workers' steps.

Invariant: no output of a worker is mixed with it. Output that comes through the agent erases the line first,
in the same write (``Console``). Output that does not come through it cannot be seen coming, so while a worker
has the terminal itself as its stdout, as it has unless that is redirected or teed, there is no line.
Nor is there one behind a line of output that has no end yet, such as a progress bar. The master and the
spawner write to the terminal themselves, but only what is out of the ordinary.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable

from elasticrun.agent.logs.router import LogRouter
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.amounts import count, percent, time_text
from elasticrun.core.protocol.messages import AgentPhase, Assignment
from elasticrun.core.protocol.plain import one_line

logger = logging.getLogger(__name__)

#: Seconds until the first line, between two, and until one that shows a change, or that was erased.
FIRST = 0.5
EACH = 1.0
SOON = 0.25
#: Seconds over which steps are counted for their rate.
WINDOW = 15.0
_DIM, _PLAIN = b"\x1b[2m", b"\x1b[0m"


class Face:
    """The status line of one agent. Made inside the running loop."""

    def __init__(
        self, router: LogRouter, state: AgentState, step: Callable[[], int], colour: bool = True
    ) -> None:
        """``step``: the last one that all workers of this node have made; -1: none is known."""
        self._router = router
        self._console = router.stderr
        self._state = state
        self._step = step
        self._colour = colour
        self._loop = asyncio.get_running_loop()
        self._words = Words(self._loop.time())
        self._drawn = self._loop.time() + FIRST - EACH
        self._seen: tuple[AgentPhase, bool, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._console.on_erased = self._soon
        self._arm(self._drawn + EACH)

    def changed(self, waiting: str = "") -> None:
        """Look at the agent's state. ``waiting``: what the master has just said that it waits for."""
        state = self._state
        if waiting:
            self._words.waiting = waiting
        seen = state.phase, state.imports, state.round
        if seen != self._seen or waiting:
            self._seen = seen
            self._words.changed(state.phase, state.round, self._loop.time())
            self._soon()

    def resized(self) -> None:
        """The window has another width."""
        self._console.erase()
        self._soon()

    def close(self) -> None:
        """Erase the line; draw none any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._console.on_erased = None
        self._console.erase()

    def _soon(self) -> None:
        due = max(self._loop.time(), self._drawn) + SOON
        if self._timer is not None and self._timer.when() > due:
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._draw_or_end)

    def _draw(self) -> None:
        self._drawn = self._loop.time()
        if self._router.is_terminal_taken:
            self._console.erase()
        else:
            text = self._words.text(self._state, self._step(), self._drawn)
            width = _columns(self._console.fd)
            line = one_line(text)[: max(0, width - 1)].encode(errors="replace")
            self._console.draw(_DIM + line + _PLAIN if self._colour else line, len(line), width)
        self._arm(self._drawn + EACH)

    def _draw_or_end(self) -> None:
        """No fault of this line is one of the job."""
        try:
            self._draw()
        except Exception:
            logger.exception("there is no status line from now on; please report this traceback")
            self.close()


class Words:
    """What the line says, from what was noted at each change."""

    def __init__(self, now: float) -> None:
        self.waiting = ""  # what the master waits for, in its words
        self._began = now
        self._phase = AgentPhase.PREPARING
        self._round = -1
        self._since = now  # of this phase
        self._worked = 0.0  # seconds in which workers ran, before this phase
        self._steps: deque[tuple[float, int]] = deque()

    def changed(self, phase: AgentPhase, round_: int, now: float) -> None:
        """Note the phase."""
        if phase is not self._phase:
            if self._phase is AgentPhase.RUNNING:
                self._worked += now - self._since
            self._phase, self._since = phase, now
        if round_ != self._round or phase is not AgentPhase.RUNNING:
            self._steps.clear()
        if phase is AgentPhase.RUNNING:
            self.waiting = ""
        self._round = round_

    def text(self, state: AgentState, step: int, now: float) -> str:
        """One line."""
        lasts = time_text(now - self._since)
        match state.phase:
            case AgentPhase.PREPARING:
                return f"elastic-run: preparing, {lasts}"
            case AgentPhase.CHECKING:
                return f"elastic-run: checking compute and network, {lasts}"
            case AgentPhase.RUNNING if state.assignment is not None:
                return f"elastic-run: {self._running(state.assignment, step, now)}"
            case AgentPhase.READY if state.imports:
                return f"elastic-run: importing what workers need, {lasts}{self._also()}"
            case AgentPhase.READY:
                needed = count(max(1, state.info.min_nodes), "node")
                return f"elastic-run: waiting until {needed} can start, {lasts}{self._also()}"
            case phase:
                return f"elastic-run: {phase.value}, {lasts}{self._also()}"

    def _also(self) -> str:
        return f": {self.waiting}" if self.waiting else ""

    def _running(self, given: Assignment, step: int, now: float) -> str:
        parts = [f"{count(given.world_size, 'worker')} on {count(given.group_world_size, 'node')}"]
        if step >= 0:
            rate = self._rate(step, now)
            parts.append(f"step {step}" + ("" if rate is None else f", {rate:.3g} steps/s"))
        if given.restart_count:
            parts.append(f"restart {given.restart_count} of {given.max_restarts}")
        worked, age = self._worked + now - self._since, max(now - self._began, 1e-9)
        parts.append(f"at work {percent(worked / age)} of {time_text(age)}")
        return ", ".join(parts)

    def _rate(self, step: int, now: float) -> float | None:
        """Steps per second, of late."""
        self._steps.append((now, step))
        while self._steps[0][0] < now - WINDOW:
            self._steps.popleft()
        begin, first = self._steps[0]
        passed = now - begin
        return (step - first) / passed if passed > EACH / 2 and step >= first else None


def _columns(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80
