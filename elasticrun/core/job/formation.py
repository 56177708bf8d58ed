"""How the next world comes about: waiting, the last call and the choice.

The invariant that makes a round safe: a world is formed only when no worker of an earlier round can be alive
on any of its members. A member of the last round is no candidate until it has said READY for that round; one
that was lost and comes back must say READY before it is a candidate.

``decide_world`` decides whether a world forms; this module carries out each of its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticrun.config import HealthCheckMode
from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.clusters import Clusters
from elasticrun.core.job.directives import notice
from elasticrun.core.job.drains import Drains
from elasticrun.core.job.events import StepDown, Trigger
from elasticrun.core.job.moves import Move
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.round import Round
from elasticrun.core.job.state import BACKOFF, JOIN, LAST_CALL, NOTICE, STEP_DOWN, JobState
from elasticrun.core.job.world import Choice, Decision, Step, Terms, decide_world, is_enough
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.ranks import RoundTerms, assign_ranks, order_members
from elasticrun.core.protocol.messages import Assignment, CommitId
from elasticrun.core.protocol.status import JobPhase

#: No world forms before other nodes come.
TOO_FEW = (Step.TOO_FEW, Step.NO_QUORUM, Step.TOO_FEW_HEALTHY, Step.MISFIT)


class Formation:
    """Forms worlds."""

    def __init__(
        self, state: JobState, outbox: Outbox, attendance: Attendance, drains: Drains, clusters: Clusters
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._attendance = attendance
        self._drains = drains
        self._clusters = clusters

    # -- gathering

    def advance(self) -> Move | None:
        """Form a world if the facts allow it; else a timer bounds the wait."""
        state = self._state
        if state.members.detached or state.weighed == state.events:
            return None  # known nodes are about to come back; or this is a heartbeat, which changes nothing
        if state.stop_ordered:
            return Move(Trigger.STOP_ORDERED, state.stop_ordered)
        if (BACKOFF, "") in state.timers:  # failures came fast, but the time of nodes that leave is short
            if state.leaving and self._saves(self._decide()):
                state.weighed = state.events
            return None
        decision = self._decide()
        if decision.step is Step.ADMIT_HELD:
            self._attendance.admit_held()
            decision = self._decide()
        state.obstacle = decision.obstacle
        if self._saves(decision):
            state.weighed = state.events
            return None  # a timer bounds the wait
        self._drains.see_off()
        return self._follow(decision)

    def _saves(self, decision: Decision) -> bool:
        """Whether what only nodes outside the next world have saved is on its way into it, or to storage."""
        state, commits, is_due = self._state, self._attendance.commits, decision.step is Step.FORM
        if not (state.leaving or is_due):
            return False
        heirs = decision.nodes if is_due else tuple(state.ready)
        if commits.collect(heirs):
            return True
        is_needed = decision.step in TOO_FEW or not commits.has_newest(heirs)
        if state.leaving and is_needed and self._attendance.storage.flushes():
            return True
        return commits.collect_older(heirs)

    def _decide(self) -> Decision:
        state = self._state
        return decide_world(state.candidates, terms_of(state), len(state.held), self._calls, self._choose)

    @property
    def _calls(self) -> bool:
        """Whether to wait for more nodes than needed: only the first world does, as any node may come."""
        state = self._state
        if state.previous or state.last_called:
            return False
        return state.config.last_call_timeout > 0 and len(state.ready) < state.limits.largest

    def _follow(self, decision: Decision) -> Move | None:
        """Do what was decided."""
        state, now = self._state, self._state.now
        if decision.step is not Step.NO_QUORUM:
            state.timers.cancel((STEP_DOWN, ""))
        match decision.step:
            case Step.FORM:
                self._form(self._order(decision.nodes), decision.reason)
                return Move(Trigger.WORLD_FORMED)
            case Step.CHECK:
                state.last_called = True  # a node that comes later does not hold up the checked ones
                self._stop_waiting()
                return Move(Trigger.CHECK_WANTED, nodes=decision.nodes)
            case Step.LAST_CALL:
                state.timers.cancel((NOTICE, ""))  # enough nodes are here
                state.timers.set_default((LAST_CALL, ""), now + state.config.last_call_timeout)
                return None
            case Step.TOO_FEW:
                state.last_called = False
            case _:
                pass
        self._wait_for_nodes()
        if decision.step is Step.NO_QUORUM:
            state.timers.set_default((STEP_DOWN, ""), now + state.quorum.patience)
        return None

    def _wait_for_nodes(self) -> None:
        state = self._state
        state.timers.cancel((LAST_CALL, ""))
        state.timers.set_default((JOIN, ""), state.now + state.config.join_timeout)
        state.timers.set_default((NOTICE, ""), state.now + state.config.waiting_notice_interval)

    def _stop_waiting(self) -> None:
        for timer in (LAST_CALL, JOIN, NOTICE):
            self._state.timers.cancel((timer, ""))

    # -- deadlines

    def expire_last_call(self, _: str) -> None:
        """Stop waiting for nodes that have not come."""
        self._state.last_called = True

    def expire_join(self, _: str) -> Move | None:
        """Give up, unless a world could be formed after all."""
        state = self._state
        if state.held or not (state.obstacle or not is_enough(state.candidates, state.limits)):
            return None
        here = notice(state)[0]
        return Move(Trigger.JOIN_TIMED_OUT, f"gave up after {state.config.join_timeout:g} s: {here}")

    def expire_patience(self, _: str) -> None:
        """Step down: let all nodes look for another master."""
        state = self._state
        self._outbox.decide(f"this master steps down: {state.obstacle}")
        for name in list(state.members.nodes):
            self._attendance.let_go(name, "is let go")
        self._outbox.put(StepDown(state.obstacle))

    def expire_imports(self, _: str) -> None:
        """Make the node that was held back first a candidate, whether its imports are done or not."""
        self._attendance.admit_first()

    # -- forming

    def _choose(self) -> Choice:
        """The members of the next world in order of preference."""
        state, nodes = self._state, self._state.members.nodes
        names, reason = state.candidates.choose(state.previous, state.limits)
        choice = Choice(tuple(names), reason)
        is_cluster = state.current.tasks is not None or any(nodes[name].info.roles for name in names)
        return self._clusters.choose(choice) if is_cluster else choice

    def _order(self, chosen: Sequence[str]) -> list[str]:
        """The members of the next world by group rank."""
        state, nodes = self._state, self._state.members.nodes
        ranks = {name: nodes[name].info.node_rank for name in chosen}
        order = order_members(chosen, state.previous, ranks)
        if not state.config.cautious:
            return order
        here = {name: node.info.incarnation for name, node in nodes.items()}
        voters = [here[n] for n, node in nodes.items() if state.quorum.is_voter(here[n], node.status.votes)]
        return state.seniority.form(order, state.newest + 1, here, voters)

    def _form(self, order: list[str], reason: str) -> None:
        """Make the world of these members, by group rank, and take them from the candidates."""
        state, nodes = self._state, self._state.members.nodes
        first = nodes[order[0]]
        tasks = self._clusters.make_tasks(order) if first.info.roles else None
        self._stop_waiting()
        restore = self._attendance.commits.choose(order)
        state.round = self._attendance.number_round()
        self._attendance.commits.begin(order)
        self._attendance.storage.begin_round()
        assignments = self._propose(
            order, assign_ranks([nodes[name].info for name in order], self._terms(first, restore))
        )
        if tasks is not None:
            assignments = self._clusters.assign(assignments, tasks)
        state.current = Round(
            assignments,
            set(order),
            start_reason=reason,
            after=state.current.cause,
            started_at=state.now,
            tasks=tasks,
        )
        state.previous, state.fit.lead = tuple(order), first.info
        for name in order:
            state.candidates.remove(nodes[name])
        for name in [name for name in state.ready if nodes[name].status.warming]:
            self._attendance.hold_back(nodes[name])
        if state.config.health.mode is HealthCheckMode.ALWAYS:
            state.candidates.distrust_all()

    def _propose(self, order: Sequence[str], assignments: dict[str, Assignment]) -> dict[str, Assignment]:
        """The assignments, with each member's proposal if nodes vote."""
        state, nodes = self._state, self._state.members.nodes
        proposals = state.quorum.form(state.round, state.epoch, state.candidates.votes_of(order))
        if not proposals:
            return assignments
        incarnations = {name: nodes[name].info.incarnation for name in order}
        return {n: replace(given, proposal=proposals[incarnations[n]]) for n, given in assignments.items()}

    def _terms(self, first: Node, restore: CommitId | None) -> RoundTerms:
        return RoundTerms(
            round=self._state.round,
            store_address=first.info.address,
            store_port=first.status.store_port,
            restart_count=self._state.budget.used,
            max_restarts=self._state.budget.max_restarts,
            store_hosted=first.status.hosts_store,
            restore=restore,
        )

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state = self._state
        gathers = state.phase is JobPhase.GATHERING
        here = {timer for timer in (JOIN, LAST_CALL) if (timer, "") in state.timers}
        rules = {
            "no member of the last world runs while nodes gather": not gathers or not state.current.pending,
            "nobody is called while a world runs": gathers or not here,
            "the newest world is its members'": state.round < 0
            or state.previous == tuple(state.current.assignments),
        }
        return [rule for rule, holds in rules.items() if not holds]


def terms_of(state: JobState) -> Terms:
    """The terms of the next world."""
    health = state.config.health
    if state.check_ordered:
        health = replace(health, mode=HealthCheckMode.ALWAYS)
    return Terms(state.limits, health, state.previous, state.round < 0, state.newest >= 0)
