"""Positions in a stream: what ranks know together, who reads what, and what is saved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticrun.core.data.streams import (
    MAX_OFFSET,
    Failed,
    Gap,
    Standing,
    Told,
    common,
    from_state,
    grown,
    merge,
    share,
    to_state,
)
from elasticrun.errors import DataError

NAMES = tuple(f"t/{n}" for n in range(7))


@pytest.mark.parametrize("world", range(1, 9))
def test_each_partition_is_read_by_one_rank_and_all_read_about_as_many(world: int) -> None:
    shares = [share(NAMES, rank, world) for rank in range(world)]
    assert sorted(name for each in shares for name in each) == list(NAMES)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    more = [share(("u/0", "u/1"), rank, world, len(NAMES)) for rank in range(world)]
    whole = [len(a) + len(b) for a, b in zip(shares, more, strict=True)]
    assert max(whole) - min(whole) <= 1
    assert sum(whole) == len(NAMES) + 2


def test_ranks_know_together_what_each_of_them_knows() -> None:
    failed, gap = Failed("a", 3, "no number"), Gap("b", 4, 9)
    before = Standing({"a": 1, "b": 1}, (Failed("a", 0, "old"),), (Gap("a", 0, 1),), 2)
    found = merge(before, [Told({"a": 5}, failed=(failed,)), Told({"b": 9}, gaps=(gap,))], 3)
    assert found.positions == {"a": 5, "b": 9}
    assert found.failed == (*before.failed, failed)
    assert found.gaps == (*before.gaps, gap)
    assert found.round == 3
    with pytest.raises(DataError, match="rank 1 and one before it both read a: "):
        merge(before, [Told({"a": 5}), Told({"a": 9})], 3)


def test_a_partition_is_new_once_all_ranks_see_it() -> None:
    assert common([["b", "a", "c"], ["a", "b"]]) == ("a", "b")
    told = [Told({"a": 1}, ("a", "b", "c", "d")), Told({"b": 1}, ("d", "c", "a"))]
    assert grown(told) == ("c", "d")
    assert grown([told[0], Told({"b": 1})]) == (), "one of them has not looked yet"


def test_a_state_is_plain_and_comes_back_as_it_was() -> None:
    standing = Standing({"b": MAX_OFFSET - 1, "a": 0}, (Failed("a", 1, "x"),), (Gap("b", 2, 7),), 4)
    assert from_state(json.loads(json.dumps(to_state(standing)))) == standing
    assert list(to_state(standing)["positions"]) == ["a", "b"]


@pytest.mark.parametrize("state", [None, 1, {}, {"format": 2, "positions": {}}, {"format": 1, "spans": []}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(DataError, match="is none"):
        from_state(state)


@pytest.mark.parametrize(
    "change",
    [
        {"positions": []},
        {"positions": {"a": -1}},
        {"positions": {"a": True}},
        {"positions": {"a": MAX_OFFSET}},
        {"positions": {"a": 1.0}},
        {"positions": {1: 1}},
        {"failed": [["a", 1]]},
        {"failed": [["a", 1, 2]]},
        {"failed": 3},
        {"gaps": [["a", 1, None]]},
        {"round": "0"},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    state = to_state(Standing({"a": 1})) | change
    with pytest.raises(DataError, match="damaged"):
        from_state(state)
    for name in ("failed", "gaps", "round"):
        with pytest.raises(DataError, match="damaged"):
            from_state({key: value for key, value in to_state(Standing({})).items() if key != name})
