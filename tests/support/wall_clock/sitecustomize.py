"""Puts the wall clock of every Python process ahead, or back, by what a file says at the moment.

Python imports this by itself when its folder is in PYTHONPATH. ELASTICRUN_TEST_CLOCK names the file, which
holds a number of seconds. Only what Python code reads by ``time`` is shifted: the kernel's wall clock belongs
to everybody on the machine, and no namespace has one of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_file = Path(os.environ["ELASTICRUN_TEST_CLOCK"])
_time, _time_ns, _clock_gettime = time.time, time.time_ns, time.clock_gettime


def _shift() -> float:
    return float(_file.read_text())


def _shifted_clock_gettime(clock: int) -> float:
    return _clock_gettime(clock) + (_shift() if clock == time.CLOCK_REALTIME else 0.0)


time.time = lambda: _time() + _shift()
time.time_ns = lambda: _time_ns() + int(_shift() * 1e9)
time.clock_gettime = _shifted_clock_gettime
