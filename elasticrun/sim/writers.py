"""How a simulated agent carries out its orders for the storage, and the processes that write.

The rules: what is written is as it was saved, and stays so while it is written. Of one commit, one writer at
most runs on each node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.core.protocol.storing import StoreOrder, StorePart, StoreReport
from elasticrun.core.state.events import Pinned
from elasticrun.core.state.retrying import Trouble
from elasticrun.core.state.writing import (
    Ended,
    KillWriter,
    Moved,
    Ordered,
    StartWriter,
    Tell,
    Tick,
    Writing,
    WritingEvent,
)
from elasticrun.sim.copies import Stamped, must_be_whole
from elasticrun.sim.kernel import require
from elasticrun.sim.storage import Fate, File

if TYPE_CHECKING:
    from elasticrun.sim.memories import SimMemory


class SimStoring:
    """The orders of one node."""

    def __init__(self, memory: SimMemory) -> None:
        self.agent = memory.agent
        self.memory = memory
        self.report: StoreReport | None = None
        self.order: StoreOrder | None = None  # the newest
        self.writers: dict[int, Writer] = {}  # that have not ended, by attempt
        self._writing = Writing()
        self._tick_at: float | None = None

    def obey(self, order: StoreOrder | None) -> None:
        """Carry out an order; None: leave off."""
        self.order = order
        self.handle(Ordered(order))

    def die(self) -> None:
        """The agent is gone, and with it its writers, unless the storage holds them."""
        for writer in [*self.writers.values()]:
            writer.kill()

    def handle(self, event: WritingEvent) -> None:
        """Take in an event, and do what follows from it."""
        agent = self.agent
        if agent.over or agent.park(self.handle, event):
            return
        effects = self._writing.handle(event, agent.kernel.now)
        if agent.kernel.tracing:
            agent.kernel.say(agent.incarnation, f"{event} -> {', '.join(map(str, effects)) or '-'}")
        for effect in effects:
            match effect:
                case Pinned():
                    self.memory.pin(effect)
                case StartWriter(attempt, order):
                    self._start(attempt, order)
                case KillWriter(attempt):
                    if attempt in self.writers:
                        self.writers[attempt].kill()
                case Tell(report):
                    self.report = report
                    self.memory.tell()
        deadline = self._writing.next_deadline()
        if deadline is not None and deadline != self._tick_at:
            self._tick_at = deadline
            agent.kernel.at(deadline, self._tick, deadline)

    def _tick(self, deadline: float) -> None:
        if self._tick_at == deadline:
            self._tick_at = None
            self.handle(Tick())

    def _start(self, attempt: int, order: StoreOrder) -> None:
        same = [each for each in self.writers.values() if each.order.commit == order.commit]
        require("one writer of a commit runs", not same, f"{self.agent.incarnation}: {order}")
        parts = [(part, self.memory.held(order.commit, part.group_rank)) for part in order.parts]
        if missing := [part.group_rank for part, held in parts if not held]:
            ended = Ended(attempt, Trouble.DENIED, f"part {missing[0]} of {order.commit} is not here")
            self.agent.kernel.after(0.0, self.handle, ended)
            return
        self.writers[attempt] = Writer(self, attempt, order, parts)


class Writer:
    """One process that writes."""

    def __init__(
        self,
        storing: SimStoring,
        attempt: int,
        order: StoreOrder,
        parts: list[tuple[StorePart, list[Stamped]]],
    ) -> None:
        self.order = order
        self._storing = storing
        self._attempt = attempt
        self._parts = parts  # that are to be written
        self._is_killed = self._is_gone = self._hangs = False
        self._storage = storing.agent.sim.storage
        self._kernel = storing.agent.kernel
        self._kernel.after(0.1 * self._storage.rng.random(), self._go_on)

    def _go_on(self) -> None:
        """Begin to write the next part, or the marker."""
        if self._is_gone:
            return
        if not self._parts and self.order.parts:
            self._end(Ended(self._attempt))
            return
        took = self._storage.spec.slowest * self._storage.rng.random()
        match self._storage.fate(self._storing.agent.name):
            case Fate.FAILS:
                self._kernel.after(0.5 * took, self._fail)
            case Fate.HANGS:
                self._hangs = True
                self._storage.hanging += 1
            case Fate.CRASHES:
                self._kernel.after(0.5 * took, self._storing.agent.lose_power)
            case _:
                self._kernel.after(0.5 * took, self._storing.handle, Moved(self._attempt))
                number = 0 if self.order.parts else self._storage.next_number()
                self._kernel.after(took, self._wrote, number)

    def _wrote(self, number: int) -> None:
        if self._is_gone:
            return
        if self.order.parts:
            self._write()
        elif obstacle := self._storage.obstacle(self.order):
            self._end(Ended(self._attempt, Trouble.DAMAGED, obstacle))
            return
        else:
            self._storage.finish(self.order, number)
        if self.order.parts:
            self._go_on()
        else:
            self._end(Ended(self._attempt))

    def _write(self) -> None:
        """A part is written, if it is as it was saved: who was told to end may come too late."""
        part, held = self._parts.pop(0)
        memory, commit = self._storing.memory, self.order.commit
        there = memory.held(commit, part.group_rank)
        is_there = bool(there) and there == held
        if not self._is_killed:
            require("what is written is still there", is_there, f"{part}: {held}, now {there}")
            must_be_whole("what is written is as it was saved", there)
        if is_there:
            told = memory.told(commit, part.group_rank)
            assert told is not None, "a part that is here has a name"
            ranks = tuple(stamp for _, stamp in there if stamp is not None)
            self._storage.write(self.order, part, File(ranks, told.shared, part.which, part.of))

    def _fail(self) -> None:
        self._end(Ended(self._attempt, self._storage.trouble(), "the storage fails"))

    def kill(self) -> None:
        """Send SIGKILL. Who hangs in the storage may live on, and end what it was about to do."""
        if self._is_killed:
            return
        self._is_killed = True
        rng = self._storage.rng
        if self._hangs and rng.random() < self._storage.spec.undying:
            self._kernel.after(200.0 * rng.random(), self._let_go)
        else:
            self._kernel.after(0.05 * rng.random(), self._end, Ended(self._attempt, Trouble.OTHER, "killed"))

    def _let_go(self) -> None:
        """The storage answers at last, so the process ends: after what it was about to do, or not."""
        if self._storage.rng.random() < 0.5:
            if self.order.parts:
                self._write()
            elif not self._storage.obstacle(self.order):
                self._storage.finish(self.order, self._storage.next_number())
        self._end(Ended(self._attempt, Trouble.OTHER, "killed"))

    def _end(self, ended: Ended) -> None:
        if not self._is_gone:
            self._is_gone = True
            if self._hangs:
                self._storage.hanging -= 1
                self._storage.failed_at = self._kernel.now
            del self._storing.writers[self._attempt]
            self._storing.handle(ended)
