"""A month of a job on a real disk: the journal of 64 nodes, one of which fails each minute.

The machine and the journal are the real ones; the nodes are fakes that say what agents say. It measures the
largest size of the journal on the disk, and how long a master takes to restore the state from it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from elasticrun.config import JobConfig
from elasticrun.core.job.events import Attached, Expired, JobEvent, MasterStarted, Send
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.messages import AgentPhase, Failure, FailureKind
from elasticrun.core.protocol.status import JobPhase
from elasticrun.master.journal import Entry, Journal, create_journal, read_journal, replay
from elasticrun.master.snapshot import take
from elasticrun.sim.fingerprint import difference, fingerprint
from elasticrun.sim.scale import FakeNode

NODES = 64
FAILURES = 30 * 24 * 60
MINUTE = 60.0
STDERR = "[rank7]: something that a library had to say before it died\n" * 30


class Month:
    """A job whose master keeps its journal as ``master/loop.py`` does."""

    def __init__(self, path: Path) -> None:
        config = JobConfig("job", NODES, NODES, max_restarts=2 * FAILURES)
        self.machine = JobMachine(config)
        self.journal: Journal = create_journal(path, config)
        self.nodes = {number + 1: FakeNode(number) for number in range(NODES)}
        self.now = 0.0
        self.written = 0  # bytes
        self.largest = 0  # bytes in the file
        self.events = 0
        self._say([MasterStarted(1)])
        self._say([Attached(node.session, node.hello().hello) for node in self.nodes.values()])
        self._say([node.is_now(AgentPhase.READY, -1) for node in self.nodes.values()])

    def fail(self, number: int) -> None:
        """Let a minute pass, then kill a worker."""
        self.now += MINUTE
        node = self.nodes[number % NODES + 1]
        round_ = node.status.round
        host, given = node.info.host, node.assignment
        assert given is not None
        rank, kind = given.first_rank, FailureKind.SIGNAL
        found = Failure(node.name, host, rank, 0, "default", 1, kind, -9, stderr_tail=STDERR, step=number)
        self._say([node.is_now(AgentPhase.FAILED, round_, found)])

    def _say(self, events: list[JobEvent]) -> None:
        """Handle these events in one turn of the loop, and the answers in the next."""
        while events or (events := list[JobEvent](self._due())):
            answers: list[JobEvent] = []
            for event in events:
                self.now += 1e-4
                self.events += 1
                self.journal.add(Entry(self.now, event))
                for effect in self.machine.handle(event, self.now):
                    if isinstance(effect, Send):
                        answers.extend(self.nodes[effect.session].obey(effect.message))
            before = self.journal.size
            self.journal.commit()
            self.written += self.journal.size - before
            self.largest = max(self.largest, self.journal.size)
            if self.journal.is_long:
                self.journal.compact(self.machine.state, self.now)
                self.written += self.journal.size
            events = answers

    def _due(self) -> list[Expired]:
        return [event for event in self.machine.due(self.now) if event.timer != "heartbeat"]


def main(arguments: Sequence[str]) -> int:
    """Parse and measure."""
    parser = argparse.ArgumentParser(prog="scripts/bench month", description=__doc__)
    parser.add_argument("failures", type=int, nargs="?", default=FAILURES, help=f"default {FAILURES}")
    options = parser.parse_args(arguments)
    return run_month(options.failures)


def run_month(failures: int) -> int:
    """Print how large the journal gets, and how long a master takes to restore it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "journal.jsonl")
        month = Month(path)
        begin = time.process_time()
        for number in range(failures):
            month.fail(number)
        spent = time.process_time() - begin
        month.journal.close()
        machine, size = month.machine, month.journal.size
        assert (machine.state.phase, machine.state.round) == (JobPhase.RUNNING, failures)
        state = len(take(machine.state).state)
        print(f"{failures} failures on {NODES} nodes, {month.events} events, {spent:.0f} s of one core")
        print(f"written: {_mib(month.written)} MiB; on disk: {_mib(size)} MiB at the end,", end=" ")
        print(f"{_mib(month.largest)} MiB at most; the state: {state / 1024:.0f} KiB")
        begin = time.process_time()
        found = read_journal(path)
        assert found is not None
        restored = replay(path, *found)
        took = time.process_time() - begin
        print(f"a master has the state again after {took:.2f} s of one core ({len(found[1])} entries)")
        if wrong := difference(fingerprint(machine.state), fingerprint(restored.state)):
            print(f"but it is another state: {wrong}")
            return 1
    return 0


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"
