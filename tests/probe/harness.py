"""Probe children as the agent starts them: by path, settings as stdin, results as stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 60.0
PROGRAM = Path(__file__).parents[2] / "elasticrun" / "probe" / "main.py"
#: -S leaves site-packages out: neither torch nor elasticrun can be imported.
BARE = (sys.executable, "-S")
FULL = (sys.executable,)

Result = dict[str, Any]


def group(names: str, node: str, port: int, slot: int = 0, address: str = "127.0.0.1") -> dict[str, Any]:
    """The part of ``node`` in the all-gather of these nodes, one letter each."""
    return {
        "slot": slot,
        "rank": names.index(node),
        "names": list(names),
        "address": address,
        "port": port,
    }


def probe_settings(
    node: str,
    groups: Sequence[dict[str, Any]],
    timeout: float = 60.0,
    slots: int = 1,
    address: str = "127.0.0.1",
) -> dict[str, Any]:
    """What the agent tells a probe that starts now."""
    return {
        "check": 7,
        "start": time.monotonic(),
        "timeout": timeout,
        "slots": slots,
        "node": node,
        "address": address,
        "groups": list(groups),
    }


class Children:
    """The children of one test, which do not outlive it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self,
        node: str,
        groups: Sequence[dict[str, Any]],
        timeout: float = 60.0,
        slots: int = 1,
        python: Sequence[str] = BARE,
        address: str = "127.0.0.1",
        inside: Sequence[str] = (),
        **env: str,
    ) -> subprocess.Popen[str]:
        settings = probe_settings(node, groups, timeout, slots, address)
        child = subprocess.Popen(
            [*inside, *python, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], **env},
        )
        self._started.append(child)
        assert child.stdin is not None
        child.stdin.write(json.dumps(settings))
        child.stdin.close()
        child.stdin = None  # or communicate would flush it
        return child

    def close(self) -> None:
        for child in self._started:
            child.kill()
            child.communicate(timeout=DEADLINE)


def results(child: subprocess.Popen[str]) -> list[Result]:
    """What a child that ends well wrote: of its self test, and of each group."""
    own, *rest = lines(child)
    if rest and "engine" in rest[-1]:
        own = rest.pop()
    return [own, *rest]


def lines(child: subprocess.Popen[str]) -> list[Result]:
    """All that a child that ends well wrote."""
    written, words = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, words
    return [json.loads(line) for line in written.splitlines()]


def assert_fine(found: list[Result], groups: int = 1, transport: str = "tcp") -> None:
    """The self test and every group of a child worked, were timed, and say by what."""
    own, *rest = found
    assert own["error"] == "", own
    assert own["matmul_flops"] > 0
    assert own["engine"].startswith(("python3", "torch/cpu"))
    assert len(rest) == groups
    for result in rest:
        assert result["error"] == "", found
        assert result["bandwidth"] > 0
        assert result["transport"] == transport
        assert 0 < result["latency"] < DEADLINE


@pytest.fixture
def children(tmp_path: Path) -> Any:
    made = Children(tmp_path)
    yield made
    made.close()
