"""One rank's part of a commit, as bytes.

A part is the data of its items, one after the other, then an index of them in JSON, then the length of the
index. The index has all that a reader needs to build the metadata of ``torch.distributed.checkpoint``, so a
part is read by itself, and a commit is the union of its parts: no rank has to know what the others save.

Digests take a tenth of a second for each gigabyte. Until they are there, an index without them lies behind
the place of the one with them, so that one of the two is whole whenever the worker is killed. What the first
one names cannot be checked.

Which items: those of the save plan of ``torch.distributed.checkpoint``. A plain tensor is the same on all
ranks, by the rule of that library, and a DTensor that is replicated in all dimensions of its mesh is so as
well. The ranks of a node divide such tensors among them. Shards, and values that are no tensors, are each
rank's own: a restored rank gets its own back, and a rank that is new gets another's.

The digest of an item is the sum of its 64-bit words, modulo 2**64: any single flipped byte changes it, and
it is computed as fast as memory is read. It does not resist somebody who wants to be taken for another:
nobody but the job's own processes can write a part. The digest of a part is that of its index, and so
covers all of it, if the index has digests.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Replicate

from elasticrun.checkpoint.agent_memory import empty
from elasticrun.checkpoint.parallel import JOB, LEAST, run_all
from elasticrun.errors import CheckpointError

FORMAT = 1
#: Items begin at multiples of this, so that a tensor of any type can be viewed in place.
ALIGNMENT = 64
#: Rooms are multiples of this many bytes, or of a 32nd of their size, whichever is more.
_LEAST_UNIT, _UNIT_BITS = 1 << 14, 6
_FOOTER = struct.Struct("=Q")
#: Marks an index without digests.
_UNSEALED = "unsealed"
#: Room for the index's digests, which are known only later: each is written with this many digits.
_DIGITS = 16


class Damaged(CheckpointError):
    """The bytes of an item have changed since it was saved."""


@dataclass
class Item:
    """One tensor, shard of a tensor, or other value, and where it lies in its part."""

    name: str  # fully qualified
    at: int  # offset in the part
    length: int  # bytes
    dtype: str = ""  # of a tensor, as torch names it; "": no tensor
    size: tuple[int, ...] = ()  # of the whole tensor
    offset: tuple[int, ...] = ()  # of this shard in it
    shape: tuple[int, ...] = ()  # of this shard
    is_shard: bool = False
    sum: str = ""  # digest, in hex

    @property
    def index(self) -> MetadataIndex:
        """Its name in torch's metadata."""
        return MetadataIndex(self.name, self.offset if self.dtype else None)

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Its place in the whole tensor."""
        return ChunkStorageMetadata(torch.Size(self.offset), torch.Size(self.shape))

    @property
    def properties(self) -> TensorProperties:
        """Its type, for torch's metadata."""
        return TensorProperties(dtype=dtype_of(self.dtype))


