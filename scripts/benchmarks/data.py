"""What shared shards cost: leases a second through worker, agent and master, how long a training loop waits
for its batches, and what it brings that a faster node reads more.

Two nodes of this box share the data, each with one worker. ``leases``: both take and acknowledge leases of
one record as fast as they can. ``stall``: a loop of 2 ms steps waits for its next batch, of shards of 8
batches; beside it the same with a ledger of its own. ``save``: how long a rank waits for the state of both.
``slow``: an epoch with the second worker at 25 % of a core, by a quota of its control group or, without the
right to make one, by stopping it for 75 of each 100 ms; shared shard by shard, and split in halves.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "workers" / "leases.py"
WHAT = ("leases", "stall", "save", "slow")


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each run."""
    parser = argparse.ArgumentParser(prog="scripts/bench data", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(WHAT)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="of each (default 3)")
    options = parser.parse_args(arguments)
    if unknown := set(options.what) - set(WHAT):
        parser.error(f"{min(unknown)} is not measured; choose of {', '.join(WHAT)}")
    wanted = options.what or WHAT
    if "leases" in wanted:
        _print("leases/s of both", [sum(it["rate"] for it in job("leases")) for _ in range(options.runs)], 0)
    if "stall" in wanted:
        for way in ("shared", "own"):
            found = [it for _ in range(options.runs) for it in job("stall", way)]
            for name in ("p50", "p99"):
                _print(f"wait for a batch, {way} ledger, {name}, ms", [1e3 * it[name] for it in found], 3)
    if "save" in wanted:
        found = [it for _ in range(options.runs) for it in job("save")]
        for name in ("p50", "p99"):
            _print(f"state of both ranks, {name}, ms", [1e3 * it[name] for it in found], 3)
    if "slow" in wanted:
        slow(options.runs)
    return 0


def slow(runs: int) -> None:
    """An epoch with a slow worker, in turns."""
    times: dict[str, list[float]] = {"shared": [], "halves": []}
    for _ in range(runs):
        for way, found in times.items():
            found.append(max(it["seconds"] for it in job("slow", way)))
    for way, found in times.items():
        _print(f"epoch with one worker at 25 %, {way}, s", found, 2)


def job(*what: str) -> list[dict[str, Any]]:
    """What the workers of a job of two nodes print."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node = (sys.executable, "-m", "elasticrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=bench")
    end = (f"--rdzv-endpoint=127.0.0.1:{port}", "--health-check=off", str(WORKER), *what)
    nodes = [subprocess.Popen([*node, *end], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [it.communicate()[0] for it in nodes]
    failed = [it.returncode for it in nodes if it.returncode]
    if failed:
        raise RuntimeError(f"a node ended with {failed[0]}")
    return [json.loads(line) for text in printed for line in text.splitlines() if line.startswith("{")]


def _print(name: str, found: Sequence[float], digits: int) -> None:
    least, most = min(found), max(found)
    middle = statistics.median(found)
    print(
        f"{name:48} median {middle:.{digits}f}  n {len(found)}  from {least:.{digits}f} to {most:.{digits}f}",
        flush=True,
    )
