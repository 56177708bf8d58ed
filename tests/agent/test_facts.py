"""Facts from trees of files that look like the kernel's, and from the kernel itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticrun.agent.monitors import facts
from elasticrun.agent.monitors.facts import MAX_LINE, MAX_LINES, FactCollector, Facts
from tests.support.cgroups import Cgroup, NoCgroupError, cgroup
from tests.support.processes import DEADLINE

HOST_KILL = "Out of memory: Killed process 99 (python) total-vm:1kB"
CGROUP_KILL = "Memory cgroup out of memory: Killed process 99 (python) total-vm:1kB"


class Machine:
    """What a collector reads, as files that a test can change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/vmstat", "nr_free_pages 7\noom_kill 3\n")
        self.collector = FactCollector(f"{root}/proc", f"{root}/cgroup", f"{root}/kmsg")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def log(self, *lines: str) -> None:
        with (self.root / "kmsg").open("a") as file:
            file.writelines(f"6,12,345,-;{line}\n SUBSYSTEM=pci\n" for line in lines)

    def version_1(self, kills: int = 0, limits: int = 0, above: int = 0) -> None:
        self.write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/jobs/a\n0::/\n")
        self.write("cgroup/memory/jobs/a/memory.oom_control", f"under_oom 0\noom_kill {kills}\n")
        self.write("cgroup/memory/jobs/a/memory.failcnt", f"{limits}\n")
        self.write("cgroup/memory/jobs/memory.failcnt", f"{above}\n")

    def version_2(self, kills: int = 0, limits: int = 0, above: int = 0) -> None:
        self.write("proc/self/cgroup", "0::/jobs/a\n")
        self.write("cgroup/jobs/a/memory.events", f"low 0\noom {limits}\noom_kill {kills}\n")
        self.write("cgroup/jobs/a/memory.events.local", "oom 0\noom_kill 0\n")
        self.write("cgroup/jobs/memory.events", "oom 999\noom_kill 999\n")
        self.write("cgroup/jobs/memory.events.local", f"oom {above}\noom_kill 0\n")

    def facts(self) -> tuple[int, bool]:
        found = self.collector.collect()
        return found.oom_kills, found.host_oom


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.collector.close()


Counters = Callable[..., None]


@pytest.fixture(params=["version_1", "version_2"])
def counters(machine: Machine, request: pytest.FixtureRequest) -> Counters:
    """Set the counters of the cgroup, in either version."""
    found: Counters = getattr(machine, request.param)
    return found


def test_kills_at_the_limit_of_the_cgroup(machine: Machine, counters: Counters) -> None:
    counters(kills=5, limits=9)
    machine.collector.begin()
    assert machine.facts() == (0, False)
    counters(kills=7, limits=11)
    assert machine.facts() == (2, False)
    assert machine.facts() == (2, False)
    machine.collector.begin()
    assert machine.facts() == (0, False)


def test_a_limit_above_ours_is_ours_as_well(machine: Machine, counters: Counters) -> None:
    counters()
    machine.collector.begin()
    counters(kills=1, above=1)
    assert machine.facts() == (1, False)


def test_a_kill_without_a_limit_is_the_hosts(machine: Machine, counters: Counters) -> None:
    counters()
    machine.collector.begin()
    counters(kills=1)
    assert machine.facts() == (0, True)


def test_the_cgroup_knows_whether_one_of_ours_was_killed(machine: Machine, counters: Counters) -> None:
    counters()
    machine.collector.begin()
    machine.write("proc/vmstat", "oom_kill 4\n")  # of somebody else
    assert machine.facts() == (0, False)


def test_the_kernel_says_whose_memory_it_was(machine: Machine, counters: Counters) -> None:
    counters()
    machine.log()
    machine.collector.begin()
    counters(kills=1, limits=1)
    machine.log(HOST_KILL)
    assert machine.facts() == (0, True)
    machine.collector.begin()
    counters(kills=2, limits=1)
    machine.log(CGROUP_KILL)
    assert machine.facts() == (1, False)
    machine.log("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=99,uid=0")
    assert machine.facts() == (0, True)


