"""What describes a commit in the storage: its folder, the index of each part, and the marker.

A commit is a folder::

    step-0000000012-round-3/
        __0_0.distcp      what node 0 wrote, in the layout of torch.distributed.checkpoint
        __1_0.distcp      what node 1 wrote
        part-0.json       index of what node 0 wrote: each item, where it lies, its digest
        part-1.json
        .metadata         torch's index of all of it
        commit.json       the marker: the commit is finished

Theory. Each node writes its data and then its index. Once all indexes are there, one node writes
``.metadata`` and then the marker. So each of them vouches for what is above it, and a commit without a
marker does not exist. The marker has the digests of all indexes, and each index those of its data.

``.metadata`` is a pickle, as torch wants it. Nothing here reads it: what is listed and verified is in JSON.
The digest of data is its CRC-32: it finds damage, and does not resist somebody who may write there.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from elasticrun.core.protocol.commits import CommitId
from elasticrun.storage.errors import DamagedError

FORMAT = 1
#: The last moment of the year 9999, in seconds since 1970: what is later is no date.
LATEST = 253402300799.0
MARKER = "commit.json"
METADATA = ".metadata"
_FOLDER = re.compile(r"step-(\d{10,16})-round-(\d{1,10})(?:-([0-9a-z]{1,32}))?")
_RUN = re.compile(r"[0-9a-z]{0,32}")


class CommitName(NamedTuple):
    """Which commit. All nodes that write it have to give it the same name."""

    commit: CommitId
    #: Of the run of the job, in small letters and digits: each run numbers its rounds from 0.
    run: str = ""

    @property
    def folder(self) -> str:
        """Where it is in a store; names sort by step. ValueError if ``run`` has other characters."""
        if not _RUN.fullmatch(self.run):
            raise ValueError(f"run must be at most 32 small letters and digits, got {self.run!r}")
        tail = f"-{self.run}" if self.run else ""
        return f"step-{self.commit.step:010}-round-{self.commit.round}{tail}"

    @classmethod
    def parse(cls, folder: str) -> CommitName | None:
        """The commit of a folder; None if it is another kind of folder."""
        found = _FOLDER.fullmatch(folder)
        return cls(CommitId(int(found[2]), int(found[1])), found[3] or "") if found else None

    def __str__(self) -> str:
        return f"{self.commit} of run {self.run}" if self.run else str(self.commit)


class StoredItem(NamedTuple):
    """One tensor, shard of a tensor, or other value, and where it lies in its file."""

    name: str  # fully qualified
    rank: int  # that saved it
    at: int  # offset in the file
    length: int  # bytes
    check: str  # digest of these bytes
    dtype: str = ""  # of a tensor, as torch names it; "": no tensor
    size: tuple[int, ...] = ()  # of the whole tensor
    offset: tuple[int, ...] = ()  # of this shard in it
    shape: tuple[int, ...] = ()  # of this shard
    shows: str = ""  # the name of the value that it shows as torch itself would save it; "": none


class PartIndex(NamedTuple):
    """What one node wrote."""

    name: CommitName
    group_rank: int
    length: int  # bytes of its file
    ranks: dict[int, str]  # of its workers, with the digests of their parts in memory
    mappings: dict[str, tuple[str | int, ...]]  # path in the state of each item, by its name
    items: tuple[StoredItem, ...]
    left: tuple[tuple[str, tuple[int, ...]], ...]  # name and offset of tensors that it left to other nodes

    def encode(self) -> bytes:
        """The bytes of its file."""
        return _sealed(
            {
                **_named(self.name),
                "group_rank": self.group_rank,
                "length": self.length,
                "ranks": [[rank, digest] for rank, digest in self.ranks.items()],
                "mappings": self.mappings,
                "items": self.items,
                "left": self.left,
            }
        )

    @classmethod
    def decode(cls, data: bytes, what: str) -> PartIndex:
        """The index that has these bytes. DamagedError if they have changed; ``what`` names them."""
        with _judging(what):
            body = _opened(data, what)
            length = _number(body["length"])
            return cls(
                _name_in(body),
                _number(body["group_rank"]),
                length,
                {_number(rank): _text(check) for rank, check in body["ranks"]},
                {name: tuple(path) for name, path in body["mappings"].items()},
                tuple(_item(each, length) for each in body["items"]),
                tuple((_text(name), _numbers(offset)) for name, offset in body["left"]),
            )


class Marker(NamedTuple):
    """That a commit is finished, and what belongs to it."""

    name: CommitName
    number: int  # grows with each commit that is finished in this store
    nodes: int
    world_size: int
    length: int  # bytes of all data files
    finished: float  # seconds since 1970, on the clock of the node that finished it
    checks: dict[str, str]  # digest of each index, and of torch's metadata, by file

    def encode(self) -> bytes:
        """The bytes of its file."""
        fields = self._asdict()
        del fields["name"]
        return _sealed({**_named(self.name), **fields})

    @classmethod
    def decode(cls, data: bytes, what: str) -> Marker:
        """The marker that has these bytes. DamagedError if they have changed; ``what`` names them."""
        with _judging(what):
            body = _opened(data, what)
            number, nodes, world_size, length = (_number(body[field]) for field in cls._fields[1:5])
            finished = float(body["finished"])
            if not 0 <= finished <= LATEST:
                raise ValueError(f"no date is {finished}")
            checks = {name: _text(check) for name, check in body["checks"].items()}
            files = [METADATA, *(index_file(node) for node in range(len(checks) - 1))]
            if not 0 < nodes == len(checks) - 1 or checks.keys() != {*files}:
                raise ValueError(f"it has digests of {len(checks)} files, of {nodes} nodes")
            return cls(_name_in(body), number, nodes, world_size, length, finished, {**checks})


def data_file(group_rank: int) -> str:
    """The file with the data of a node, as torch names it."""
    return f"__{group_rank}_0.distcp"


def index_file(group_rank: int) -> str:
    """The file with the index of what a node wrote."""
    return f"part-{group_rank}.json"


def digest(data: bytes) -> str:
    """The digest of these bytes."""
    return f"{zlib.crc32(data):08x}"


def _named(name: CommitName) -> dict[str, Any]:
    return {"step": name.commit.step, "round": name.commit.round, "run": name.run}


@contextmanager
def _judging(what: str) -> Iterator[None]:
    """Raise DamagedError in place of what a field raises that nothing here has written."""
    try:
        yield
    except KeyError as error:
        raise DamagedError(f"{what} is damaged: it has no {error}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{what} is damaged: {error}") from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"no number of anything is {value!r:.40}")
    return value


def _numbers(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(map(_number, values))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text is {value!r:.40}")
    return value


def _name_in(body: Mapping[str, Any]) -> CommitName:
    return CommitName(CommitId(_number(body["round"]), _number(body["step"])), _text(body["run"]))


def _item(fields: Sequence[Any], end: int) -> StoredItem:
    """``end``: the bytes of the file that it is in."""
    name, rank, at, length, check, dtype, size, offset, shape, shows = fields
    if _number(at) + _number(length) > end:
        raise ValueError(f"{name!r:.80} ends after its file")
    whole, start, extent = map(_numbers, (size, offset, shape))
    name, check, dtype, shows = map(_text, (name, check, dtype, shows))
    return StoredItem(name, _number(rank), at, length, check, dtype, whole, start, extent, shows)


def _sealed(body: Mapping[str, Any]) -> bytes:
    text = json.dumps({"format": FORMAT, **body}, separators=(",", ":")).encode()
    return digest(text).encode() + b"\n" + text + b"\n"


def _opened(data: bytes, what: str) -> dict[str, Any]:
    check, _, text = data.partition(b"\n")
    if not text.endswith(b"\n") or digest(text[:-1]).encode() != check:
        raise DamagedError(f"{what} is damaged: its bytes have changed")
    body = cast("dict[str, Any]", json.loads(text))
    if body["format"] != FORMAT:
        raise DamagedError(f"{what} has format {body['format']}, and this elasticrun reads {FORMAT}")
    return body


def shares(lengths: Sequence[int], count: int) -> list[int]:
    """Which of ``count`` nodes writes each item, by its length: about the same number of bytes each."""
    total, seen, chosen = sum(lengths) or 1, 0, []
    for length in lengths:
        chosen.append(min((2 * seen + length) * count // (2 * total), count - 1))
        seen += length
    return chosen
