"""A worker that saves its state by several ways in turns, and prints how long each one kept it waiting.

    saves.py MEGABYTES RUNS FOLDER DEVICE

Each line is JSON: the way, and seconds. What goes on in the background afterwards is waited for, and not
counted. With ``overlap=True`` a step follows that sleeps for as long as STEP_COPIES copies take, as a host
does whose GPUs compute, and the time for which its optimizer waits for the copy is counted as well.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp_module

from elasticrun import Checkpointer

dcp: Any = dcp_module  # it has no annotations

PIECE = 16 << 20  # bytes of one tensor
STEP_COPIES = 4
NEVER = threading.Event()
Way = Callable[[int], Callable[[], object]]  # saves after a step; returns what waits for the rest


def main() -> None:
    megabytes, runs, folder, device = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo")
    count = max(1, (megabytes << 20) // PIECE)
    state = {f"layer{number}": torch.randn(PIECE // 4, device=device) for number in range(count)}
    copies = [torch.empty_like(each, device="cpu").fill_(0.0) for each in state.values()]
    keeper = Checkpointer()

    def memcpy(_: int) -> Callable[[], object]:
        for copy, each in zip(copies, state.values(), strict=True):
            copy.copy_(each)
        return lambda: None

    def ours(step: int) -> Callable[[], object]:
        if not keeper.save(step, dict(state)):
            raise SystemExit("the save was refused")
        return keeper.wait

    def torch_save(_: int) -> Callable[[], object]:
        torch.save(state, folder / "state.pt")
        return lambda: None

    def async_save(step: int) -> Callable[[], object]:
        future = dcp.async_save(state, checkpoint_id=str(folder / "dcp"))

        def finish() -> None:
            future.result()
            shutil.rmtree(folder / "dcp")

        return finish

    copied = measure({"memcpy": memcpy, "Checkpointer.save": ours}, state, 1, runs)["memcpy"]
    copies.clear()
    measure({"torch.save": torch_save, "dcp.async_save": async_save}, state, runs + 2, runs)
    keeper.close()
    overlapping(state, 2 * runs + 3, runs, STEP_COPIES * statistics.median(copied))
    dist.destroy_process_group()


def overlapping(state: dict[str, torch.Tensor], first: int, runs: int, seconds: float) -> None:
    """The same tensors as those of an optimizer, whose next step comes so many seconds after the save."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(each) for each in state.values()], lr=1.0)
    keeper = Checkpointer(overlap=True)

    def save(step: int) -> Callable[[], object]:
        if not keeper.save(step, {**state, "optimizer": optimizer}):
            raise SystemExit("the save was refused")

        def finish() -> float:
            NEVER.wait(seconds)
            began = time.perf_counter()
            optimizer.step()  # without gradients it only waits
            waited = time.perf_counter() - began
            keeper.wait()
            return waited

        return finish

    measure({"save, overlap": save}, state, first, runs)


def measure(
    ways: dict[str, Way], state: dict[str, torch.Tensor], first: int, runs: int
) -> dict[str, list[float]]:
    """Time each way in turns; the first turn warms up, and is neither printed nor returned."""
    found: dict[str, list[float]] = {}
    for step in range(first, first + runs + 1):
        for name, way in ways.items():
            for each in state.values():
                each.add_(1.0)
            if each.is_cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
            finish = way(step)
            took = time.perf_counter() - began
            more = finish()
            if step > first:
                took += more if isinstance(more, float) else 0.0
                found.setdefault(name, []).append(took)
                print(json.dumps([name, took]), flush=True)
    return found


main()
