"""One run of one launcher: its nodes, what their workers report, and a cleanup that leaves nothing running.

Workers write one line of JSON per event into a FIFO, each with its own stamp of the monotonic clock, which
all processes of a machine share; so it does not matter when a line is read here. A line is shorter than
PIPE_BUF, so lines of several workers never mix. The FIFO is the run's own: what a worker of an earlier run
still writes is not read.

Everything is waited for with a deadline. A launcher that ends while it is waited for fails the run at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from scripts.benchmarks.launchers import LAUNCHERS, Launcher
from scripts.benchmarks.usage import cpu_seconds
from tests.support.launcher import FOREIGN
from tests.support.ports import free_port
from tests.support.processes import kill_all, kill_marked, listener, marked, undisturbed

WORKERS = Path(__file__).parent / "workers"
LINE = str(WORKERS / "line.py")
TRAIN = str(WORKERS / "train.py")
MIRRORED = str(WORKERS / "mirrored.py")
SERVED = str(WORKERS / "served.py")

MARK = "BENCH_NODE"
MARK_OF_ALL = "BENCH_RUNS"  # the folder of the runs of one measurement
TAIL = 40  # lines of each node's output that are kept of a run that failed

LOOK = 1.0  # seconds between two looks at what processes do
IDLE = 0.1  # cores; torchrun's polling takes less

_NAMED = 'echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'

T = TypeVar("T")


class RunFailed(Exception):
    """The launcher did not do what is measured; the reason in words, and what was measured all the same."""

    def __init__(self, reason: str, figures: dict[str, float] | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a worker."""

    what: str
    at: float  # seconds on the monotonic clock
    pid: int
    rank: int
    world: int = 0
    step: int = 0
    cluster: dict[str, list[str]] = field(default_factory=dict)  # by role; of a TensorFlow job
    copies: str = ""  # patterns of the directories for copies of its parameter servers
    sources: tuple[str, ...] = ()  # where the state of each parameter server is from


class Node:
    """One launcher with its output in a file."""

    def __init__(self, command: list[str], folder: Path, name: str, env: dict[str, str]) -> None:
        self.name = name
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self.log = folder / f"{name}.log"
        env = {**env, MARK: self.mark.partition("=")[2]}
        with self.log.open("wb") as log:
            self.begun = time.monotonic()
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> float:
        """SIGKILL everything of this node, as when its host loses power; returns when that was."""
        pids = marked(self.mark)
        at = time.monotonic()
        kill_all(pids)
        self.finish()
        return at

    def finish(self) -> None:
        """Kill what is left of it."""
        kill_marked(self.mark)
        self.process.wait()

    def close(self) -> None:
        self.finish()
        os.close(self.pidfd)

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL:]
        return "\n".join(f"{self.name}| {line}" for line in lines)


