"""Timers of gRPC's threads may be late; those of this process, and of what it starts, never are."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elasticrun.rpc.timer_slack import TIMER_SLACK, relax
from tests.support.launcher import ROOT

#: Without this capability a thread may only set its own slack.
SYS_NICE = 23
#: Attaches a stream, lets the time pass, and prints the slack of each thread by its name, and a child's.
ATTACH = """
import asyncio, json, os, subprocess
from elasticrun.rpc import timer_slack
from elasticrun.rpc.client import MasterStream
from tests.rpc.harness import hello, serving

def read(path):
    with open(path) as file:
        return file.read().strip()

def slack_of(tid):
    try:
        return int(read(f"/proc/{tid}/timerslack_ns"))
    except PermissionError:
        return None

async def main():
    relaxed, relax = asyncio.Event(), timer_slack.relax
    timer_slack.relax = lambda: (relax(), relaxed.set())
    async with serving() as (recorder, endpoint), await MasterStream.open(endpoint, hello(), 60.0):
        await relaxed.wait()
        child = subprocess.run(["cat", "/proc/self/timerslack_ns"], capture_output=True, check=True)
        threads = [
            (tid == str(os.getpid()), read(f"/proc/self/task/{tid}/comm"), slack_of(tid))
            for tid in os.listdir("/proc/self/task")
        ]
        print(json.dumps({"threads": threads, "child": int(child.stdout)}))

asyncio.run(main())
"""


def may_set_others() -> bool:
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> SYS_NICE & 1)


def attach(*prefix: str) -> tuple[set[int | None], list[int], int]:
    """The slacks of gRPC's pool, if one may see them, of the main thread, and of a child."""
    command = [*prefix, sys.executable, "-c", ATTACH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    pool = {slack for _, name, slack in told["threads"] if name in ("event_engine", "lifeguard")}
    return pool, [slack for is_main, _, slack in told["threads"] if is_main], told["child"]


def test_only_grpcs_threads_may_be_late() -> None:
    if not may_set_others():
        pytest.skip("needs CAP_SYS_NICE")
    exact = int(Path("/proc/self/timerslack_ns").read_text())
    assert attach() == ({int(TIMER_SLACK * 1e9)}, [exact], exact)


def test_without_the_capability_nothing_happens() -> None:
    exact = int(Path("/proc/self/timerslack_ns").read_text())
    if may_set_others() and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to drop CAP_SYS_NICE")
    drop = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice") if may_set_others() else ()
    assert attach(*drop) == ({None}, [exact], exact)


def test_a_thread_that_has_ended_keeps_no_other_from_being_late(tmp_path: Path) -> None:
    for tid, name in (
        ("1", None),
        ("2", "event_engine"),
        ("3", None),
        ("4", "event_engine"),
        ("5", "python"),
    ):
        (tmp_path / "self" / "task" / tid).mkdir(parents=True)
        (tmp_path / tid).mkdir()
        if name is not None:
            (tmp_path / "self" / "task" / tid / "comm").write_text(f"{name}\n")
    relax(tmp_path)
    assert sorted(path.parent.name for path in tmp_path.glob("*/timerslack_ns")) == ["2", "4"]
    relax(tmp_path / "nothing")


def test_a_process_without_descriptors_keeps_its_timers() -> None:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        relax()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
