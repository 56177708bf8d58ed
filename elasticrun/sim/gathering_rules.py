"""The rule for commits that are given up: only once all was tried that could have kept them.

While each part of a commit is at a node that is here, it is restored by the next world, or the storage has
one that is as new, or some part could be sent to none of that world's members: whoever has it was told to
offer it to each of them, and did. Who is asked to leave counts as here until it is let go. The simulator
counts the offers; what the master counts is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from elasticrun.core.job.commits import COLLECTING_TIMEOUT
from elasticrun.core.job.events import Drop, JobEffect
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import RejectCode, Rejected
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.kernel import require


class _Moment(NamedTuple):
    """What a master knew before an event."""

    machine: JobMachine
    phase: JobPhase
    round: int
    commit: CommitId  # the newest whole one
    parts: dict[int, list[str]]  # by group rank: the nodes that have it
    incarnations: dict[str, str]  # by node
    senders: frozenset[str]  # nodes that exchange copies
    sessions: dict[int | None, str]


class Gathering:
    """Watches that no commit is given up too early. For jobs all of whose parts are needed."""

    def __init__(self) -> None:
        self._offers: set[tuple[CommitId, int, str, str]] = set()  # part, and incarnations
        self._before: _Moment | None = None
        self._since: dict[CommitId, float] = {}  # when its parts began to go to the next world

    def offered(self, commit: CommitId, group_rank: int, sender: str, receiver: str) -> None:
        """A node has tried to send a part to another one."""
        self._offers.add((commit, group_rank, sender, receiver))

    def after_master(self, machine: JobMachine, effects: Sequence[JobEffect], now: float) -> None:
        """Check what the last event did to the newest commit that was whole before it."""
        before, self._before = self._before, _moment(machine)
        gathered = machine.state.replication.gathered
        if gathered is not None:
            self._since.setdefault(gathered, now)
        if before is None or before.machine is not machine or before.phase is JobPhase.RUNNING:
            return  # a world that runs needs nobody outside it
        if now - self._since.get(before.commit, now) < COLLECTING_TIMEOUT and _gives_up(
            before, machine, effects
        ):
            text = f"{before.commit}: {before.parts}"
            require("nothing is given up before all was tried", self._is_stuck(before, machine), text)

    def _is_stuck(self, before: _Moment, machine: JobMachine) -> bool:
        """Whether some part was offered to all who could be members, in vain."""
        heirs = _heirs(machine)
        return any(
            all(
                (before.commit, rank, before.incarnations[sender], heirs[taker]) in self._offers
                for sender in nodes
                if sender in before.senders
                for taker in heirs
            )
            for rank, nodes in before.parts.items()
            if heirs.keys().isdisjoint(nodes)
        )


def _moment(machine: JobMachine) -> _Moment | None:
    state = machine.state
    commit, nodes = state.ledger.newest_whole(), state.members.nodes
    if commit is None:
        return None
    return _Moment(
        machine,
        state.phase,
        state.round,
        commit,
        state.ledger.parts(commit),
        {name: node.info.incarnation for name, node in nodes.items()},
        frozenset(name for name, node in nodes.items() if node.status.inlet is not None),
        {node.session: name for name, node in nodes.items()},
    )


def _heirs(machine: JobMachine) -> dict[str, str]:
    """The members of the new world that take copies in, or who could be, with their incarnations."""
    state = machine.state
    names: Set[str] = (
        state.current.assignments.keys() if state.phase is JobPhase.RUNNING else state.ready.keys()
    )
    nodes = {name: state.members.nodes[name] for name in names}
    return {name: node.info.incarnation for name, node in nodes.items() if node.status.inlet is not None}


def _gives_up(before: _Moment, machine: JobMachine, effects: Sequence[JobEffect]) -> bool:
    """Whether a commit cannot be restored any more though no node was lost that had some of it."""
    state = machine.state
    drops = [each for each in effects if isinstance(each, Drop) and _is_drained(each.farewell)]
    dismissed = {before.sessions.get(each.session) for each in drops}
    incarnations = {name: node.info.incarnation for name, node in state.members.nodes.items()}
    here = {name for name in incarnations if incarnations[name] == before.incarnations.get(name)}
    durable = state.storing.durable
    if durable is not None and durable.age >= before.commit.age:
        return False  # the storage has it, or a newer one
    if not all(here & {*nodes} or dismissed & {*nodes} for nodes in before.parts.values()):
        return False  # it was lost
    if state.round > before.round:
        restore = next(iter(state.current.assignments.values())).restore
        return restore is None or restore.age < before.commit.age
    return bool(dismissed) and before.commit not in state.ledger.whole() and not state.ended


def _is_drained(farewell: Rejected | None) -> bool:
    return farewell is not None and farewell.code is RejectCode.DRAINED
