"""Whether the accounts of a job agree with a stopwatch that the script itself holds.

Two nodes with one worker each train; one worker after the other is SIGKILLed. The script writes down when each
step began and ended, and tells elasticrun nothing. From that follows what was productive (the first time of
each step, from the second step of a round on: the first one is start by definition), what was redone, and how
long the job took. The same is read from ``events.jsonl``, which the launcher alone has written.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.summary import Summary, in_words
from elasticrun.core.history.history import History
from elasticrun.rpc.event_lines import from_line
from scripts.benchmarks.launchers import LAUNCHERS, OURS
from scripts.benchmarks.run import WORKERS, Run, opened

SCRIPT = str(WORKERS / "stopwatch.py")
END = 600.0  # seconds for the last steps
RESTARTS = ("--max-restarts", "1000")


@dataclass(frozen=True, slots=True)
class Watched:
    """What the stopwatch says, in seconds."""

    wall: float  # from the first step's end to the last one's
    productive: float
    redone: float


@dataclass(frozen=True, slots=True)
class Made:
    """A step that one process made, by the wall clock."""

    done: int
    began: float
    ended: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(prog="scripts/bench accounting", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="how many workers are killed (default 20)")
    parser.add_argument("--apart", type=float, default=8.0, help="seconds from one fault to the next")
    parser.add_argument("--step", type=float, default=0.1, help="seconds of a step")
    parser.add_argument("--every", type=int, default=5, help="steps from one save to the next")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="elasticrun-bench-") as folder:
        marks, state = Path(folder) / "marks", Path(folder) / "state"
        marks.mkdir()
        _train(options, Path(folder), marks, state)
        watched = stopwatch(steps_of(marks))
        for line in compared(watched, accounts(state / "events.jsonl")):
            print(line, flush=True)
    return 0


def _train(options: argparse.Namespace, folder: Path, marks: Path, state: Path) -> None:
    """Run the job to its end."""
    steps = round((options.faults + 1) * options.apart / options.step)
    script = SCRIPT, str(steps), str(options.step), str(options.every), str(marks)
    with opened(LAUNCHERS[OURS], folder, 0) as run:
        nodes = [run.node("2", *RESTARTS, "--state-dir", str(state), *script) for _ in range(2)]
        for number in range(options.faults):
            _newest(run, marks, number)
            time.sleep(options.apart)
            run.kill(_newest(run, marks, number))
        for node in nodes:
            run.ended(node, END)


def _newest(run: Run, marks: Path, number: int) -> int:
    """The process of one rank that has made a step last."""
    until = time.monotonic() + END
    while time.monotonic() < until:
        found = [path for path in marks.glob(f"{number % 2}-*.steps") if path.stat().st_size]
        alive = [path for path in found if Path(f"/proc/{_pid(path)}").exists()]
        if alive:
            return _pid(max(alive, key=lambda path: path.stat().st_mtime))
        run.collect(time.monotonic() + 0.1)
    raise SystemExit("no worker makes steps")


def _pid(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def steps_of(marks: Path) -> list[list[Made]]:
    """The steps of each round, in the order of time, as rank 0 has made them."""
    rounds = []
    for path in marks.glob("0-*.steps"):
        lines = [line.split() for line in path.read_text().splitlines() if line.count(" ") == 2]
        if lines:
            rounds.append([Made(int(done), float(began), float(ended)) for done, began, ended in lines])
    return sorted(rounds, key=lambda steps: steps[0].began)


def stopwatch(rounds: Iterable[Sequence[Made]]) -> Watched:
    """What these steps were worth. A save between two steps is neither."""
    productive = redone = 0.0
    high, ends = 0, []
    for steps in rounds:
        for step in steps[1:]:
            if step.done > high:
                productive += step.ended - step.began
            else:
                redone += step.ended - step.began
            high = max(high, step.done)
        high = max(high, steps[0].done)
        ends += [steps[0].ended, steps[-1].ended]
    return Watched(max(ends) - min(ends), productive, redone)


def accounts(log: Path) -> tuple[History, Summary]:
    """What the launcher has written down."""
    history = History()
    for line in log.read_text().splitlines():
        entry = from_line(line)
        if entry is not None:
            history.take(entry)
    return history, history.summary()


def compared(watched: Watched, told: tuple[History, Summary]) -> list[str]:
    """The lines of the result."""
    history, summary = told
    ours = summary.job[Activity.PRODUCTIVE] / 1e6
    whole = sum(summary.job.values()) / 1e6
    off = ours / watched.productive - 1
    return [
        f"{history.failed} workers failed, {history.restarts} restarts",
        f"stopwatch: productive {watched.productive:.2f} s, redone {watched.redone:.2f} s"
        f" of {watched.wall:.2f} s from the first step to the last",
        f"accounts:  productive {ours:.2f} s, redone {summary.job[Activity.REDONE] / 1e6:.2f} s,"
        f" stopped {summary.job[Activity.STOPPED] / 1e6:.2f} s of {whole:.2f} s of the job",
        f"productive time differs by {100 * off:+.2f} %; ETTR {summary.ettr:.4f} and"
        f" {watched.productive / whole:.4f}",
        in_words(summary),
    ]
