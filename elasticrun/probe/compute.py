"""The matrix product: how fast this node computes, and whether the result is right.

Timing. Wall time counts, because a node's peers wait for it, whatever the cause. Two causes have to be told
apart. *Unevenness*, as of caches and of cores that share their units with others, makes products somewhat
slower, now and then; it differs from one second to the next and says little about the node. *Being held up*
is not running at all for a while: a CPU quota (cpu.max) that is used up, other work on the same core, a
hypervisor that gives it to another guest. So products are short, far shorter than what holds them up. Quick
products show how fast the node is while it runs. If a product takes HELD_UP times as long as a quick one, the
time beyond a quick one is lost. The result is the speed while the node runs, less the share of the time that
is lost. A node that is slow all the time has no quick products.

The share is that of the best STRETCH seconds, because passing work on the node is noise as well. A quota is
not noise; it is renewed in periods, of 100 ms unless changed. A stretch of k periods holds at most k + 1
quotas: the first one late, because other work held the node up, and the last one early. So a throttled node
may seem faster than it is by a share of 1/k. With ten periods that is the 10 % that the master allows for.
A node that is not held up at all for several periods has no quota that matters; its measurement ends early.

A guest of a hypervisor may share its core with another guest for a second or two, unseen, at half the speed.
Therefore a node is measured twice, before and after its all-gathers, and the faster one counts.

Verification. The entries are small integers, so that every product and partial sum is exact in the type it
is computed in, whatever the order. Then C = AB is right only if Cx = A(Bx) for any x, without any tolerance
(Freivalds' check), and that costs no more than a few products of a matrix and a vector.

On a CPU one core is used, whatever number of threads the workers will have. Agents that share a host take
turns (``turns.py``), so that they do not measure one another.

Without torch the product is plain Python's. Its speed can only be compared with that of nodes that have no
torch either, and of the same version of Python.
"""

from __future__ import annotations

import random
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, Protocol

from .sockets import ProbeError

#: Seconds of warming up, of measuring, and of the best stretch, which tells how much of the time is lost.
WARM_UP = 0.1
DURATION = 1.2
STRETCH = 1.0
#: Measuring ends after BRIEF seconds if the node was running for the share UNDISTURBED of them.
BRIEF = 0.6
UNDISTURBED = 0.95
CHECK_EVERY = 0.1
#: The share of the products that are quicker than the "quick" one.
QUICK = 0.002
HELD_UP = 3.0
CHECK_COLUMNS = 4
#: Matrices of this many rows and columns. Fixed, so that nodes can be compared.
PYTHON_SIZE = 24
CPU_SIZE = 256
GPU_SIZE = 8192
GPU_PRODUCTS = 4  # products in flight, so that the launch of a kernel costs nothing

Matrix = list[list[float]]


class Engine(Protocol):
    """Something that multiplies two fixed matrices."""

    name: str  # of the device, for messages
    kind: str  # only engines of one kind can be compared
    flop: float  # floating point operations of one ``multiply``

    def multiply(self) -> None:
        """Compute the product; it is complete on return."""

    def is_right(self) -> bool:
        """Whether the last product is what it should be."""

    def spoil(self) -> None:
        """Make the last product wrong, for a drill."""


