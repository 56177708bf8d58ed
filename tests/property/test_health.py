"""The health check against random sets of faulty and slow nodes and of broken links."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

from hypothesis import assume, given
from hypothesis import strategies as st

from elasticrun.core.health.plan import BLOCK, MAX_SLOTS, WITNESSES, Evidence, first_step, second_step
from elasticrun.core.health.table import check_table
from elasticrun.core.health.verdicts import judge
from tests.core.fleet import BANDWIDTH, FLOPS, KINDS, RATIO, Fleet, afflicted, blamed, is_fine, link, names


@st.composite
def faults(draw: st.DrawFn, nodes: tuple[str, ...], most: int, cuts: int = 0) -> Fleet:
    """At most ``most`` faulty ``nodes``, of any kind, and at most ``cuts`` broken links."""
    faulty = draw(st.lists(st.sampled_from(nodes), max_size=most, unique=True))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=len(faulty), max_size=len(faulty)))
    pairs = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes)).filter(lambda it: it[0] != it[1])
    cut = draw(st.lists(pairs, max_size=cuts)) if len(nodes) > 1 and cuts else []
    return afflicted(dict(zip(faulty, kinds, strict=True)), {link(*it) for it in cut}, draw(st.booleans()))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[tuple[str, ...], tuple[str, ...], Fleet]:
    """(suspects, trusted, what is wrong with them), without any bound."""
    nodes = names(draw(st.integers(1, 40)))
    split = draw(st.integers(1, len(nodes)) | st.just(len(nodes)))
    fleet = draw(faults(nodes, most=len(nodes), cuts=draw(st.sampled_from([0, 0, 1, 40]))))
    return nodes[:split], nodes[split:], fleet


@given(fleets())
def test_nobody_is_accused_without_reason(case: tuple[tuple[str, ...], tuple[str, ...], Fleet]) -> None:
    """However many faults there are: a good node with at most one broken link is never called faulty."""
    suspects, trusted, fleet = case
    evidence = fleet.check(suspects, trusted)
    verdict = judge(evidence)
    cuts = Counter(node for it in fleet.cut for node in it)
    for node in blamed(verdict) - fleet.faulty:
        assert cuts[node] >= WITNESSES
    assert fleet.silent & {*evidence.nodes} <= blamed(verdict)
    assert (fleet.broken | fleet.crooked) & {*evidence.nodes} <= blamed(verdict)
    if len(suspects) > 1:
        assert fleet.faulty.isdisjoint(verdict.good)
    for found in verdict.bad_links:
        assert any(it <= {*found.nodes} for it in fleet.cut)
        assert fleet.faulty.isdisjoint(found.nodes)


@given(fleets())
def test_every_node_has_one_verdict(case: tuple[tuple[str, ...], tuple[str, ...], Fleet]) -> None:
    suspects, trusted, fleet = case
    evidence = fleet.check(suspects, trusted)
    verdict = judge(evidence)
    judged = [*verdict.good, *(it.node for it in (*verdict.faulty, *verdict.undecided))]
    assert sorted(judged) == sorted(evidence.nodes)
    assert {*suspects} <= {*judged} <= {*suspects, *trusted}
    assert all(it.reason for it in (*verdict.faulty, *verdict.undecided))
    assert sorted(row.node for row in check_table(evidence, verdict)) == sorted(evidence.nodes)
    assert is_fine(verdict) == (len(verdict.good) == len(judged) and not verdict.bad_links)
    assert judge(fleet.check(suspects, trusted)) == verdict


@given(fleets(), st.data())
def test_who_is_gone_is_neither_good_nor_faulty_and_nobody_suffers_for_it(
    case: tuple[tuple[str, ...], tuple[str, ...], Fleet], data: st.DataObject
) -> None:
    suspects, trusted, fleet = case
    gone = data.draw(st.sets(st.sampled_from([*suspects, *trusted])))
    evidence = replace(fleet, silent=fleet.silent | gone).check(suspects, trusted)
    verdict = judge(evidence, gone=gone)
    judged = [*verdict.good, *verdict.gone, *(it.node for it in (*verdict.faulty, *verdict.undecided))]
    assert sorted(judged) == sorted(evidence.nodes)
    assert {*verdict.gone} == gone & {*evidence.nodes}
    assert gone.isdisjoint(it.node for it in verdict.stragglers)
    assert {row.node for row in check_table(evidence, verdict) if row.verdict == "gone"} == {*verdict.gone}
    cuts = Counter(node for it in fleet.cut for node in it)
    for node in blamed(verdict) - fleet.faulty:
        assert cuts[node] >= WITNESSES


@given(fleets())
def test_steps_can_be_run(case: tuple[tuple[str, ...], tuple[str, ...], Fleet]) -> None:
    """Groups of a slot are disjoint, slots few, helpers good as far as is known, and evenly loaded."""
    suspects, trusted, fleet = case
    evidence = fleet.check(suspects, trusted)
    first, *rest = (step for step, _ in evidence.steps)
    assert len(first.slots) <= 1
    for step in (first, *rest):
        for slot in step.slots:
            members = list(chain.from_iterable(slot))
            assert len(members) == len({*members})
            assert {*members} <= {*step.nodes} <= {*suspects, *trusted}
        for node in step.nodes:
            assert step.groups_of(node) == tuple(g for slot in step.slots for g in slot if node in g)
    sizes = sorted(len(group) for slot in first.slots for group in slot)
    assert sizes[:-1] == [2] * (len(sizes) - 1)
    assert sizes[-1:] in ([], [2], [3])
    before = Evidence(evidence.steps[:1])
    assert not rest or before.suspects
    for step in rest:
        assert 1 <= len(step.slots) <= MAX_SLOTS
        pairs = [frozenset(group) for slot in step.slots for group in slot]
        assert {len(pair) for pair in pairs} == {2}
        assert len(pairs) == len({*pairs})
        assert {*before.own_faults}.isdisjoint(step.nodes)
        loads = [len(step.groups_of(node)) for node in before.proven]
        if len(before.proven) >= WITNESSES:
            assert max(loads) - min(loads) <= 1
            assert trusted == () or {*step.nodes} <= {*before.suspects, *before.proven}


@given(st.data(), st.integers(1, 40), st.booleans())
def test_up_to_two_fifths_of_faulty_nodes_are_named(data: st.DataObject, count: int, small: bool) -> None:
    """The bound that core/health/plan.py proves, for sound links."""
    count = count % BLOCK + 1 if small else count
    nodes = names(count)
    most = count - 2 if count <= BLOCK else (4 * count - 5) // 10
    assume(most > 0)
    fleet = data.draw(faults(nodes, most).filter(lambda it: not it.crooked))
    verdict = fleet.verdict(nodes)
    assert blamed(verdict) == fleet.faulty
    assert {*verdict.good} == {*nodes} - fleet.faulty
    assert (verdict.undecided, verdict.bad_links) == ((), ())


@given(st.data(), st.integers(3, 40), st.sampled_from(KINDS), st.booleans(), st.booleans())
def test_one_faulty_node_of_three_or_more_is_named(
    data: st.DataObject, count: int, kind: str, one_sided: bool, recheck: bool
) -> None:
    nodes = names(count)
    suspects = data.draw(st.integers(1, count)) if recheck else count
    tested = nodes[: 2 * suspects]
    node = data.draw(st.sampled_from(tested))
    verdict = afflicted({node: kind}, one_sided=one_sided).verdict(nodes[:suspects], nodes[suspects:])
    assert blamed(verdict) == {node}
    assert {*verdict.good} >= {*nodes[:suspects]} - {node}
    assert (verdict.undecided, verdict.bad_links) == ((), ())


@given(st.sampled_from(["broken", "crooked", "silent"]), st.sampled_from(names(2)))
def test_one_faulty_node_of_two_is_named_if_it_shows(kind: str, node: str) -> None:
    assert blamed(afflicted({node: kind}).verdict(names(2))) == {node}


@given(st.data(), st.integers(3, 40), st.booleans())
def test_one_broken_link_is_named_and_nobody_excluded(
    data: st.DataObject, count: int, one_sided: bool
) -> None:
    nodes = names(count)
    group = data.draw(st.sampled_from(first_step(nodes).slots[0]))
    cut = link(*data.draw(st.permutations(group))[:2])
    verdict = Fleet(cut=frozenset([cut]), one_sided=one_sided).verdict(nodes)
    assert (verdict.good, verdict.faulty, verdict.undecided) == (nodes, (), ())
    [found] = verdict.bad_links
    assert {*found.nodes} == ({*group} if count > 3 else cut)


@given(st.data(), st.integers(2, 20))
def test_one_faulty_node_in_every_pair(data: st.DataObject, pairs: int) -> None:
    """No group of the first step works, and yet everybody gets a verdict."""
    nodes = names(2 * pairs)
    dead = frozenset(data.draw(st.sampled_from(group)) for group in first_step(nodes).slots[0])
    verdict = Fleet(dead=dead).verdict(nodes)
    assert blamed(verdict) == dead
    assert {*verdict.good} == {*nodes} - dead


@given(st.integers(1, 20), st.integers(0, 10))
def test_suspects_may_all_be_faulty(suspects: int, more: int) -> None:
    """If nobody is known good in this check, nodes that were good earlier make up for it."""
    nodes = names(2 * suspects + more + (suspects == 1))
    evidence = Fleet(dead=frozenset(nodes[:suspects])).check(nodes[:suspects], nodes[suspects:])
    verdict = judge(evidence)
    assert blamed(verdict) == {*nodes[:suspects]}
    assert len(evidence.steps[1][0].slots) <= MAX_SLOTS
    assert verdict.undecided == ()


@given(st.data(), st.integers(2, 40), st.floats(1.1, 8.0))
def test_slow_nodes_are_named(data: st.DataObject, count: int, ratio: float) -> None:
    """Up to half of the nodes, at exactly ``ratio`` times slower, with a noise of 4 %; also beside faults."""
    nodes = names(count)
    slow = data.draw(st.lists(st.sampled_from(nodes), max_size=count // 2, unique=True))
    noise = st.floats(0.96, 1.0) if ratio > 1.2 else st.just(1.0)
    speeds = tuple((node, (ratio if node in slow else 1.0) / data.draw(noise)) for node in nodes)
    verdict = judge(Fleet(slow=speeds).check(nodes, ratio=ratio), ratio)
    assert {found.node for found in verdict.stragglers} == {*slow}
    assert {*verdict.good} == {*nodes}


@given(st.data(), st.integers(4, 40).filter(lambda count: count % 2 == 0))
def test_a_slow_link_is_named(data: st.DataObject, count: int) -> None:
    nodes = names(count)
    pair = data.draw(st.sampled_from(first_step(nodes).slots[0]))
    verdict = Fleet(slow_links=((frozenset(pair), 2.0),)).verdict(nodes)
    assert [found.nodes for found in verdict.slow_links] == [pair]
    assert (verdict.stragglers, verdict.good) == ((), nodes)


@given(st.integers(8, 40), st.data(), st.floats(2.0, 8.0))
def test_a_slow_network_is_found_if_two_nodes_say_so(count: int, data: st.DataObject, factor: float) -> None:
    """A node whose partner is dead meets two others, and each of those is fast elsewhere."""
    nodes = names(count - count % 2)
    dead, node = data.draw(st.sampled_from(first_step(nodes).slots[0]))
    slow = tuple((link(node, other), factor) for other in nodes if other != node)
    verdict = Fleet(dead=frozenset([dead]), slow_links=slow).verdict(nodes)
    assert blamed(verdict) == {dead}
    assert [found.node for found in verdict.stragglers] == [node]
    assert verdict.slow_links == ()


@given(fleets())
def test_measurements_are_in_the_table(case: tuple[tuple[str, ...], tuple[str, ...], Fleet]) -> None:
    suspects, trusted, fleet = case
    evidence = fleet.check(suspects, trusted)
    verdict = judge(evidence)
    rows = check_table(evidence, verdict)
    order = ["faulty", "undecided", "good"]
    assert [row.verdict for row in rows] == sorted((row.verdict for row in rows), key=order.index)
    for row in rows:
        assert row.matmul_flops == (0 if row.node in fleet.silent else FLOPS)
        assert row.bandwidth in (0, BANDWIDTH, BANDWIDTH / 2)
        assert (row.bandwidth > 0) == (row.latency > 0)
        assert (row.bandwidth > 0) >= (row.node in verdict.good and len(suspects) > 1)


@given(fleets())
def test_there_is_no_third_step(case: tuple[tuple[str, ...], tuple[str, ...], Fleet]) -> None:
    suspects, trusted, fleet = case
    evidence = fleet.check(suspects, trusted)
    if len(evidence.steps) == 2:
        assert second_step(evidence, RATIO, trusted) is None
