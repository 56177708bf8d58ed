"""From what a test says of a simulated job to the scenario of each seed, with what is wrong in a sentence."""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from elasticrun.config import HealthCheckMode, HealthConfig, Policy
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.policy_file import policy_of, read_policy
from elasticrun.sim.ills import Bug, Drain, FallsIll, Hang, Illness, LinkBreaks, Preempt, Scale
from elasticrun.sim.scenario import (
    AgentCrash,
    AgentStarts,
    Cut,
    Direction,
    Freeze,
    MasterCrash,
    Memory,
    Network,
    NodeSpec,
    PortTaken,
    Reset,
    Scenario,
    Stop,
    Stubborn,
    Unkillable,
    WorkerFails,
    ends,
)

#: What may befall a simulated job.
Fault = (
    WorkerFails
    | Bug
    | Hang
    | AgentCrash
    | AgentStarts
    | Freeze
    | Stubborn
    | Unkillable
    | Cut
    | Reset
    | MasterCrash
    | PortTaken
    | FallsIll
    | LinkBreaks
    | Preempt
    | Drain
    | Scale
    | Stop
)
Faults = Sequence[Fault] | Callable[[random.Random], Sequence[Fault]]
PolicyLike = str | os.PathLike[str] | Mapping[str, object] | Policy | None

KINDS: tuple[type, ...] = Fault.__args__
#: What the simulator takes, so that a slip of the pen does not run for hours.
MAX_NODES, MAX_NPROC, MAX_SECONDS, MAX_RESTARTS, MAX_SIGNAL = 256, 64, 86_400, 1000, 64
MAX_DELAY = 60  # seconds that a message takes
_END = 1.0  # seconds that workers need for their last steps, once the time is over


