"""A training of the digits on several nodes, as the chaos drives it: started, watched, waited for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.ledger import EPOCH, Ledger
from tests.faults.leftovers import Descriptors, files_left, left_by_killed, processes_left
from tests.support.cluster import EXAMPLES, Cluster
from tests.support.launcher import Launcher
from tests.support.processes import Hung, listener, marked, nobody_left, title

DIGITS = EXAMPLES / "digits.py"
RECOVERY_DEADLINE = 120.0  # seconds; a restart takes some five, however slow the machine is
CALM = 2.0  # seconds of epochs without a new round after which nothing of the last fault is under way
CALM_EPOCHS = 3  # by then every node has saved a state of the newest round
UNHURRIED = "--last-call-timeout=60"  # the first world waits for the second node, however slow its start
MANY = 1_000_000


@dataclass
class Job:
    """Two nodes that train, and everything that they have said."""

    cluster: Cluster
    epochs: int
    options: Sequence[str] = ()
    rng: random.Random = field(default_factory=random.Random)
    replaced: float = 0.0  # most seconds until a platform starts a lost node's next agent
    log_dirs: bool = False  # agents get one: what has to stay of a hang is then no temporary file
    ledger: Ledger = field(default_factory=Ledger)
    descriptors: Descriptors = field(default_factory=Descriptors)
    killed_nodes: int = 0  # with all their processes at once
    notes: list[tuple[float, str]] = field(default_factory=list)  # what we did, for the story
    nodes: dict[int, Launcher] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.news = threading.Condition()
        self._read: dict[str, int] = {}  # lines of each launcher that the ledger has
        self._first = len(self.cluster.launchers)
        self.begin = time.monotonic()

    @property
    def _logs(self) -> Path:
        return self.cluster.folder / "logs"

    @property
    def launchers(self) -> list[Launcher]:
        return self.cluster.launchers[self._first :]

    def start(self, node: int, nnodes: str = "1:2") -> None:
        """A new agent for a node, with a disk of its own."""
        number = len(self.cluster.launchers)
        self.note(f"start of node {node}")
        logs = (f"--log-dir={self._logs}",) if self.log_dirs else ()
        self.nodes[node] = self.cluster.launch(
            *self.cluster.options(nnodes), UNHURRIED, f"--max-restarts={MANY}", f"--node-rank={node}",
            *self.options, *logs, DIGITS, "--epochs", str(self.epochs),
            "--checkpoint-dir", self.cluster.folder / f"disk{number}",
            name=f"{number}:node{node}", news=self.news,
        )  # fmt: skip

    def note(self, text: str) -> None:
        self.notes.append((time.monotonic(), text))

    # -- waiting

    def wait(self, condition: Callable[[], bool], what: str, deadline: float = RECOVERY_DEADLINE) -> None:
        """Return once the condition holds, or training is over; Hung after the deadline."""
        if not self._wait(condition, deadline):
            raise Hung(f"no {what} within {deadline:g} s")

    def rest(self, seconds: float) -> None:
        """Let time pass, unless training ends."""
        self._wait(lambda: False, seconds)

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        def seen() -> bool:
            self._listen()
            return condition() or self.finished or bool(self._ended())

        with self.news:
            self.news.wait_for(seen, seconds)
            held = condition() or self.finished
        if not held and (ended := self._ended()):
            raise AssertionError(f"{', '.join(ended)}, which nobody expected")
        return held

    def _listen(self) -> None:
        """Give the ledger what is new."""
        for launcher in self.launchers:
            begin = self._read.get(launcher.name, 0)
            for number in range(begin, len(launcher.lines)):
                kind, text = launcher.lines[number]
                if kind == "out":
                    self.ledger.line(launcher.name, launcher.moments[number], text)
            self._read[launcher.name] = len(launcher.lines)

    def _ended(self) -> list[str]:
        if self.finished:
            return []
        return [
            f"{launcher.name} ended with {status}"
            for launcher in self.nodes.values()
            if (status := launcher.process.poll()) is not None
        ]

    @property
    def finished(self) -> bool:
        return self.ledger.accuracy is not None

    def calm(self, since: float) -> bool:
        """All nodes train together, and have for a while."""
        newest = self.ledger.newest
        if newest is None or newest.world != len(self.nodes):
            return False
        quiet_since = max(since, newest.moment)
        moments = [moment for moment, _ in newest.epochs if moment > quiet_since]
        return len(moments) >= CALM_EPOCHS and moments[-1] - quiet_since >= CALM

    # -- the processes

    def workers(self, node: int) -> list[int]:
        """The pids of the workers under a node's agent."""
        found = marked(self.nodes[node].mark)
        return [pid for pid in found if str(DIGITS) in (name := title(pid)) and "elastic-run" not in name]

    def look(self) -> None:
        """Count the descriptors of those that live long."""
        for launcher in self.nodes.values():
            self.descriptors.look("agent", launcher.pid)
        self.descriptors.look("master", listener(self.cluster.port))

    def lose(self, node: int) -> Launcher:
        """From now on this node is expected to end."""
        return self.nodes.pop(node)

    def end(self) -> None:
        """Let all nodes end well."""
        for launcher in self.nodes.values():
            status = launcher.wait()
            if status != 0:
                raise AssertionError(f"{launcher.name} ended with {status} after the training was done")
        for launcher in self.launchers:
            nobody_left(launcher.mark)

    def leftovers(self) -> dict[str, list[str]]:
        """What is there although all nodes have ended, by kind."""
        temporary = self.cluster.folder / "tmp"
        return {
            "processes": [it for launcher in self.launchers for it in processes_left(launcher.mark)],
            "temporary files": files_left(temporary, left_by_killed(temporary, self.killed_nodes)),
        }

    def stacks(self) -> int:
        """How many files with the stacks of a worker are in the log directories."""
        return len(list(self._logs.rglob("stacks_*.txt")))

    # -- the story

    def story(self, last: int = MANY) -> str:
        """What everybody said and what we did, in order; of many epochs in a row the first and the last."""
        told: list[tuple[float, str, bool]] = [(moment, f"--- {text}", False) for moment, text in self.notes]
        for launcher in self.launchers:
            for (kind, text), moment in zip(launcher.lines, launcher.moments, strict=False):
                told.append((moment, f"{launcher.name} {kind}| {text}", EPOCH.match(text) is not None))
        told.sort()
        lines = [
            f"{moment - self.begin:8.2f} {text}"
            for number, (moment, text, dull) in enumerate(told)
            if not (dull and all(it[2] for it in told[max(0, number - 1) : number + 2]))
        ]
        return "\n".join(lines[-last:])
