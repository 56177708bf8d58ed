"""Parts: what a rank saves, as bytes."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticrun.errors import CheckpointError

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from elasticrun.checkpoint import parts
from elasticrun.checkpoint.parts import (
    ALIGNMENT,
    Damaged,
    Item,
    Layout,
    Part,
    checksum,
    dtype_of,
    enlist,
    place,
    seal,
    total_of,
    write,
)

pytestmark = pytest.mark.torch

#: Those that this torch has.
DTYPES = [
    name
    for name in (
        *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool"),
        *("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if isinstance(getattr(torch, name, None), torch.dtype)
]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def bits(tensor: torch.Tensor) -> bytes:
    """What a tensor has, bit by bit, whatever a NaN is equal to."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def made(dtype: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of any bits that its type can have."""
    kind = dtype_of(dtype)
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel() * kind.itemsize
    data = torch.randint(0, 2 if kind is torch.bool else 256, (size,), generator=generator, dtype=torch.uint8)
    return data.view(kind).reshape(shape)


def layout_of(state: Mapping[str, Any], local_rank: int = 0, local_size: int = 1) -> Layout:
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=False)
    return Layout(planner, planner.create_local_plan().items, local_rank, local_size)


def saved(layout: Layout, divides: bool = False, threads: int = 1, **facts: object) -> tuple[bytearray, str]:
    """The bytes of a part, and its digest."""
    facts = {"mappings": {}, **facts}
    memory = torch.full((layout.room(divides, facts),), 0xAA, dtype=torch.uint8)  # what was there before
    items = layout.items(divides)
    placed = place(items)
    write(memory, items, threads)
    length, digest = seal(memory, placed, facts)
    return bytearray(memory[:length].tolist()), digest


def in_memory(memory: torch.Tensor, length: int, digest: str) -> Part:
    return Part(0, memoryview(bytearray(memory[:length].tolist())), digest)


def part_of(state: Mapping[str, Any], threads: int = 1, **facts: object) -> Part:
    data, digest = saved(layout_of(state), False, threads, **facts)
    return Part(0, memoryview(data), digest)


def read(part: Part) -> dict[str, torch.Tensor | bytes]:
    """Everything in a part, by its name."""
    return {
        item.name: part.tensor(item).clone() if item.dtype else part.value(item).read() for item in part.items
    }


def same(one: Mapping[str, torch.Tensor | bytes], other: Mapping[str, torch.Tensor | bytes]) -> bool:
    """Whether two parts have the same items bit by bit."""

    def plain(value: torch.Tensor | bytes) -> object:
        return (value.dtype, value.shape, bits(value)) if isinstance(value, torch.Tensor) else value

    return {name: plain(it) for name, it in one.items()} == {name: plain(it) for name, it in other.items()}


# Reading what was written


def test_a_part_can_be_read_before_its_digests_are_there_and_while_they_are_written() -> None:
    state = {"a": made("float32", (5, 7)), "b": made("bool", (3,)), "c": [1, "two"]}
    layout, facts = layout_of(state), dict[str, Any](mappings={})
    memory = torch.full((layout.room(False, facts),), 0xAA, dtype=torch.uint8)
    items = layout.items(False)
    placed = place(items)
    write(memory, items)
    first = enlist(memory, placed, facts)
    found = in_memory(memory, *first)
    assert same(read(found), read(part_of(state)))
    assert [item.sum for item in found.items] == [""] * 3
    last = seal(memory, placed, facts)
    for ends in (first, last):
        assert same(read(in_memory(memory, *ends)), read(found))
    memory[0] ^= 1
    read(in_memory(memory, *first))  # nothing can tell
    with pytest.raises(Damaged):
        read(in_memory(memory, *last))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (1, 2, 3, 4)], ids=str)
