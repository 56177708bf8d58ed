"""The master: a job's machine with its journal on a simulated disk, as master/loop.py runs it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticrun.config import JobConfig
from elasticrun.core.job.events import (
    Answered,
    Attached,
    Beat,
    Detached,
    Drop,
    JobEffect,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
    Send,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.messages import AgentMessage, Heartbeat, Hello, Leave, Report, Trust
from elasticrun.core.protocol.orders import ORDERS
from elasticrun.dataclass import dataclass
from elasticrun.sim.fingerprint import fingerprint, replay_gives_the_same
from elasticrun.sim.kernel import require
from elasticrun.sim.network import Stream
from elasticrun.sim.scenario import Memory

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator


@dataclass(frozen=True, slots=True)
class State:
    """The saved state of a machine. It begins a compacted journal, in place of all earlier events."""

    epoch: int
    saved: Any


Journal = list[tuple[JobEvent | State, float]]


@dataclass(frozen=True, slots=True)
class Saving:
    """How a master saves and restores its state: by copies, or as the caller says."""

    take: Callable[[JobState], Any] = copy.deepcopy
    restore: Callable[[JobConfig, Any], JobMachine] = lambda config, saved: JobMachine(
        config, copy.deepcopy(saved)
    )

    def replay(self, config: JobConfig, journal: Journal) -> JobMachine:
        """Build the machine that a journal describes."""
        machine = JobMachine(config)
        for event, now in journal:
            if isinstance(event, State):
                machine = self.restore(config, event.saved)
            else:
                machine.handle(event, now)
        return machine


SAVING = Saving()  # by copies


class SimMaster:
    """All lives of the master process."""

    def __init__(self, sim: Simulator, config: JobConfig) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        self.config = config
        self.machine = JobMachine(config)
        self.journal: Journal = []
        self.life = 0
        self.up = False
        self._sessions = 0
        self._streams: dict[int, Stream] = {}
        self.offset = 0.0  # of its clock, which goes on where that of the process before ended
        self._tick_at: float | None = None
        self._crash: tuple[float, Memory] | None = None  # due at the next event
        self._expected: Any = None
        #: Events in the journal before it is compacted.
        self._longest = 20 + sim.scenario.seed % 60 if sim.scenario.deep else 1000
        self.written: Callable[[int], None] = lambda first: (
            None
        )  # called with the index of the first new entry

    # -- the loop

    def handle(self, event: JobEvent) -> None:
        """Journal an event, let the machine decide, and carry out the effects."""
        if not self.up:
            return
        crash, self._crash = self._crash, None
        before = fingerprint(self.machine.state) if crash and crash[1] is Memory.TORN else None
        now = self.kernel.now + self.offset
        if not isinstance(event, Beat) and before is None:
            self.journal.append((event, now))
            self.written(len(self.journal) - 1)
        effects = self.machine.handle(event, now)
        broken = self.machine.check() if self.sim.scenario.deep else ()
        require("each part of the master keeps its invariants", not broken, "; ".join(broken))
        answers = sum(isinstance(effect, Answered) for effect in effects)
        require("each order is answered once", answers == isinstance(event, ORDERS), str(event))
        for observer in self.sim.observers:
            observer(now, event, effects)
        if self.kernel.tracing and not isinstance(event, Beat):
            self.kernel.say("master", f"{event} -> {', '.join(map(str, effects)) or '-'}")
        if crash is not None:
            self._crash_amid(crash, before, effects)
            return
        self.sim.rules.after_master(self, effects)
        for effect in effects:
            self._carry_out(effect)
        if len(self.journal) > self._longest and self.up:
            self._compact(now)
        self._arm()

    def _compact(self, now: float) -> None:
        state = self.machine.state
        self.journal = [(State(state.epoch, self.sim.saving.take(state)), now)]
        self.written(0)

    def _carry_out(self, effect: JobEffect) -> None:
        match effect:
            case Send(session, message):
                if session in self._streams:
                    self._streams[session].send_down(message)
            case Drop(session, farewell):
                stream = self._streams.get(session)
                if stream is not None:
                    if farewell is not None:
                        stream.send_down(farewell)
                    stream.close()

    def _arm(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline != self._tick_at:
            self._tick_at = deadline
            self.kernel.at(max(self.kernel.now, deadline - self.offset), self._tick, self.life, deadline)

    def _tick(self, life: int, deadline: float) -> None:
        if life != self.life or not self.up or self._tick_at != deadline:
            return
        self._tick_at = None
        for event in self.machine.due(max(deadline, self.kernel.now + self.offset)):
            self.handle(event)
        if life == self.life and self.up:
            self._arm()

    # -- streams

    def receive(self, stream: Stream, message: AgentMessage) -> None:
        """Handle a message, which may come long after its stream broke."""
        if not self.up or stream.life != self.life:
            return
        match message:
            case Hello():
                self._sessions += 1
                stream.session = self._sessions
                self._streams[stream.session] = stream
                stream.key = self.machine.state.key
                self.handle(
                    Attached(stream.session, replace(message, trust=_trust(stream, self.sim.scenario.seed)))
                )
            case Report(_, status):
                self.handle(Reported(stream.session, status))
            case Heartbeat():
                self.handle(Beat(stream.session))
            case Leave(_, reason):
                self.handle(Left(stream.session, reason))

    def stream_ended(self, stream: Stream, reason: str) -> None:
        """Handle the end of a stream, as the master sees it."""
        if self.up and stream.life == self.life and self._streams.pop(stream.session, None) is not None:
            self.handle(Detached(stream.session, reason))

    # -- lives

    def crash(self, down_for: float, memory: Memory) -> None:
        """Die now, or while the next event is handled."""
        if not self.up or self._crash is not None:
            return
        if memory in (Memory.KEPT, Memory.LOST):
            self._die(down_for, memory, fingerprint(self.machine.state))
        else:
            self._crash = (down_for, memory)

    def _crash_amid(self, crash: tuple[float, Memory], before: Any, effects: list[JobEffect]) -> None:
        down_for, memory = crash
        if memory is not Memory.TORN:
            self.sim.rules.after_master(self, effects)
        if memory is Memory.HALF_SENT:
            for effect in effects[: len(effects) // 2]:
                self._carry_out(effect)
        self._die(down_for, memory, before if memory is Memory.TORN else fingerprint(self.machine.state))

    def _die(self, down_for: float, memory: Memory, expected: Any) -> None:
        self.kernel.say("master", f"dies; its journal is {memory.value}")
        self._stop_serving()
        self._expected = expected
        self.kernel.after(down_for, self._restart, memory)

    def _stop_serving(self) -> None:
        self.up = False
        for stream in self._streams.values():
            stream.break_off("the master died", self.kernel.random(), 0.0)
        self._streams = {}

    def _restart(self, memory: Memory) -> None:
        if memory is Memory.LOST:
            self.journal = []
            self.machine = JobMachine(self.config)
            self.sim.rules.forget()
        else:
            self.machine = self.sim.saving.replay(self.config, self.journal)
            replay_gives_the_same(self._expected, self.machine)
            self.sim.rules.resume(self.machine)
        self.start()

    def start(self, epoch: int | None = None) -> None:
        """Begin a life: resume the job, or begin it."""
        self.life += 1
        self.up = True
        self._sessions = 0
        self._tick_at = None
        self.offset = (self.journal[-1][1] if self.journal else 0.0) - self.kernel.now
        epoch = self.machine.state.epoch + 1 if epoch is None else epoch
        self.handle(MasterStarted(epoch, "" if self.machine.state.key else f"{epoch} at {self.kernel.now}"))


def _trust(stream: Stream, seed: int) -> Trust:
    """What an agent has proved; jobs with an odd seed have a token."""
    if stream.key in stream.tickets:
        return Trust.RETURNING
    return Trust.MEMBER if seed % 2 else Trust.STRANGER
