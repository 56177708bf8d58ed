"""What workers do at the memory of an agent, and a peer that does something else."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from elasticrun.agent.memory.buffers import MEMFD
from elasticrun.agent.memory.gate import VARIABLE
from elasticrun.checkpoint.agent_memory import AgentMemory
from elasticrun.rpc.packing import MAX_MESSAGE, make_room
from tests.support.memory_host import DEADLINE, MemoryHost

T = TypeVar("T")


class Client:
    """A peer that says what it likes."""

    def __init__(self, host: MemoryHost) -> None:
        _, name, self.token, _ = host.environment()[VARIABLE].split(":")
        self.round = host.round
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(DEADLINE)
        make_room(self.channel)
        self.channel.connect(f"\0{name}")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def say(self, data: bytes) -> dict[str, Any]:
        """Send anything, and hear the answer. {}: it hung up."""
        self.channel.sendall(data)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        data = self.channel.recv(MAX_MESSAGE)
        answer: dict[str, Any] = json.loads(data) if data else {}
        return answer

    def ask(self, what: str, **fields: object) -> dict[str, Any]:
        return self.say(json.dumps({"ask": what, **fields}).encode())

    def hello(self, **others: object) -> dict[str, Any]:
        return self.ask("hello", **{"token": self.token, "local_rank": 0, "round": self.round, **others})

    def tell(self, what: str, **fields: object) -> None:
        """Send a message, and do not wait for an answer."""
        self.channel.sendall(json.dumps({"ask": what, **fields}).encode())

    def begin(self, **others: object) -> dict[str, Any]:
        return self.ask("begin", **{"step": 1, "whole": 100, "share": 100, "contents": "", **others})

    def end(self, **others: object) -> dict[str, Any]:
        return self.ask("end", **{"step": 1, "length": 10, "digest": "aa", "own": False, **others})

    @property
    def is_hung_up(self) -> bool:
        return self.channel.recv(MAX_MESSAGE) == b""


def at_once(*functions: Callable[[], T]) -> list[T]:
    """What these return that run at the same time."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(DEADLINE) for each in [pool.submit(function) for function in functions]]


def save(memory: AgentMemory, step: int, text: bytes, contents: str = "") -> bool:
    """Save some bytes; returns whether only a share of what is shared was asked for."""
    granted = memory.begin(step, 4096, 2048, contents)
    granted.memory[: len(text)] = text
    memory.end(step, len(text), f"digest of {text.decode()}", own=False)
    return granted.divides


def open_here() -> set[tuple[int, int]]:
    """The sockets and memory files that this process has open."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder itself, which is closed by now
            about = each.stat()
            if MEMFD in str(each.readlink()) or stat.S_ISSOCK(about.st_mode):
                found.add((about.st_dev, about.st_ino))
    return found


def memory_files_here() -> list[int]:
    """The memory file of each descriptor of this process that is open on one."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if MEMFD in str(each.readlink()):
                found.append(each.stat().st_ino)
    return found
