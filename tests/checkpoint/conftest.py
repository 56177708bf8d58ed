"""Nodes for the tests of ``Checkpointer``. Imports torch in fixtures only: it may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from elasticrun.agent.memory import buffers
from tests.support.memory_host import MemoryHost

if TYPE_CHECKING:
    from tests.checkpoint.nodes import Node


#: Bytes: enough for every test, and so little that a bug cannot take the memory of the box.
ROOM = 256 << 20


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "free_bytes", lambda: ROOM)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node of one worker."""
    yield from _node(1, monkeypatch)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node of two workers."""
    yield from _node(2, monkeypatch)


def _node(workers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    from tests.checkpoint.nodes import Node

    with MemoryHost(workers) as host:
        yield (node := Node(host, monkeypatch))
        node.stop()
