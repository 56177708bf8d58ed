"""Torch's own tests of collectives, beside tests of this project that check the same; see ``pairs.py``.

Three sessions of pytest, each timed from outside, its start included: ``torch``: the originals as torch runs
them, with ``MultiProcessTestCase``. ``plugin``: the same methods on ranks of the plugin. ``ported``: plain
functions that were written for the plugin. All have two ranks on gloo. A session in which a test fails, or is
skipped, is no measurement.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmarks.pairs import PAIRS

RANKS = 2
ORIGINALS = Path(__file__).parent / "sessions" / "originals.py"
PORTED = Path(__file__).parents[2] / "tests" / "testing" / "test_collectives.py"
_BARE = ("-c", os.devnull)  # not with this project's settings, as nobody else has them

#: The tests of each session, and more arguments of pytest.
SESSIONS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "torch": ([f"{ORIGINALS}::TestOriginals::{name}" for name in PAIRS], _BARE),
    "plugin": ([f"{ORIGINALS}::test_original[{name}]" for name in PAIRS], _BARE),
    "ported": ([f"{PORTED}::{name}" for name in PAIRS.values()], ()),
}


def measure(runs: int) -> None:
    """Run the sessions in turns, and print a line for each."""
    found: dict[str, list[float]] = {way: [] for way in SESSIONS}
    for _ in range(runs):
        for way, times in found.items():
            times.append(session(way))
    print(f"{'way':8}  {'tests':>5}  {'passed':>6}  {'session, s':>10}  {'each test, s':>12}  runs")
    for way, times in found.items():
        whole, tests = statistics.median(times), len(PAIRS)
        print(f"{way:8}  {tests:5}  {'all':>6}  {whole:10.2f}  {whole / tests:12.3f}  {len(times):4}")
    for original, ported in PAIRS.items():
        print(f"  {original} = {ported}")


def session(way: str) -> float:
    """Seconds of one session. Ends the program unless all of its tests pass."""
    where = {"BACKEND": "gloo", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    env = {**os.environ, **where, "OMP_NUM_THREADS": "1"}
    tests, arguments = SESSIONS[way]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *tests]
    began = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lasted = time.monotonic() - began
    if done.returncode or not have_all_passed(done.stdout, len(tests)):
        raise SystemExit(f"{way} failed:\n{done.stdout}{done.stderr}")
    return lasted


def have_all_passed(output: str, tests: int) -> bool:
    """Whether pytest's last line says that so many tests have passed, and nothing of any other."""
    last = output.rstrip().rpartition("\n")[2].partition(" in ")[0]
    counts = {outcome: int(number) for number, outcome in re.findall(r"(\d+) ([a-z]+)", last)}
    return counts.get("passed") == tests and not {*counts} - {"passed", "warning", "warnings"}
