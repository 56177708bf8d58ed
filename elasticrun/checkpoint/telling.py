"""Tells this worker's agent what saves cost and what was restored, for the account of the job's time.

The reporter is there if the launcher has put it into this process, or the script uses ``elasticrun.worker``.
Otherwise nobody wants to know. None of it is worth a save: nothing raises.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

REPORTER = "elasticrun.worker.reporter"


def restored(step: int) -> None:
    """The state after this step is there; 0: there was none."""
    with contextlib.suppress(Exception):
        if (reporter := _reporter()) is not None:
            reporter.restored(step)


def saved(step: int, seconds: float) -> None:
    """A save has held up the caller. ``step``: the number of steps done."""
    with contextlib.suppress(Exception):
        if (reporter := _reporter()) is not None:
            reporter.saved(step, int(seconds * 1e9))


def held_up(seconds: float) -> None:
    """A step has waited for the save before it."""
    with contextlib.suppress(Exception):
        if (reporter := _reporter()) is not None:
            reporter.stalled(int(seconds * 1e9))


def _reporter() -> Any:
    """What this process reports with; None: it does not."""
    module: Any = sys.modules.get(REPORTER)
    return None if module is None else module.current()
