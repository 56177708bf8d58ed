"""What the processes below a worker leave behind in /proc, on real processes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from elasticrun.agent.monitors.footprint import FootprintReader
from elasticrun.core.progress.activity import Footprint, activity
from tests.support.processes import DEADLINE

#: A worker that does what it is told, line by line, and says when it has.
WORKER = """
import os, subprocess, sys, time
for line in iter(sys.stdin.buffer.raw.readline, b""):
    exec(line)
    os.write(1, b".")
"""
Seen = Callable[[Footprint], bool]


class Worker:
    """One worker, told what to do through a socket, so that its descriptor 0 is not what it waits for."""

    def __init__(self, code: str = WORKER, stdin: int = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, start_new_session=True
        )

    def do(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.read(1) == b"."

    def footprint(self) -> Footprint:
        return FootprintReader().read({0: self.process.pid})[0]

    def wait_for(self, seen: Seen) -> Footprint:
        """Its footprint once the kernel shows that."""
        for _ in range(round(DEADLINE / 0.01)):
            found = self.footprint()
            if seen(found):
                return found
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
        raise AssertionError(f"this is all that is seen: {found}")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    worker.do("pass")
    yield worker
    worker.close()


WORK = {
    "uses CPU time": "t = time.process_time() + 0.5\nwhile time.process_time() < t: pass",
    "reads or writes": "open('/dev/null', 'wb').write(bytes(1 << 20))",
    "has started or ended processes": "subprocess.Popen(['sleep', '600'])",
}


@pytest.mark.parametrize("why", WORK)
def test_work_is_seen(worker: Worker, why: str) -> None:
    before = replace(worker.footprint(), is_running=False)
    code = WORK[why]
    worker.do(f"exec({code!r})")
    after = replace(worker.footprint(), is_running=False, at=before.at + 5.0)
    assert activity(before, after) == why


def test_a_child_that_was_waited_for_counts_with_its_parent(worker: Worker) -> None:
    before = worker.footprint()
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    worker.do(f"subprocess.run([sys.executable, '-c', {burn!r}])")
    after = worker.footprint()
    assert after.cpu >= before.cpu + 0.4, "in ticks, and some went to its start"
    assert after.processes == before.processes


def first_arguments(found: Footprint) -> set[bytes]:
    """A process that was only forked so far still has its parent's."""
    words = set()
    for pid, _ in found.processes:
        with suppress(OSError):  # it has just ended
            words.update(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2])  # in exec, none
    return words


def test_descendants_in_other_sessions_and_orphans_of_this_one_are_below_a_worker(worker: Worker) -> None:
    worker.do("subprocess.Popen(['sleep', '601'], start_new_session=True)")
    worker.do("subprocess.run(['sh', '-c', 'sleep 602 &'])")
    found = worker.wait_for(lambda found: first_arguments(found) == {b"-c", b"601", b"602"})
    for pid, _ in found.processes:
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_a_signal_has_stopped_is_seen(worker: Worker) -> None:
    assert not worker.footprint().is_stopped
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.wait_for(lambda found: found.is_stopped)
    os.kill(worker.process.pid, signal.SIGCONT)


def test_a_debugger_is_seen(worker: Worker) -> None:
    """A process that attaches as gdb does; the kernel has to allow that."""
    code = (
        "import ctypes, os, sys\n"
        f"if ctypes.CDLL(None).ptrace(16, {worker.process.pid}, None, None): sys.exit('not allowed')\n"
        f"os.waitpid({worker.process.pid}, 0x40000000)\n"
        "print('attached', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as debugger:
        assert debugger.stdout is not None
        if debugger.stdout.readline() != b"attached\n":
            pytest.skip("this kernel lets nobody attach to another process")
        assert worker.footprint().is_traced
        debugger.communicate(b"\n")
    worker.wait_for(lambda found: not found.is_traced)


@pytest.mark.parametrize("code", ["input()", "import os; os.read(0, 1)", "import sys; sys.stdin.readline()"])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_waits_for_a_line_is_seen(code: str, is_terminal: bool) -> None:
    ours, theirs = pty.openpty() if is_terminal else os.pipe()[::-1]
    asked = Worker(f"import readline\n{code}", stdin=theirs)
    other = Worker("import signal; signal.pause()")
    try:
        if not _shows_calls(asked.process.pid):
            pytest.skip("this kernel shows nobody the system call of another process")
        asked.wait_for(lambda found: found.reads_stdin)
        assert not other.footprint().reads_stdin
    finally:
        os.close(ours)
        os.close(theirs)
        asked.close()
        other.close()


def test_a_program_that_reads_from_a_worker_waits_for_no_line(worker: Worker) -> None:
    worker.do("child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)")
    worker.do("child.stdin.write(b'x'); child.stdin.flush()")
    busy = worker.process
    assert busy.stdin is not None
    busy.stdin.write(b"import signal; signal.pause()\n")
    busy.stdin.flush()
    worker.wait_for(lambda found: not found.reads_stdin)


def _shows_calls(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/syscall").read_text()
    except OSError:
        return False
    return True


def test_an_accelerator_is_seen_by_its_file(tmp_path: Path) -> None:
    """A host without one has to pretend."""
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "stat").write_text(f"7 (a) b) S 1 7 7 {'0 ' * 15}99 0")
    (process / "fd" / "0").symlink_to("/dev/null")
    reader = FootprintReader(str(tmp_path))
    found = reader.read({0: 7})[0]
    assert (found.has_device, found.processes, found.io) == (False, frozenset({(7, 99)}), 0)
    (process / "fd" / "1").symlink_to("/dev/nvidia0")
    assert reader.read({0: 7})[0].has_device


def test_who_is_gone_leaves_no_footprint() -> None:
    assert FootprintReader().read({}) == {}
    assert FootprintReader().read({0: 2**22 + 1}) == {}
    assert FootprintReader("/nowhere").read({0: 1}) == {}
