"""What an actor on Ray does for its node, without Ray."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from elasticrun.platforms.ray.node import Node, Output, is_hello
from elasticrun.platforms.remote import Request, encode
from tests.support.launcher import clean_environment

DEADLINE = 30.0


def request(program: str, folder: Path) -> bytes:
    environment = clean_environment()
    environment.pop("OMP_NUM_THREADS", None)
    return encode(Request([sys.executable, "-c", program], str(folder), environment, math.inf, grace=20.0))


def output(node: Node) -> dict[int, bytes]:
    found, last = {1: b"", 2: b""}, 0
    while taken := node.read(last):
        last = taken[-1][0]
        for _, stream, data in taken:
            found[stream] += data
    return found


def test_a_launcher_runs_once_and_all_that_it_prints_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray does
    node = Node()
    program = "import os; print('out', 'OMP_NUM_THREADS' in os.environ); os.write(2, b'err'); os._exit(7)"
    asked = request(program.replace("os._exit", "print(end='', flush=True); os._exit"), tmp_path)
    ended: list[int] = []
    again = threading.Thread(target=lambda: ended.append(node.run(asked)))
    first = node.run(asked)
    again.start()
    again.join(DEADLINE)
    assert (first, ended) == (7, [7])
    found = output(node)
    assert found[1] == b"out False\n"
    hello, said = found[2].split(b"\n")
    assert is_hello(hello) and said == b"err"


def test_a_signal_reaches_the_launcher(tmp_path: Path) -> None:
    node = Node()
    asked = request("import signal; print('up', flush=True); signal.pause()", tmp_path)
    ended: list[int] = []
    running = threading.Thread(target=lambda: ended.append(node.run(asked)))
    running.start()
    while not any(stream == 1 for _, stream, _ in node.read(0)):
        pass
    node.signal(signal.SIGTERM)
    running.join(DEADLINE)
    assert ended == [128 + signal.SIGTERM]


def test_a_launcher_that_was_signalled_before_it_started_does_not_start(tmp_path: Path) -> None:
    node = Node()
    node.signal(signal.SIGTERM)
    assert node.run(request("print('up')", tmp_path)) == 128 + signal.SIGTERM
    assert output(node) == {1: b"", 2: b""}


def test_what_nobody_reads_holds_up_who_writes_and_is_not_lost() -> None:
    kept, (read_end, write_end) = Output(), os.pipe()
    size = 3 << 20
    with open(os.devnull, "wb") as sink, open(read_end, "rb") as source:  # noqa: PTH123
        copy = threading.Thread(target=kept.copy, args=(source, sink.fileno()))
        writer = threading.Thread(target=_fill, args=(write_end, size))
        for each in (copy, writer):
            each.start()
        found = last = 0
        while found < size:
            taken = kept.take(last)
            assert kept.take(last)[: len(taken)] == taken  # what was not acknowledged comes again
            found, last = found + sum(len(data) for _, _, data in taken), taken[-1][0]
        for each in (copy, writer):
            each.join(DEADLINE)
    assert found == size


def _fill(fd: int, size: int) -> None:
    with open(fd, "wb") as file:
        file.write(bytes(size))