def test_tensors_of_all_types_come_back_bit_by_bit(dtype: str, shape: tuple[int, ...]) -> None:
    state = {"before": torch.ones(3), "tested": made(dtype, shape), "behind": torch.ones(3)}
    assert same(read(part_of(state)), state)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_come_back_whatever_their_strides(dtype: str) -> None:
    base = made(dtype, (6, 8))
    state = {
        "turned": base.t(),
        "sparse": base[::2, 1::3],
        "column": base[:, 3],
        "one": base[2, 5],
        "wide": base[:1].expand(4, 8),
        "last": base.reshape(2, 3, 8).permute(2, 0, 1),
    }
    assert same(read(part_of(state)), state)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), shapes, st.booleans()), max_size=6))
def test_any_tensors_come_back(kinds: list[tuple[str, tuple[int, ...], bool]]) -> None:
    state = {}
    for number, (dtype, shape, turned) in enumerate(kinds):
        tensor = made(dtype, shape, number)
        state[f"item {number}"] = tensor.permute(tuple(reversed(range(len(shape))))) if turned else tensor
    part = part_of(state)
    assert same(read(part), state)
    assert all(item.at % ALIGNMENT == 0 for item in part.items)


def test_threads_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST", 0)
    monkeypatch.setattr(parts, "JOB", 64)
    state = {dtype: made(dtype, (7, 13)) for dtype in DTYPES}
    state |= {f"turned {dtype}": tensor.t() for dtype, tensor in state.items()}
    state |= {"empty": torch.zeros(0), "one": torch.ones(())}
    assert same(read(part_of(state, threads=3)), state)


def test_parameters_come_back() -> None:
    state = {"weight": torch.nn.Parameter(torch.randn(3, 4)), "bias": torch.zeros(2, requires_grad=True)}
    assert same(read(part_of(state)), state)


@pytest.mark.parametrize(
    "value", [None, 7, 2.5, "text", "", [1, [2, "three"]], (1, None), b"\x00\xff"], ids=repr
)
def test_plain_values_come_back(value: object) -> None:
    part = part_of({"plain": value})
    (item,) = part.items
    assert not item.dtype
    assert torch.load(part.value(item), weights_only=False) == value


def test_a_part_of_nothing_comes_back() -> None:
    part = part_of({}, step=3)
    assert part.items == []
    assert part.facts["step"] == 3


def test_a_part_tells_its_facts() -> None:
    part = part_of({"weight": torch.ones(2)}, step=12, mappings={"weight": ["weight"]})
    assert (part.facts["step"], part.facts["mappings"]) == (12, {"weight": ["weight"]})


def test_what_changes_after_the_copy_does_not_reach_the_part() -> None:
    weight = torch.arange(5.0)
    layout = layout_of({"weight": weight})
    memory = torch.zeros(layout.room(False), dtype=torch.uint8)
    given = layout.items(False)
    items = place(given)
    write(memory, given)
    weight += 100
    length, digest = seal(memory, items, {"mappings": {}})
    part = Part(0, memoryview(bytes(memory[:length].tolist())), digest)
    assert same(read(part), {"weight": torch.arange(5.0)})


@pytest.mark.parametrize("divides", [False, True])
def test_there_is_room_for_a_part(divides: bool) -> None:
    layout = layout_of({f"layers.{number}.weight": torch.ones(number) for number in range(50)}, 0, 3)
    data, _ = saved(layout, divides)
    assert len(data) <= layout.room(divides)


def test_there_is_room_for_the_facts_of_many_items() -> None:
    names = [f"transformer.layers.{number}.self_attention.weight" for number in range(500)]
    layout = layout_of({name: torch.ones(1) for name in names})
    mappings = {name: name.split(".") for name in names}
    data, digest = saved(layout, mappings=mappings)
    assert Part(0, memoryview(data), digest).facts["mappings"] == mappings


def test_a_save_that_needs_a_little_more_asks_for_the_same_room() -> None:
    """Else each number that gets one digit more would cost as many new pages as the state has."""
    for elements in (1, 10_000, 1_000_000):
        layout = layout_of({"weight": torch.ones(elements)})
        need = layout.room(False, {"age": 1})
        assert len({layout.room(False, {"age": 10**digits}) for digits in range(12)}) == 1
        assert need <= 1.04 * elements * 4 + 2**15