class Layout:
    """What a rank saves, and where it goes: made before each save, without copying any tensor."""

    def __init__(
        self, planner: SavePlanner, items: Sequence[WriteItem], local_rank: int = 0, local_size: int = 1
    ) -> None:
        self._local_rank = local_rank
        self._local_size = local_size
        self.shared: list[tuple[Item, torch.Tensor]] = []
        self.own: list[tuple[Item, torch.Tensor]] = []
        for item in items:
            value = planner.resolve_data(item)
            if item.type is WriteItemType.BYTE_IO:
                data = bytearray(value.getbuffer())  # type: ignore[union-attr]
                tensor = torch.frombuffer(data or bytearray(1), dtype=torch.uint8)[: len(data)]
                self.own.append((Item(item.index.fqn, 0, len(data)), tensor))
            else:
                assert isinstance(value, torch.Tensor)
                whole = getattr(planner, "state_dict", {}).get(item.index.fqn)
                described = _describe(item, value.detach(), not _is_alike(item, whole))
                (self.own if described.is_shard else self.shared).append((described, value.detach()))

    @property
    def contents(self) -> str:
        """A digest of the names and shapes of what all ranks have alike; "" if there is nothing."""
        if not self.shared:
            return ""
        named = [(item.name, item.dtype, item.size) for item, _ in self.shared]
        return hashlib.sha256(repr(named).encode()).hexdigest()[:32]

    def items(self, divides: bool) -> list[tuple[Item, torch.Tensor]]:
        """What this rank writes: all that it has, or only its share of what all ranks have alike."""
        return [*(self._share() if divides else self.shared), *self.own]

    def room(self, divides: bool, facts: dict[str, Any] | None = None) -> int:
        """An upper bound of the bytes that its part takes.

        It is rounded up: a later save, of which some number has one digit more, then fits into the same
        buffer, and no other one has to be made.
        """
        items = self.items(divides)
        data = sum(_aligned(item.length) for item, _ in items)
        index = len(_encode([item for item, _ in items], facts or {})) + 20 * len(items)
        total = data + 2 * index + 4096  # with digests, and without
        unit = max(_LEAST_UNIT, 1 << max(0, total.bit_length() - _UNIT_BITS))
        return -(-total // unit) * unit

    def _share(self) -> Iterator[tuple[Item, torch.Tensor]]:
        """Every local rank's share begins and ends at an item; shares have about the same size."""
        total, seen = sum(item.length for item, _ in self.shared) or 1, 0
        for item, tensor in self.shared:
            middle = seen + item.length / 2
            if min(int(middle * self._local_size / total), self._local_size - 1) == self._local_rank:
                yield item, tensor
            seen += item.length


def refuse_unplain(values: Mapping[str, Any]) -> None:
    """CheckpointError if a tensor among these is more than numbers side by side; the text names it."""
    for name, value in values.items():
        kind = _kind_of(value) if isinstance(value, torch.Tensor) else ""
        if kind:
            raise CheckpointError(f"{name} is a {kind} tensor, which cannot be saved: give a plain one")


def _kind_of(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return "sparse"
    return "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else ""


def _is_alike(item: WriteItem, whole: object) -> bool:
    """Whether all ranks have the same of a tensor, which is ``whole`` in the state of the planner."""
    if item.type is WriteItemType.TENSOR:
        return True
    data = item.tensor_data
    is_replicated = isinstance(whole, DTensor) and all(isinstance(it, Replicate) for it in whole.placements)
    return is_replicated and data is not None and data.chunk.sizes == data.size


def _describe(item: WriteItem, tensor: torch.Tensor, is_shard: bool) -> Item:
    data = item.tensor_data
    assert data is not None
    return Item(
        item.index.fqn,
        0,
        tensor.numel() * tensor.element_size(),
        str(tensor.dtype).removeprefix("torch."),
        tuple(data.size),
        tuple(data.chunk.offsets),
        tuple(data.chunk.sizes),
        is_shard,
    )


def dtype_of(name: str) -> torch.dtype:
    """The type of a tensor by its name. CheckpointError if torch has no such type."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"this torch has no tensors of type {name!r}")
    return found


# Writing


def place(items: Iterable[tuple[Item, torch.Tensor]]) -> list[Item]:
    """Give each item its place in a part, one behind the other. Returns them."""
    at, placed = 0, []
    for item, _ in items:
        item.at = at
        at += _aligned(item.length)
        placed.append(item)
    return placed


def write(memory: torch.Tensor, items: Iterable[tuple[Item, torch.Tensor]], threads: int = 1) -> None:
    """Copy items to their places in ``memory``, the bytes of a buffer, in so many threads.

    Copies from a GPU are complete once its current stream is (``checkpoint/gpu.py``).
    """
    divisible: list[tuple[torch.Tensor, torch.Tensor]] = []
    for item, tensor in items:
        if not item.length:
            continue
        target = memory[item.at : item.at + item.length]
        if not item.dtype:
            target.copy_(tensor)
            continue
        if tensor.is_cuda:  # else torch would go over the copy itself, and wrongly if it has strides
            tensor = tensor.resolve_conj().resolve_neg()
        is_plain = not (tensor.is_conj() or tensor.is_neg())
        place = target.view(tensor.dtype).view(tensor.shape)
        if threads > 1 and is_plain and is_ordinary(tensor) and tensor.is_contiguous():
            divisible.append((place.view(-1), tensor.view(-1)))
        else:
            place.copy_(tensor, non_blocking=tensor.is_cuda and is_plain)
    if sum(tensor.nbytes for _, tensor in divisible) < LEAST:
        threads = 1
    run_all([job for place, tensor in divisible for job in _copies(place, tensor)], threads)


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether it is numbers in this host's memory, and no class of its own decides what a view or copy is."""
    is_of_torch = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_of_torch and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _copies(place: torch.Tensor, tensor: torch.Tensor) -> Iterator[Callable[[], object]]:
    """Copies of the pieces of a tensor, in any order."""
    length = max(1, JOB // tensor.element_size())
    for at in range(0, tensor.numel(), length):
        yield partial(place[at : at + length].copy_, tensor[at : at + length])


def seal(memory: torch.Tensor, items: Sequence[Item], facts: dict[str, Any]) -> tuple[int, str]:
    """Add digests, and the index behind the items. Returns the bytes in use, and the part's digest."""
    for item in items:
        item.sum = total_of(checksum(memory[item.at : item.at + item.length]))
    return _put(memory, _end_of(items), _encode(items, facts))


def enlist(memory: torch.Tensor, items: Sequence[Item], facts: dict[str, Any]) -> tuple[int, str]:
    """Add an index without digests, which leaves room for the one of ``seal``. Returns the same."""
    index = _encode(items, {_UNSEALED: True, **facts})
    room = len(index) - len(f'"{_UNSEALED}": true, ') + _FOOTER.size
    return _put(memory, _end_of(items) + room, index)


def _end_of(items: Sequence[Item]) -> int:
    return max((item.at + _aligned(item.length) for item in items), default=0)


def _put(memory: torch.Tensor, at: int, index: bytes) -> tuple[int, str]:
    """Write an index. Returns where the part ends with it, and its digest."""
    tail = index + _FOOTER.pack(len(index))
    memory[at : at + len(tail)] = torch.frombuffer(bytearray(tail), dtype=torch.uint8)
    return at + len(tail), digest_of(index)


def checksum(data: torch.Tensor) -> int:
    """The sum of the 64-bit words of these bytes, which ``total_of`` reduces; zeros fill the last word.

    That of a tensor is the sum of those of its pieces, if all but the last have whole words.
    """
    whole = data.numel() // 8 * 8
    total = int(data[:whole].view(torch.int64).sum()) if whole else 0
    return total + int.from_bytes(bytes(data[whole:].tolist()), "little")


def total_of(checksums: int) -> str:
    """The digest of an item of whose pieces these are the checksums together, in hex."""
    return f"{checksums % 2**64:0{_DIGITS}x}"


def digest_of(index: bytes) -> str:
    """The digest of a part with this index, in hex."""
    return hashlib.sha256(index).hexdigest()[:32]


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _encode(items: Sequence[Item], facts: dict[str, Any]) -> bytes:
    listed = [
        [i.name, i.at, i.length, i.dtype, i.size, i.offset, i.shape, i.is_shard, i.sum or "0" * _DIGITS]
        for i in items
    ]
    return json.dumps({"format": FORMAT, **facts, "items": listed}).encode()


# Reading


class Part:
    """A part to be read."""

    def __init__(self, rank: int, memory: memoryview, digest: str) -> None:
        """``memory`` is the part's bytes. CheckpointError unless its index has this ``digest``."""
        self.rank = rank
        self.digest = digest
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the buffer is read-only: nothing writes to it
            self._memory = (
                torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)
            )
        index = _index_of(memory, f"the part of rank {rank}", digest)
        self.facts = index
        self.items = items_of(index)
        end = len(memory)
        for item in self.items:
            if not 0 <= item.at <= item.at + item.length <= end:
                raise CheckpointError(f"the part of rank {rank} is damaged: {item.name} lies outside of it")

    def empty(self) -> None:
        """Take the bytes, which are a map, out of this process's memory; they can be read again."""
        empty(self._memory.data_ptr(), self._memory.numel())

    def data(self, item: Item) -> torch.Tensor:
        """The bytes of an item, in place and unchecked."""
        return self._memory[item.at : item.at + item.length]

    def tensor(self, item: Item) -> torch.Tensor:
        """A tensor of this part, in place. Damaged if its bytes have changed."""
        return tensor_in(self.data(item), item, self.rank)

    def value(self, item: Item) -> io.BytesIO:
        """Anything else in this part, as bytes. Damaged if they have changed."""
        return value_in(self.data(item), item, self.rank)


def tensor_in(data: torch.Tensor, item: Item, rank: int) -> torch.Tensor:
    """The tensor that these bytes of the part of ``rank`` are. Damaged if they have changed."""
    return _checked(data, item, rank).view(dtype_of(item.dtype)).view(item.shape)


def value_in(data: torch.Tensor, item: Item, rank: int) -> io.BytesIO:
    """The value that these bytes of the part of ``rank`` are. Damaged if they have changed."""
    checked = _checked(data, item, rank)
    return io.BytesIO(ctypes.string_at(checked.data_ptr(), item.length))


def _checked(data: torch.Tensor, item: Item, rank: int) -> torch.Tensor:
    if item.sum and total_of(checksum(data)) != item.sum:
        raise damage(item, rank)
    return data


def damage(item: Item, rank: int) -> Damaged:
    """What is wrong with an item of the part of ``rank`` whose digest is another one."""
    return Damaged(f"{item.name} is damaged in the part of rank {rank}: its bytes have changed")


def items_of(index: dict[str, Any]) -> list[Item]:
    """The items that the index of a part lists. Those of one without digests have none to be checked."""
    items = [Item(*each[:4], *map(tuple, each[4:7]), *each[7:]) for each in index["items"]]
    for item in items if is_unsealed(index) else ():
        item.sum = ""
    return items


def is_unsealed(index: dict[str, Any]) -> bool:
    """Whether the index of a part has no digests."""
    return bool(index.get(_UNSEALED))


def _index_of(memory: memoryview, what: str, digest: str) -> dict[str, Any]:
    start = len(memory) - _FOOTER.size
    (length,) = _FOOTER.unpack(memory[start:]) if start >= 0 else (0,)
    index = bytes(memory[max(0, start - length) : max(0, start)])
    if digest_of(index) != digest:
        raise CheckpointError(f"{what} is damaged: its index has changed")
    found: dict[str, Any] = json.loads(index)
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{what} has format {found.get('format')}, and this elasticrun reads {FORMAT}")
    return found
