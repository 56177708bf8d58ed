"""The counts that the master keeps equal a fresh count of all nodes (``core/health/candidates.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from elasticrun.config import HealthCheckMode
from elasticrun.core.health.candidates import Standing
from elasticrun.core.job.growth import WARMING_LIMIT
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import BACKOFF, COLLECTING, FLUSH, WARMING
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.membership.tally import Tally
from elasticrun.core.protocol.messages import MAX_VOTES
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.kernel import Violation


def counts_are_exact(machine: JobMachine) -> None:
    """Check all counts; call it after any event."""
    _candidates_are_exact(machine)
    nodes, candidates = machine.state.members.nodes, machine.state.candidates
    able = {n: nodes[n] for n in candidates.ready if n in nodes and n not in machine.state.health.doubtful}
    standings = {name: _standing(machine, name) for name in candidates.ready}
    _same("ready nodes are in the world", set(candidates.ready) - nodes.keys(), set())
    _same("standings", candidates.ready, standings)
    _same("numbers of standings", Counter(candidates.standings), Counter(standings.values()))
    _same("available", candidates.available, len(able))
    _same("trusted", candidates.trusted(), [n for n in candidates.ready if n in machine.state.health.trusted])
    is_single = machine.state.limits.max_nodes == 1
    for is_first in (False, True):
        found = candidates.unchecked(machine.state.config.health, is_first, is_single)
        _same("unchecked", found, _unchecked(machine, is_first, is_single))
    if not machine.state.quorum.is_needed:
        _same(
            "nobody votes", (candidates.here.nodes, candidates.able.nodes, candidates.positions), ({}, {}, {})
        )
        return
    positions = Counter(nodes[name].info.position for name in candidates.ready)
    _same("positions", candidates.positions, dict(positions))
    _votes_are_exact(machine, candidates.here, nodes)
    _votes_are_exact(machine, candidates.able, able)
    for more in (False, True):
        found_ = candidates.obstacle(
            machine.state.previous, machine.state.limits, machine.state.newest >= 0, more
        )
        _same("an obstacle", bool(found_), bool(_obstacle(machine, able, more)))


def _candidates_are_exact(machine: JobMachine) -> None:
    """A ready node is a candidate or held back; none is held back that a world needs."""
    nodes, held, ready = machine.state.members.nodes, machine.state.held.since, machine.state.ready.keys()
    busy = machine.state.current.pending | machine.state.leaving.keys() | machine.state.cordoned.keys()
    idle = {name for name, node in nodes.items() if node.ready and name not in busy}
    _same("who is ready is a candidate or held back", ready | held.keys(), idle)
    _same("who is held back is no candidate", ready & held.keys(), set())
    _same("who is held back imports", {name for name in held if not nodes[name].status.warming}, set())
    checked = machine.state.checkup.pending if machine.state.checkup is not None else set[str]()
    _same("who is held back is not checked", held.keys() & checked, set())
    if held and _are_held_needed(machine):
        _same("nobody is held back who is needed", set(held), set())
    if not machine.state.ended:
        deadline = next(iter(held.values())) + WARMING_LIMIT if held else None
        _same("the wait for who is held back", machine.state.timers._due.get((WARMING, "")), deadline)


def _are_held_needed(machine: JobMachine) -> bool:
    """Whether nodes that are held back would have to be candidates now.

    Not during a back-off, nor while an end waits for the storage: no world is formed then. While saved states
    are collected or flushed, a world waits; that one must be possible without those held back.
    """
    state = machine.state
    if state.round < 0:
        return True
    is_off = state.members.detached > 0 or state.ending is not None or (BACKOFF, "") in state.timers
    if state.phase is not JobPhase.GATHERING or is_off:
        return False
    waits = any((timer, "") in state.timers for timer in (COLLECTING, FLUSH))
    able = {n: state.members.nodes[n] for n in state.ready if n not in state.health.doubtful}
    is_possible = state.limits.usable(len(able)) > 0
    if state.quorum.is_needed:
        is_possible = is_possible and not _obstacle(machine, able, more_may_come=False)
    return not (waits and is_possible)


def _same(what: str, kept: object, counted: object) -> None:
    if kept != counted:  # asked first, because the text costs more than all the counting
        raise Violation("what is kept is what is counted", f"{what}: {kept}, not {counted}")


def _standing(machine: JobMachine, name: str) -> Standing:
    book = machine.state.health
    if name in book.doubtful:
        return Standing.DOUBTFUL
    if name in book.trusted:
        return Standing.TRUSTED
    return Standing.SUSPECT if name in book.suspects else Standing.UNKNOWN


def _unchecked(machine: JobMachine, is_first: bool, is_single: bool) -> list[str]:
    """The nodes to check first, found node by node."""
    config, book, ready = machine.state.config.health, machine.state.health, list(machine.state.ready)
    always = config.mode is HealthCheckMode.ALWAYS
    if not config.only and (config.mode is HealthCheckMode.OFF or (is_single and not always)):
        return []
    found = [name for name in ready if name not in book.trusted]
    if not is_first and not always:
        if config.mode is HealthCheckMode.START:
            return []
        found = [name for name in found if name in book.suspects or name in book.doubtful]
    is_fresh = len(ready) == 1 or any(name not in book.doubtful for name in found)
    return found if is_fresh else []


def _votes_are_exact(machine: JobMachine, tally: Tally, nodes: Mapping[str, Node]) -> None:
    given = {node.info.incarnation: node.status.votes for node in nodes.values()}
    _same("voters", tally.nodes, given)
    held = [{vote.world for vote in each} for each in given.values()]
    _same("votes", tally.voted, dict(Counter(world for worlds in held for world in worlds)))
    _same("full nodes", tally.full, sum(len(each) >= MAX_VOTES for each in given.values()))
    for world, kept in tally._by_members.items():
        members = [who for who in given if who in kept.members]
        voted = [who for who in members if any(vote.world == world for vote in given[who])]
        _same("members", (kept.here, kept.voted), (len(members), len(voted)))


def _obstacle(machine: JobMachine, able: Mapping[str, Node], more_may_come: bool) -> str:
    """The obstacle for the nodes that would be chosen, or for all if too few, from a fresh count of votes."""
    candidates, quorum, limits = machine.state.candidates, machine.state.quorum, machine.state.limits
    positions = [machine.state.members.nodes[name].info.position for name in candidates.ready]
    if why := quorum.obstacle_to_begin(positions, machine.state.newest >= 0):
        return why
    names = list(able) if more_may_come else candidates.choose(machine.state.previous, limits)[0]
    if not _usable(limits, len(able)):
        names = list(machine.state.members.nodes)
    return quorum.obstacle(Tally(candidates.votes_of(names)))


def _usable(limits: WorldLimits, nodes: int) -> int:
    size = min(nodes, limits.max_nodes) // limits.node_unit * limits.node_unit
    return size if size >= limits.min_nodes else 0
