"""From a fault to the next *new* step: work that is done again is part of the time.

A step takes a fixed time, as on a device that does the work. ``memory``: a worker is killed, and the state is
in memory by ``elasticrun.Checkpointer``, saved after each step; ``bare``: the same, and the script makes its
state on the meta device. ``torch``: the same with torchrun and
``torch.save``, at the interval that loses the least. ``peers``: of three hosts that train a model with FSDP2
one is lost, and two go on with what it had; a step that trains takes longer. ``restored``: the part of that
until both have their state. ``storage``: all of a job is killed once a step is durable, and started anew; the
import of torch is part of the time. ``copy``: one memcpy of the same bytes, after each kill.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from elasticrun.core.state.interval import best_interval
from elasticrun.storage.records import MARKER
from scripts.benchmarks.launchers import LAUNCHERS, OURS, TUNED
from scripts.benchmarks.run import WORKERS, Event, Run, RunFailed, opened

STEADY = str(WORKERS / "steady.py")
STEP = 0.1  # seconds
DEADLINE = 180.0
BETWEEN_FAILURES = 20.0  # seconds, for the interval of torch.save
RESTARTS = ("--max-restarts", "1000")
Timed = Iterator[tuple[str, float]]  # what was measured, and its seconds
Way = Callable[[float, int, Path, str], Timed]


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(prog="scripts/bench recover", description=__doc__)
    parser.add_argument("--size", type=float, default=1000, metavar="MB", help="of the state")
    parser.add_argument("--runs", type=int, default=10, help="faults of each kind (default 10)")
    parser.add_argument(
        "--ways", default="memory,bare,torch,peers,storage", help="of memory, bare, torch, peers, storage"
    )
    parser.add_argument("--device", default="cpu", help="where the state is: cpu or cuda (default cpu)")
    options = parser.parse_args(arguments)
    ways: dict[str, Way] = {
        "memory": _memory,
        "bare": partial(_memory, way="bare"),
        "torch": _torch,
        "peers": _peers,
        "storage": _storage,
    }
    print(f"{'what':8} {'MB':>6} {'median s':>9} {'least':>7} {'most':>7} {'n':>3}")
    for way in options.ways.split(","):
        found: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory(prefix="elasticrun-bench-") as folder:
            for name, took in ways[way](options.size, options.runs, Path(folder), options.device):
                found.setdefault(name, []).append(took)
        for name, times in found.items():
            figures = f"{statistics.median(times):9.3f} {min(times):7.3f} {max(times):7.3f} {len(times):3}"
            print(f"{name:8} {options.size:6g} {figures}", flush=True)
    return 0


def arguments_of(
    way: str, size: float, every: int | str, folder: Path, device: str = "cpu"
) -> tuple[str, ...]:
    """The script with its arguments."""
    return STEADY, way, str(size), str(STEP), str(every), str(folder), device


def newest(run: Run) -> int:
    """The last step that any worker has made."""
    return max((it.step for it in run.events if it.what == "step"), default=0)


def reached(run: Run, step: int, after: float = 0.0) -> Event:
    """The first event, after a moment, of this step or a later one."""

    def found() -> Event | None:
        steps = (it for it in run.events if it.what == "step" and it.step >= step and it.at > after)
        return next(steps, None)

    return run.wait(found, DEADLINE, f"step {step}")


def new_step(run: Run, since: float) -> float:
    """Seconds from a fault to the first step that nobody had made before it."""
    run.collect(time.monotonic() + 0.01)  # what was said before it
    before = max((it.step for it in run.events if it.what == "step" and it.at <= since), default=0)
    return reached(run, before + 1, since).at - since


def copied(size: float, device: str) -> float:
    """Seconds of a copy of so many MB into memory whose pages are there."""
    source = torch.ones(int(size * 2**20) // 4)
    target = torch.ones_like(source, device=device)
    began = time.monotonic()
    target.copy_(source)
    return time.monotonic() - began


def best_every(size: float, folder: Path, between_failures: float, device: str = "cpu") -> int:
    """The steps between two calls of ``torch.save`` that lose the least, with failures so far apart."""
    state = torch.ones(int(size * 2**20) // 4, device=device)
    torch.save(state, folder / "trial.pt")
    began = time.monotonic()
    torch.save(state, folder / "trial.pt")
    stall = time.monotonic() - began
    return max(1, round(best_interval(stall, between_failures) / STEP))


def kills(run: Run, runs: int, apart: Callable[[int], int]) -> Iterator[float]:
    """Kill a worker again and again, ``apart(number)`` steps after the last time, anywhere in a step."""
    for number in range(runs):
        before, event = (reached(run, newest(run) + each) for each in (apart(number), 1))
        run.collect(event.at + (event.at - before.at) * (number + 0.5) / runs)
        yield new_step(run, run.kill(event.pid))


def _memory(size: float, runs: int, folder: Path, device: str, way: str = "memory") -> Timed:
    with opened(LAUNCHERS[OURS], folder, 0) as run:
        run.alone(*RESTARTS, "--nproc-per-node", "1", *arguments_of(way, size, 1, folder, device))
        for took in kills(run, runs, lambda number: 5):
            yield way, took
            yield "copy", copied(size, device)


def _torch(size: float, runs: int, folder: Path, device: str) -> Timed:
    every = best_every(size, folder, BETWEEN_FAILURES, device)
    with opened(LAUNCHERS[TUNED], folder, 0) as run:
        run.alone(*RESTARTS, "--nproc-per-node", "1", *arguments_of("torch", size, every, folder, device))
        # each time at another place between two saves
        for took in kills(run, runs, lambda number: every + 1 + every * number // runs):
            yield "torch", took


def _peers(size: float, runs: int, folder: Path, device: str) -> Timed:
    if os.geteuid() != 0:
        raise SystemExit("peers needs root, for host names: take other --ways")
    for number in range(runs):
        place = folder / str(number)
        place.mkdir()
        with opened(LAUNCHERS[OURS], place, number) as run:
            script = arguments_of("sharded", size, 1, place, device)
            for host in ("a", "b", "c"):
                run.node("2:3", *RESTARTS, "--last-call-timeout", "60", *script, host=host)
            reached(run, 8)
            lost = run.lose(run.guests()[0])
            took = new_step(run, lost)
            again = [it for it in run.events if it.what == "restored"][-1]
            if again.step == 0:
                raise RunFailed(f"nothing was restored:\n{run.story()}")
            yield "peers", took
            yield "restored", again.at - lost


def _storage(size: float, runs: int, folder: Path, device: str) -> Timed:
    storage = ("--state-storage", str(folder / "storage"), "--state-storage-every", "1s", "--state-keep", "2")
    script = arguments_of("memory", size, 1, folder, device)
    for number in range(runs + 1):
        place = folder / str(number)
        place.mkdir()
        with opened(LAUNCHERS[OURS], place, number) as run:
            began = time.monotonic()
            node = run.alone(*RESTARTS, *storage, "--nproc-per-node", "1", *script)
            first = reached(run, 1)
            again = [it for it in run.events if it.what == "restored"][-1]
            if number and not again.step:
                raise RunFailed(f"nothing was restored:\n{run.story()}")
            if number:
                yield "storage", first.at - began
            _until_durable(run, folder / "storage", again.step)
            run.lose(node)


def _until_durable(run: Run, storage: Path, step: int) -> None:
    """Return once the storage has a finished commit of a later step."""

    def found() -> bool | None:
        return any(_step_of(each) > step for each in storage.glob(f"step-*/{MARKER}")) or None

    run.wait(found, DEADLINE, "durable step")


def _step_of(marker: Path) -> int:
    return int(marker.parent.name.split("-")[1])
