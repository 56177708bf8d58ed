"""How a program ends that wants no teardown after an error, or a save: real processes, no tensorflow."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE

#: What a teardown would destroy, a thread that still works, and what was registered, printed and written.
SCRIPT = """
import atexit, os, sys, threading
from elasticrun.tf.ending import SavedExit, end_at_once_on_errors

class Runtime:
    def __del__(self, write=os.write):
        write(1, b"torn down\\n")

sys.modules["runtime"] = Runtime()
kept = open(sys.argv[1], "w")
kept.write("written")
go = threading.Event()
threading.Thread(target=lambda: (go.wait(), print("thread done"))).start()
atexit.register(print, "registered before")
end_at_once_on_errors()
atexit.register(print, "registered after")
print("printed")
go.set()
"""
ORDERLY = ["printed", "registered after", "registered before", "thread done"]
FATAL = "raise RuntimeError('a ps is lost')"
CAUGHT = """
try:
    raise RuntimeError('a ps is lost')
except RuntimeError:
    sys.excepthook(*sys.exc_info())
"""
#: A hook of the user's own, as error trackers have one, which calls the one before.
TRACKED = """
before = sys.excepthook
sys.excepthook = lambda *error: before(*error)
"""
#: An error in a thread of C or C++, as tensorflow has many: no frame is below, but the program goes on.
FOREIGN = """
import ctypes, _thread
over = threading.Event()
calls = map(ctypes.pythonapi.PyRun_SimpleString, [b"raise RuntimeError('a ps is lost')", b"over.set()"])
_thread.start_new_thread(list, (calls,))
over.wait(10) or os._exit(3)
"""

#: What a program does as its chief leaves, and one that does not let it.
LEAVING = """
def train():
    try:
        raise SavedExit(42)
    finally:
        assert not isinstance(sys.exc_info()[1], Exception)
train()
"""
STAYING = """
try:
    raise SavedExit(42)
except SystemExit as end:
    assert end.code == 42
"""
#: A wrapper around programs that has statuses of its own.
REWORDED = """
try:
    raise SavedExit(42)
except SystemExit as end:
    end.code = 5
    raise
"""


@pytest.mark.parametrize(
    ("end", "status", "is_torn_down"),
    [
        (FATAL, 1, False),
        (f"end_at_once_on_errors()\n{FATAL}", 1, False),
        (f"{TRACKED}\n{FATAL}", 1, True),
        (CAUGHT, 0, True),
        (FOREIGN, 0, True),
        (f"os.environ['PYTHONINSPECT'] = '1'\n{FATAL}", 1, True),
        ("sys.exit(42)", 42, True),
        ("raise SavedExit(42)", 42, False),
        (LEAVING, 42, False),
        (STAYING, 0, True),
        (REWORDED, 5, False),
        ("raise KeyboardInterrupt", -signal.SIGINT, True),
        ("", 0, True),
    ],
    ids=[
        *("error", "asked twice", "hook of another", "caught", "foreign thread", "prompt"),
        *("exit", "saved", "saved in a function", "saved but goes on", "other status"),
        *("interrupt", "success"),
    ],
)
def test_only_the_end_by_an_error_or_a_save_spares_the_teardown(
    end: str, status: int, is_torn_down: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", f"{SCRIPT}\n{end}", str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "written"
    said = done.stdout.splitlines()
    assert sorted(set(said) - {"torn down"}) == ORDERLY
    assert done.returncode == status
    assert ("torn down" in said) is is_torn_down
    assert ("RuntimeError: a ps is lost" in done.stderr) is ("ps" in end)
