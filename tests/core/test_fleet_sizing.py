"""What new replicas request by what earlier ones used: values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    Amounts,
    Live,
    Phase,
    Record,
    Remove,
    Seen,
    Shape,
    Start,
    Usage,
    Wish,
)
from elasticrun.core.fleet.sizing import (
    BESIDE,
    DEFAULT_CAPS,
    HOT,
    MOST_WORDS,
    UNIT,
    coarse,
    coarse_usage,
    size,
)
from elasticrun.core.protocol.round_progress import NodeFigures, UsagePeak
from elasticrun.core.tensorflow import ps_sizing

MI, GI = 1 << 20, 1 << 30
WISH = Wish(Shape(1, 2), 2, caps=DEFAULT_CAPS)
ROOM = Amounts(64 * GI, 32_000)
USED = Usage(Amounts(1024 * MI, 800), ROOM)


def test_a_request_has_room_for_the_peak_and_for_what_is_not_measured() -> None:
    record = size(WISH, Record(), USED)
    assert record == Record(requests=Amounts(1536 * MI, 1100), peak=USED.peak)
    assert record.requests.memory - BESIDE.memory >= USED.peak.memory / HOT
    assert size(WISH, record, USED) is record


def test_a_share_means_the_same_for_parameter_servers() -> None:
    for share, count in ((HOT, 4), (HOT + 0.01, 4 + ps_sizing.STEP)):
        samples = [ps_sizing.Sample(each, 0.0) for each in (share, 0.5, 0.5, 0.5)]
        _, decision = ps_sizing.decide(ps_sizing.Sizing(), samples, 0.0)
        assert decision.count == count


@pytest.mark.parametrize(
    ("peak", "room", "caps", "requests"),
    [
        (Amounts(), ROOM, DEFAULT_CAPS, Amounts()),
        (Amounts(1024 * MI), ROOM, DEFAULT_CAPS, Amounts(1536 * MI)),
        (Amounts(0, 800), ROOM, DEFAULT_CAPS, Amounts(0, 1100)),
        (Amounts(1024 * MI, 800), ROOM, Amounts(0, 16_000), Amounts(0, 1100)),
        (Amounts(1024 * MI, 800), ROOM, Amounts(64 * GI, 0), Amounts(1536 * MI)),
        (Amounts(1024 * MI, 800), ROOM, Amounts(GI, 500), Amounts(GI, 500)),
        (Amounts(1024 * MI, 800), Amounts(GI, 1000), DEFAULT_CAPS, Amounts(768 * MI, 800)),
        (Amounts(1024 * MI, 800), Amounts(1, 1), DEFAULT_CAPS, Amounts(64 * MI, 100)),
        (Amounts(1 << 53, 1 << 53), Amounts(1 << 53, 1 << 53), DEFAULT_CAPS, DEFAULT_CAPS),
    ],
)
def test_bounds_of_requests(peak: Amounts, room: Amounts, caps: Amounts, requests: Amounts) -> None:
    assert size(replace(WISH, caps=caps), Record(), Usage(peak, room)).requests == requests


def test_what_was_chosen_stays_while_nothing_is_measured() -> None:
    record = size(WISH, Record(), USED)
    assert size(WISH, record, Usage()) is record
    assert size(replace(WISH, caps=Amounts(GI, 500)), record, Usage()).requests == Amounts(GI, 500)
    assert size(replace(WISH, caps=Amounts()), record, Usage()).requests == Amounts()


def test_a_lower_peak_of_a_later_master_is_none() -> None:
    record = size(WISH, Record(), USED)
    assert size(WISH, record, Usage(Amounts(64 * MI, 100), ROOM)) is record
    grown = size(WISH, record, Usage(Amounts(64 * MI, 3000), ROOM))
    assert grown.peak == Amounts(1024 * MI, 3000)
    assert grown.requests == Amounts(1536 * MI, 4000)


def test_only_replicas_that_are_started_later_get_a_request() -> None:
    first = decide(WISH, (), Record(), 0.0)
    assert [each.requests for each in first.actions if isinstance(each, Start)] == [Amounts(), Amounts()]
    running = (Seen(0, Phase.RUNNING, slot=0), Seen(1, Phase.RUNNING))
    second = decide(WISH, running, first.record, 1.0, usage=USED)
    assert second.actions == ()
    assert second.record.requests == Amounts(1536 * MI, 1100)
    third = decide(WISH, running[:1], second.record, 2.0)
    assert [(each.index, each.requests) for each in third.actions if isinstance(each, Start)] == [
        (2, second.record.requests)
    ]


@pytest.mark.parametrize(
    ("amount", "unit", "rounded"),
    [(0, 100, 0), (1, 100, 100), (1600, 100, 1600), (1601, 100, 1700), (5001, 100, 5500), (8192, 100, 9000)],
)
def test_amounts_are_rounded_up(amount: int, unit: int, rounded: int) -> None:
    assert coarse(amount, unit) == rounded


def test_small_changes_of_usage_are_none() -> None:
    assert coarse_usage(USED) == coarse_usage(replace(USED, peak=Amounts(1000 * MI, 799)))


AMOUNTS = st.integers(0, 1 << 60)


@given(AMOUNTS, AMOUNTS, st.sampled_from([UNIT.memory, UNIT.cpu]))
def test_rounding_keeps_the_order_and_adds_little(one: int, other: int, unit: int) -> None:
    low, high = sorted((one, other))
    assert low <= coarse(low, unit) <= coarse(high, unit)
    assert coarse(low, unit) <= low + max(unit, low / 7)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_a_request_grows_with_the_peak_within_room_and_cap(one: int, other: int, room: int, cap: int) -> None:
    record = Record()
    for peak in (one, other):
        before = record.requests
        usage = Usage(Amounts(peak, peak), Amounts(room, room))
        record = size(replace(WISH, caps=Amounts(cap, cap)), record, usage)
        assert size(replace(WISH, caps=Amounts(cap, cap)), record, usage) is record
        assert before.memory <= record.requests.memory <= cap
        assert before.cpu <= record.requests.cpu <= max(UNIT.cpu, room)


def test_the_peak_of_nodes_and_the_least_that_one_had() -> None:
    first = NodeFigures(1.5, 8, 3 * GI, 16 * GI, 0.0, 0.0)
    peak = UsagePeak().with_(first)
    assert peak == UsagePeak(1.5, 3 * GI, 8, 16 * GI)
    peak = peak.with_(replace(first, cpu=0.5, cpus=4, memory=4 * GI, memory_limit=0))
    assert peak == UsagePeak(1.5, 4 * GI, 4, 16 * GI)


SIZED = Record(
    next_index=2,
    shape=WISH.shape,
    live=(Live(0, 0, seen=True), Live(1, -1, seen=True)),
    requests=Amounts(GI, 500),
    peak=USED.peak,
)
RUNS = Seen(0, Phase.RUNNING, 0)
WAITS = Seen(1, Phase.PENDING, trouble="Unschedulable: Insufficient cpu", is_homeless=True)


def test_requests_are_withdrawn_once_a_start_is_refused() -> None:
    lost = replace(SIZED, live=(*SIZED.live[:1], Live(1)))  # it was to be started, and is not there
    decision = decide(WISH, [RUNS], lost, 0.0, usage=USED, unstarted="exceeded quota: " + "x" * 500)
    assert decision.actions == (Start(1, -1, 0, (), WISH.shape, Amounts()),)
    assert decision.record.unsized.startswith("exceeded quota") and len(decision.record.unsized) == MOST_WORDS
    assert [note.reason for note in decision.notes] == ["NotSized"]
    again = decide(WISH, [RUNS], decision.record, 1.0, usage=USED, unstarted="exceeded quota")
    assert (again.record, again.notes) == (decision.record, ())


def test_a_replica_that_finds_no_host_is_started_again_without_requests() -> None:
    decision = decide(WISH, [RUNS, WAITS], SIZED, 0.0, usage=USED)
    assert decision.record.unsized == "replica 1: Unschedulable: Insufficient cpu"
    assert decision.actions == (Remove(1, "it finds no host with what it requests"),)
    assert decision.record.failures == decision.record.losses == 0
    gone = decide(WISH, [RUNS], decision.record, 1.0, usage=USED)
    assert gone.actions == (Start(2, -1, 0, (), WISH.shape, Amounts()),)
    later = decide(WISH, [RUNS, replace(WAITS, index=2)], gone.record, 2.0, usage=USED)
    assert later.actions == (), "the hosts are full with or without requests"


def test_where_nothing_was_requested_by_what_was_measured_nothing_is_withdrawn() -> None:
    record = replace(SIZED, requests=Amounts(), peak=Amounts())
    decision = decide(WISH, [RUNS, WAITS], record, 0.0, unstarted="no")
    assert (decision.record.unsized, decision.actions) == ("", ())


def test_a_job_that_is_resumed_may_request_by_what_was_measured_again() -> None:
    record = replace(SIZED, requests=Amounts(), unsized="no")  # of a peak that was too high
    suspended = replace(WISH, suspended=True)
    decision = decide(suspended, [RUNS], record, 0.0, usage=USED)
    assert decision.record.unsized == ""
    again = decide(suspended, [RUNS], decision.record, 1.0, usage=USED, unstarted="no")
    assert (again.record.unsized, again.notes) == ("", ())
    assert again.record.requests == again.record.peak == Amounts()
    assert size(WISH, again.record, Usage()).requests == Amounts()
    assert size(WISH, decision.record, USED).requests == Amounts(1536 * MI, 1100)
