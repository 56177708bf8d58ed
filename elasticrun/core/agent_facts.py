"""What an agent knows of its node and of its master, and what it says of that.

Events end up here as facts; what follows from them is decided in ``core/agent.py``. A status always tells
all of them, so that the newest one is enough.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.agent_events import (
    AgentEffect,
    AgentTerms,
    Level,
    Say,
    Transmit,
)
from elasticrun.core.agent_group import Group
from elasticrun.core.agent_leave import Departure
from elasticrun.core.agent_probe import Probing
from elasticrun.core.agent_search import Search
from elasticrun.core.agent_tasks import Tasks
from elasticrun.core.agent_wishes import Wishes
from elasticrun.core.hangs import is_hang
from elasticrun.core.protocol import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    Hello,
    Leave,
    NodeInfo,
    Report,
    Seat,
    Stall,
)
from elasticrun.core.quorum import accepts, with_seat
from elasticrun.core.timers import Deadlines

MASTER = "master"


class AgentFacts:
    """The facts about one node, and how they are told. ``now`` is the agent's monotonic clock in seconds."""

    def __init__(self, job_id: str, version: str, info: NodeInfo, terms: AgentTerms) -> None:
        self.info = info
        self.phase = AgentPhase.PREPARING
        self.round = -1
        self.assignment: Assignment | None = None  # of the round that runs, or ran last
        self.failures: tuple[Failure, ...] = ()
        self.departure: Departure | None = None
        self._job = (job_id, version)
        self._terms = terms
        self._wishes = Wishes()
        self._search = Search(terms.join_timeout, terms.endpoints)
        self._probing = Probing()
        self._seats: tuple[Seat, ...] = ()
        self._sequence = 0
        self._greeted: AgentStatus | None = None  # what the newest Hello told
        self._store_port = 0
        self._hosts_store = False
        self._ports: tuple[int, ...] = ()
        self._done = False
        self._stall: Stall | None = None  # as it was seen last, on this stream
        self._timers: Deadlines[str] = Deadlines()
        self.group = Group(terms, self._timers)
        self.tasks = Tasks(terms, self._timers)
        self._now = 0.0
        self._effects: list[AgentEffect] = []

    @property
    def epoch(self) -> int:
        """The newest epoch of a master that this agent has seen, or -1."""
        return self._wishes.epoch

    def hello(self) -> Hello:
        """The first message of a new stream: everything the master needs to resume from.

        But for a stall, which was true when it was seen: the watch over the workers will say it again.
        """
        self._stall = None
        self._greeted = self._status()
        return Hello(*self._job, self.info, self._greeted, self.epoch)

    def _imports_seen(self, under_way: bool) -> None:
        before = self.group.is_warming
        self.group.imports = under_way
        if self.group.is_warming is not before and self.phase is AgentPhase.READY:
            self._report()

    def _link_up(self, epoch: int) -> None:
        if self.epoch >= 0:
            self._say(Level.WARNING, f"the master is back (epoch {epoch})")
        self._wishes = replace(self._wishes, epoch=max(self.epoch, epoch))
        self._timers.cancel(MASTER)
        self._say_farewell()
        self._search = self._search.meet(epoch, self._now)
        if self._search.is_over and self.phase is AgentPhase.READY:
            self._depart(Departure.leaderless(self._now - self._search.since, self.round >= 0))
        if self._status() != self._greeted:
            self._report()  # what changed between Hello and Welcome was not sent

    def _link_down(self, reason: str) -> None:
        if self.departure is None:
            goes_on = "; the workers go on" if self.phase is AgentPhase.RUNNING else ""
            self._say(Level.WARNING, f"lost the master ({reason}){goes_on}")
        self._timers.set_default(MASTER, self._now + self._terms.master_timeout)
        self._search = self._search.lose(self._now)

    def _vote(self, given: Assignment) -> None:
        """Refuse a seat offered in ignorance of our newest; what we learn of that one is news in a Hello."""
        if not accepts(self._seats, given.charter):
            self._wishes = replace(self._wishes, round=None)
            self._report()  # what the master did not know
        elif given.round == self.round and self._seats:
            self._seats, self._sequence = with_seat(self._seats, given.charter), self._sequence + 1

    def _stall_seen(self, round_: int, stall: Stall | None) -> None:
        if round_ == self.round and self.phase is AgentPhase.RUNNING:
            self._stall = stall
            self.group.hangs = self.assignment is not None and is_hang(stall, self.assignment.max_restarts)
            self._report()

    def _depart(self, departure: Departure) -> None:
        """Leave once the workers are gone; what was decided first stands."""
        if self.departure is None:
            self.departure = departure
            self._say_farewell()

    def _say_farewell(self) -> None:
        """Tell the master now, and again on each new stream until the workers are gone."""
        if self.departure is not None and self.departure.is_farewell:
            self._effects.append(Transmit(Leave(self.info.incarnation, self.departure.finish.reason)))

    def _report(self) -> None:
        """Tell the master how things are; a farewell is the last that it hears."""
        self._sequence += 1
        if self.departure is None or not self.departure.is_farewell:
            self._effects.append(Transmit(Report(self.info.incarnation, self._status())))

    def _status(self) -> AgentStatus:
        is_ready = self.phase is AgentPhase.READY
        port = self._store_port if is_ready else 0
        stall = self._stall if self.phase is AgentPhase.RUNNING else None
        return AgentStatus(
            self._sequence,
            self.phase,
            self.round,
            self.failures,
            port,
            self._probing.report,
            stall,
            self._seats,
            warming=is_ready and self.group.is_warming,
            ports=self._ports,
            tasks=self.tasks.reports,
            hosts_store=is_ready and self._hosts_store,
        )

    def _conclude(self, departure: Departure) -> None:
        self._done = True
        self._effects.append(departure.finish)

    def _say(self, level: Level, text: str) -> None:
        self._effects.append(Say(level, text))
