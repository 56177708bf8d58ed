"""Draw a recovery: an SVG made from the event logs of a job.

    scripts/picture.py record LOG    runs a job of two nodes here, kills a worker, and writes what was logged
    scripts/picture.py draw LOG      writes the SVG of such a log to stdout

The log is what ``--event-log-handler console`` writes, one JSON object a line, with the steps of the workers
in the same form, and one line for the kill.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape

STEPS = 30  # that both workers make before the kill, and after
BEFORE, AFTER = 100, 160  # milliseconds of the picture, around the kill
WIDTH, LEFT, ROW, TOP = 860, 150, 46, 92
#: Event of an agent -> whether the first or the last of all nodes counts, and what is written at its mark.
PHASES = {
    "failed": (min, "its agent has seen it, and told the master"),
    "stopping": (min, "the master has told this node to stop its worker"),
    "ready": (max, "the last worker has ended, so the next round is formed"),
    "running": (max, "the new workers are forked"),
}
#: Attributes instead of a style sheet, which not every viewer reads.
STYLES = {
    "title": 'font-size="17" fill="#222222"',
    "words": 'font-size="13" fill="#222222"',
    "number": 'font-size="11" text-anchor="middle" fill="#ffffff"',
    "axis": 'stroke="#cccccc"',
    "step": 'stroke="#4a78b5"',
    "again": 'stroke="#3a9a5c"',
    "kill": 'stroke="#c0392b" stroke-width="2"',
    "back": 'stroke="#3a9a5c" stroke-width="2"',
}


@dataclass(frozen=True)
class Mark:
    """Something that happened on a node, in milliseconds from the kill."""

    at: float
    node: int
    what: str
    round: int


def marks(lines: Iterable[str]) -> list[Mark]:
    """The marks of a log, in order of time."""
    events = [json.loads(line) for line in lines if line.startswith("{")]
    killed = next(event["timestamp"] for event in events if event["name"] == "killed")
    found = [
        Mark(
            event["timestamp"] - killed,
            event["metadata"]["group_rank"] or 0,
            event["name"].rpartition(".")[2],
            event["metadata"]["round"],
        )
        for event in events
        if event["name"] in ("killed", "step") or event["name"].startswith("elasticrun.agent.")
    ]
    return sorted(found, key=lambda mark: mark.at)


def draw(found: Sequence[Mark]) -> str:
    """The picture as SVG."""
    nodes = sorted({mark.node for mark in found})
    victim = next(mark.node for mark in found if mark.what == "killed")
    first = min(mark.at for mark in found if mark.what == "step" and mark.round > 0)
    shown = [mark for mark in found if -BEFORE <= mark.at <= first + AFTER]
    end = first + AFTER
    scale = (WIDTH - LEFT - 20) / (BEFORE + end)

    def x(at: float) -> float:
        return round(LEFT + (at + BEFORE) * scale, 1)

    parts = [_text(LEFT, 24, f"A worker is killed: {first:.0f} ms later both train again", "title")]
    told = _told(found, first)
    legend = TOP + ROW * len(nodes) + 44
    for row, node in enumerate(nodes):
        y = TOP + ROW * row
        parts.append(_text(12, y + 5, f"node {node}, rank {node}", "words"))
        parts.append(_line(LEFT, y, WIDTH - 20, y, "axis"))
        for mark in shown:
            if mark.node == node and mark.what == "step":
                style = "step" if mark.round == 0 else "again"
                parts.append(_line(x(mark.at), y - 14, x(mark.at), y + 14, style))
    for number, mark in enumerate(told, 1):
        y = TOP + ROW * nodes.index(mark.node)
        parts.append(f'<circle fill="#b36b00" cx="{x(mark.at)}" cy="{y}" r="8"/>')
        parts.append(_text(x(mark.at), y + 4, str(number), "number"))
        words = f"{number}: after {mark.at:.0f} ms, on node {mark.node}: {PHASES[mark.what][1]}"
        parts.append(_text(LEFT, legend + 20 * number, words, "words"))
    y = TOP + ROW * nodes.index(victim)
    parts.append(_line(x(0), TOP - 40, x(0), TOP + ROW * len(nodes), "kill"))
    parts.append(_text(x(0) + 5, TOP - 30, f"SIGKILL for rank {victim}", "words"))
    parts.append(_line(x(first), TOP - 40, x(first), TOP + ROW * len(nodes), "back"))
    parts.append(_text(x(first) + 5, TOP - 30, f"{first:.0f} ms: the first step", "words"))
    parts.append(_text(LEFT, legend, "Each thin line is a step, an all-reduce of both.", "words"))
    height = legend + 20 * len(told) + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _told(found: Sequence[Mark], until: float) -> list[Mark]:
    """The marks that get a number: one for each phase of the recovery."""
    told = []
    for what, (pick, _) in PHASES.items():
        of_phase = [mark for mark in found if mark.what == what and 0 <= mark.at <= until]
        if of_phase:
            told.append(pick(of_phase, key=lambda mark: mark.at))
    return told


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text font-family="sans-serif" {STYLES[style]} x="{x}" y="{y}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line {STYLES[style]} x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


# -- recording


class Recording:
    """The log lines of both nodes; waits until there are enough steps, and kills."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self._steps: dict[tuple[int, int], int] = {}  # (round, rank) -> steps
        self._pids: dict[int, int] = {}

    def read(self, stream: IO[str]) -> None:
        """Take in what one launcher prints."""
        for line in stream:
            if line.startswith("{"):
                with self.changed:
                    self._take(line)
                    self.changed.notify_all()

    def _take(self, line: str) -> None:
        self.lines.append(line)
        event = json.loads(line)
        about = event["metadata"]
        if event["name"] == "step":
            key = about["round"], about["group_rank"]
            self._steps[key] = self._steps.get(key, 0) + 1
            self._pids[about["group_rank"]] = about["pid"]

    def wait_for(self, after_kill: bool) -> None:
        """Wait until both ranks have made enough steps of the first round, or of a later one."""

        def enough() -> bool:
            return all(
                any(
                    n >= STEPS
                    for (round_, who), n in self._steps.items()
                    if who == rank and (round_ > 0) is after_kill
                )
                for rank in (0, 1)
            )

        with self.changed:
            if not self.changed.wait_for(enough, timeout=120):
                raise TimeoutError("the workers made no steps; their output is above")

    def kill(self, rank: int) -> None:
        """SIGKILL the worker of a rank, and log it."""
        with self.changed:
            about = {"group_rank": rank, "round": 0}
            event = {"name": "killed", "timestamp": time.time() * 1000, "metadata": about}
            self.lines.append(json.dumps(event) + "\n")
            os.kill(self._pids[rank], signal.SIGKILL)


