"""Nodes whose workers save their state in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.memory_host import MemoryHost

#: Bytes: enough for every test, and so little that a bug cannot take the memory of the box.
ROOM = 64 << 20


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """The memory that can be taken here."""
    from elasticrun.agent.memory import buffers

    monkeypatch.setattr(buffers, "free_bytes", lambda: ROOM)
    return ROOM


@pytest.fixture
def host(room: int) -> Iterator[MemoryHost]:
    """A node of one worker."""
    with MemoryHost() as host:
        yield host


@pytest.fixture
def pair(room: int) -> Iterator[MemoryHost]:
    """A node of two workers."""
    with MemoryHost(2) as host:
        yield host