def _is_number(value: object, least: float = 0.0, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and _is_number(value, least, most)


_TIME = "a number of virtual seconds, 0 or more"
_CHECKS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "at": (_is_number, _TIME),
    "until": (_is_number, _TIME),
    "down_for": (lambda it: _is_number(it, 0, MAX_SECONDS), f"seconds from 0 to {MAX_SECONDS:,}"),
    "exit_code": (lambda it: _is_whole(it, -MAX_SIGNAL, 255) and it != 0, "-64 to 255, but not 0"),
    "signum": (lambda it: _is_whole(it, 1, MAX_SIGNAL), f"the number of a signal, 1 to {MAX_SIGNAL}"),
    "times": (lambda it: _is_whole(it, 1, MAX_RESTARTS), f"a whole number from 1 to {MAX_RESTARTS}"),
    "step": (lambda it: _is_whole(it, -1, MAX_SECONDS), "the number of a step, or -1 for none"),
    "low": (lambda it: _is_whole(it, 1, MAX_NODES), "a number of nodes, 1 or more"),
    "high": (lambda it: _is_whole(it, 1, MAX_NODES), "a number of nodes, 1 or more"),
    "text": (lambda it: isinstance(it, str) and bool(it), "the last line of a traceback"),
    "direction": (lambda it: isinstance(it, Direction), "a Direction"),
    "memory": (lambda it: isinstance(it, Memory), "a Memory"),
    "illness": (lambda it: isinstance(it, Illness), "an Illness"),
    "alone": (lambda it: isinstance(it, bool), "True or False"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A simulated job without its seed, and what befalls it."""

    base: Scenario
    faults: Faults

    def scenario(self, seed: int) -> Scenario:
        """The scenario of a seed. Raises UsageError if the faults of that seed are wrong."""
        given = self.faults(random.Random(f"faults {seed}")) if callable(self.faults) else self.faults
        faults = _checked(given, [spec.name for spec in self.base.nodes], self.base.quiet_from)
        failures = sum(it.times if isinstance(it, Bug) else 1 for it in faults)
        return dataclasses.replace(
            self.base,
            seed=seed,
            faults=tuple(sorted(faults, key=lambda it: it.at)),
            quiet_from=max([self.base.quiet_from, *map(ends, faults)]),
            patience=self.base.policy.backoff_longest * failures,
        )


def plan(
    policy: PolicyLike,
    faults: Faults,
    *,
    nodes: int,
    nproc: int,
    min_nodes: int | None,
    max_nodes: int | None,
    max_restarts: int,
    joins: Mapping[str, float],
    seconds: float,
    save_every: float | None,
    health_check: str,
    join_timeout: float,
    network: Network,
) -> Plan:
    """The job that ``simulate`` was asked for. Raises UsageError if an argument is wrong."""
    _whole("nodes", nodes, 1, MAX_NODES)
    _whole("nproc", nproc, 1, MAX_NPROC)
    _whole("max_restarts", max_restarts, 0, MAX_RESTARTS)
    largest = nodes if max_nodes is None else max_nodes
    smallest = largest if min_nodes is None else min_nodes
    _whole("max_nodes", largest, 1, nodes)
    _whole("min_nodes", smallest, 1, largest)
    _number("seconds", seconds, 1, MAX_SECONDS)
    _number("join_timeout", join_timeout, 1, MAX_SECONDS)
    if save_every is not None:
        _number("save_every", save_every, 0.5, MAX_SECONDS)
    modes = [mode.value for mode in HealthCheckMode]
    if health_check not in modes:
        raise UsageError(f"health_check={health_check!r} was given: give {', '.join(modes)}")
    _check_network(network)
    names = [f"n{number}" for number in range(nodes)]
    base = Scenario(
        seed=0,
        nodes=_specs(names, nproc, joins, seconds),
        min_nodes=smallest,
        max_nodes=largest,
        max_restarts=max_restarts,
        join_timeout=float(join_timeout),
        work=_END,
        quiet_from=float(seconds),
        network=network,
        health=HealthConfig(mode=HealthCheckMode(health_check)),
        policy=_policy(policy),
        step=0.0 if save_every is None else float(save_every),
        calm=True,
        deep=False,  # that is for tests of elasticrun itself
    )
    return Plan(base, faults)


def seeds_of(seeds: object) -> list[int]:
    """The seeds: so many, from 0 on, or these. Raises UsageError if they are none."""
    if _is_whole(seeds, 1, 10**9):
        assert isinstance(seeds, int)
        return [*range(seeds)]
    found = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    if not found or not all(_is_whole(seed, 0, 2**63) for seed in found):
        raise UsageError(f"seeds={seeds!r} was given: give how many, as 100, or which, as [17]")
    return found


def _policy(policy: PolicyLike) -> Policy:
    match policy:
        case None:
            return Policy()
        case Policy():
            return policy
        case str() | os.PathLike():
            return read_policy(os.fspath(policy), "policy")
    return policy_of(policy, "policy")


def _check_network(network: object) -> None:
    if not isinstance(network, Network):
        raise UsageError(f"network={network!r} was given: give a Network, such as Network(delay=0.05)")
    for field in dataclasses.fields(network):
        most, unit = (MAX_DELAY, "seconds") if field.name == "delay" else (1, "a chance")
        if not _is_number(value := getattr(network, field.name), 0, most):
            raise UsageError(f"{field.name}={value!r} was given to Network: give {unit} from 0 to {most}")


def _specs(names: Sequence[str], nproc: int, joins: Any, seconds: float) -> tuple[NodeSpec, ...]:
    is_right = isinstance(joins, Mapping)
    if not is_right or not all(n in names and _is_number(at, 0, seconds) for n, at in joins.items()):
        raise UsageError(
            f"joins={joins!r} was given: give when nodes come that are late, as {{'{names[-1]}': 20}}; nodes "
            f"are {_range(names)}, and times less than {seconds:g} s"
        )
    return tuple(
        NodeSpec(name, joins=joins.get(name, 0.0), local_world_size=nproc, node_rank=number)
        for number, name in enumerate(names)
    )


def _checked(faults: object, names: Sequence[str], seconds: float) -> list[Fault]:
    if not isinstance(faults, Sequence) or isinstance(faults, str):
        raise UsageError(
            f"faults={faults!r} was given: give a list, or a function that makes one from a random.Random"
        )
    for fault in faults:
        _check_kind(fault)
        for field in dataclasses.fields(fault):
            _check_field(fault, field.name, names)
        if not fault.at < seconds:
            raise UsageError(
                f"{fault} comes at {fault.at:g} s, after the end: give less than seconds={seconds:g}, or "
                "more seconds"
            )
        until = getattr(fault, "until", None)
        if until is not None and until <= fault.at:
            raise UsageError(f"{fault} ends before it begins: give an `until` later than {fault.at:g}")
        if isinstance(fault, Scale) and not fault.low <= fault.high <= len(names):
            raise UsageError(f"{fault} was given: give low <= high, and high at most nodes={len(names)}")
    return list(faults)


def _check_kind(fault: object) -> None:
    if isinstance(fault, KINDS):
        return
    if type(fault).__module__ == "elasticrun.launching.faults":
        raise UsageError(
            f"{fault} was given: it is placed by a step and befalls real ranks; a simulated job knows time "
            "only: give a fault of elasticrun.testing.simulation, such as WorkerFails(at=10, node='n1')"
        )
    kinds = ", ".join(kind.__name__ for kind in KINDS)
    raise UsageError(f"{fault!r} was given among the faults: give instances of {kinds}")


def _check_field(fault: Fault, name: str, names: Sequence[str]) -> None:
    value = getattr(fault, name)
    if name in ("node", "nodes"):
        given = (value,) if name == "node" else value
        is_right = isinstance(given, tuple) and all(isinstance(it, str) and it in names for it in given)
        if not is_right or len(set(given)) != 1 + (name == "nodes"):
            raise UsageError(f"{fault} names no node of this job: they are {_range(names)}")
        return
    check, allowed = _CHECKS[name]
    is_optional = name == "until" and isinstance(fault, Hang)
    if not (check(value) or (is_optional and value is None)):
        shown = value.value if isinstance(value, Enum) else repr(value)
        raise UsageError(f"{name}={shown} was given to {type(fault).__name__}: give {allowed}")


def _range(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not _is_whole(value, least, most):
        raise UsageError(f"{name}={value!r} was given: give a whole number from {least} to {most}")


def _number(name: str, value: object, least: float, most: float) -> None:
    if not _is_number(value, least, most):
        raise UsageError(f"{name}={value!r} was given: give a number of seconds from {least:g} to {most:g}")
