"""The matrix product: how fast this node computes, and whether the result is right.

Timing. The product is repeated in batches of BATCH seconds each, and the median of their speeds counts. A
batch is as long as the period of a CPU quota (cpu.max, 100 ms unless changed), so that a node that is
throttled shows in every batch, while a passing disturbance shows in one. Time is wall time, because that is
what its peers wait for.

Verification. The entries are small integers, so that every product and partial sum is exact in the type it
is computed in, whatever the order. Then C = AB is right only if Cx = A(Bx) for any x, without any tolerance
(Freivalds' check), and that costs no more than a few products of a matrix and a vector.

On a CPU one core is used, whatever number of threads the workers will have: several agents may share one
host, and together they must not measure one another.

Without torch the product is plain Python's. Its speed can only be compared with that of nodes that have no
torch either, and of the same version of Python.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from operator import mul
from typing import Any, Protocol

from .sockets import ProbeError

BATCH = 0.1  # seconds
BATCHES = 5
CHECK_COLUMNS = 4
#: Matrices of this many rows and columns. Fixed, so that nodes can be compared.
PYTHON_SIZE = 48
CPU_SIZE = 512
GPU_SIZE = 8192
GPU_PRODUCTS = 4  # products in flight, so that the launch of a kernel costs nothing

Matrix = list[list[float]]


class Engine(Protocol):
    """Something that multiplies two fixed matrices."""

    name: str
    flop: float  # floating point operations of one ``multiply``

    def multiply(self) -> None:
        """Compute the product; it is complete on return."""

    def is_right(self) -> bool:
        """Whether the last product is what it should be."""

    def spoil(self) -> None:
        """Make the last product wrong, for a drill."""


def benchmark(engine: Engine, spoils: bool = False, clock: Callable[[], float] = time.perf_counter) -> float:
    """Floating point operations per second. Raises ProbeError if a result is wrong."""
    engine.multiply()  # loads libraries and pages; not timed
    speeds = []
    for _ in range(BATCHES):
        speeds.append(_batch(engine, clock))
        if spoils:
            engine.spoil()
        if not engine.is_right():
            raise ProbeError(f"{engine.name} computes wrong results: a matrix product failed its check")
    return statistics.median(speeds)


def _batch(engine: Engine, clock: Callable[[], float]) -> float:
    start = clock()
    done = 0
    while (elapsed := clock() - start) < BATCH:
        engine.multiply()
        done += 1
    return done * engine.flop / elapsed


class PythonEngine:
    """Plain Python, for nodes without torch."""

    name = "the CPU"
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
