"""How long a real master needs for many agents: the first world, and the next one after the loss of a node.

The master is the process that ``elastic-run`` starts. The agents live in a few load processes (``load.py``);
the node that is lost has one of its own, which is killed. Times are from the first connection, or the kill,
to the moment at which the last agent has its assignment. Nodes are not checked first, as a check takes the
nodes' time, not the master's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elasticrun.config import JobConfig, SecurityConfig
from elasticrun.master.service import JOURNAL_NAME, MasterConfig
from elasticrun.rpc.records import to_json
from scripts.benchmarks.load import LoadConfig
from scripts.benchmarks.usage import cpu_seconds

ROOT = Path(__file__).parent.parent.parent
HOST = "127.0.0.1"
DEADLINE = 120.0  # seconds for a world
CURVE = (250, 500, 1000, 2000)
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run showed; times in seconds, memory in bytes."""

    agents: int
    first_world: float
    first_world_cpu: float  # of the master
    first_world_clients_cpu: float  # of all load processes together
    new_world: float
    new_world_cpu: float
    new_world_clients_cpu: float
    memory_idle: int  # of the master before anybody came
    memory: int  # in the end
    events: int
    journal_writes: int
    load: float  # of the machine before, for one minute


class BenchError(Exception):
    """The measurement went wrong."""


