"""An observer gives way: it may share its host with the workers of the job that it shows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: How much lower than that of its parent its priority is.
NICE = 10
#: How readily the kernel kills it for its memory: more readily than anything else.
EXPENDABLE = 1000


def give_way_to_workers() -> None:
    """From now on this process has the CPU after them, and goes before them where memory is short."""
    os.nice(NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(EXPENDABLE))
