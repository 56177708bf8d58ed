"""Shares of an operator's jobs, carried out step by step: within the units, settled in the end, no swings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.cluster.sharing import Ask, Granted, Limit, Shared, Stage, share_out

KINDS = ("cpu", "example.com/gpu")
NOW = 5000.0
#: By size, as anybody may have written it.
MEASURED = st.one_of(
    st.just(()),
    st.lists(st.tuples(st.integers(1, 12), st.floats(min_value=1e-300, max_value=1e300)), max_size=4).map(
        tuple
    ),
)


@st.composite
def ask(draw: st.DrawFn, name: str) -> Ask:
    least = draw(st.integers(1, 4))
    most = least + draw(st.sampled_from([0, 1, 2, 6]))
    nodes = draw(st.sampled_from([0, 0, least, most]))
    takes = draw(st.sampled_from([0, 1, 1, 2, 3]))
    besides = draw(st.sampled_from([0, 0, 2, 5])) if takes else 0
    stage = draw(st.sampled_from([Stage.ACTIVE] * 4 + list(Stage)))
    limit = Limit(draw(st.sampled_from([0, least])), draw(st.sampled_from([0.0, 0.0, 0.0, NOW + 300])))
    made = Ask(
        name,
        least,
        most,
        draw(st.sampled_from(KINDS)),
        takes,
        besides,
        draw(st.integers(-2, 2)),
        draw(st.floats(0, NOW)),
        stage,
        draw(st.sampled_from([None, Granted(nodes, "", 1.0, limit)])),
        live=nodes,
        running=nodes,
        measured=draw(MEASURED),
    )
    return replace(made, held=made.uses(nodes) + takes * draw(st.sampled_from([0, 0, 1, 3])))


@st.composite
def some_asks(draw: st.DrawFn) -> list[Ask]:
    return [draw(ask(f"ns/job-{number}")) for number in range(draw(st.integers(0, 8)))]


def used(asks: Sequence[Ask], kind: str) -> int:
    """What is granted, and what is still held beyond that."""
    granted = {it.name: it.nodes if it.stage is Stage.ACTIVE else 0 for it in asks}
    needed = {it.name: granted[it.name] and it.besides + granted[it.name] * it.takes for it in asks}
    return sum(max(needed[it.name], it.held) for it in asks if it.kind == kind)


UNITS = st.fixed_dictionaries({kind: st.integers(0, 24) for kind in KINDS})


def written(asks: Sequence[Ask], found: Shared) -> list[Ask]:
    shares = {grant.name: grant.granted for grant in found.grants}
    return [replace(it, granted=shares.get(it.name, it.granted)) for it in asks]


def ended(asks: Sequence[Ask]) -> list[Ask]:
    """What each job has too many of has ended, and what it may have runs."""
    nodes = {it.name: 0 if it.stage is Stage.OVER else it.nodes for it in asks}
    return [
        it if it.stage is Stage.FIXED else replace(it, held=it.uses(n), live=n, running=n)
        for it, n in ((it, nodes[it.name]) for it in asks)
    ]


@given(some_asks(), UNITS)
def test_nothing_is_granted_beyond_the_units(asks: list[Ask], units: Mapping[str, int]) -> None:
    for _ in range(3):
        before = {kind: used(asks, kind) for kind in KINDS}
        asks = written(asks, share_out(asks, units, NOW))
        assert all(used(asks, kind) <= max(units[kind], before[kind]) for kind in KINDS)
        assert all(it.nodes == 0 or it.least <= it.nodes for it in asks if it.stage is Stage.ACTIVE)
        assert all(it.nodes <= it.most for it in asks if it.stage is Stage.ACTIVE)
        asks = ended(asks)
    fixed = {kind: used([it for it in asks if it.stage is Stage.FIXED], kind) for kind in KINDS}
    assert all(used(asks, kind) <= max(units[kind], fixed[kind]) for kind in KINDS)


@given(some_asks(), UNITS, st.booleans())
def test_it_comes_to_an_end_and_no_job_goes_both_up_and_down(
    asks: list[Ask], units: Mapping[str, int], is_slow: bool
) -> None:
    is_fitting = all(used(asks, kind) <= units[kind] for kind in KINDS)
    ways: dict[str, set[bool]] = {it.name: set() for it in asks}
    for step in range(2 * len(asks) + 4):
        found = share_out(asks, units, NOW)
        if not found.grants and asks == ended(asks):
            break
        for grant in found.grants:
            if grant.is_change:
                ways[grant.name].add(grant.granted.nodes > grant.before)
        asks = written(asks, found)
        asks = asks if is_slow and step % 2 else ended(asks)  # replicas take their time to end
    else:
        raise AssertionError("it goes on without end")
    assert not is_fitting or all(len(way) < 2 for way in ways.values())
