"""What it costs a job to be watched: the recovery from a killed worker, and the CPU time of its master, with
and without an observer that has 100 readers and is scraped each second.

One job of two nodes runs all the time; phases with and without follow one another, so both meet the same
machine. In each phase a worker is killed some times. Readers and scraper are processes of this machine too,
as in no real job, so they run only while nobody else wants the core (SCHED_IDLE). The observer shares it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticrun.agent.spawner.exec import PR_SET_PDEATHSIG, load_prctl
from scripts.benchmarks.launchers import LAUNCHERS, OURS
from scripts.benchmarks.run import TRAIN, Event, Run, opened
from scripts.benchmarks.usage import cpu_seconds, memory
from tests.support.ports import free_port
from tests.support.processes import titled

DEADLINE = 120.0
RESTARTS = ("--max-restarts", "1000", "--health-check", "off")
BETWEEN = 2.0  # seconds of training between two kills


@dataclass(frozen=True, slots=True)
class Phase:
    """What was measured in one phase."""

    is_watched: bool
    recoveries: tuple[float, ...]
    cores: float  # that the master used
    observer: float  # MB of the observer; 0: there was none


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line for each phase and two for all."""
    parser = argparse.ArgumentParser(prog="scripts/bench watch", description=__doc__)
    parser.add_argument("--phases", type=int, default=4, help="half of them watched (default 4)")
    parser.add_argument("--kills", type=int, default=8, help="in each phase (default 8)")
    parser.add_argument("--readers", type=int, default=100, help="of the page (default 100)")
    options = parser.parse_args(arguments)
    phases = []
    with (
        tempfile.TemporaryDirectory(prefix="elasticrun-bench-") as folder,
        opened(LAUNCHERS[OURS], Path(folder), 0) as run,
    ):
        nodes = [run.node("2", *RESTARTS, TRAIN) for _ in range(2)]
        newest = run.all_of("reduced", 2, DEADLINE)
        master = next(pid for node in nodes for pid in titled(node.mark, "elastic-run: master"))
        for number in range(options.phases):
            readers = options.readers if number % 2 else 0
            phase, newest = _phase(run, master, newest, readers, options.kills)
            phases.append(phase)
            print(_line(f"{number} {'watched' if phase.is_watched else 'alone'}", [phase]), flush=True)
    for is_watched in (False, True):
        of = [phase for phase in phases if phase.is_watched == is_watched]
        print(_line(f"all {'watched' if is_watched else 'alone'}", of))
    return 0


def _line(name: str, phases: Sequence[Phase]) -> str:
    times = [each for phase in phases for each in phase.recoveries]
    cores = statistics.mean(phase.cores for phase in phases)
    observer = max(phase.observer for phase in phases)
    return (
        f"{name:12} recovery median {statistics.median(times):.4f} s ({min(times):.4f} to {max(times):.4f},"
        f" n={len(times)}); master {100 * cores:.3f} % of a core"
        + (f"; observer {observer:.0f} MB" if observer else "")
    )


def _phase(run: Run, master: int, newest: list[Event], readers: int, kills: int) -> tuple[Phase, list[Event]]:
    recoveries = []
    with watched(master, readers) as observer:
        run.steps(newest, newest[0].step + 30, DEADLINE)
        began, used = time.monotonic(), cpu_seconds(master)
        for number in range(kills):
            killed = run.kill(newest[number % 2].pid)
            newest = run.all_of("reduced", 2, DEADLINE, after=killed)
            recoveries.append(max(event.at for event in newest) - killed)
            run.collect(time.monotonic() + BETWEEN)
        cores = (cpu_seconds(master) - used) / (time.monotonic() - began)
        held = memory(observer).rss if observer else 0.0
    return Phase(readers > 0, tuple(recoveries), cores, held), newest


@contextlib.contextmanager
def watched(master: int, readers: int) -> Iterator[int]:
    """An observer with so many readers and a scraper; its pid. Without readers there is none, and 0."""
    if not readers:
        yield 0
        return
    port = free_port()
    launcher = _parent(master)
    command = (
        sys.executable,
        "-m",
        "elasticrun.cli.ctl",
        "observe",
        "--web",
        f":{port}",
        "--pid",
        str(launcher),
    )
    reading = (sys.executable, "-m", "scripts.benchmarks.watch", str(port), str(readers))
    with saying("web page", command) as observer, saying("reading", reading):
        yield observer


@contextlib.contextmanager
def saying(words: str, command: Sequence[str]) -> Iterator[int]:
    """A child of the bench once it has said something; its pid. It ends with the block, or with the bench."""
    prctl = load_prctl()

    def die_with_bench() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_bench) as child:
        try:
            assert child.stdout is not None and words in child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


def _parent(pid: int) -> int:
    """The launcher of a master."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def crowd(port: int, readers: int) -> None:
    """Read the page's events so many times, and scrape each second, until killed."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    ready = 0
    all_ready = asyncio.Event()

    async def read() -> None:
        nonlocal ready
        stream, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while await stream.read(1 << 16):
            ready += not all_ready.is_set()
            if ready >= readers:
                all_ready.set()

    async def scrape() -> None:
        loop, tick = asyncio.get_running_loop(), asyncio.Event()
        while True:
            stream, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await stream.read()
            writer.close()
            tick.clear()
            loop.call_later(1.0, tick.set)
            await tick.wait()

    tasks = [asyncio.ensure_future(work) for work in (*(read() for _ in range(readers)), scrape())]
    await all_ready.wait()
    print("reading", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(crowd(int(sys.argv[1]), int(sys.argv[2])))
