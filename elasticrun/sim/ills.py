"""Further events of a job, as data: ills that only a health check finds, hangs, errors, and orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum

from elasticrun.config import (
    Action,
    FailureClass,
    HealthCheckMode,
    HealthConfig,
    Policy,
    PolicyRule,
)
from elasticrun.core.protocol.orders import (
    CancelScale,
    CheckNodes,
    CordonNode,
    Order,
    RestartRound,
    ScaleIn,
    ScaleOut,
    StopJob,
    UncordonNode,
)
from elasticrun.dataclass import dataclass


class Illness(Enum):
    """What is wrong with a node; its workers do not notice."""

    COMPUTE = "compute"  # its self test fails
    NETWORK = "network"  # none of its all-gathers works
    STUCK = "stuck"  # its probe never ends by itself
    SLOW = "slow"  # a quarter of the speed


#: No check may call a node with one of these illnesses good.
GRAVE = frozenset({Illness.COMPUTE, Illness.NETWORK, Illness.STUCK})


@dataclass(frozen=True, slots=True)
class FallsIll:
    """The node has this ``illness`` from now on, whatever agent runs on it."""

    at: float
    node: str
    illness: Illness


@dataclass(frozen=True, slots=True)
class LinkBreaks:
    """From now on every all-gather that includes both ``nodes`` fails."""

    at: float
    nodes: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Hang:
    """Until ``until``, the workers of the node's world, or of the node ``alone``, make no steps."""

    at: float
    node: str
    until: float | None = None  # None: never again
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Bug:
    """A worker of the node raises the same exception, now and in its next ``times`` - 1 rounds."""

    at: float
    node: str
    text: str  # the last line of its traceback
    step: int = -1  # after which it is raised; -1: the script tells none
    times: int = 1


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator drains the node."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Scale:
    """An operator orders another number of nodes: ``low`` to ``high``."""

    at: float
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """The platform announces that it takes the node away."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class AskStacks:
    """An operator asks for the stacks of all workers."""

    at: float


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator gives another order."""

    at: float
    order: Order


Ill = FallsIll | LinkBreaks | Hang | Bug | Drain | Scale | Preempt | AskStacks | Ordered

#: Last lines of tracebacks, one for each class of failure that has an action of its own.
TEXTS = (
    "ValueError: a bad batch",
    "ValueError: a bad batch",
    "KeyError: 'weights'",
    "torch.OutOfMemoryError: CUDA out of memory",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: unspecified launch failure",
    "RuntimeError: Connection closed by peer",
    "RuntimeError: Watchdog caught collective operation timeout",
)


def draw_health(rng: random.Random) -> HealthConfig:
    """Draw how nodes are checked."""
    modes = (HealthCheckMode.OFF, HealthCheckMode.START, *[HealthCheckMode.AUTO] * 3, HealthCheckMode.ALWAYS)
    return HealthConfig(
        mode=rng.choice(modes),
        timeout=10.0,
        exclude_stragglers=rng.random() < 0.3,
        only=rng.random() < 0.04,
    )


def draw_policy(rng: random.Random) -> Policy:
    """Draw what is done about failures."""
    rules = tuple(
        PolicyRule(failure, rng.choice(list(Action)))
        for failure in FailureClass
        if rng.random() < rng.choice((0.0, 0.0, 0.3))
    )
    return Policy(
        rules=rules,
        same_error_rounds=rng.choice((0, 1, 2, 3, 3)),
        refill_after=rng.choice((0.0, 0.0, 5.0)),
        backoff_first=rng.choice((0.0, 1.0, 4.0)),
        backoff_longest=8.0,
        fast_failures_free=rng.choice((0, 2)),
    )


def draw_ills(rng: random.Random, names: Sequence[str], unit: int, last: float) -> list[Ill]:
    """Draw what happens. Most illnesses are there from the beginning."""
    few = rng.sample(names, rng.choice((0, 0, 1, 1, 2)) if len(names) > 2 else rng.choice((0, 0, 1)))
    ills: list[Ill] = [
        FallsIll(round(rng.choice((0.0, 0.0, rng.uniform(0, last))), 2), name, rng.choice(list(Illness)))
        for name in few
    ]
    if len(names) > 1 and rng.random() < 0.2:
        first, second = rng.sample(names, 2)
        ills.append(LinkBreaks(round(rng.choice((0.0, rng.uniform(0, last))), 2), (first, second)))
    return [*ills, *(_one(rng, names, unit, last) for _ in range(rng.randint(0, 5)))]


def _one(rng: random.Random, names: Sequence[str], unit: int, last: float) -> Ill:
    at, node = round(rng.uniform(0.2, last), 2), rng.choice(names)
    kind = rng.randrange(10)
    if kind <= 2:
        until = rng.choice((None, None, round(at + rng.uniform(1.0, 12.0), 2)))
        return Hang(at, node, until, rng.random() < 0.3)
    if kind <= 5:
        return Bug(at, node, rng.choice(TEXTS), rng.choice((-1, 7)), rng.choice((1, 1, 2, 5)))
    if kind == 6:
        return Drain(at, node)
    if kind == 7:
        high = max(unit, rng.randint(1, len(names)) // unit * unit)
        return Scale(at, rng.randint(1, high), high)
    return Preempt(at, node) if kind == 8 else AskStacks(at)


def draw_orders(rng: random.Random, names: Sequence[str], unit: int, last: float) -> list[Ill]:
    """Draw orders that change who works; a cordon is often lifted, and a stop is rare."""
    found: list[Ill] = []
    for _ in range(rng.randint(1, 4)):
        at, node = round(rng.uniform(0.2, last), 2), rng.choice(names)
        order = _order(rng, node, unit)
        found.append(Ordered(at, order))
        if isinstance(order, CordonNode) and rng.random() < 0.5:
            found.append(Ordered(round(at + rng.uniform(0.1, last), 2), UncordonNode(node)))
        if isinstance(order, ScaleOut):
            found += _cancellation(at)
    return found


def _cancellation(at: float) -> list[Ill]:
    """Half of the scale outs are cancelled. Drawn apart, so what seeds drew before this stays as it was."""
    rng = random.Random(f"cancel {at}")
    return (
        [Ordered(round(at + rng.uniform(0.1, 10.0), 2), CancelScale("too late"))]
        if rng.random() < 0.5
        else []
    )


def _order(rng: random.Random, node: str, unit: int) -> Order:
    why, kind = "an order", rng.randrange(16)
    if kind <= 3:
        return CordonNode(node, why)
    if kind <= 5:
        return ScaleIn(why, rng.choice((unit, unit, 1)))
    if kind <= 7:
        return ScaleIn(why, nodes=(node,))
    if kind <= 11:
        return ScaleOut(rng.choice((unit, unit, 2 * unit)), rng.choice((0.5, 5.0, 30.0)))
    if kind <= 13:
        return CheckNodes(why)
    return RestartRound(why) if kind == 14 else StopJob(why)
