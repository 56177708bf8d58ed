"""Two ranks on a node each: they send each other what is missing, and raise the same errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW

from elasticrun.checkpoint import exchange
from elasticrun.checkpoint.agent_memory import AgentMemory, StoredPart
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.checkpoint.distcp import Share, finish, write_part
from elasticrun.checkpoint.from_storage import load_stored
from elasticrun.checkpoint.loading import Loading
from elasticrun.checkpoint.memory import MemoryReader, MemoryWriter
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from elasticrun.storage.disk import DiskStore
from elasticrun.storage.records import CommitName, data_file
from tests.checkpoint.nodes import picture
from tests.checkpoint.ranks import Nodes, Ranks
from tests.support.saved_parts import saved_bytes, saved_part

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


@pytest.fixture
def nodes(ranks: Ranks) -> Iterator[Nodes]:
    with Nodes(ranks) as nodes:
        yield nodes


# What the ranks do: functions of this module, which is imported there


def shard(values: torch.Tensor) -> DTensor:
    return distribute_tensor(values, init_device_mesh("cpu", (2,)), [Shard(0)])


def state_of(kind: str, factor: float) -> dict[str, Any]:
    """What is saved (with factor 1), or what it is restored into (with 0)."""
    weight, rank = factor * torch.arange(64.0), float(os.environ["RANK"])
    if kind == "only shards":
        return {"weight": shard(weight)}
    state: dict[str, Any] = {"rank": rank if factor else None}
    return {**state, "weight": shard(weight) if kind == "sharded" else weight, "bias": factor * torch.ones(8)}


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: picture(value.full_tensor() if isinstance(value, DTensor) else value)
        for name, value in sorted(state.items())
    }


def save(kind: str) -> bool:
    keeper = Checkpointer()
    saved = keeper.save(1, state_of(kind, 1.0))
    keeper.close()
    return saved


def load(kind: str) -> dict[str, Any] | str:
    """The state that is restored, or why it is not."""
    keeper, state = Checkpointer(), state_of(kind, 0.0)
    try:
        keeper.load(state)
        return plain(state)
    except CheckpointError as error:
        return str(error)
    finally:
        keeper.close()
        dist.barrier()  # which would fail if another rank still waited for this one


def expected(kind: str, rank: int) -> dict[str, Any]:
    """What rank ``rank`` has saved."""
    return plain({"weight": torch.arange(64.0), "bias": torch.ones(8), "rank": float(rank)})


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_ranks_get_what_only_the_other_node_has(nodes: Nodes, kind: str) -> None:
    assert nodes.run(save, kind) == [True, True]
    nodes.restart(1, swapped=True)
    assert nodes.run(load, kind) == [expected(kind, rank) for rank in range(2)]


def nested(factor: float, extra: int) -> dict[str, Any]:
    """Shards inside of an entry, beside a list that grows on each rank."""
    return {"box": {0: shard(factor * torch.arange(64.0)), "list": [torch.ones(2)] * extra}}


def save_nested() -> bool:
    keeper = Checkpointer()
    saved = keeper.save(1, nested(1.0, 2 + int(os.environ["RANK"])))
    keeper.close()
    return saved


def load_nested() -> tuple[list[float], int]:
    keeper, state = Checkpointer(), nested(0.0, 1)
    keeper.load(state)
    keeper.close()
    return state["box"][0].full_tensor().tolist(), len(state["box"]["list"])


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
def test_shards_inside_of_an_entry_go_where_they_belong(nodes: Nodes, swapped: bool) -> None:
    assert nodes.run(save_nested) == [True, True]
    nodes.restart(1, swapped)
    whole = [float(number) for number in range(64)]
    assert nodes.run(load_nested) == [(whole, 2), (whole, 3)]


@pytest.mark.parametrize("name", ["weight", ""], ids=["an item", "the index"])
def test_of_what_is_damaged_another_copy_is_taken(nodes: Nodes, name: str) -> None:
    nodes.run(save, "replicated")
    nodes.restart(1)
    nodes.damage(0, name)
    first = 0 if name else 1  # who has lost its own values as well is like a rank that is new
    assert nodes.run(load, "replicated") == [expected("replicated", rank) for rank in (first, 1)]


@pytest.mark.parametrize("swapped", [False, True], ids=["read here", "sent by the other"])
def test_all_ranks_hear_of_damage_that_has_no_other_copy(nodes: Nodes, swapped: bool) -> None:
    nodes.run(save, "sharded")
    nodes.restart(1)
    nodes.damage(0, "weight")
    if swapped:
        nodes.restart_again(swapped=True)
    told = nodes.run(load, "sharded")
    assert told == ["weight is damaged in the part of rank 0: its bytes have changed"] * 2


def test_all_ranks_hear_of_a_part_that_cannot_be_read(nodes: Nodes) -> None:
    nodes.run(save, "sharded")
    nodes.restart(1)
    nodes.damage(1)
    told = nodes.run(load, "sharded")
    missing = "without it, parts of the saved state are missing, the first of weight"
    assert told == [f"the part of rank 1 is damaged: its index has changed; {missing}"] * 2


class Copies:
    """The memory of a node that has the parts of both ranks, some of them with a flipped bit."""

    def __init__(self, damaged: str) -> None:
        """``damaged``: a letter for each part here, "x" if an item of it is damaged."""
        data, digest = saved_bytes(state_of("only shards", 1.0))
        told = exchange.tell((bytes(data), digest))
        self.name = f"node {os.environ['RANK']}"
        self._parts = []
        for rank, (part, digest) in enumerate(told):
            flipped = bytes([part[0] ^ (damaged[rank] == "x")]) + part[1:]
            self._parts.append(StoredPart(rank, cast(Any, flipped), len(part), digest))

    def stored(self) -> list[StoredPart]:
        return self._parts


def load_copies(*damaged: str) -> str | dict[str, Any]:
    memory = cast(AgentMemory, Copies(damaged[dist.get_rank()]))
    reader, state = MemoryReader(memory, alone=True), state_of("only shards", 0.0)
    obstacle = Loading(reader, state).run()
    if obstacle:
        reader.widen()
        obstacle = Loading(reader, state).run()
    return obstacle or plain(state)


@pytest.mark.parametrize("damaged", [("x.", ".."), ("x.", ".x"), (".x", ".."), ("..", "xx"), ("xx", "..")])
def test_what_is_damaged_here_comes_from_the_copy_of_another_node(
    nodes: Nodes, damaged: tuple[str, str]
) -> None:
    whole = plain({"weight": torch.arange(64.0)})
    assert nodes.run(load_copies, *damaged) == [whole, whole]


def test_what_is_damaged_on_all_nodes_is_told(nodes: Nodes) -> None:
    told = "weight is damaged in the part of rank 0: its bytes have changed"
    assert nodes.run(load_copies, "x.", "x.") == [told, told]


def load_into(of_one: object, of_others: object) -> str:
    """Restore into one value on rank 1, and into another one on the others. Returns what is raised."""
    keeper, state = Checkpointer(), state_of("replicated", 0.0)
    state["weight"] = of_one if os.environ["RANK"] == "1" else of_others
    try:
        keeper.load(state)
        return ""
    except CheckpointError as error:
        return str(error)
    finally:
        keeper.close()
        dist.barrier()


class Stubborn:
    """Takes no state, for a reason of its own."""

    def state_dict(self) -> torch.Tensor:
        return torch.zeros(64)

    def load_state_dict(self, state: object) -> None:
        raise AttributeError("no such layer")


@pytest.mark.parametrize(
    ("value", "told"),
    [(torch.zeros(65), r"weight is a tensor of float32 of shape \[65\] here"), (Stubborn(), "no such layer")],
    ids=["planned", "restored"],
)
def test_all_ranks_raise_what_one_of_them_cannot_restore(nodes: Nodes, value: object, told: str) -> None:
    nodes.run(save, "replicated")
    nodes.restart(1)
    first, second = nodes.run(load_into, value, torch.zeros(64))
    assert first == second
    assert re.match(f"the saved state does not fit this model: .*{told}", first)


class Counting:
    """Counts how often it is restored. It may refuse."""

    def __init__(self, refuses: bool) -> None:
        self.restored = 0
        self._refuses = refuses

    def state_dict(self) -> torch.Tensor:
        return torch.zeros(64)

    def load_state_dict(self, state: object) -> None:
        self.restored += 1
        if self._refuses:
            raise ValueError("it has another plan")


def count_restored(refuser: str) -> int:
    """How often an object is restored; on one rank it may refuse."""
    keeper, state = Checkpointer(), state_of("replicated", 0.0)
    state["weight"] = counting = Counting(os.environ["RANK"] == refuser)
    try:
        keeper.load(state)
        assert not refuser
    except CheckpointError as error:
        assert "another plan" in str(error)
    finally:
        keeper.close()
        dist.barrier()
    return counting.restored


@pytest.mark.parametrize(
    ("damaged", "refuser"), [("weight", ""), ("bias", ""), ("", "0")], ids=["its own", "other", "refused"]
)
def test_an_object_is_restored_once_although_a_rank_has_to_read_again(
    nodes: Nodes, damaged: str, refuser: str
) -> None:
    """Ranks that share data count how often they were restored, and have to have the same count."""
    nodes.run(save, "replicated")
    nodes.restart(1)
    if damaged:
        nodes.damage(0, damaged)
    assert nodes.run(count_restored, refuser) == [1, 1]


# From a storage


def store_shards(folder: str, step: int) -> None:
    """Each rank writes its shard, and the first one finishes the commit."""
    store, rank = DiskStore(folder, make=True), dist.get_rank()
    name, values = CommitName(CommitId(0, step)), torch.full((64,), float(step))
    write_part(store, name, rank, [saved_part({"weight": shard(values)}, rank)], Share(rank, 2))
    dist.barrier()
    if rank == 0:
        finish(store, name, 2)
    dist.barrier()


def load_shards(folder: str) -> tuple[CommitId | None, list[float]]:
    state = {"weight": shard(torch.zeros(64))}
    restored = load_stored(folder, state, dist.get_rank())
    return restored and restored.commit, sorted(set(state["weight"].full_tensor().tolist()))


def test_all_ranks_go_back_to_an_older_commit_if_one_of_them_finds_damage(
    nodes: Nodes, tmp_path: Path
) -> None:
    for step in (1, 2):
        nodes.run(store_shards, str(tmp_path), step)
    file = tmp_path / CommitName(CommitId(0, 2)).folder / data_file(1)
    file.write_bytes(file.read_bytes().replace(b"\x00\x00\x00@", b"\x00\x00\x00A"))
    assert nodes.run(load_shards, str(tmp_path)) == [(CommitId(0, 1), [1.0])] * 2


# torch's own way to save


def save_by_torch(kind: str) -> None:
    memory = connect()
    state_dict_saver.save(state_of(kind, 1.0), storage_writer=MemoryWriter(1, memory))
    memory.close()


def load_by_torch(kind: str, alone: bool = False) -> dict[str, Any] | str:
    memory, state = connect(), state_of(kind, 0.0)
    try:
        state_dict_loader.load(state, storage_reader=MemoryReader(memory, alone=alone), no_dist=alone)
        return plain(state)
    except CheckpointException as error:
        return " ".join(str(failure) for failure, _ in error.failures.values())
    finally:
        memory.close()
        dist.barrier()


def connect() -> AgentMemory:
    memory = AgentMemory.connect(os.environ)
    assert memory is not None
    return memory


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
def test_what_torch_saves_on_two_nodes_is_loaded_on_both(nodes: Nodes, kind: str, swapped: bool) -> None:
    """torch has what all ranks have alike saved by one of them, so no part can be done without."""
    nodes.run(save_by_torch, kind)
    for held in nodes.restart(1, swapped):
        assert [part.own for part in held.parts] == [True]
    first, second = nodes.run(load_by_torch, kind)
    assert first == second == expected(kind, 0)


def test_torch_hears_of_what_is_missing(nodes: Nodes) -> None:
    """It would leave those parts of a tensor as they were."""
    nodes.run(save_by_torch, "only shards")
    nodes.restart(1)
    nodes.replace(0)
    missing = "parts of the saved state are missing, the first of weight"
    assert nodes.run(load_by_torch, "only shards") == [f"{missing} {missing}"] * 2


def test_torch_can_load_alone(nodes: Nodes) -> None:
    nodes.run(save_by_torch, "replicated")
    nodes.restart(1)
    (first, second) = nodes.run(load_by_torch, "replicated", True)
    assert "Missing key in checkpoint state_dict" in str(first) + str(second), "each has a part of them"


# Models that are divided within their layers, or whose shards are uneven


def parallel(kind: str, seed: int, device: str = "cpu") -> tuple[Any, AdamW]:
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (2,))
    with torch.device(device):
        width = 8 if kind == "tensor parallel" else 7
        model: Any = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))
    if kind == "tensor parallel":
        model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, AdamW(model.parameters(), lr=0.1)


def train(model: Any, optimizer: AdamW, steps: int) -> dict[str, Any]:
    """All that there is after some steps."""
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 4), step + 1.0)).square().sum().backward()
        optimizer.step()
    moments = [value for each in optimizer.state_dict()["state"].values() for value in each.values()]
    return plain({**model.state_dict(), **{f"moment {n}": each for n, each in enumerate(moments)}})


def save_parallel(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    keeper, (model, optimizer) = Checkpointer(), parallel(kind, 1)
    saved = train(model, optimizer, 3)
    assert keeper.save(1, {"model": model, "optimizer": optimizer})
    keeper.close()
    return saved, train(model, optimizer, 2)


def load_parallel(kind: str, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    keeper, (model, optimizer) = Checkpointer(), parallel(kind, 2, device)
    assert keeper.load({"model": model, "optimizer": optimizer}) == 1
    keeper.close()
    return train(model, optimizer, 0), train(model, optimizer, 2)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", ["tensor parallel", "fsdp"])
def test_a_model_that_is_divided_goes_on(nodes: Nodes, kind: str, device: str) -> None:
    trained = nodes.run(save_parallel, kind)
    nodes.restart(1, swapped=True)
    assert nodes.run(load_parallel, kind, device) == trained
