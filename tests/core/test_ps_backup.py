"""Copies of parameter servers' variables: which are made and restored, and whether there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.tensorflow.ps_backup import (
    Copy,
    Label,
    Piece,
    Plan,
    Slice,
    Wanted,
    cut,
    holders,
    origin,
    plan,
    refusal,
    stale,
)
from elasticrun.core.tensorflow.ps_room import (
    CgroupFiles,
    capacity,
    cgroup_files,
    in_memory,
    in_words,
    lack,
    left_in_cgroup,
    left_on_host,
)

WANTED = Wanted(400, "/ckpt-400", ("s0", "s1", "s2"))
GIB = 1 << 30


def label(owner: int, holder: int, **other: Any) -> Label:
    good = Label(400, "/ckpt-400", "a", 3, owner, holder, f"s{owner}", 8, ("x",))
    return replace(good, **other)


def copy(owner: int, holder: int, readers: tuple[int, ...] | None = None, **other: Any) -> Copy:
    where = f"/{holder}/of-{owner}/{other.get('save', 'a')}"
    return Copy(label(owner, holder, **other), where, (holder,) if readers is None else readers)


def all_copies(**other: Any) -> list[Copy]:
    return [copy(owner, holder, **other) for owner in range(3) for holder in holders(owner, 3, 1)]


def chosen(result: Plan) -> list[list[int]]:
    """The holders that each ps may be restored from, in order."""
    return [[one.label.holder for one in choice.sources] for choice in result.choices]


@pytest.mark.parametrize(
    ("owner", "servers", "peers", "expected"),
    [
        (0, 3, 1, (0, 1)),
        (2, 3, 1, (2, 0)),
        (1, 3, 2, (1, 2, 0)),
        (1, 3, 9, (1, 2, 0)),
        (1, 3, 0, (1,)),
        (0, 1, 1, (0,)),
    ],
)
def test_holders(owner: int, servers: int, peers: int, expected: tuple[int, ...]) -> None:
    assert holders(owner, servers, peers) == expected


@given(st.integers(1, 7), st.data())
def test_as_many_ps_as_there_are_peers_may_be_lost(servers: int, data: st.DataObject) -> None:
    peers = data.draw(st.integers(0, servers - 1))
    wanted = Wanted(1, "c", ("s",) * servers)
    copies = [
        Copy(Label(1, "c", "a", servers, owner, holder, "s", 1, ()), f"{owner}/{holder}", (holder,))
        for owner in range(servers)
        for holder in holders(owner, servers, peers)
    ]
    for lost in combinations(range(servers), peers):
        left = [one for one in copies if one.label.holder not in lost]
        result = plan(left, wanted)
        assert not result.problem
        for choice in result.choices:
            assert choice.sources
            assert (choice.sources[0].label.holder == choice.owner) == (choice.owner not in lost)


def test_the_own_copy_is_the_best() -> None:
    result = plan(reversed(all_copies()), WANTED)
    assert chosen(result) == [[0, 1], [1, 2], [2, 0]]
    assert origin(result.choices[2].sources[0].label, result.choices[2].passed) == (
        "ps 2: from its own copy, step 400"
    )


def test_a_lost_ps_is_restored_from_its_peer() -> None:
    result = plan([one for one in all_copies() if one.label.holder != 1], WANTED)
    assert chosen(result) == [[0], [2], [2, 0]]
    choice = result.choices[1]
    assert origin(choice.sources[0].label, choice.passed) == (
        "ps 1: from its peer ps 2, step 400 (own copy: absent)"
    )


def test_what_lies_on_the_own_host_is_nearer_than_what_a_ps_itself_kept_elsewhere() -> None:
    copies = [copy(0, 0, readers=(2,)), copy(0, 1, readers=(0, 1)), copy(1, 1), copy(2, 2)]
    result = plan(copies, WANTED)
    assert chosen(result) == [[1, 0], [1], [2]]
    assert origin(result.choices[0].sources[0].label, ()) == (
        "ps 0: from its peer ps 1, step 400 (the nearest copy)"
    )


@pytest.mark.parametrize(
    ("other", "words", "is_stale"),
    [
        ({}, "", False),
        ({"step": 300}, "stale, of step 300", True),
        ({"step": 401}, "stale, of step 401", True),
        ({"checkpoint": "/b"}, "made with another checkpoint, /b", True),
        ({"servers": 2}, "made with 2 ps, and there are 3", False),
        ({"shard": "t"}, "of other variables", False),
    ],
)
def test_refusal(other: dict[str, Any], words: str, is_stale: bool) -> None:
    assert refusal(label(1, 2, **other), WANTED) == words
    assert stale(label(1, 2, **other), WANTED) == is_stale


@pytest.mark.parametrize(
    ("copies", "problem"),
    [
        (
            [],
            "ps 0: no good copy (own copy: absent); ps 1: no good copy (own copy: absent); "
            "ps 2: no good copy (own copy: absent)",
        ),
        (
            [copy(0, 0), copy(2, 2), copy(1, 2, step=300)],
            "ps 1: no good copy (own copy: absent; copy kept by ps 2: stale, of step 300)",
        ),
        (
            [copy(0, 0), copy(1, 1), copy(2, 2, save="b")],
            "no save of this step is complete; ps 0: no good copy (own copy: of an incomplete save)",
        ),
        ([*all_copies(), *all_copies(save="b")], "there are copies of 2 different saves of step 400"),
        (
            [copy(owner, owner, servers=4) for owner in range(4)],
            "; ".join(
                f"ps {owner}: no good copy (own copy: made with 4 ps, and there are 3)" for owner in range(3)
            ),
        ),
    ],
)
def test_when_the_file_has_to_be_read(copies: list[Copy], problem: str) -> None:
    assert plan(copies, WANTED).problem == problem


def test_what_is_left_of_another_save_does_no_harm() -> None:
    result = plan([*all_copies(), copy(0, 2, save="b")], WANTED)
    assert not result.problem
    assert chosen(result)[0] == [0, 1]
    assert result.choices[0].passed == ("copy kept by ps 2: of an incomplete save",)


MANY = [
    *all_copies(),
    *all_copies(save="b"),
    *all_copies(save="c", step=300),
    *all_copies(save="d", checkpoint="/b"),
    *all_copies(save="e", shard="s0"),
    copy(3, 0),
]


@given(st.lists(st.sampled_from(MANY), unique=True))
def test_nothing_but_one_whole_save_of_the_step_is_restored(copies: list[Copy]) -> None:
    result = plan(copies, WANTED)
    taken = [one for choice in result.choices for one in choice.sources]
    assert not any(refusal(one.label, WANTED) for one in taken)
    if not result.problem:
        assert len({one.label.save for one in taken}) == 1
        assert {one.label.owner for one in taken} == {0, 1, 2}


PIECES = st.lists(
    st.builds(
        Piece,
        st.just("v"),
        st.just("float32"),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.sampled_from([1, 4]),
    ),
    max_size=6,
)


@given(PIECES, st.integers(1, 100))
def test_parts_hold_every_row_once_and_are_small(pieces: list[Piece], limit: int) -> None:
    parts = cut(pieces, limit)
    rows: dict[int, list[int]] = {number: [] for number in range(len(pieces))}
    for part in parts:
        sizes = [size_of(pieces[item.piece], item) for item in part]
        assert part and (sum(sizes) <= limit or is_one_row(pieces, part))
        for item in part:
            count = (pieces[item.piece].shape or (1,))[0]
            rows[item.piece] += range(count) if item.rows is None else range(*item.rows)
    assert rows == {number: list(range((piece.shape or (1,))[0])) for number, piece in enumerate(pieces)}
    keys = [item.key for part in parts for item in part]
    assert len(set(keys)) == len(keys)


def size_of(piece: Piece, item: Slice) -> int:
    return piece.size if item.rows is None else piece.size // piece.shape[0] * (item.rows[1] - item.rows[0])


def is_one_row(pieces: list[Piece], part: Sequence[Slice]) -> bool:
    """Whether a part has one value that cannot be divided, beside others that take nothing."""
    large = [item for item in part if size_of(pieces[item.piece], item)]
    return len(large) == 1 and (large[0].rows is None or large[0].rows[1] - large[0].rows[0] == 1)


def test_cut() -> None:
    pieces = [Piece("a", "f", (5, 2), 4), Piece("b", "f", (), 4), Piece("c", "f", (2,), 4)]
    assert cut(pieces, 16) == (
        (Slice(0, (0, 2)),),
        (Slice(0, (2, 4)),),
        (Slice(0, (4, 5)), Slice(1)),
        (Slice(2),),
    )
    assert cut([], 16) == ()


# -- room

MOUNTS = """\
overlay / overlay rw,relatime 0 0
shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0
big /mnt/big tmpfs rw 0 0
odd /mnt/odd tmpfs rw,size=50% 0 0
far /dev/shm2 nfs rw,size=1k 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "memory", "size"),
    [
        ("/dev/shm/elasticrun_x", True, 64 << 20),
        ("/dev/shm", True, 64 << 20),
        ("/dev/shm2/x", False, None),
        ("/tmp/x", False, None),
        ("/mnt/big/x", True, None),
        ("/mnt/odd/x", True, None),
    ],
)
def test_mounts(path: str, memory: bool, size: int | None) -> None:
    assert in_memory(MOUNTS, path) == memory
    assert capacity(MOUNTS, path) == size