def test_what_was_read_can_be_taken_out_of_memory_and_read_again() -> None:
    data, digest = saved(layout_of({"weight": torch.arange(5.0)}))
    fd = os.memfd_create("part")
    os.write(fd, data)
    part = Part(0, memoryview(mmap.mmap(fd, len(data), prot=mmap.PROT_READ)), digest)
    os.close(fd)
    part.empty()
    assert same(read(part), {"weight": torch.arange(5.0)})


# What is damaged

DAMAGED = {
    "first": torch.arange(5, dtype=torch.float32),
    "second": torch.ones(7, dtype=torch.int8),
    "third": torch.tensor(2.5, dtype=torch.bfloat16),
    "plain": {"number": 3},
}


def test_a_flipped_bit_anywhere_is_found_and_named() -> None:
    data, digest = saved(layout_of(DAMAGED))
    right = Part(0, memoryview(bytes(data)), digest)
    names = {at: item.name for item in right.items for at in range(item.at, item.at + item.length)}
    behind = max(names) // ALIGNMENT * ALIGNMENT + ALIGNMENT  # where the index begins
    whole = read(right)
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        if at in names or at >= behind:
            name = names.get(at, "the part of rank 0")
            with pytest.raises(CheckpointError, match=f"^{name} is damaged"):
                read(Part(0, memoryview(data), digest))
        else:  # between two items, where nobody looks
            assert same(read(Part(0, memoryview(data), digest)), whole)
        data[at] ^= 1 << at % 8


def test_what_is_whole_can_be_read_beside_what_is_damaged() -> None:
    data, digest = saved(layout_of(DAMAGED))
    data[0] ^= 1
    part = Part(4, memoryview(data), digest)
    broken, *others = part.items
    for item in others:
        assert part.value(item).read()
    with pytest.raises(CheckpointError, match=f"^{broken.name} is damaged in the part of rank 4"):
        part.value(broken)


def test_a_part_that_is_cut_is_found() -> None:
    data, digest = saved(layout_of(DAMAGED))
    for length in range(len(data)):
        with pytest.raises(CheckpointError, match="the part of rank 3 is damaged: its index has changed"):
            Part(3, memoryview(data)[:length], digest)


def test_a_part_with_something_behind_it_is_found() -> None:
    data, digest = saved(layout_of(DAMAGED))
    with pytest.raises(CheckpointError, match="its index has changed"):
        Part(0, memoryview(data + b"\0" * 8), digest)


def test_the_part_of_another_step_is_found() -> None:
    (data, _), (_, digest) = saved(layout_of(DAMAGED), step=1), saved(layout_of(DAMAGED), step=2)
    with pytest.raises(CheckpointError, match="its index has changed"):
        Part(0, memoryview(data), digest)


def test_another_format_is_told() -> None:
    data, digest = saved(layout_of(DAMAGED), format=9)
    with pytest.raises(CheckpointError, match="the part of rank 2 has format 9, and this elasticrun reads 1"):
        Part(2, memoryview(data), digest)


@pytest.mark.parametrize("name", ["float33", "", "nn", "Tensor"])
def test_a_type_that_torch_does_not_have_is_told(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"no tensors of type '{name}'"):
        dtype_of(name)


