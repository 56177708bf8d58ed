"""Finding the processes of one launch by a variable that all of them inherit, and waiting for their end.

A launch is marked by an environment variable of its own. It survives double forks, new sessions and new
parents, so whatever carries it was started by that launch, and nothing else is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Seconds; only a hang takes that long, however busy the machine is.
DEADLINE = 60.0
#: The same for what imports torch, which takes minutes from a cold disk; less than pytest's own limit.
TORCH_DEADLINE = 250.0


class Hung(AssertionError):
    """What was waited for did not happen before the deadline."""


def marked(mark: str) -> list[int]:
    """The pids whose environment has ``mark``, NAME=VALUE; those that have ended, zombies too, have none."""
    needle = mark.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended, or belongs to another user
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return sorted(set(found) - {os.getpid()})


def title(pid: int) -> str:
    """What ``ps`` shows for a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
    except OSError:
        return ""


def titled(mark: str, beginning: str) -> list[int]:
    """The marked processes whose title begins so."""
    return [pid for pid in marked(mark) if title(pid).startswith(beginning)]


def only(pids: list[int]) -> int:
    """The one pid of a list that has to have one."""
    assert len(pids) == 1, [(pid, title(pid)) for pid in pids]
    return pids[0]


def is_alive(pid: int) -> bool:
    """Whether a process has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def listener(port: int) -> int:
    """The pid of the process that listens on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                return _owner(f"socket:[{fields[9]}]")
    raise AssertionError(f"nobody listens on port {port}")


_LISTENING = "0A"


def _owner(file: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and file in _open_files(entry / "fd"):
            return int(entry.name)
    raise AssertionError(f"nobody has {file} open")


def _open_files(folder: Path) -> set[str]:
    """What a process has open; what ends or is closed meanwhile is left out, as is what another user has."""
    found = set()
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                found.add(str(link.readlink()))
    return found


def wait_end(pid: int, deadline: float = DEADLINE) -> None:
    """Return once the process has ended; Hung if it does not."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if not poll.poll(max(0.0, deadline) * 1000):
            raise Hung(f"process {pid} ({title(pid)}) is still there after {deadline:g} s")
    finally:
        os.close(watched)


def nobody_left(mark: str, deadline: float = DEADLINE) -> None:
    """Return once nothing that carries ``mark`` is alive; Hung names what stays."""
    over = time.monotonic() + deadline
    while pids := marked(mark):
        try:
            wait_end(pids[0], over - time.monotonic())
        except Hung:
            left = [f"{pid} {title(pid)}" for pid in marked(mark)]
            raise Hung(f"processes are left: {left}") from None


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back what ends this program, or a test: it comes afterwards. Only the main thread is disturbed."""
    come: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            if callable(handler := signal.getsignal(signum)):
                handlers[signum] = handler
                signal.signal(signum, lambda number, frame: come.append(number))
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for held in come:
            signal.raise_signal(held)


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL all of them as if at one moment: none can see another one's end."""
    pids = list(pids)
    with undisturbed():  # else some could stay, stopped for good
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)


def kill_marked(mark: str) -> None:
    """SIGKILL everything that carries ``mark``, what it forks meanwhile included."""
    while pids := marked(mark):
        kill_all(pids)
        for pid in pids:
            wait_end(pid)