def record() -> list[str]:
    """Run the job and return its log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (
        *(
            sys.executable,
            "-m",
            "elasticrun",
            "--nnodes",
            "2",
            "--rdzv-backend",
            "c10d",
            "--max-restarts",
            "3",
        ),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--event-log-handler", "console", "--health-check", "off"),
        *(__file__, "work"),
    )
    recording = Recording()
    launchers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    readers = []
    try:
        for launcher in launchers:
            assert launcher.stdout is not None
            readers.append(threading.Thread(target=recording.read, args=[launcher.stdout]))
            readers[-1].start()
        recording.wait_for(after_kill=False)
        recording.kill(1)
        recording.wait_for(after_kill=True)
    finally:
        for launcher in launchers:
            launcher.terminate()
        for launcher in launchers:
            launcher.wait()
        for reader in readers:
            reader.join()
    return recording.lines


def work() -> None:
    """Run as a worker: do all-reduces, and print each as an event."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, pause = distributed.get_rank(), threading.Event()
    about = {"group_rank": rank, "round": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), "pid": os.getpid()}
    while True:
        distributed.all_reduce(torch.ones(1))
        print(json.dumps({"name": "step", "timestamp": time.time() * 1000, "metadata": about}), flush=True)
        pause.wait(0.005)


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    match arguments:
        case ["record", log]:
            Path(log).write_text("".join(record()))
        case ["draw", log]:
            sys.stdout.write(draw(marks(Path(log).read_text().splitlines())))
        case ["work"]:
            work()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
