"""A worker that saves its state when it is asked to go, in the way that is given.

    saver.py FOLDER on_drain|ask

It makes steps until it is asked, then takes a while, writes ``<round>-<rank>`` with the last step, and ends
with 0. In round 1 and later it ends well at once. It does nothing about signals, so one would kill it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import elasticrun

STEP = 0.02  # seconds
SAVING = 1.0


def main() -> None:
    round_, rank = int(os.environ["ELASTICRUN_ROUND"]), os.environ["RANK"]
    file = Path(sys.argv[1]) / f"{round_}-{rank}"
    steps = 0

    def save() -> None:
        threading.Event().wait(SAVING)
        file.write_text(str(steps))
        sys.exit(0)

    if sys.argv[2] == "on_drain":
        elasticrun.on_drain(save)
    elasticrun.drain_requested()
    sys.stdout.write("training\n")  # in one piece, as others write there as well
    while round_ == 0:
        threading.Event().wait(STEP)
        steps += 1
        elasticrun.report_step(steps)
        if sys.argv[2] == "ask" and elasticrun.drain_requested():
            save()


if __name__ == "__main__":
    main()
