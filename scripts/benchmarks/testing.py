"""What a distributed test costs: an all-reduce of some ranks as one, in a session of pytest.

``ours``: the plugin of elasticrun. ``spawn``: ``torch.multiprocessing.spawn`` in the test's body. ``case``:
torch's own ``MultiProcessTestCase``. A session of so many tests is timed from outside, in turns; what the
same session takes to collect them and run none is taken off, and the rest is divided by their number. Both
others import torch in each rank of each test, so fewer tests are enough for them. ``case`` needs the package
``expecttest``, and is left out without it.

With ``--originals``: tests that come with torch, as torch runs them, under the plugin, and ported to it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from scripts.benchmarks import originals

SESSIONS = Path(__file__).parent / "sessions"
WAYS = {"ours": "all_reduce.py::test_ours", "spawn": "all_reduce.py::test_spawn", "case": "case.py::TestCase"}


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(prog="scripts/bench testing", description=__doc__)
    parser.add_argument("--tests", type=int, default=50, help="of our session (default 50)")
    parser.add_argument("--others", type=int, default=5, help="tests of the other sessions (default 5)")
    parser.add_argument("--runs", type=int, default=3, help="sessions of each way (default 3)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="of each test (default 2 4)")
    parser.add_argument("--originals", action="store_true", help="tests that come with torch, on two ranks")
    options = parser.parse_args(arguments)
    if options.originals:
        originals.measure(options.runs)
        return 0
    print(f"{'ranks':>5}  {'way':8}  {'each test, s':>12}  {'session, s':>10}  tests  runs")
    ways = [way for way in WAYS if way != "case" or find_spec("expecttest") is not None]
    for ranks in options.ranks:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(options.runs):
            for way, times in found.items():
                times.append(session(way, ranks, options.tests if way == "ours" else options.others))
        for way, times in found.items():
            tests = options.tests if way == "ours" else options.others
            each, whole = (statistics.median(it) for it in zip(*times, strict=True))
            print(f"{ranks:5}  {way:8}  {each:12.3f}  {whole:10.2f}  {tests:5}  {len(times):4}", flush=True)
    return 0


def session(way: str, ranks: int, tests: int) -> tuple[float, float]:
    """Seconds of each test, and of a whole session."""
    whole = timed(way, ranks, tests)
    return (whole - timed(way, ranks, tests, "--collect-only")) / tests, whole


def timed(way: str, ranks: int, tests: int, *arguments: str) -> float:
    """Seconds of one session; it has to pass."""
    env = {**os.environ, "RANKS": str(ranks), "TESTS": str(tests), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *arguments]
    began = time.monotonic()
    done = subprocess.run(
        [*command, f"{SESSIONS / WAYS[way]}"], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began