class Process:
    """A child that takes its settings in JSON, and answers in lines of JSON."""

    def __init__(self, command: Sequence[str], settings: object) -> None:
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self.say(json.dumps(settings))

    def say(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line.encode() + b"\n")
        self.child.stdin.flush()

    def hear(self, key: str) -> dict[str, Any]:
        """The next answer that has the key; raises BenchError if there is none."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            told: dict[str, Any] = json.loads(line)
            if key in told:
                return told
            if "broken" in told:
                raise BenchError(told["broken"])
        raise BenchError(f"{self.child.args!r} ended before it told its {key!r}")

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        return cpu_seconds(self.child.pid)

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * PAGE

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


def measure(agents: int, loads: int, client: str, token: str | None = None) -> Figures:
    """Measure one master: its first world of ``agents`` nodes, and the next one after the loss of a node."""
    before = os.getloadavg()[0]
    job = JobConfig("bench", min_nodes=agents - 1, max_nodes=agents, last_call_timeout=600.0)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        settings = to_json(MasterConfig(job, HOST, 0, folder, security=SecurityConfig(token)))
        master = _started(held, [sys.executable, "-m", "elasticrun.cli.master"], settings)
        port = master.hear("port")["port"]
        swarms = [
            _started(held, [sys.executable, "-m", "scripts.benchmarks.load"], asdict(config))
            for config in _shares(agents, loads, port, client, token)
        ]
        for swarm in swarms:
            swarm.hear("ready")
        idle, first = master.memory(), _Stage(master, swarms)
        for swarm in swarms:
            swarm.say("connect")
        began = min(swarm.hear("began")["began"] for swarm in swarms)
        formed = _world(swarms, 0, agents)
        first.end()
        victim, *others = swarms
        second = _Stage(master, others)
        killed = time.monotonic()
        victim.kill()
        formed_anew = _world(others, 1, agents - 1)
        second.end()
        lines = (Path(folder) / JOURNAL_NAME).read_bytes().split(b"\n")[1:-1]  # the last may be half written
        return Figures(
            agents=agents,
            first_world=formed - began,
            first_world_cpu=first.master,
            first_world_clients_cpu=first.clients,
            new_world=formed_anew - killed,
            new_world_cpu=second.master,
            new_world_clients_cpu=second.clients,
            memory_idle=idle,
            memory=master.memory(),
            events=len(lines),
            journal_writes=_writes(lines),
            load=before,
        )


class _Stage:
    """Processor time from now to ``end``."""

    def __init__(self, master: Process, swarms: Sequence[Process]) -> None:
        self._master, self._swarms = master, swarms
        self.master, self.clients = -master.cpu(), -sum(swarm.cpu() for swarm in swarms)

    def end(self) -> None:
        self.master += self._master.cpu()
        self.clients += sum(swarm.cpu() for swarm in self._swarms)


def _started(held: contextlib.ExitStack, command: Sequence[str], settings: object) -> Process:
    process = Process(command, settings)
    held.callback(process.end)
    return process


def _shares(agents: int, loads: int, port: int, client: str, token: str | None) -> Iterator[LoadConfig]:
    """The first process has the one node that will be lost, the others have shares of the rest."""
    yield LoadConfig(HOST, port, "bench", 0, 1, client, token)
    share, more = divmod(agents - 1, loads)
    first = 1
    for index in range(loads):
        count = share + (index < more)
        if count:
            yield LoadConfig(HOST, port, "bench", first, count, client, token)
        first += count


def _world(swarms: Sequence[Process], number: int, size: int) -> float:
    """When the last agent had its place in a world of ``size``; every rank must have been given once."""
    told = _hear_all(swarms)
    ranks = sorted(rank for each in told for rank in each["ranks"])
    if {each["round"] for each in told} != {number} or ranks != list(range(size)):
        raise BenchError(f"round {number} should have the ranks 0 to {size - 1}: {told!r:.500}")
    return max(float(each["at"]) for each in told)


def _hear_all(swarms: Sequence[Process]) -> list[dict[str, Any]]:
    """What each process tells of its next world; raises if one cannot."""
    pool = ThreadPoolExecutor(len(swarms))
    waiting = [pool.submit(swarm.hear, "round") for swarm in swarms]
    done, missing = wait(waiting, DEADLINE, return_when=FIRST_EXCEPTION)
    pool.shutdown(wait=False)  # threads that are left end with the processes
    told = {each: each.result() for each in done}
    if missing:
        raise BenchError(f"there was no world within {DEADLINE:g} s")
    return [told[each] for each in waiting]


def _writes(lines: Sequence[bytes]) -> int:
    """The number of writes to the journal: all events of one write have the same time."""
    times = [json.loads(line)["at"] for line in lines]
    return sum(before != after for before, after in zip([None, *times], times, strict=False))


def _median(runs: Sequence[Figures], what: Callable[[Figures], float]) -> float:
    return statistics.median(map(what, runs))


def table(runs: Sequence[Figures]) -> str:
    """One Markdown row for each number of agents, with medians."""
    rows = [
        "| agents | runs | first world s (worst) | its CPU s: master, clients | new world s (worst)"
        " | its CPU s: master, clients | master MB, idle | events, journal writes | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for agents in sorted({run.agents for run in runs}):
        some = [run for run in runs if run.agents == agents]
        rows.append(
            f"| {agents} | {len(some)}"
            f" | {_median(some, lambda r: r.first_world):.2f} ({max(r.first_world for r in some):.2f})"
            f" | {_median(some, lambda r: r.first_world_cpu):.2f},"
            f" {_median(some, lambda r: r.first_world_clients_cpu):.2f}"
            f" | {_median(some, lambda r: r.new_world):.2f} ({max(r.new_world for r in some):.2f})"
            f" | {_median(some, lambda r: r.new_world_cpu):.2f},"
            f" {_median(some, lambda r: r.new_world_clients_cpu):.2f}"
            f" | {_median(some, lambda r: r.memory) / 1e6:.0f},"
            f" {_median(some, lambda r: r.memory_idle) / 1e6:.0f}"
            f" | {_median(some, lambda r: r.events):.0f}, {_median(some, lambda r: r.journal_writes):.0f}"
            f" | {_median(some, lambda r: r.load):.1f} |"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see --help."""
    options = _parser().parse_args(arguments)
    _raise_limit_of_descriptors()
    sizes = CURVE if options.curve else (options.agents,)
    token = secrets.token_hex(32) if options.token else None
    runs = []
    for _ in range(options.runs):
        for agents in sizes:
            runs.append(measure(agents, options.loads, options.client, token))
            print(json.dumps(asdict(runs[-1])), file=sys.stderr, flush=True)
    print(table(runs))
    clients = f"{options.client}, with a token" if token else options.client
    print(f"\nmaster and {options.loads} load processes on {os.cpu_count()} cores; clients: {clients}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench master", description=__doc__)
    parser.add_argument("--agents", type=int, default=2000, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--curve", action="store_true", help=f"measure {CURVE} agents instead")
    parser.add_argument("--loads", type=int, default=2, metavar="N", help="load processes")
    parser.add_argument(
        "--client",
        choices=("lean", "grpc"),
        default="lean",
        help="what the agents speak with: as little HTTP/2 as will do, which leaves the cores to the master,"
        " or the client of elastic-run (default: %(default)s)",
    )
    parser.add_argument("--token", action="store_true", help="of a job with a token: every frame has a MAC")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there as well")
    return parser


def _raise_limit_of_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