def test_a_path_as_the_host_has_it(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/../pods/a\n")
    machine.write("cgroup/memory.events", "oom 0\noom_kill 0\n")
    machine.collector.begin()
    machine.write("cgroup/memory.events", "oom 1\noom_kill 1\n")
    assert machine.facts() == (1, False)
    machine.write("proc/self/cgroup", "0::/pods/a\n")
    assert machine.facts() == (1, False)


@pytest.mark.parametrize("of_process", ["", "nonsense\n", "1:name=systemd:/\n", "0::/\n", "4:memory:/a\n"])
def test_without_a_count_of_the_cgroup_the_hosts_stands_in(machine: Machine, of_process: str) -> None:
    machine.write("proc/self/cgroup", of_process)
    machine.log()
    machine.collector.begin()
    assert machine.facts() == (0, False)
    machine.write("proc/vmstat", "oom_kill 4\n")
    assert machine.facts() == (0, True)
    machine.log(CGROUP_KILL)
    assert machine.facts() == (0, False)
    machine.log(HOST_KILL)
    assert machine.facts() == (0, True)


def test_nothing_to_read_is_no_fact(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    collector = FactCollector(nowhere, nowhere, nowhere)
    assert collector.collect() == Facts()
    collector.begin()
    assert collector.collect() == Facts()
    collector.close()


def test_counters_that_make_no_sense_are_no_facts(machine: Machine) -> None:
    machine.version_2(kills=7, limits=7)
    machine.collector.begin()
    machine.write("cgroup/jobs/a/memory.events", "oom x\noom_kill \u0663\n")
    machine.write("proc/vmstat", "oom_kill")
    assert machine.facts() == (0, False)
    machine.version_2(kills=3, limits=3)  # another cgroup now, perhaps
    assert machine.facts() == (0, False)


def test_the_log_since_the_round_began(machine: Machine) -> None:
    machine.log("NVRM: Xid (PCI:0000:01:00): 48, of an earlier round")
    machine.collector.begin()
    machine.log("usb 1-1: new device", "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
    expected = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    assert machine.collector.collect().kernel_log == expected
    machine.log("mce: [Hardware Error]: Machine check events logged")
    assert machine.collector.collect().kernel_log.splitlines()[1].startswith("mce: ")
    machine.collector.begin()
    assert machine.collector.collect().kernel_log == ""


def test_the_log_is_bounded(machine: Machine) -> None:
    machine.log()
    machine.collector.begin()
    for number in range(MAX_LINES + 5):
        machine.log(f"NVLink error {number} {'x' * 1000}")
        machine.collector.collect()  # one record at a time, as the kernel gives them
    lines = machine.collector.collect().kernel_log.splitlines()
    assert len(lines) == MAX_LINES
    assert lines[-1].startswith(f"NVLink error {MAX_LINES + 4} ")
    assert {len(line) for line in lines} == {MAX_LINE}


def test_a_log_that_is_faster_than_we_are(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | int] = [b"6,1,1,-;NVRM: one\n", errno.EPIPE, b"6,9,9,-;NVRM: two\n", errno.EAGAIN]

    def read(fd: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    machine.log()
    machine.collector.begin()
    monkeypatch.setattr(os, "read", read)
    assert machine.collector.collect().kernel_log == "NVRM: one\nNVRM: two"
    monkeypatch.setattr(os, "read", lambda fd, size: b"6,1,1,-;NVRM: flood\n")
    monkeypatch.setattr(facts, "MAX_RECORDS", 50)
    assert machine.collector.collect().kernel_log.count("flood") == MAX_LINES


def test_a_terminal_in_the_place_of_the_log_is_left_alone(machine: Machine) -> None:
    console, terminal = os.openpty()
    (machine.root / "kmsg").symlink_to(os.ttyname(terminal))
    before = len(list(Path("/proc/self/fd").iterdir()))
    machine.collector.begin()
    os.write(console, b"6,1,1,-;NVRM: typed by somebody\n")
    assert machine.collector.collect().kernel_log == ""
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    os.close(console)
    os.close(terminal)


def test_this_machine() -> None:
    collector = FactCollector()
    collector.begin()
    assert collector.collect().oom_kills == 0
    collector.close()
    collector.close()


# --- the kernel itself

LIMIT = 64 * 1024 * 1024
#: Starts a child that takes more memory than there is, and prints the facts.
VICTIM = """
import subprocess, sys
from elasticrun.agent.monitors.facts import FactCollector
collector = FactCollector()
collector.begin()
code = subprocess.run([sys.executable, "-S", "-c", "x = b'x' * (1 << 28)"]).returncode
found = collector.collect()
print(code, found.oom_kills, found.host_oom)
"""


@pytest.fixture
def little_memory() -> Iterator[Cgroup]:
    """A cgroup of our own with room for us, and for nothing greedy."""
    try:
        with cgroup("memory") as made:
            made.limit_memory(LIMIT)
            yield made
    except NoCgroupError as error:
        pytest.skip(str(error))


@pytest.mark.root
def test_a_real_kill_at_the_limit_of_a_cgroup(little_memory: Cgroup) -> None:
    command = [*little_memory.enter, sys.executable, "-c", VICTIM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.stdout.split() == ["-9", "1", "False"], done.stderr
