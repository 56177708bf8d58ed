"""What an idle job costs: how often its processes wake up, and how long they run.

Two agents on this box, each with one worker that waits for ever; the node of the first hosts the master. A
wake-up is a voluntary context switch of any thread: it had nothing to do, waited, and ran again. The
bounds are for agent and master of that node together; spawners, warm parents and workers are shown as
well, and so is the other agent. Where strace is installed and may be used, it counts the system calls of
agent and master afterwards, as that slows them down.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.benchmarks.usage import cpu_seconds
from tests.support.launcher import Launcher
from tests.support.ports import free_port
from tests.support.processes import only, title, titled

#: For agent and master of one node together.
MOST_WAKEUPS = 20.0  # a second
MOST_CPU = 1.0  # percent of one core
WORKER = """\
import signal

print("idle", flush=True)
signal.pause()
"""
_CALL = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", re.MULTILINE)


class IdleError(Exception):
    """The job did not stay idle, so there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Count:
    """What a process has used since it began."""

    cpu: float  # seconds, of all threads that it ever had
    wakeups: dict[int, int]  # by thread


@dataclass(frozen=True, slots=True)
class Row:
    """What a process used while it was watched."""

    role: str
    pid: int
    threads: int
    cpu: float  # percent of one core
    wakeups: float  # a second


@dataclass(frozen=True, slots=True)
class Report:
    """One measurement; ``calls`` are strace's for agent and master of node 0, a second, or None."""

    seconds: float
    cores: int
    rows: tuple[Row, ...]
    agent_and_master: Row
    all_agents_and_master: Row
    calls: dict[str, float] | None
    why_no_calls: str

    @property
    def is_within_bounds(self) -> bool:
        """Whether agent and master of node 0 sleep as they should."""
        return self.agent_and_master.wakeups < MOST_WAKEUPS and self.agent_and_master.cpu < MOST_CPU


def count(pid: int) -> Count:
    """What a process has used so far."""
    return Count(cpu_seconds(pid), dict(_wakeups(pid)))


def counts(pids: Iterable[int]) -> dict[int, Count]:
    """What each process that is alive has used so far."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = count(pid)
    return found


def _wakeups(pid: int) -> Iterator[tuple[int, int]]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            found = re.search(
                r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.MULTILINE
            )
            if found is not None:
                yield int(task.name), int(found[1])


def compare(role: str, pid: int, before: Count, after: Count, seconds: float) -> Row:
    """What was used between two counts of a process, ``seconds`` apart."""
    wakeups = sum(number - before.wakeups.get(thread, 0) for thread, number in after.wakeups.items())
    cpu = (after.cpu - before.cpu) / seconds * 100
    return Row(role, pid, len(after.wakeups), cpu, wakeups / seconds)


def total(role: str, rows: Iterable[Row]) -> Row:
    """The sum of several processes."""
    rows = list(rows)
    return Row(
        role, 0, sum(it.threads for it in rows), sum(it.cpu for it in rows), sum(it.wakeups for it in rows)
    )


def calls_in(table: str) -> dict[str, int]:
    """The count of each system call in the summary that ``strace -c`` writes."""
    return {name: int(calls) for calls, name in _CALL.findall(table) if name != "total"}


def watch(pids: Sequence[int], seconds: float) -> None:
    """Let ``seconds`` pass; IdleError if one of the processes ends meanwhile."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for pid in pids:
            fd = os.pidfd_open(pid)
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        if poll.poll(seconds * 1000):
            raise IdleError("a process of the job ended while it was watched")


def trace(pids: Sequence[int], seconds: float, folder: Path) -> dict[str, float]:
    """System calls a second, of all threads of some processes. IdleError says why there is no number."""
    if shutil.which("strace") is None:
        raise IdleError("strace is not installed")
    found = folder / "strace"
    attach = [word for pid in pids for word in ("-p", str(pid))]
    command = ["strace", "-c", "-f", "-o", str(found), *attach]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = [process.stderr.readline() for _ in pids]  # one line for each, attached or not
            if not all("attached" in line for line in said):
                raise IdleError(f"strace may not watch: {said[0].strip()}")
            watch(pids, seconds)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
    return {name: number / seconds for name, number in calls_in(found.read_text()).items()}


