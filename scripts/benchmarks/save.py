"""How long a save keeps a training waiting: ``elasticrun.Checkpointer`` beside one copy of the same bytes,
``torch.save`` and ``torch.distributed.checkpoint.async_save``, in turns, in one worker.

Files go to ``--folder``. A machine needs about five times the memory of the state.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

WORKER = Path(__file__).parent / "workers" / "saves.py"
SIZES = (100, 1000, 4000)  # MB


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line for each size and way."""
    parser = argparse.ArgumentParser(prog="scripts/bench save", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="MB", help="of the state")
    parser.add_argument("--runs", type=int, default=10, help="of each way (default 10)")
    parser.add_argument("--folder", type=Path, default=None, help="for files (default: a temporary one)")
    parser.add_argument("--device", default="cpu", help="where the state is: cpu or cuda (default cpu)")
    options = parser.parse_args(arguments)
    print(f"{'MB':>6}  {'way':18} {'median s':>9} {'n':>3}  beside one copy")
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = saves(size, options.runs, Path(folder), options.device)
        copy = statistics.median(found["memcpy"])
        for way, times in found.items():
            median = statistics.median(times)
            print(f"{size:6}  {way:18} {median:9.4f} {len(times):3}  {median / copy:6.2f}", flush=True)
    return 0


def saves(megabytes: int, runs: int, folder: Path, device: str) -> dict[str, list[float]]:
    """Seconds of each save, by way."""
    launch = (sys.executable, "-m", "elasticrun", "--standalone", "--nproc-per-node=1")
    command = [*launch, str(WORKER), str(megabytes), str(runs), str(folder), device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        way, took = json.loads(line)
        found.setdefault(way, []).append(took)
    return found
