"""torch's own way to save, into the memory of a real agent."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from elasticrun.agent.memory import buffers
from elasticrun.checkpoint.agent_memory import SaveRefused
from elasticrun.checkpoint.memory import MemoryReader, MemoryWriter
from tests.checkpoint.nodes import Node, picture

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


def test_torch_saves_and_loads_through_the_agents_memory(node: Node) -> None:
    memory = node.host.connect()
    saved = {"weight": torch.arange(6.0).reshape(2, 3), "nested": {"note": "text"}}
    state_dict_saver.save(saved, storage_writer=MemoryWriter(4, memory), no_dist=True)
    memory.close()
    node.restart(4)
    memory, state = node.host.connect(), {"weight": torch.zeros(2, 3), "nested": {"note": ""}}
    state_dict_loader.load(state, storage_reader=MemoryReader(memory), no_dist=True)
    assert picture(state) == picture(saved)
    memory.close()


def test_torch_hears_that_there_is_no_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "free_bytes", lambda: 1000)
    memory = node.host.connect()
    with pytest.raises((SaveRefused, CheckpointException)):
        state_dict_saver.save({"weight": torch.ones(3)}, storage_writer=MemoryWriter(1, memory), no_dist=True)
    memory.close()
