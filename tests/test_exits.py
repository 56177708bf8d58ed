"""The end of a process without its teardown: what may not keep it from ending. Real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE

#: Three files: one that cannot be written out now, between two that can; and how that one is held.
SCRIPT = """
import os, socket, sys, threading
from elasticrun import exits

first = open(sys.argv[1] + "first", "w")
first.write("written")
here, there = socket.socketpair()
here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
stuck = here.makefile("wb")
last = open(sys.argv[1] + "last", "w")
last.write("written")
"""
#: A daemon thread waits in a write for a peer that is lost, as one of a server's may, and holds the file.
HELD = """
threading.Thread(target=stuck.write, args=(bytes(10**7),), daemon=True).start()
there.recv(1)
"""
#: Nobody reads what is in the buffer.
UNREAD = """
here.setblocking(False)
while True:
    try:
        here.send(bytes(4096))
    except BlockingIOError:
        break
here.setblocking(True)
stuck.write(b"1")
"""
THREADLESS = """
def refuse(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
"""


@pytest.mark.parametrize("stuck", [HELD, UNREAD, THREADLESS], ids=["held", "unread", "no threads"])
def test_a_file_that_cannot_be_written_out_keeps_neither_the_end_nor_others(
    stuck: str, tmp_path: Path
) -> None:
    end = "exits._PATIENCE = 1.0\nexits.leave(42)"
    command = [sys.executable, "-c", f"{SCRIPT}\n{stuck}\n{end}", f"{tmp_path}/"]
    assert subprocess.run(command, timeout=DEADLINE, check=False).returncode == 42
    for name in ("first", "last"):
        assert (tmp_path / name).read_text(encoding="utf-8") == "written"
