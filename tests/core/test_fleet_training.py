"""What is shown of a training, and when: values, and a clock that is a number."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.cluster.jobs import Rules
from elasticrun.core.fleet.replicas import Amounts, Usage
from elasticrun.core.fleet.training import (
    FIRST_PAUSE,
    GAP,
    LONG_WAIT,
    LONGEST_PAUSE,
    MOST_SIZES,
    PATIENCE,
    SETTLED,
    SHORT_WAIT,
    SLOW_GAP,
    SPEED_GAP,
    Contact,
    Shown,
    Speed,
    Training,
    Trouble,
    answered,
    due,
    failed,
    freshness,
    note_of,
    pause_after,
    show,
    training_of,
    wait_for,
    with_speed,
)
from elasticrun.core.protocol.round_progress import RolePeak, UsagePeak
from elasticrun.core.protocol.status import JobPhase, JobStatus

STATUS = JobStatus("job", JobPhase.RUNNING, 4, 1, 4, 2, 3, goodput=0.97123, world=2, workers=8, cause="lost")
FIRST = training_of(STATUS)
NEXT = replace(FIRST, round=5)
SILENT, WRONG = Trouble("Unreachable", "no answer"), Trouble("Refused", "another token")


def test_what_is_shown_of_a_status() -> None:
    assert Training("running", 4, 2, 8, 2, 0.971, "lost") == FIRST


def test_whatever_a_master_says_is_brought_within_bounds() -> None:
    absurd = replace(
        STATUS,
        round=1 << 63,
        world=1 << 80,
        workers=-1,
        restarts_used=1 << 60,
        goodput=1e30,
        cause="\x1b[31m\nKilled " + "x" * 10_000,
    )
    told = training_of(absurd)
    assert (told.round, told.nodes, told.workers, told.restarts) == (1 << 53, 1 << 53, 0, 1 << 53)
    assert told.goodput == 1.0
    assert told.cause.startswith("?[31m?Killed x") and len(told.cause) == 200
    assert training_of(replace(absurd, round=-7, goodput=float("nan"))).round == -1
    assert training_of(replace(absurd, goodput=-3.0)).goodput == 0.0
    assert training_of(replace(absurd, goodput=None)).goodput is None


def test_what_was_measured_is_coarse_and_bounded() -> None:
    assert FIRST.usage == Usage()
    peak = UsagePeak(0.7501, 1000 << 20, 4, 8 << 30)
    usage = training_of(replace(STATUS, peak=peak)).usage
    assert usage == Usage(Amounts(1024 << 20, 800), Amounts(8 << 30, 4000))
    assert training_of(replace(STATUS, role_peaks=(RolePeak("p\ns", peak),) * 40)).usage == Usage(
        by_role=(("p?s", usage),) * 16
    )
    absurd = training_of(replace(STATUS, peak=UsagePeak(1e30, 1 << 62, 1 << 62, 1 << 62))).usage
    assert absurd.peak.cpu <= 2 * 10**9 and absurd.peak.memory <= 1 << 54
    assert absurd.room.cpu <= 1000 << 53 and absurd.room.memory <= 1 << 53


def test_the_first_answer_is_shown_at_once_and_the_next_one_after_a_gap() -> None:
    contact = answered(Contact(), FIRST, 0.0)
    assert due(contact) == float("-inf")
    contact = show(contact, 100.0)
    assert contact.shown == Shown(FIRST)
    assert due(contact) is None
    contact = answered(contact, NEXT, 300.0)
    assert due(contact) == 100.0 + GAP
    assert due(answered(contact, FIRST, 300.0)) is None


def test_what_is_shown_begins_with_the_first_round() -> None:
    contact = answered(Contact(), replace(FIRST, round=-1), 0.0)
    assert due(contact) is None
    assert due(answered(contact, FIRST, 300.0)) == float("-inf")
    silent = failed(contact, SILENT, 200.0)
    assert due(silent) == 200.0 + PATIENCE
    back = answered(show(silent, 200.0 + PATIENCE), replace(FIRST, round=-1), 300.0)
    assert due(back) == 200.0 + PATIENCE + GAP


@pytest.mark.parametrize(
    ("goodput", "gap"),
    [(0.971, None), (0.975, None), (0.99, SLOW_GAP), (0.5, SLOW_GAP), (None, GAP)],
)
def test_the_goodput_alone_is_no_reason_to_hurry(goodput: float | None, gap: float | None) -> None:
    contact = answered(show(answered(Contact(), FIRST, 0.0), 100.0), replace(FIRST, goodput=goodput), 200.0)
    assert due(contact) == (None if gap is None else 100.0 + gap)


def test_a_goodput_that_becomes_known_is_shown() -> None:
    contact = show(answered(Contact(), replace(FIRST, goodput=None), 0.0), 100.0)
    assert due(answered(contact, FIRST, 300.0)) == 100.0 + GAP


def test_an_answer_that_is_missing_for_a_while_is_not_told() -> None:
    contact = show(answered(Contact(), FIRST, 0.0), 100.0)
    contact = failed(contact, SILENT, 200.0)
    assert due(contact) == 200.0 + PATIENCE
    contact = failed(contact, SILENT, 210.0)
    assert (contact.failures, due(contact)) == (2, 200.0 + PATIENCE)
    back = answered(contact, FIRST, 300.0)
    assert (back.failures, due(back)) == (0, None)
    assert due(failed(back, SILENT, 300.0)) == 300.0 + PATIENCE


def test_a_trouble_that_lasts_is_shown_beside_what_was_told_last() -> None:
    contact = failed(show(answered(Contact(), FIRST, 0.0), 100.0), SILENT, 200.0)
    contact = show(contact, 200.0 + PATIENCE)
    assert contact.shown == Shown(FIRST, SILENT)
    assert due(contact) is None
    assert due(failed(contact, replace(SILENT, text="none within 4.9 s"), 216.0)) is None
    other = failed(contact, WRONG, 216.0)
    assert due(other) == 200.0 + PATIENCE + GAP
    assert due(answered(contact, FIRST, 300.0)) == 200.0 + PATIENCE + GAP
    assert show(answered(contact, NEXT, 300.0), 300.0).shown == Shown(NEXT)


def test_a_trouble_of_one_who_was_never_heard_is_shown_too() -> None:
    contact = failed(Contact(), SILENT, 200.0)
    assert due(contact) == 200.0 + PATIENCE
    assert show(contact, 200.0 + PATIENCE).shown == Shown(None, SILENT)


def test_what_is_shown_while_a_trouble_may_pass_is_no_trouble() -> None:
    contact = answered(show(answered(Contact(), FIRST, 0.0), 100.0), NEXT, 200.0)
    contact = failed(contact, SILENT, 105.0)
    assert due(contact) == 100.0 + GAP
    assert show(contact, 100.0 + GAP).shown == Shown(NEXT)


FAST = replace(FIRST, rate=10.0)


def test_a_speed_counts_once_its_world_has_made_steps_for_a_while() -> None:
    begun = show(answered(Contact(), FIRST, 10.0), 10.0)
    assert (begun.shown, due(begun)) == (Shown(FIRST), None)
    begun = answered(begun, replace(FIRST, rate=2.0), 100.0)
    assert due(begun) == 100.0 + SETTLED
    contact = show(begun, 100.0)
    assert (contact.shown, due(contact)) == (Shown(replace(FIRST, rate=2.0)), 100.0 + SETTLED)
    contact = answered(contact, FAST, 130.0)
    contact = show(contact, 100.0 + SETTLED)
    assert contact.shown == Shown(FAST, None, Speed(2, 8, 10.0))
    assert due(contact) is due(answered(contact, replace(FAST, rate=10.9), 200.0)) is None
    assert due(answered(contact, replace(FAST, rate=8.9), 200.0)) == 100.0 + SETTLED + SPEED_GAP
    larger = answered(contact, replace(FAST, round=5, nodes=3, workers=12), 200.0)
    assert due(larger) == 160.0 + GAP
    larger = show(larger, 200.0)
    last = 160.0 + SPEED_GAP
    assert (larger.shown and larger.shown.speed, due(larger)) == (Speed(2, 8, 10.0), last)
    late = show(larger, last - 1.0)
    assert (late.shown, due(late)) == (larger.shown, last - 1.0 + SLOW_GAP)
    assert due(failed(larger, SILENT, 230.0)) == 230.0 + PATIENCE


@pytest.mark.parametrize(
    ("phase", "rate", "shown"),
    [
        (JobPhase.RUNNING, 12.3456, 12.3),
        (JobPhase.STOPPING, 12.3456, None),
        (JobPhase.RUNNING, None, None),
        (JobPhase.RUNNING, 0.0, None),
        (JobPhase.RUNNING, -1.0, None),
        (JobPhase.RUNNING, float("nan"), None),
        (JobPhase.RUNNING, 1e30, None),
    ],
)
def test_a_rate_that_is_none_is_not_known(phase: JobPhase, rate: float | None, shown: float | None) -> None:
    assert training_of(replace(STATUS, phase=phase, steps_rate=rate)).rate == shown


def test_between_two_speeds_a_change_of_size_can_pay() -> None:
    assert Rules().horizon == SPEED_GAP


def test_of_each_size_the_newest_speed_is_kept_and_of_too_many_the_nearest() -> None:
    known = with_speed(with_speed((), Speed(4, 8, 1.0)), Speed(2, 4, 3.0))
    assert with_speed(known, Speed(4, 8, 2.0)) == (Speed(2, 4, 3.0), Speed(4, 8, 2.0))
    many = tuple(Speed(nodes, nodes, 1.0) for nodes in range(1, MOST_SIZES + 1))
    found = with_speed(many, Speed(MOST_SIZES + 1, 9, 5.0))
    assert [it.nodes for it in found] == list(range(2, MOST_SIZES + 2))


def test_the_words_of_a_trouble_are_bounded() -> None:
    trouble = failed(Contact(), Trouble("Refused", "no\n" * 1000), 0.0).trouble
    assert trouble is not None and trouble.text == ("no?" * 1000)[:200]


def test_pauses_grow_to_a_bound() -> None:
    assert [pause_after(count) for count in (0, 1, 2, 3, 7, 10**9)] == [
        *(FIRST_PAUSE, FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE),
        *(LONGEST_PAUSE, LONGEST_PAUSE),
    ]


def test_those_who_take_turns_wait_for_a_shorter_time() -> None:
    assert (wait_for(64, 64), wait_for(65, 64)) == (LONG_WAIT, SHORT_WAIT)


def test_the_condition() -> None:
    fresh, old = freshness(Shown(FIRST)), freshness(Shown(FIRST, SILENT))
    assert (fresh.kind, fresh.holds, fresh.reason, fresh.text) == ("StatusFresh", True, "Heard", "")
    assert (old.holds, old.reason, old.text) == (False, "Unreachable", "no answer")


@pytest.mark.parametrize(
    ("training", "told", "text"),
    [
        (None, None, None),
        (replace(FIRST, round=-1), None, None),
        (FIRST, 4, None),
        (FIRST, 3, "round 4 was formed: 2 nodes, 8 workers; the last one ended: lost"),
        (replace(FIRST, cause=""), 3, "round 4 was formed: 2 nodes, 8 workers"),
        (replace(FIRST, round=0), 4, "round 0 was formed: 2 nodes, 8 workers"),
    ],
)
def test_a_new_round_is_told_once(training: Training | None, told: int | None, text: str | None) -> None:
    note = note_of(training, told)
    assert (note and (note.reason, note.text)) == (text and ("RoundFormed", text))


FACTS = st.builds(
    replace,
    st.just(FIRST),
    round=st.integers(0, 3),
    goodput=st.sampled_from([None, 0.1, 0.9]),
    rate=st.sampled_from([None, 10.0, 10.5, 20.0]),
)
TIMES = st.floats(0.0, 30.0) | st.sampled_from([SETTLED, SPEED_GAP])
STEPS = st.lists(st.tuples(TIMES, FACTS | st.sampled_from([SILENT, WRONG])), max_size=40)


@given(STEPS)
def test_there_are_never_two_changes_within_a_gap(steps: list[tuple[float, Training | Trouble]]) -> None:
    contact, now, shown_at = Contact(), 1000.0, []
    for passed, said in steps:
        until = now + passed
        while (when := due(contact)) is not None and when <= until:
            now = max(now, when)
            before = contact.shown
            contact = show(contact, now)
            assert contact.shown != before
            shown_at.append(now)
        now = until
        contact = answered(contact, said, now) if isinstance(said, Training) else failed(contact, said, now)
    assert all(later - earlier >= GAP - 1e-6 for earlier, later in itertools.pairwise(shown_at))
