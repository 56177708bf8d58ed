"""Train the digits on two nodes of this box, kill a worker on the way, and show how the job goes on.

A node is one launcher; on this box there are two, so two workers make one world. Everything is driven
by what the launchers print. This process adopts every orphan of its launchers, so that it can tell at the
end whether anything is left, and stops it if so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import select
import shlex
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
NODES = ("A", "B")
#: In the first seconds the launchers still import torch's compiler beside the training, which keeps both
#: cores busy: a crash then costs the new workers' own import of it, a second or two. So it comes later.
KILL_AFTER_EPOCH = 60
EPOCHS = 80
#: What the script imports besides torch: half of the time until a new worker could go on.
SLOW_IMPORTS = "sklearn.datasets,sklearn.model_selection"
LEAST_ACCURACY = 0.97
DEADLINE = 240.0  # seconds for everything; usually it takes about 30
GRACE = 10.0  # seconds for processes to end by themselves
PR_SET_CHILD_SUBREAPER = 36

STARTED = re.compile(r"rank (\d+) of (\d+): pid (\d+) on \w+, (\d+) of \d+ epochs done before")
EPOCH = re.compile(r"epoch (\d+) loss")
ACCURACY = re.compile(r"test accuracy ([\d.]+)")


class DemoFailed(Exception):
    """The demo did not show what it promises; the text says why."""


def tell(text: str) -> None:
    """Print a line of the narrator."""
    print(f">>> {text}", flush=True)


def free_port() -> int:
    """A port of the loopback that nobody holds right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Story:
    """What has happened so far, read from the lines that the workers print."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}  # rank -> pid of its newest worker
        self.victim = 0
        self.killed_at = 0.0
        self.killed_after = 0  # epochs
        self.resumed_from: int | None = None
        self.accuracy: float | None = None

    def read(self, line: str) -> None:
        """Take in one line, and act if it is time to."""
        if match := STARTED.search(line):
            rank, _, pid, done = map(int, match.groups())
            self.pids[rank] = pid
            if self.victim and rank == 0:
                self.resumed_from = done
                seconds = time.monotonic() - self.killed_at
                tell(
                    f"{seconds:.1f} s after the crash both workers are back, with {done} epochs already done."
                )
        elif match := EPOCH.search(line):
            if int(match[1]) >= KILL_AFTER_EPOCH and not self.victim:
                self._kill(1, int(match[1]))
        elif match := ACCURACY.search(line):
            self.accuracy = float(match[1])

    def _kill(self, rank: int, epoch: int) -> None:
        self.victim, self.killed_at, self.killed_after = self.pids[rank], time.monotonic(), epoch
        tell(f"SIGKILL for the worker of rank {rank} (pid {self.victim}): a crash that it cannot handle.")
        os.kill(self.victim, signal.SIGKILL)

    def check(self) -> None:
        """Raise DemoFailed unless the job recovered and learned."""
        if not self.victim:
            raise DemoFailed("the training ended before a worker could be killed")
        if self.resumed_from is None or self.resumed_from < self.killed_after:
            raise DemoFailed(f"the workers did not go on after epoch {self.killed_after}")
        if self.accuracy is None or self.accuracy < LEAST_ACCURACY:
            raise DemoFailed(f"the test accuracy is {self.accuracy}, expected at least {LEAST_ACCURACY}")


async def launch(command: list[str]) -> Process:
    """Start one node: a launcher with a session of its own, as if it ran in its own terminal."""
    environ = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


async def watch(name: str, process: Process, story: Story) -> None:
    """Show what a node prints to its end; raises DemoFailed if its launcher failed."""
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        print(f"node {name} | {line}", flush=True)
        story.read(line)
    if status := await process.wait():
        raise DemoFailed(f"the launcher of node {name} ended with {status}")


@contextlib.asynccontextmanager
async def nodes(command: list[str]) -> AsyncIterator[dict[str, Process]]:
    """The launchers of all nodes; those that still run at the end are asked to stop, then made to."""
    running: dict[str, Process] = {}
    try:
        for name in NODES:
            running[name] = await launch(command)
        yield running
    finally:
        for process in running.values():
            await stop(process)


async def stop(process: Process) -> None:
    """End one launcher."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            process.send_signal(signum)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE)


def children() -> Iterator[int]:
    """The child processes of this one, adopted ones included."""
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def leftovers() -> list[int]:
    """Wait for all processes to end; kills and returns those that do not within GRACE."""
    deadline, left = time.monotonic() + GRACE, []
    while pids := list(children()):
        for pid in pids:
            watched = os.pidfd_open(pid)
            ended = select.poll()
            ended.register(watched, select.POLLIN)
            if not ended.poll(max(0.0, deadline - time.monotonic()) * 1000):
                left.append(pid)
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(watched)
    return left


async def show(command: list[str]) -> None:
    """Run the job and tell its story."""
    story = Story()
    async with nodes(command) as running:
        watches = [watch(name, process, story) for name, process in running.items()]
        try:
            await asyncio.wait_for(asyncio.gather(*watches), DEADLINE)
        except asyncio.TimeoutError:
            raise DemoFailed(f"the job was not done within {DEADLINE:.0f} s") from None
    story.check()
    tell(f"Both nodes ended well: test accuracy {story.accuracy:.3f} on images that were held out.")


def show_errors(folder: Path) -> None:
    """Print the last lines of stderr of the workers."""
    for path in sorted(folder.rglob("stderr.log")):
        if text := path.read_text(errors="replace").strip():
            tell(f"{path.relative_to(folder)} ends with:")
            print("\n".join(text.splitlines()[-15:]))


def run(launcher: str) -> None:
    """Run the demo; raises DemoFailed if it does not show what it should."""
    with tempfile.TemporaryDirectory(prefix="elasticrun-demo-") as name:
        # The survivor of a crash complains about its lost peer; that goes to log files to keep this readable.
        options = (
            f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()} --max-restarts 3 "
            f"--redirects 2 --log-dir {name} "
        )
        if Path(launcher).name == "elastic-run":
            options += f"--warm-import {SLOW_IMPORTS} "
        options += f"examples/torch/digits.py --epochs {EPOCHS}"
        tell("Two nodes on this box train a small net on handwritten digits. On each of them somebody typed:")
        tell(f"{Path(launcher).name} {options}")
        try:
            asyncio.run(show([launcher, *shlex.split(options)]))
        except DemoFailed:
            show_errors(Path(name))
            raise
        finally:
            left = leftovers()
        if left:
            raise DemoFailed(f"processes were left running: {left}")
    tell("No process and no file is left behind.")


def main() -> int:
    """0 if the demo showed what it should."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    launcher = sys.argv[1] if len(sys.argv) > 1 else str(Path(sys.executable).with_name("elastic-run"))
    try:
        run(launcher)
    except DemoFailed as problem:
        print(f"scripts/demo: {problem}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