def test_no_mounts() -> None:
    assert not in_memory("", "/x")
    assert capacity("t / tmpfs size=4096 0 0", "/x") == 4096


def test_cgroup_files() -> None:
    root = "/sys/fs/cgroup"
    assert cgroup_files("0::/a/b\n") == tuple(
        CgroupFiles(f"{folder}/memory.max", f"{folder}/memory.current", f"{folder}/memory.stat")
        for folder in (f"{root}/a/b", root)
    )
    assert cgroup_files("3:cpu:/\n4:memory,x:/\nodd") == (
        CgroupFiles(
            f"{root}/memory/memory.limit_in_bytes",
            f"{root}/memory/memory.usage_in_bytes",
            f"{root}/memory/memory.stat",
        ),
    )


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "left"),
    [
        ("100\n", "30\n", "", 70),
        ("100", "30", "anon 5\ninactive_file 10\n", 80),
        ("100", "30", "inactive_file 1\ntotal_inactive_file 10", 80),
        ("100", "130", "", 0),
        ("max\n", "30", "", None),
        ("", "", "", None),
        ("100", "30", "inactive_file odd", 70),
    ],
)
def test_left_in_cgroup(limit: str, usage: str, stat: str, left: int | None) -> None:
    assert left_in_cgroup(limit, usage, stat) == left


def test_left_on_host() -> None:
    assert left_on_host("MemTotal: 9 kB\nMemAvailable:   4 kB\n") == 4096
    assert left_on_host("MemTotal: 9 kB") is None


@pytest.mark.parametrize(
    ("needed", "whole", "left", "caps", "words"),
    [
        (0, 0, [], [], ""),
        (8 * GIB, 8 * GIB, [None], [None], ""),
        (8 * GIB, 8 * GIB, [10 * GIB, None, 20 * GIB], [8 * GIB], ""),
        (
            8 * GIB + 1,
            8 * GIB + 1,
            [20 * GIB, 10 * GIB],
            [],
            "it needs 8.0 GiB more memory, but may take only 8.0 GiB of what is left",
        ),
        (0, 8 * GIB, [0], [64 << 20], "it needs 8.0 GiB, and the file system holds 64.0 MiB in all"),
        (0, 8 * GIB, [0], [], ""),
    ],
)
def test_lack(needed: int, whole: int, left: list[int | None], caps: list[int | None], words: str) -> None:
    assert lack(needed, whole, left, caps) == words


def test_in_words() -> None:
    assert [in_words(size) for size in (3, 2048)] == ["3 bytes", "2.0 KiB"]
