"""A master that is forked instead of executed: what it keeps of the agent, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from elasticrun.agent.master_host.process import MasterProcess

ROOT = Path(__file__).parent.parent.parent

#: Forks a master that tells what it sees. Nothing else may run in this process: it must have one thread.
SCRIPT = """
import asyncio, json, os, signal, socket, sys
from elasticrun.agent.spawner.descriptors import is_open
from elasticrun.agent.master_host.process import fork, may_fork

def main():
    settings = json.loads(os.read(0, 65536))
    answer = {
        "port": 1,
        "settings": settings,
        "leads": os.getsid(0) == os.getpid(),
        "files": sorted(int(name) for name in os.listdir("/proc/self/fd") if is_open(int(name))),
        "handlers": [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "wakeup": signal.set_wakeup_fd(-1),
        "word": os.read(settings["channel"], 100).decode() if settings["channel"] >= 0 else "",
    }
    os.write(1, json.dumps(answer).encode() + b"\\n")
    {end}

ours = socket.socketpair()
os.set_inheritable(ours[0].fileno(), True)
signal.signal(signal.SIGUSR1, lambda number, frame: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
{before}
ours[0].setblocking(False)
signal.set_wakeup_fd(ours[0].fileno())
assert may_fork()
process = fork(main, {"a": "setting"}, is_private={private})
if (channel := process.take_channel()) is not None:
    channel.send(b"over the channel")
answer = asyncio.run(process.hear())
process.let_go()
ended = asyncio.run(process.ended(60, asyncio.Event()))
process.close()
signal.set_wakeup_fd(-1)
for each in (*ours, *([channel] if channel else [])):
    each.close()
print(json.dumps([answer, ended, process.process.returncode, process.ends_within(0), process.answered]))
"""


def run(private: bool, end: str, before: str = "") -> tuple[list[Any], str]:
    script = SCRIPT.replace("{private}", str(private)).replace("{end}", end).replace("{before}", before)
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    seen: list[Any] = json.loads(done.stdout)
    return seen, done.stderr


def test_it_is_as_if_it_had_been_executed() -> None:
    (answer, *end), words = run(False, "os.read(0, 1); return 3")
    assert answer == {
        "port": 1,
        "settings": {"a": "setting", "channel": -1},
        "leads": True,
        "files": [0, 1, 2],
        "handlers": [signal.SIG_DFL, signal.SIG_DFL, signal.SIG_IGN],
        "blocked": 0,
        "wakeup": -1,
        "word": "",
    }
    assert end == [True, 3, True, True]
    assert words == ""


def test_its_end_of_the_channel_is_the_only_other_file_that_it_keeps() -> None:
    (answer, *_), _ = run(True, "return 0")
    assert answer["files"] == [0, 1, 2, answer["settings"]["channel"]]
    assert answer["word"] == "over the channel"


def test_an_exception_ends_it_with_a_traceback_and_goes_no_further() -> None:
    (_, *end), words = run(False, "raise ValueError('of a master')")
    assert end == [True, 70, True, True]
    assert words.count("ValueError: of a master") == 1


def test_where_the_kernel_reaps() -> None:
    (_, *end), words = run(False, "return 3", before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    assert end == [True, 0, True, True]  # nobody can know how it ended
    assert words == ""


class Vanishing:
    """A process that the kernel reaps right after it was found alive."""

    returncode: int | None = None

    def __init__(self) -> None:
        done = subprocess.Popen(["true"])
        done.wait()
        self.pid = done.pid

    def poll(self) -> int | None:
        return None

    def wait(self) -> int:
        return 0

    def kill(self) -> None:
        raise AssertionError("this pid may be another's")


def test_one_that_is_reaped_between_two_looks_has_ended() -> None:
    with Path(os.devnull).open("r+b", buffering=0) as null:
        process = MasterProcess(Vanishing(), null, null, None)
        assert process.ends_within(60)
        assert asyncio.run(process.ended(60, asyncio.Event()))
