"""How long a worker's steps take by themselves: what it measures, and what its agent reads of that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.agent.monitors import page as page_module
from elasticrun.agent.monitors.page import ProgressPage
from elasticrun.core.progress.own_time import Measured
from elasticrun.worker import own_time, reporter
from elasticrun.worker.own_time import BATCH, KEPT, hook_parallel
from elasticrun.worker.reporter import Reporter
from tests.support.processes import TORCH_DEADLINE

MS = 1_000_000


@pytest.fixture
def worker(worker: Reporter) -> Reporter:
    """One that owns its slot."""
    worker.claim()
    return worker


class Clock:
    """Of the worker; nanoseconds that are set by hand."""

    def __init__(self) -> None:
        self.now = 1_000 * MS

    def monotonic_ns(self) -> int:
        return self.now

    def pass_(self, milliseconds: int) -> None:
        self.now += milliseconds * MS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (own_time, reporter):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def torch(worker: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Torch:
    torch = Torch(worker, clock)
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", torch.optimizers)
    return torch


def measured(steps: int, own: float, whole: float) -> Measured:
    """Of so many steps, each of which took so many milliseconds."""
    about: Any = pytest.approx
    return Measured(os.getpid(), steps, about(own * steps / 1e3), about(whole * steps / 1e3))


class Model:
    """As much of a DistributedDataParallel as is looked at."""

    device_type = "cpu"
    ranks = 2

    def __init__(self, ranks: int | None = None) -> None:
        self.process_group = SimpleNamespace(size=lambda: self.ranks if ranks is None else ranks)


class Torch:
    """As much of torch as is hooked, and a training with it."""

    def __init__(self, worker: Reporter | None, clock: Clock) -> None:
        self.clock = clock
        self.worker = worker
        self.hooks: list[Callable[..., None]] = []
        self.is_compiling = False
        self.passed: list[tuple[Any, ...]] = []
        self.compiler = SimpleNamespace(is_compiling=lambda: self.is_compiling)
        self.optimizers = SimpleNamespace(register_optimizer_step_pre_hook=self.hooks.append)
        self.autograd = SimpleNamespace(backward=self._backward)
        self.distributed = SimpleNamespace(get_world_size=lambda: 2)
        self.callback: object = None
        self.left_out: list[Any] = []
        self.frames = SimpleNamespace(
            get_eval_frame_callback=lambda: self.callback, skip_code=self.left_out.append
        )
        self._C = SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=self.frames))
        self.model: Any = type("DistributedDataParallel", (Model,), {})
        hook_parallel(lambda: self.worker)(SimpleNamespace(torch=self, DistributedDataParallel=self.model))

    def _backward(self, *args: Any, within: Callable[[], None] | None = None) -> None:
        """It waits for the others."""
        self.passed.append(args)
        self.clock.pass_(30)
        if within is not None:
            within()

    def step(self) -> None:
        for hook in self.hooks:
            assert hook(None, (), {}) is None

    def train(self, steps: int, own: int = 10) -> None:
        for _ in range(steps):
            self.clock.pass_(own)
            self.autograd.backward("loss")
            self.clock.pass_(5)
            self.step()


def test_the_time_from_the_update_to_the_next_backward_pass_is_its_own(
    page: ProgressPage, torch: Torch
) -> None:
    torch.model()
    torch.train(2 * BATCH + 1)
    assert page.own_time(0) is None, "the first batch is warm-up, and the second has not ended"
    torch.train(1)
    assert page.own_time(0) == measured(KEPT, 10, 45)
    torch.train(BATCH - 1)
    assert page.own_time(0) == measured(KEPT, 10, 45)
    torch.train(1, own=20)
    assert page.own_time(0) == measured(2 * KEPT, 10, 45)
    assert set(torch.passed) == {("loss",)}


def test_what_is_rare_is_left_out_and_what_is_usual_is_not(page: ProgressPage, torch: Torch) -> None:
    torch.model()
    torch.train(BATCH + 2)
    torch.train(2, own=5_000)  # as a save, or an evaluation
    torch.train(BATCH - 2, own=20)
    assert page.own_time(0) == measured(KEPT, 20, 55)


def test_not_all_of_many_short_steps_are_measured(
    page: ProgressPage, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_time, "PERIOD", 45 * MS * (BATCH + 3))
    torch.model()
    torch.train(2 * BATCH + 5)
    assert page.own_time(0) is None, "the second batch began 4 steps later"
    torch.train(1)
    assert page.own_time(0) == measured(KEPT, 10, 45)


def test_several_passes_or_optimizers_make_one_step(page: ProgressPage, torch: Torch) -> None:
    torch.model()
    for _ in range(2 * BATCH + 2):
        torch.clock.pass_(10)
        torch.autograd.backward()
        torch.clock.pass_(10)
        torch.autograd.backward()  # of gradients that add up
        torch.step()
        torch.clock.pass_(1)
        torch.step()
    assert page.own_time(0) == measured(KEPT, 11, 81)


def test_an_optimizer_within_the_backward_pass_is_no_sign_that_ranks_have_met(
    page: ProgressPage, torch: Torch
) -> None:
    torch.model()
    for _ in range(4 * BATCH):
        torch.autograd.backward(within=torch.step)
    assert page.own_time(0) is None


def test_a_backward_pass_that_fails_raises_what_it_would(page: ProgressPage, torch: Torch) -> None:
    torch.model()
    with pytest.raises(ZeroDivisionError):
        torch.autograd.backward(within=lambda: print(1 // 0))
    torch.train(2 * BATCH + 2)
    assert page.own_time(0) == measured(KEPT, 10, 45)


@pytest.mark.parametrize("why", ["none", "group", "alone", "device", "version", "hooks", "outside"])
def test_other_trainings_are_left_alone(page: ProgressPage, torch: Torch, why: str) -> None:
    before = torch.autograd.backward
    match why:
        case "group":
            torch.model(4)  # of one of several groups
        case "alone":
            torch.distributed.get_world_size = lambda: 1
            torch.model(1)
        case "device":
            torch.model.device_type = "cuda"
            torch.model()
        case "version":
            del torch.distributed.get_world_size
            torch.model()
        case "hooks":
            del torch.optimizers.register_optimizer_step_pre_hook
            torch.model()
        case "outside":
            torch.worker = None
            torch.model()
    torch.train(4 * BATCH)
    assert (torch.autograd.backward, torch.hooks) == (before, [])
    assert page.own_time(0) is None


def test_it_is_hooked_once(torch: Torch) -> None:
    torch.model()
    before = torch.autograd.backward
    torch.model()
    assert len(torch.hooks) == 1
    assert torch.autograd.backward is before


def test_within_a_compilation_nothing_is_measured(page: ProgressPage, torch: Torch) -> None:
    torch.model()
    assert [code.co_name for code in torch.left_out] == ["wrapper", "before_step"]
    torch.is_compiling = True
    torch.train(4 * BATCH)
    torch.is_compiling, torch.callback = False, object()
    torch.train(4 * BATCH)
    assert page.own_time(0) is None
    assert len(torch.passed) == 8 * BATCH


def test_what_the_script_says_takes_over(page: ProgressPage, torch: Torch) -> None:
    torch.model()
    torch.train(BATCH // 2)
    assert torch.worker is not None
    for _ in range(2 * BATCH + 1):
        torch.train(1)
        torch.worker.numbered_step(None, 0.007)
    assert page.own_time(0) == measured(KEPT, 7, 45)
    pace = page.pace(0)
    assert pace is not None
    assert pace.timed == 2 * BATCH + 1
    assert pace.seconds == pytest.approx(0.007 * (2 * BATCH + 1))


def test_it_ends_with_the_reports_and_in_children(
    page: ProgressPage, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.model()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        torch.train(4 * BATCH)
    assert page.own_time(0) is None
    assert torch.worker is not None
    torch.worker.release()
    torch.train(4 * BATCH)
    assert page.own_time(0) is None


@pytest.mark.parametrize("at", range(page_module.OWN.size // 8))
def test_times_count_if_they_are_whole_and_of_the_owner(page: ProgressPage, torch: Torch, at: int) -> None:
    torch.model()
    torch.train(2 * BATCH + 2)
    assert page.own_time(1) is None, "it has no slot"
    assert page.own_time(0) is not None
    page._map[len(page._map) - page_module.OWN.size + 8 * at] ^= 1
    assert page.own_time(0) is None


REAL = """
import os, sys, threading, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
COMPILED = {compiled}
def train():
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=RANK, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, backend="eager") if COMPILED else model
    for _ in range(80):
        optimizer.zero_grad()
        loss = run(torch.ones(2, 4)).sum()
        threading.Event().wait(0.01)
        loss.backward()
        optimizer.step()
    def compute():
        torch.autograd.backward([optimizer.param_groups[0]["params"][0].sum()])
    torch.compile(compute, backend="eager")() if COMPILED else compute()
    from torch._dynamo.utils import counters
    print(sum(counters["graph_break"].values()), dict(counters["stats"]), flush=True)
    os._exit(0)
RANK = 1
if os.fork() == 0:
    RANK = 0
    sys.stdout = sys.stderr = open(os.devnull, "w")
train()
"""


@pytest.mark.torch
@pytest.mark.parametrize("compiled", [False, True])
def test_real_torch_is_measured_and_compiles_as_without_us(
    page: ProgressPage, tmp_path: Any, compiled: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    printed: list[str] = []
    for ours in ({}, page.environment(0, environment, auto=True)):
        store = tmp_path / f"store{len(printed)}"
        code = REAL.replace("{compiled}", str(compiled)).replace("{store}", str(store))
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **ours},
            capture_output=True,
            text=True,
            timeout=TORCH_DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    told = page.own_time(0)
    assert told is not None
    assert told.steps >= KEPT
    assert 0.01 * told.steps <= told.own <= told.whole