def roles(launchers: Sequence[Launcher]) -> dict[int, str]:
    """What each process of the job is, agents and master first."""
    found = {launcher.pid: f"agent {number}" for number, launcher in enumerate(launchers)}
    for number, launcher in enumerate(launchers):
        found.update(dict.fromkeys(titled(launcher.mark, "elastic-run: master"), "master"))
        for pid in launcher.processes:
            found.setdefault(pid, _role_below(title(pid), number))
    return found


def _role_below(shown: str, node: int) -> str:
    for beginning, role in (("elastic-run: spawner", "spawner"), ("elastic-run: warm", "warm parent")):
        if shown.startswith(beginning):
            return f"{role} {node}"
    return f"worker {node}"


@contextlib.contextmanager
def idle_job(folder: Path, warm: bool) -> Iterator[list[Launcher]]:
    """Two launchers whose workers have begun to wait; the first one hosts the master."""
    script = folder / "idle.py"
    script.write_text(WORKER)
    options = (
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--health-check=off",
        f"--warm={'on' if warm else 'off'}",
        f"--log-dir={folder / 'logs'}",
    )
    launchers: list[Launcher] = []
    with contextlib.ExitStack() as stack:
        for number in range(2):
            launchers.append(Launcher(*options, script, cwd=folder, name=f"node{number}"))
            stack.callback(launchers[-1].finish)
        for launcher in launchers:
            launcher.wait_line("^idle$", "out")
        # Whichever was first to bind the port hosts the master.
        launchers.sort(key=lambda it: not titled(it.mark, "elastic-run: master"))
        yield launchers


def measure(seconds: float, settle: float, warm: bool) -> Report:
    """Start the job, let it come to rest for ``settle`` seconds, and watch it."""
    with tempfile.TemporaryDirectory(prefix="elasticrun-idle-") as name, idle_job(Path(name), warm) as job:
        agents = [launcher.pid for launcher in job]
        watch(agents, settle)
        named = roles(job)
        master = only([pid for pid, role in named.items() if role == "master"])
        before = counts(named)
        watch(agents, seconds)
        after = counts(before)  # a child that only helped a warm parent may have ended
        rows = {pid: compare(named[pid], pid, before[pid], after[pid], seconds) for pid in sorted(after)}
        calls, why = None, ""
        try:
            calls = trace((agents[0], master), seconds, Path(name))
        except IdleError as error:
            why = str(error)
    return Report(
        seconds,
        os.cpu_count() or 0,
        tuple(sorted(rows.values(), key=lambda row: (row.role != "master", row.role))),
        total("agent 0 and master", (rows[agents[0]], rows[master])),
        total("agents and master", (rows[pid] for pid in (*agents, master))),
        calls,
        why,
    )


def as_table(report: Report) -> str:
    """The report for a reader, in Markdown."""
    sums = (report.agent_and_master, report.all_agents_and_master)
    lines = ["| process | threads | wake-ups/s | CPU, % of a core |", "|---|---|---|---|"]
    for row in (*report.rows, *sums):
        lines.append(f"| {row.role} | {row.threads} | {row.wakeups:.1f} | {row.cpu:.2f} |")
    lines += ["", f"Watched for {report.seconds:g} s on {report.cores} cores."]
    if report.calls is None:
        lines.append(f"System calls were not counted: {report.why_no_calls}.")
    else:
        most = sorted(report.calls.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {rate:.1f}" for name, rate in most[:8])
        lines.append(f"System calls/s of agent 0 and master: {sum(report.calls.values()):.1f} ({shown}).")
    verdict = "within" if report.is_within_bounds else "NOT within"
    lines.append(
        f"Agent 0 and master are {verdict} the bounds:"
        f" fewer than {MOST_WAKEUPS:g} wake-ups/s and less than {MOST_CPU:g} % of a core."
    )
    return "\n".join(lines)


def as_json(report: Report) -> str:
    """The report for a program."""
    return json.dumps({**asdict(report), "is_within_bounds": report.is_within_bounds}, indent=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 if the job is within the bounds, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/bench idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to watch (default 30)")
    parser.add_argument(
        "--settle", type=float, default=15.0, help="seconds before that, to come to rest (default 15)"
    )
    parser.add_argument("--cold", action="store_true", help="without warm parents, even if torch is there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    warm = not options.cold and importlib.util.find_spec("torch") is not None
    try:
        report = measure(options.seconds, options.settle, warm)
    except IdleError as error:
        parser.exit(1, f"{error}\n")
    print(as_json(report) if options.json else as_table(report))
    return 0 if report.is_within_bounds else 1