def benchmark(
    engine: Engine,
    spoils: bool = False,
    duration: float = DURATION,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Floating point operations per second. Raises ProbeError if a result is wrong.

    It takes WARM_UP and then ``duration`` seconds: BRIEF if nothing held it up, longer if a product does.
    """
    multiply_for(WARM_UP, engine, clock)
    start = clock()
    times: list[float] = []
    while not times or (clock() - start < duration and not is_undisturbed(times)):
        times += multiply_for(CHECK_EVERY, engine, clock)
        if spoils:
            engine.spoil()
        if not engine.is_right():
            raise ProbeError(f"{engine.name} computes wrong results: a matrix product failed its check")
    return engine.flop * products_per_second(times)


def multiply_for(seconds: float, engine: Engine, clock: Callable[[], float]) -> list[float]:
    """Multiply for ``seconds``; return the seconds that each product took."""
    times: list[float] = []
    start = before = clock()
    while before - start < seconds:
        engine.multiply()
        now = clock()
        times.append(now - before)
        before = now
    return times


def is_undisturbed(times: Sequence[float]) -> bool:
    """Whether these times of products are enough, as nothing held the node up."""
    return sum(times) >= BRIEF and sum(_running(times, _quick(times))) >= UNDISTURBED * sum(times)


def products_per_second(times: Sequence[float]) -> float:
    """The products per second of a node, held-up time included, from their times in order."""
    quick = _quick(times)
    return best_share(times, _running(times, quick)) / quick


def _quick(times: Sequence[float]) -> float:
    """The seconds of a quick product."""
    return sorted(times)[int(QUICK * len(times))]


def _running(times: Sequence[float], quick: float) -> list[float]:
    """The part of each product's time in which the node was running."""
    return [quick if seconds >= HELD_UP * quick else seconds for seconds in times]


def best_share(times: Sequence[float], running: Sequence[float]) -> float:
    """The share of the time that a node was running, in the best STRETCH seconds, or in all if less."""
    ends, ran = [0.0, *accumulate(times)], [0.0, *accumulate(running)]
    if ends[-1] <= STRETCH:
        return ran[-1] / ends[-1]
    shares = []
    for last, end in enumerate(ends):
        first = bisect_right(ends, end - STRETCH) - 1
        if first >= 0:
            shares.append((ran[last] - ran[first]) / (end - ends[first]))
    return max(shares)


class PythonEngine:
    """Plain Python, for nodes without torch."""

    name = "the CPU"
    kind = f"{sys.implementation.name.removeprefix('c')}{sys.version_info.major}.{sys.version_info.minor}"
    flop = 2.0 * PYTHON_SIZE**3

    def __init__(self) -> None:
        chance = random.Random(0)

        def matrix(columns: int) -> Matrix:
            return [[float(chance.randint(-2, 2)) for _ in range(columns)] for _ in range(PYTHON_SIZE)]

        self._a, self._b, self._x = matrix(PYTHON_SIZE), matrix(PYTHON_SIZE), matrix(CHECK_COLUMNS)
        self._c: Matrix = []

    def multiply(self) -> None:
        self._c = _product(self._a, self._b)

    def is_right(self) -> bool:
        return _product(self._c, self._x) == _product(self._a, _product(self._b, self._x))

    def spoil(self) -> None:
        self._c[1][1] += 1.0


def _product(a: Matrix, b: Matrix) -> Matrix:
    columns = list(zip(*b, strict=True))
    return [[sum(map(mul, row, column)) for column in columns] for row in a]


class TorchEngine:
    """A device of torch: one core in float32, or a GPU in float16, whose tensor cores training will use."""

    def __init__(self, torch: Any, device: str, size: int, repeats: int) -> None:
        on_cpu = device == "cpu"
        self.name = "the CPU" if on_cpu else f"the GPU {device}"
        self.kind = "torch/cpu" if on_cpu else "torch/gpu"
        self.flop = repeats * 2.0 * size**3
        self._repeats = repeats
        self._torch = torch
        self._synchronize = (lambda: None) if on_cpu else (lambda: torch.cuda.synchronize(device))
        chance = torch.Generator(device).manual_seed(0)
        kind = torch.float32 if on_cpu else torch.float16

        def matrix(largest: int, columns: int) -> Any:
            shape = (size, columns)
            return torch.randint(-largest, largest + 1, shape, generator=chance, device=device).to(kind)

        # Sums stay below 2048 (exact in float16): with +-1 their standard deviation is 60 at size 8192.
        largest = 2 if on_cpu else 1
        self._a, self._b = matrix(largest, size), matrix(largest, size)
        self._x = matrix(4, CHECK_COLUMNS).float()
        self._c = torch.empty(size, size, dtype=kind, device=device)

    def multiply(self) -> None:
        for _ in range(self._repeats):
            self._torch.mm(self._a, self._b, out=self._c)
        self._synchronize()

    def is_right(self) -> bool:
        wanted = self._a.float() @ (self._b.float() @ self._x)
        return bool(self._torch.equal(self._c.float() @ self._x, wanted))

    def spoil(self) -> None:
        self._c[1, 1] += 1


def cpu_engine(torch: Any | None) -> Engine:
    """One core; ``torch`` is the module, if there is one."""
    if torch is None:
        return PythonEngine()
    torch.set_num_threads(1)
    return TorchEngine(torch, "cpu", CPU_SIZE, 1)


def gpu_engine(torch: Any, index: int) -> Engine:
    """One GPU."""
    return TorchEngine(torch, f"cuda:{index}", GPU_SIZE, GPU_PRODUCTS)
