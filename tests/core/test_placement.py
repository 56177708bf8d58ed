"""Which node sends which part to which other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.state.placement import Transfer, is_spread, plan, plan_gathering


def owned(*nodes: str) -> list[dict[str, int]]:
    """Each node has its own part only."""
    return [{node: rank} for rank, node in enumerate(nodes)]


def test_each_part_goes_to_the_next_host() -> None:
    hosts = {"a": "1", "b": "2", "c": "3"}
    assert plan(owned("a", "b", "c"), hosts, 2) == [
        Transfer(0, "a", "b"),
        Transfer(1, "b", "c"),
        Transfer(2, "c", "a"),
    ]


def test_nodes_of_one_host_send_to_nodes_at_the_same_place_of_the_next_one() -> None:
    hosts = {"a": "1", "b": "1", "c": "2", "d": "2"}
    found = plan(owned("a", "b", "c", "d"), hosts, 2)
    assert [(it.sender, it.receiver) for it in found] == [("a", "c"), ("b", "d"), ("c", "a"), ("d", "b")]


def test_what_is_on_enough_hosts_is_not_sent() -> None:
    hosts = {"a": "1", "b": "2", "c": "3"}
    assert plan([{"a": 0, "b": 1}, {"c": 2}], hosts, 2) == [Transfer(2, "c", "a")]
    assert plan([{"a": 0, "b": 1}, {"c": 2}], hosts, 1) == []
    assert plan([{"a": 0, "b": 0}], {"a": "1", "b": "1"}, 2) == [], "there is no other host"


def test_a_host_that_has_it_already_is_passed_over() -> None:
    hosts = {"a": "1", "b": "2", "c": "3"}
    assert plan([{"a": 0, "b": 0}], hosts, 3) == [Transfer(0, "a", "c")]


def test_a_part_of_a_lost_node_is_sent_by_who_has_it() -> None:
    hosts = {"b": "2", "c": "3"}
    assert plan([{"a": 0, "b": 0}, {"a": 7}], hosts, 2) == [Transfer(0, "b", "c")]


def test_a_part_that_is_needed_for_two_reasons_is_sent_once() -> None:
    assert plan([{"a": 0}, {"a": 0}], {"a": "1", "b": "2"}, 2) == [Transfer(0, "a", "b")]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 4))
def test_everything_is_spread_afterwards_and_nobody_takes_too_much(sizes: list[int], copies: int) -> None:
    names = [f"{host}.{seat}" for host, size in enumerate(sizes) for seat in range(size)]
    hosts = {name: name.partition(".")[0] for name in names}
    holders = owned(*names)
    found = plan(holders, hosts, copies)
    for rank, _, receiver in found:
        holders[rank] = {**holders[rank], receiver: rank}
    assert is_spread(holders, hosts, copies)
    assert is_spread(owned(*names), hosts, copies) == (not found)
    assert all(hosts[sender] != hosts[receiver] for _, sender, receiver in found)
    if len(set(sizes)) == 1:
        taken = Counter(receiver for _, _, receiver in found)
        assert set(taken.values()) <= {min(copies, len(sizes)) - 1}


def test_what_the_members_lack_comes_from_other_nodes_each_member_getting_as_much() -> None:
    holders = [{"a": 0}, {"x": 1}, {"y": 2, "x": 2}, {"x": 3}, {"x": 1}]
    everybody = {"a", "b", "x", "y"}
    assert gathering(holders, everybody) == [
        Transfer(1, "x", "a"),
        Transfer(2, "y", "b"),
        Transfer(3, "x", "a"),
    ]


def test_only_who_exchanges_copies_sends_and_takes_in() -> None:
    holders = [{"x": 0, "y": 0}, {"x": 1}]
    assert gathering(holders[:1], {"b", "y"}) == [Transfer(0, "y", "b")]
    assert gathering(holders[:1], {"x", "y"}) == []
    assert gathering(holders, {"b", "y"}) == [], "part 1 cannot come, and the other alone is of no use"


def test_a_part_that_comes_for_one_reason_is_not_sent_for_another_one() -> None:
    assert gathering([{"x": 1}, {"x": 1, "y": 2}], {"a", "x", "y"}) == [Transfer(1, "x", "a")]


def test_what_could_not_be_sent_is_sent_another_way_and_the_same_way_last() -> None:
    ways = [Transfer(0, "x", "a"), Transfer(0, "x", "b"), Transfer(0, "y", "a"), Transfer(0, "y", "b")]
    tried: Counter[Transfer] = Counter()
    for way in [*ways, *ways]:
        [found] = gathering([{"x": 0, "y": 0}], {"a", "b", "x", "y"}, tried, tries=2)
        assert found == way
        tried[found] += 1
    assert gathering([{"x": 0, "y": 0}], {"a", "b", "x", "y"}, tried, tries=2) == []


def gathering(
    holders: Sequence[Mapping[str, int]],
    exchanging: Set[str],
    tried: Mapping[Transfer, int] = MappingProxyType({}),
    tries: int = 1,
) -> list[Transfer]:
    """How nodes a and b get everything."""
    return plan_gathering(holders, ["a", "b"], exchanging, tried, tries)
