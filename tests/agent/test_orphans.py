"""Who is below an agent without its spawner: all of them are found, and only the spared one lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An agent of two children: one to be spared, and one that hides a grandchild behind a double fork in a
# session of its own. Whoever lives holds the pipe open.
AGENT = """
import os, subprocess, sys
from elasticrun.agent.spawner.orphans import adopt_orphans, kill_orphans
adopt_orphans()
read_end, write_end = os.pipe()
os.set_inheritable(write_end, True)
hold = "import sys, signal; print('up', flush=True); signal.pause()"
hide = f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', {hold!r}], start_new_session=True)"
wait = "; import signal; signal.pause()"
child = subprocess.Popen([sys.executable, "-c", hide + wait], pass_fds=[write_end], stdout=subprocess.PIPE)
child.stdout.readline()
spared = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
spared.stdout.readline()
os.close(write_end)
kill_orphans((spared.pid,))
assert read_end and child.stdout.read() == b"", "the hidden one has ended"
assert spared.poll() is None, "the spared one lives"
spared.kill()
spared.wait()
print("done")
"""


@pytest.mark.parametrize("hidden", ["child", "orphan"])
def test_only_the_spared_one_lives(hidden: str) -> None:
    """``child``: the parent of the hidden process lives as well; ``orphan``: it has ended before."""
    code = (
        AGENT if hidden == "child" else AGENT.replace('wait = "; import signal; signal.pause()"', 'wait = ""')
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
