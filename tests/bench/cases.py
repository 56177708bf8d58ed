"""What is measured: each case is one function that drives one run and gives its figures.

All times are seconds from a moment that this process stamps (a launcher is started, a process is killed) to
a stamp of the workers themselves, on the one monotonic clock. "First all-reduce" is always that of the last
worker of the world that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.launchers import OURS, TORCHRUN, TUNED
from tests.bench.run import LINE, TRAIN, Run, RunFailed

START = 90.0  # seconds; a launcher that takes longer hangs
RECOVERY = 60.0
SETTLED = 100  # steps, two seconds or more: all is quiet again after the start
FEW = 3  # runs of a launcher that mostly hangs
RESTARTS = ("--max-restarts", "1000")


def launch(run: Run) -> dict[str, float]:
    """``launch``: from the start of the launcher to the first line of a script without torch."""
    node = run.alone("--nproc-per-node", "1", LINE)
    line = run.wait(lambda: run.events[0] if run.events else None, START, "first line")
    if status := run.ended(node, START):
        raise RunFailed(f"the launcher ended with {status}")
    return {"launch": line.at - node.begun}


def allreduce(run: Run) -> dict[str, float]:
    """``allreduce``: from the start of the launcher to the first all-reduce of two workers."""
    node = run.alone("--nproc-per-node", "2", TRAIN)
    first = run.all_of("reduced", 2, START)
    return {"allreduce": max(event.at for event in first) - node.begun}


def kill(run: Run) -> dict[str, float]:
    """``kill``: from the SIGKILL of one of two workers of a node to the first all-reduce of the new ones."""
    run.alone("--nproc-per-node", "2", *RESTARTS, TRAIN)
    return {"kill": _kill_one(run)}


def kill_two(run: Run) -> dict[str, float]:
    """``kill-two``: the same with two nodes of one worker each."""
    for _ in range(2):
        run.node("2", *RESTARTS, TRAIN)
    return {"kill-two": _kill_one(run)}


def _kill_one(run: Run) -> float:
    workers = run.all_of("reduced", 2, START)
    run.steps(workers, SETTLED, START)
    killed = run.kill(workers[run.number % 2].pid)
    again = run.all_of("reduced", 2, RECOVERY, after=killed)
    return max(event.at for event in again) - killed


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, and which launchers it makes sense for."""

    name: str
    drive: Callable[[Run], dict[str, float]]
    launchers: tuple[str, ...] = (OURS, TORCHRUN, "ft_launcher", "dlrover-run")
    few: tuple[str, ...] = ()  # of these: they mostly hang, and are shown to do so
    only: int | None = None  # at most so many runs of anybody: each takes long

    def rounds(self, runs: int) -> int:
        """How many rounds there are, if so many runs are asked for."""
        return runs if self.only is None else min(runs, self.only)

    def runs_of(self, launcher: str, runs: int) -> int:
        """How many of them a launcher takes part in."""
        if launcher not in self.launchers:
            return 0
        return min(self.rounds(runs), FEW) if launcher in self.few else self.rounds(runs)


CASES = {
    case.name: case
    for case in (
        Case("launch", launch),
        Case("allreduce", allreduce),
        Case("kill", kill, (OURS, TORCHRUN, TUNED, "ft_launcher", "dlrover-run")),
        Case("kill-two", kill_two, (OURS, TORCHRUN, TUNED, "ft_launcher")),
    )
}
