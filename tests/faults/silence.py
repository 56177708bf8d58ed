"""How often is a healthy job stopped for its silence, and how soon is a hang found?

    python tests/faults/silence.py [CASE...] [--times 10] [--at-once 4] [--seconds 25] [--root CHECKOUT]

Runs each case of tests/support/silent.py with two workers. A healthy one has to end with 0 in its first
round, though with --max-restarts 3 the launcher could stop it. A hang has to be found; the seconds that this
took are counted from the last step. ``CASE:0`` is the same with --max-restarts 0, where it has to be told and
left alone, and ``CASE:T`` with --hang-timeout T. Prints one line for each case; the exit status is 0 if all
went as they have to.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.launcher import clean_environment  # noqa: E402

SCRIPT = ROOT / "tests" / "support" / "silent.py"
HEALTHY = (
    "svd",
    "subprocess",
    "queue",
    "background-checkpoint",
    "slow-torch-save",
    "slow-write",
    "rank-0-svd",
    "rank-0-subprocess",
    "recompile",
    "compile",
    "gil-sleep",
    "gil-burn",
    "debugger",
    "breakpoint",
    "sigstop",
)
HANGS = ("mismatch", "no-sender", "store-wait", "busy-collective:15")
LEFT_ALONE = ("mismatch:0", "busy-collective")
COMPILATION = 120.0  # seconds of the first step
LEFT_FOR = 60.0  # seconds for which a hang that is only told has to go on
PATIENCE = 1800.0
STOPS = re.compile(r"round 0 stops: (.*)")


@dataclass(frozen=True)
class Result:
    """One run."""

    good: bool
    found: float | None = None  # seconds from the hang to the stop
    told: bool = False
    said: str = ""


class Run:
    """One job, watched line by line."""

    def __init__(self, argv: Sequence[str], root: Path, folder: str) -> None:
        ours, theirs = pty.openpty()
        self.keyboard = ours
        python = root / ".venv" / "bin" / "python"
        env = clean_environment(PYTHONPATH=str(root), LOGLEVEL="INFO")
        self.process = subprocess.Popen(
            [str(python), "-m", "elasticrun", *argv],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        os.close(theirs)
        self.lines: list[str] = []
        self.hung_at: float | None = None
        self.found_at: float | None = None
        self._prompted = threading.Event()

    def watch(self, seconds: float, left_for: float | None) -> None:
        """Until it ends, or, if it has to be left alone, for so long."""
        timers = [threading.Timer(PATIENCE, self.process.kill)]
        timers[0].start()
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self.lines.append(line)
            if line.endswith("hangs") and self.hung_at is None:
                self.hung_at = time.monotonic()
                if left_for is not None:
                    timers.append(threading.Timer(left_for, self.process.terminate))
                    timers[-1].start()
            elif line.endswith("at the prompt"):
                timers.append(threading.Timer(seconds, os.write, (self.keyboard, b"c\n")))
                timers[-1].start()
            elif STOPS.search(line) and self.found_at is None:
                self.found_at = time.monotonic()
        self.process.wait()
        for timer in timers:
            timer.cancel()
        os.close(self.keyboard)

    @property
    def story(self) -> str:
        return "\n".join(self.lines)


def run(case: str, seconds: float, root: Path) -> Result:
    name, _, how = case.partition(":")
    seconds = COMPILATION if name == "compile" else seconds
    restarts = "0" if how == "0" else "3"
    options = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "--shutdown-timeout=5"]
    if how and how != "0":
        options.append(f"--hang-timeout={how}")
    with tempfile.TemporaryDirectory() as folder:
        watched = Run([*options, str(SCRIPT), name, str(seconds)], root, folder)
        watched.watch(seconds, LEFT_FOR if case in LEFT_ALONE else None)
    told = "has made a step" in watched.story
    stops = STOPS.search(watched.story)
    said = stops[1] if stops else ""
    if case in LEFT_ALONE:
        return Result(told and "made no step" not in said, None, told, said)
    if name in HEALTHY:
        return Result(
            watched.process.returncode == 0 and not stops, None, told, said or watched.story[-3000:]
        )
    if watched.hung_at is None or watched.found_at is None:
        return Result(False, None, told, watched.story[-3000:])
    good = watched.process.returncode == 0 and "made no step" in said
    return Result(good, watched.found_at - watched.hung_at, told, said)


def row(case: str, results: Sequence[Result]) -> str:
    good = sum(result.good for result in results)
    told = sum(result.told for result in results)
    found = sorted(result.found for result in results if result.found is not None)
    if case in LEFT_ALONE:
        return f"{case}: a hang that is told and left alone; as wanted {good} of {len(results)}"
    if case.partition(":")[0] in HEALTHY:
        stopped = len(results) - good
        return f"{case}: healthy; stopped {stopped} of {len(results)}, told in {told}"
    times = (
        f", after {found[0]:.1f} to {found[-1]:.1f} s (median {statistics.median(found):.1f})"
        if found
        else ""
    )
    return f"{case}: a hang; found {good} of {len(results)}{times}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[*HEALTHY, *HANGS, *LEFT_ALONE])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--root", type=Path, default=ROOT)
    given = parser.parse_args()
    everything_is_fine = True
    with ThreadPoolExecutor(given.at_once) as pool:
        futures = {
            case: [pool.submit(run, case, given.seconds, given.root) for _ in range(given.times)]
            for case in given.cases
        }
        for case, runs in futures.items():
            results = [each.result() for each in runs]
            print(row(case, results), flush=True)
            for result in results:
                if not result.good:
                    everything_is_fine = False
                    print(f"    {result.said}", flush=True)
    return 0 if everything_is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