@given(st.binary(max_size=40), st.data())
def test_a_checksum_changes_with_any_byte(data: bytes, more: st.DataObject) -> None:
    words = [data[at : at + 8] for at in range(0, len(data), 8)]
    expected = sum(int.from_bytes(word, "little") for word in words) % 2**64
    assert total_of(checksum(tensor_of(data))) == f"{expected:016x}"
    cut = more.draw(st.integers(0, len(data) // 8)) * 8
    pieces = checksum(tensor_of(data[:cut])) + checksum(tensor_of(data[cut:]))
    assert total_of(pieces) == f"{expected:016x}"
    if data:
        at = more.draw(st.integers(0, len(data) - 1))
        other = bytearray(data)
        other[at] ^= more.draw(st.integers(1, 255))
        assert total_of(checksum(tensor_of(other))) != total_of(checksum(tensor_of(data)))


def tensor_of(data: bytes | bytearray) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


# Who writes what

sizes = st.lists(st.integers(0, 50), max_size=12)


@given(sizes, st.integers(1, 5))
@example([4, 0], 2)  # nothing is left for an empty tensor at the end, but it belongs to somebody
@example([0, 0], 2)
def test_shares_of_local_ranks_are_disjoint_and_cover_everything(lengths: list[int], ranks: int) -> None:
    state = {f"item {number}": torch.ones(length) for number, length in enumerate(lengths)}
    shares = [layout_of(state, rank, ranks).items(divides=True) for rank in range(ranks)]
    written = [item.name for share in shares for item, _ in share]
    assert written == list(state), "each by one of them, in order"
    most = sum(lengths) / ranks + max(lengths, default=0)
    assert all(sum(tensor.numel() for _, tensor in share) <= most for share in shares)


@given(sizes, st.integers(1, 5))
def test_who_does_not_divide_writes_everything(lengths: list[int], ranks: int) -> None:
    state = {f"item {number}": torch.ones(length) for number, length in enumerate(lengths)}
    for rank in range(ranks):
        assert [item.name for item, _ in layout_of(state, rank, ranks).items(False)] == list(state)


def test_values_that_are_no_tensors_are_each_ranks_own() -> None:
    state = {"weight": torch.ones(2), "position": 7}
    written = [{item.name for item, _ in layout_of(state, rank, 2).items(divides=True)} for rank in range(2)]
    assert all("position" in names for names in written)
    assert sum("weight" in names for names in written) == 1


def test_what_is_replicated_along_all_of_a_mesh_is_alike_on_all_ranks() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("outer", "inner"))
        state = {
            name: distribute_tensor(torch.ones(2, 3), mesh, [outer, inner])
            for name, outer, inner in (
                ("replicated", Replicate(), Replicate()),
                ("hybrid", Replicate(), Shard(0)),
                ("sharded", Shard(0), Shard(1)),
            )
        }
        layout = layout_of(state)
    finally:
        dist.destroy_process_group()
    assert [(item.name, item.is_shard) for item, _ in layout.shared] == [("replicated", False)]
    assert [(item.name, item.is_shard) for item, _ in layout.own] == [("hybrid", True), ("sharded", True)]


def test_contents_name_what_all_ranks_have_alike() -> None:
    contents = layout_of({"weight": torch.ones(2, 3), "position": 7}).contents
    assert contents == layout_of({"weight": torch.zeros(2, 3), "position": 9, "note": "x"}, 1, 4).contents
    for other in (
        {"weights": torch.ones(2, 3)},
        {"weight": torch.ones(3, 2)},
        {"weight": torch.ones(2, 3, dtype=torch.float64)},
        {"weight": torch.ones(2, 3), "bias": torch.ones(2)},
    ):
        assert layout_of(other).contents != contents
    assert layout_of({"position": 7}).contents == ""


def test_an_item_knows_its_place() -> None:
    item = Item("weight", 64, 24, "float32", (4, 3), (2, 0), (2, 3), True, "")
    assert (item.chunk.offsets, item.chunk.sizes) == (torch.Size((2, 0)), torch.Size((2, 3)))
    assert (item.index.fqn, item.index.offset) == ("weight", torch.Size((2, 0)))
    assert item.properties.dtype is torch.float32
    plain = Item("note", 0, 3)
    assert plain.index.offset is None


def test_bytes_are_read_as_they_are() -> None:
    part = part_of({"plain": "text"})
    assert isinstance(part.value(part.items[0]), io.BytesIO)
