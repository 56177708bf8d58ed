"""The way to the memory of an agent: what is in a worker's environment, and who answers."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from elasticrun.agent.memory import gate
from elasticrun.agent.memory.gate import VARIABLE, MemoryGate, ShutGate
from elasticrun.agent.services import Services
from elasticrun.checkpoint.agent_memory import AgentMemory
from elasticrun.config import Entrypoint, EntrypointKind, TaskRole, WorkerConfig
from elasticrun.core.protocol.messages import Assignment, JudgeCommits
from elasticrun.errors import CheckpointError
from tests.support.memory_client import open_here
from tests.support.memory_host import MemoryHost

ASSIGNMENT = Assignment(1, 0, 1, 0, 1, 0, 1, "127.0.0.1", 1, 0, 3)


def services(*roles: TaskRole) -> Services:
    config = WorkerConfig(Entrypoint(EntrypointKind.SCRIPT, "train.py"), 1, roles=roles)
    return Services(config, dict, str, lambda round_, stall: None, lambda *stock: None)


def test_a_script_outside_of_a_job_has_no_agent() -> None:
    assert AgentMemory.connect({}) is None


@pytest.mark.parametrize("value", ["2:name:token:0", "1:1:name:token:0", "1", "1:2:3", "x"])
def test_an_agent_of_another_version_is_told(value: str) -> None:
    with pytest.raises(CheckpointError, match=f"{VARIABLE} must begin with 1:"):
        AgentMemory.connect({VARIABLE: value})


def test_an_agent_that_has_gone_is_told() -> None:
    with MemoryHost() as host:
        environment, memory = host.environment(), host.connect()
    with pytest.raises(CheckpointError, match="cannot be reached"):
        AgentMemory.connect(environment)
    with pytest.raises(CheckpointError, match=r"has hung up|has gone"):
        memory.begin(1, 10, 10, "")
    memory.close()


def test_a_gate_that_cannot_be_opened_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)  # so the name is in use

    async def main() -> None:
        first = MemoryGate(1, lambda *stock: None)
        before = open_here()
        with pytest.raises(OSError, match="in use"):
            MemoryGate(1, lambda *stock: None)
        assert open_here() <= before
        first.close()

    asyncio.run(main())


def test_workers_hear_of_a_gate_that_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(gate, "MemoryGate", fail)

    async def main() -> None:
        opened = services()
        memory = opened.memory
        assert isinstance(memory, ShutGate)
        assert memory.environment(0) == {VARIABLE: "1:none"}
        with pytest.raises(CheckpointError):
            AgentMemory.connect(memory.environment(0))
        memory.begin(ASSIGNMENT)
        memory.judge(JudgeCommits(1, 1))
        await opened.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = "workers cannot save their state in memory: no socket can be made (Too many open files)"
    assert told in caplog.messages


def test_tasks_of_tensorflow_have_no_gate() -> None:
    async def main() -> None:
        opened = services(TaskRole.CHIEF)
        assert opened.memory is None
        await opened.close()

    asyncio.run(main())
