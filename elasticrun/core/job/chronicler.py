"""What happened in a job, derived from its machine: the entries of the event log.

Theory. The machine's state before and after an event, and its effects, say what happened. The chronicler
remembers what it told last and compares, so no part of the machine has to know of it, and a replay of the
journal derives the same entries again: a master that was killed before it had written some of them writes
them when it starts again.

Cost. An event concerns one node, whose session it names; only that node is looked at. All nodes are compared
only when their number is not the one that was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticrun.core.job import events
from elasticrun.core.job.data_notes import DataNotes
from elasticrun.core.job.events import (
    Answered,
    Attached,
    Decided,
    Detached,
    Ended,
    Expired,
    JobEffect,
    JobEvent,
    Left,
    Reported,
)
from elasticrun.core.job.round import Round
from elasticrun.core.job.state import HEARTBEAT, REATTACH, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.chronicle import (
    MAX_NAMES,
    MAX_TEXT,
    CheckEnded,
    CheckStarted,
    Decision,
    HangFound,
    Happening,
    JobEnded,
    MasterStarted,
    NodeChanged,
    NodeDetached,
    NodeGone,
    NodeJoined,
    OrderAnswered,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    ScaleEnded,
    ScaleStarted,
    StateSaved,
    WorkerFailed,
)
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import AgentPhase, Failure
from elasticrun.core.protocol.orders import ORDERS
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause

#: Why a node is gone once one of these timers has expired.
_EXPIRED = {HEARTBEAT: "its agent was silent for too long", REATTACH: "it did not come back in time"}


class Chronicler:
    """Tells what each event has changed."""

    def __init__(self, state: JobState) -> None:
        """What was there before is taken as told."""
        self._phase = state.phase
        self._round: Round = state.current
        self._number = state.round
        self._failures: frozenset[Failure] = frozenset(state.current.failures)  # of this round, as told
        self._nodes = {name: node.info.incarnation for name, node in state.members.nodes.items()}
        self._doing = {name: _doing(node) for name, node in state.members.nodes.items()}
        self._names = {it.session: name for name, it in state.members.nodes.items() if it.session is not None}
        self._saved = _saved(state)
        self._data = DataNotes()
        self._scaling, self._scaled = state.scaling, state.scaled
        self._stalls = _stalls(state)  # seconds of silence, by member of the round
        self._hangs = len(self._stalls) == len(state.current.assignments) > 0  # as told

    def after(self, event: JobEvent, state: JobState, effects: Iterable[JobEffect]) -> list[Happening]:
        """What happened by an event that the machine of ``state`` has handled, in order."""
        given = list(effects)
        if state.round == self._number:
            self._round = state.current
        told = [
            *self._of_event(event, state),
            *self._of_members(event, state),
            *self._of_failures(self._round),
            *self._of_data(event, state),
            *self._of_saved(state),  # before a round stops, as it is part of its work
            *self._of_phases(state, given),
            *_of_effects(event, given),
            *self._of_scaling(state),
        ]
        self._phase = state.phase
        return told

    # -- nodes

    def _of_event(self, event: JobEvent, state: JobState) -> Iterator[Happening]:
        match event:
            case events.MasterStarted(epoch):
                self._names.clear()  # each master numbers its sessions from 1
                yield MasterStarted(epoch, state.events == 1)
            case Attached(session, hello) if (node := state.members.node_of(session)) is not None:
                info = hello.info
                returns = self._nodes.get(info.node) == info.incarnation
                self._nodes[info.node] = info.incarnation
                self._names[session] = info.node
                yield NodeJoined(info.node, info.host, info.local_world_size, returns)
                yield from self._of_node(node)
            case Reported(session) if (node := state.members.node_of(session)) is not None:
                yield from self._of_node(node)
                yield from self._of_stall(node, state)
            case Detached(session, reason) | Left(session, reason):
                yield from self._of_end(session, reason, state)

    def _of_node(self, node: Node) -> Iterator[Happening]:
        doing = _doing(node)
        if self._doing.get(node.info.node) != doing:
            self._doing[node.info.node] = doing
            yield NodeChanged(node.info.node, doing[0].value, doing[1])

    def _of_stall(self, node: Node, state: JobState) -> Iterator[Happening]:
        """The round hangs once all of its members say that their workers make no steps."""
        name = node.info.node
        silence = _silence(node, state)
        if silence is None:
            if self._stalls.pop(name, None) is not None:
                self._hangs = False
            return
        self._stalls[name] = silence
        if not self._hangs and len(self._stalls) == len(state.current.assignments):
            self._hangs = True
            yield HangFound(state.round, min(self._stalls.values()))

    def _of_end(self, session: int, reason: str, state: JobState) -> Iterator[Happening]:
        name = self._names.pop(session, "")
        if name not in self._nodes:  # it was told already
            return
        node = state.members.nodes.get(name)
        if node is None:
            yield self._gone(name, reason)
        elif node.session is None:
            yield NodeDetached(name, _cut(reason))

    def _of_members(self, event: JobEvent, state: JobState) -> Iterator[Happening]:
        """Nodes that the event removed besides the one that it names."""
        nodes = state.members.nodes
        if len(nodes) == len(self._nodes):
            return
        reason = _EXPIRED.get(event.timer, "") if isinstance(event, Expired) else ""
        if isinstance(event, Expired) and event.node in self._nodes and event.node not in nodes:
            yield self._gone(event.node, reason)
        if len(nodes) == len(self._nodes):  # mostly that was all
            return
        for name in [name for name in self._nodes if name not in nodes]:
            yield self._gone(name, reason)

    def _gone(self, name: str, reason: str) -> NodeGone:
        self._nodes.pop(name, None)
        self._doing.pop(name, None)
        return NodeGone(name, _cut(reason))

    # -- rounds

    def _of_failures(self, round_: Round) -> Iterator[Happening]:
        """The failures of a round that were not told yet."""
        for failure in round_.failures:
            if failure not in self._failures:
                yield WorkerFailed(
                    self._number,
                    failure.node,
                    failure.host,
                    failure.rank,
                    failure.local_rank,
                    failure.pid,
                    failure.kind.value,
                    failure.exit_code,
                    failure.step,
                    _cut(failure.summary),
                )
        self._failures = frozenset(round_.failures)

    def _of_data(self, event: JobEvent, state: JobState) -> Iterator[Happening]:
        if state.phase is not self._phase or state.round != self._number:
            yield from self._data.rest()
        if isinstance(event, events.DataOpened | events.DataAsked) and state.desks is not None:
            yield from self._data.take(event.message.reader.name, state.round, state.desks, state.now)

    def _of_phases(self, state: JobState, effects: list[JobEffect]) -> Iterator[Happening]:
        """One event may lead through several phases: what was told last, and what is now, say which."""
        before, is_new = self._phase, state.round != self._number
        if before is JobPhase.CHECKING and (is_new or state.phase is not JobPhase.CHECKING):
            yield CheckEnded()
        if before in (JobPhase.RUNNING, JobPhase.STOPPING):
            yield from self._of_end_of_round(self._round, before, None if is_new else state.phase)
        if is_new:
            yield _started(state)
            self._round, self._number, self._failures = state.current, state.round, frozenset()
            self._stalls, self._hangs = {}, False
            yield from self._of_failures(state.current)
            yield from self._of_end_of_round(state.current, JobPhase.RUNNING, state.phase)
        if state.phase is JobPhase.CHECKING and before is not JobPhase.CHECKING:
            made = [it.text for it in effects if isinstance(it, Decided) and it.phase is JobPhase.CHECKING]
            yield CheckStarted(_cut(made[0] if made else ""))

    def _of_end_of_round(self, round_: Round, before: JobPhase, now: JobPhase | None) -> Iterator[Happening]:
        """How far the end of a round got. ``now``: the phase of the job; None: that of another round."""
        if before is JobPhase.RUNNING and now is not JobPhase.RUNNING and round_.stop is not None:
            cause, reason = round_.stop
            if cause is StopCause.HANG and not self._hangs:
                yield HangFound(self._number, max(self._stalls.values(), default=0.0))
            yield RoundStopping(self._number, cause.value, _cut(reason))
        if now not in (JobPhase.RUNNING, JobPhase.STOPPING):
            yield RoundStopped(self._number)

    # -- saved states

    def _of_saved(self, state: JobState) -> Iterator[Happening]:
        now = _saved(state)
        for place, commit in now.items():
            if commit is not None and commit != self._saved[place]:
                yield StateSaved(place, commit.round, commit.step)
        self._saved = now

    # -- scale operations

    def _of_scaling(self, state: JobState) -> Iterator[Happening]:
        """One event may begin an operation and end it, but then it ends no other one."""
        ended = state.scaled if state.scaled is not self._scaled else None
        begun = state.scaling if ended is None else ended.operation
        if begun is not None and begun is not self._scaling:
            yield ScaleStarted(begun.number, begun.direction.value, begun.count, begun.goal)
        if ended is not None:
            yield ScaleEnded(ended.operation.number, ended.reached, _cut(ended.reason))
        self._scaling, self._scaled = state.scaling, state.scaled


def _doing(node: Node) -> tuple[AgentPhase, int]:
    return node.status.phase, node.status.round


def _silence(node: Node, state: JobState) -> float | None:
    """Since when the workers of a member make no steps, in seconds; None: they do, or it is none."""
    status = node.status
    is_member = status.round == state.round and node.info.node in state.current.assignments
    return status.stall.silence if is_member and status.stall is not None else None


def _stalls(state: JobState) -> dict[str, float]:
    found = ((name, _silence(node, state)) for name, node in state.members.nodes.items())
    return {name: silence for name, silence in found if silence is not None}


def _started(state: JobState) -> RoundStarted:
    given = state.current.assignments
    first = next(iter(given.values()))
    return RoundStarted(
        state.round,
        len(given),
        first.world_size,
        tuple(given)[:MAX_NAMES],
        first.restart_count,
        None if first.restore is None else first.restore.step,
        _cut(state.current.start_reason),
    )


def _saved(state: JobState) -> dict[Place, CommitId | None]:
    kept, _, safe, _ = state.verdict
    return {Place.MEMORY: kept, Place.HOSTS: safe, Place.STORAGE: state.storing.durable}


def _of_effects(event: JobEvent, effects: Iterable[JobEffect]) -> Iterator[Happening]:
    for effect in effects:
        match effect:
            case Decided(text, phase, round_):
                yield Decision(phase.value, round_, _cut(text))
            case Answered(ok, text) if isinstance(event, ORDERS):
                yield OrderAnswered(type(event).__name__, ok, _cut(text))
            case Ended(outcome, reason):
                yield JobEnded(outcome.value, _cut(reason))


def _cut(text: str) -> str:
    return text[:MAX_TEXT]
