"""Compute pi by throwing darts on every worker, and lose a worker on the way; needs nothing but Python.

Each worker saves its state after every step. In the first round, worker 1 kills itself in the middle. The
launcher starts all workers again in place, and each goes on from its last step.

    elastic-run --standalone --nproc-per-node 2 --max-restarts 3 examples/pi.py
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

STEPS, DARTS = 10, 50_000
KILLED_AFTER = 5


def state_file(rank: str) -> Path:
    """A file in the folder that the launcher has made for this run, which restarts do not change."""
    folder = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"pi-{rank}.json"


def throw(darts: int) -> int:
    """How many of so many darts at a square hit the circle in it."""
    return sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(darts))


def main() -> None:
    """Go on from the last step that was saved."""
    if "RANK" not in os.environ:
        sys.exit(f"start me with a launcher, for example: elastic-run --nproc-per-node 2 {sys.argv[0]}")
    rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    file = state_file(rank)
    step, hits, saved_at = json.loads(file.read_text()) if file.exists() else (0, 0, 0.0)
    if step:
        print(f"worker {rank} is back: step {step} was saved {time.time() - saved_at:.2f} s ago", flush=True)
    while step < STEPS:
        hits += throw(DARTS)
        step += 1
        partial = file.with_suffix(".new")
        partial.write_text(json.dumps((step, hits, time.time())))
        partial.replace(file)
        print(f"worker {rank}, step {step} of {STEPS}: pi is about {4 * hits / step / DARTS:.4f}", flush=True)
        if (rank, restarts, step) == ("1", "0", KILLED_AFTER):
            print(f"worker {rank} kills itself", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
