"""An observer at work: whom it waits for, and what it needs."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import DEADLINE


def test_traces_alone_need_no_aiohttp() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; import elasticrun.observer.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