class Run:
    """One run; see the module. ``number`` counts the runs of one measurement from 0."""

    def __init__(self, launcher: Launcher, folder: Path, number: int) -> None:
        self.launcher = launcher
        self.folder = folder
        self.number = number
        self.events: list[Event] = []
        self.nodes: list[Node] = []
        self._started = 0
        self._port = free_port()
        self._rest = b""
        path = folder / "events"
        os.mkfifo(path)
        self._fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        temporary = folder / "tmp"
        temporary.mkdir()
        # The settings that tune one launcher must not reach the others.
        tuning = {name for it in LAUNCHERS.values() for name in it.env}
        ours = {
            name: value
            for name, value in os.environ.items()
            if name not in tuning and not FOREIGN.match(name)
        }
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            ours["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        self._env = {
            **ours,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(temporary),
            "BENCH_EVENTS": str(path),
            MARK_OF_ALL: str(folder.parent),
        }

    # -- its nodes

    @property
    def endpoint(self) -> str:
        """Where the job's nodes meet."""
        return f"127.0.0.1:{self._port}"

    def alone(self, *args: str) -> Node:
        """Start a launcher that is the only node of its job."""
        return self._start("--standalone", *args)

    def node(self, nnodes: str, *args: str, host: str = "") -> Node:
        """Start one of several launchers on this machine that share a job.

        ``host``: a host name of its own, which needs root. Hosts keep copies for others only.
        """
        place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "bench")
        return self._start("--nnodes", nnodes, *place, "--local-addr", "127.0.0.1", *args, host=host)

    def _start(self, *args: str, host: str = "") -> Node:
        env = {**self._env, **self.launcher.env}
        command = self.launcher.command(*args)
        if host:
            command = ["unshare", "--uts", "sh", "-ec", _NAMED, "sh", host, *command]
            env["GLOO_SOCKET_IFNAME"] = "lo"  # nobody knows the address of such a name
        with undisturbed():  # a child has no mark, and would be left, before its exec
            node = Node(command, self.folder, f"node{self._started}", env)
            self._started += 1
            self.nodes.append(node)
        return node

    def guests(self) -> list[Node]:
        """The nodes that do not host the rendezvous."""
        host = listener(self._port)
        return [node for node in self.nodes if host not in marked(node.mark)]

    def lose(self, node: Node) -> float:
        """SIGKILL a node; returns when that was."""
        self.nodes.remove(node)
        try:
            return node.kill()
        finally:
            node.close()

    def kill(self, pid: int) -> float:
        """SIGKILL one worker; returns when that was."""
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return at

    def kill_newest(self, node: Node, rank: int) -> None:
        """SIGKILL the worker of a rank that began last, unless it is gone already."""
        pid = [event.pid for event in self.events if event.what == "line" and event.rank == rank][-1]
        if pid in marked(node.mark):
            self.kill(pid)

    def close(self) -> None:
        """Leave nothing of this run but its folder."""
        with contextlib.ExitStack() as stack:  # an error in one does not spare the others
            stack.callback(os.close, self._fifo)
            for node in self.nodes:
                stack.callback(node.close)

    def story(self) -> str:
        return "\n".join(node.tail() for node in self.nodes)

    # -- what is waited for

    def wait(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        """Check a condition after each event, until it gives something; returns that."""
        until = time.monotonic() + seconds
        while True:
            if (found := condition()) is not None:
                return found
            if (ended := self._read(until)) is not None:
                raise RunFailed(f"{ended.name} ended with {ended.process.wait()} before {what}")
            if time.monotonic() >= until and condition() is None:
                raise RunFailed(f"no {what} within {seconds:g} s")

    def collect(self, until: float) -> None:
        """Read events until a moment on the monotonic clock."""
        while time.monotonic() < until:
            if (ended := self._read(until)) is not None:
                raise RunFailed(f"{ended.name} ended with {ended.process.wait()}")

    def ended(self, node: Node, seconds: float) -> int:
        """The exit status of a launcher that ends by itself."""
        if not select.select([node.pidfd], [], [], seconds)[0]:
            raise RunFailed(f"{node.name} has not ended within {seconds:g} s")
        return node.process.wait()

    def _read(self, until: float) -> Node | None:
        """Wait for news until a moment, and take events in; else return a node that ended, if any."""
        by_pidfd = {node.pidfd: node for node in self.nodes}
        left = max(0.0, until - time.monotonic())
        ready = select.select([self._fifo, *by_pidfd], [], [], left)[0]
        if self._fifo in ready:
            *lines, self._rest = (self._rest + os.read(self._fifo, 2**16)).split(b"\n")
            self.events += [Event(**json.loads(line)) for line in lines]
            return None
        return by_pidfd[ready[0]] if ready else None

    # -- what is waited for most often

    def all_of(self, what: str, world: int, seconds: float, after: float = 0.0) -> list[Event]:
        """The first such event of each rank's newest process in a world, if that began after a moment."""

        def found() -> list[Event] | None:
            begun = {e.pid for e in self.events if e.what == "line" and e.at > after}
            last: dict[int, Event] = {}
            for event in self.events:
                is_wanted = event.what == what and event.world == world and event.at > after
                if is_wanted and event.pid in begun:
                    known = last.get(event.rank)
                    if known is None or known.pid != event.pid:
                        last[event.rank] = event
            return [last[rank] for rank in sorted(last)] if len(last) == world else None

        return self.wait(found, seconds, f"{what} of {world} workers")

    def steps(self, workers: list[Event], number: int, seconds: float) -> None:
        """Return once each of these workers has made step ``number``."""
        pids = {worker.pid for worker in workers}

        def found() -> bool | None:
            there = {e.pid for e in self.events if e.what == "step" and e.step >= number and e.pid in pids}
            return True if there == pids else None

        self.wait(found, seconds, f"step {number} of {len(pids)} workers")

    def quiet(self, seconds: float, but: Collection[int] = ()) -> None:
        """Return once the launchers and their helper processes do next to nothing.

        ``but`` are pids of workers that report nothing.
        """
        until = time.monotonic() + seconds
        before = self._busy(but)
        while time.monotonic() < until:
            self.collect(time.monotonic() + LOOK)
            after = self._busy(but)
            used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
            if used < IDLE * LOOK and before.keys() == after.keys():
                return
            before = after
        raise RunFailed(f"no quiet within {seconds:g} s")

    def _busy(self, but: Collection[int]) -> dict[int, float]:
        """Seconds of CPU time that each process but the workers has used so far."""
        found = {}
        workers = {it.pid for it in self.events} | set(but)
        for pid in {pid for node in self.nodes for pid in marked(node.mark)} - workers:
            with contextlib.suppress(OSError):  # it has just ended
                found[pid] = cpu_seconds(pid)
        return found


@contextlib.contextmanager
def opened(launcher: Launcher, folder: Path, number: int) -> Iterator[Run]:
    """A run that is closed in the end, whatever happens."""
    run = Run(launcher, folder, number)
    try:
        yield run
    finally:
        with undisturbed():  # a second signal must not leave half of it
            run.close()
