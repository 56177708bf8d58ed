"""A log in review: the values of its report, and what it says of a log that is not whole."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elasticrun.core.protocol.chronicle import (
    EntriesLost,
    Happening,
    LogEntry,
    MasterStarted,
    NodeJoined,
    RoundStarted,
    RoundStopping,
)
from elasticrun.core.review import review as review_module
from elasticrun.core.review.build import report
from elasticrun.core.review.cases import ABOUT_ALL, cases, rounded
from elasticrun.core.review.document import Report
from elasticrun.core.review.review import SAMPLES, Review
from elasticrun.core.whatif.measured import measured
from elasticrun.core.whatif.replay import FIGURES
from tests.support.long_log import BEGAN, Settings, log


def reviewed(settings: Settings) -> Review:
    found = Review()
    for entry in log(settings):
        found.take(entry)
    return found


def told(*happenings: Happening) -> Review:
    found = Review()
    for number, happening in enumerate(happenings):
        found.take(LogEntry(number, float(number), BEGAN + number, happening))
    return found


@pytest.fixture(scope="module")
def long() -> Report:
    return report(reviewed(Settings(rounds=80)), hourly=2.0, currency="EUR")


def test_shares_sum_to_one(long: Report) -> None:
    for parts in (long.job, long.nodes):
        assert sum(it.share for it in parts) == pytest.approx(1.0)
        assert parts[0].activity == "productive"
        assert [it.share for it in parts[1:]] == sorted((it.share for it in parts[1:]), reverse=True)
    assert sum(it.seconds for it in long.job) == pytest.approx(long.seconds)
    assert long.ettr == long.job[0].share


def test_without_steps_goodput_is_not_known() -> None:
    found = report(reviewed(Settings(rounds=5, steps=False)))
    assert (found.goodput, found.ettr, found.ratios) == (None, None, ())
    assert "import" not in [it.activity for it in (*found.job, *found.nodes)]
    assert found.job[0].activity == found.slowest[0].worst == "in a round"
    assert "imports" not in [it.rule for it in found.advice]


def test_ratios_are_in_order_and_end_with_those_of_the_job(long: Report) -> None:
    assert all(earlier.at < later.at for earlier, later in pairwise(long.ratios))
    assert (long.ratios[-1].goodput, long.ratios[-1].ettr) == (long.goodput, long.ettr)
    assert all(0 <= it.ettr_since <= 1 and 0 <= it.goodput_since <= 1 for it in long.ratios)


def test_rounds_failures_and_recoveries_are_told(long: Report) -> None:
    assert [it.round for it in long.rounds] == list(range(80))
    assert long.rounds_before == 0
    assert sum(it.count for it in long.failures) == long.failed == len(long.failures_at)
    assert [it.count for it in long.failures] == sorted((it.count for it in long.failures), reverse=True)
    assert sum(it.count for it in long.recovery_sums) == 79 == len(long.recoveries)
    for row in long.recoveries:
        assert row.seconds is not None
        assert row.stopping is not None
        assert row.starting is not None
        assert row.first_step is not None
        assert row.stopping + row.starting + row.first_step == pytest.approx(row.seconds)
    for sums in long.recovery_sums:
        assert sums.median is not None
        assert sums.longest is not None
        assert sums.median <= sums.longest <= sums.seconds


def test_nodes_and_saved_states_are_told(long: Report) -> None:
    assert long.slowest[0].node == "node1"
    assert long.slowest[0].slowness == 1.3
    assert [it.host for it in long.slowest[:1]] == ["host1"]
    assert all(it.worst and it.lost < it.seconds for it in long.slowest)
    assert [it.place for it in long.saved] == ["memory", "hosts", "storage"]
    assert long.saved[0].last_step == long.saved[2].last_step or long.saved[0].count > long.saved[2].count


def test_costs_are_told_if_a_price_is_given(long: Report) -> None:
    assert long.cost == pytest.approx(long.node_seconds / 3600 * 2)
    assert all(it.money is not None for it in long.what_if)
    free = report(reviewed(Settings(rounds=3)))
    assert free.cost is None
    assert {it.money for it in free.what_if} == {None}


def test_a_whole_log_needs_no_notes(long: Report) -> None:
    assert long.notes == ()
    assert (long.outcome, long.began) == ("succeeded", BEGAN)


def test_what_if_has_all_its_cases(long: Report) -> None:
    names = [it.name for it in long.what_if]
    assert names[0] == "torchrun's restarts"
    assert names[-1] == "one spare more"
    assert sum("the best by Young and Daly" in name for name in names) == 1
    torchrun = long.what_if[0]
    assert torchrun.least <= torchrun.more <= torchrun.most
    assert torchrun.ettr is not None
    assert torchrun.ettr < (long.ettr or 0.0)
    assert long.assumptions[0] == ABOUT_ALL
    assert len([it for it in long.assumptions if " to " in it]) >= len(FIGURES)


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        (Settings(rounds=5), {}, "those that the log has in the storage"),
        (Settings(rounds=5, stored=0), {}, "at the best interval"),
        (Settings(rounds=5, every=0), {}, "the log has no saves"),
        (Settings(rounds=5, steps=False), {}, "Nobody reported steps"),
        (Settings(rounds=5), {"every": 60.0}, "every = 60, as given"),
        (Settings(rounds=5), {"restart": 7.0}, "restart = 7, as given"),
    ],
)
def test_assumptions_are_in_words(settings: Settings, given: dict[str, float], words: str) -> None:
    assert any(words in it for it in report(reviewed(settings), given).assumptions)


def test_a_calm_job_has_no_what_if() -> None:
    calm = report(reviewed(Settings(rounds=1)))
    assert calm.what_if == ()
    assert calm.recovery_sums == ()
    assert calm.failures == ()


def test_a_job_without_productive_time_has_no_ettr_to_compare() -> None:
    found = reviewed(Settings(rounds=5, steps=False))
    assert next(it.ettr for it in cases(measured(found.history), {}, None)) is None


def test_nothing_is_a_report_too() -> None:
    empty = report(Review())
    assert empty.notes == ("The log is empty.",)
    assert (empty.job, empty.ratios, empty.what_if) == ((), (), ())


def test_what_is_missing_is_told() -> None:
    whole = (MasterStarted(1, is_first=True), NodeJoined("a", "h", 1, returns=False))
    assert not told(*whole).begins_late
    assert told(MasterStarted(2, is_first=False)).begins_late
    assert told(NodeJoined("a", "h", 1, returns=False)).begins_late
    assert told(EntriesLost(3), MasterStarted(1, is_first=True)).begins_late
    late = told(*whole, EntriesLost(3), EntriesLost(0))
    assert not late.begins_late
    notes = " ".join(report(late).notes)
    assert "not over" in notes
    assert "3 lines could not be written" in notes
    assert "No steps" in notes
    assert "In between, lines could" in " ".join(report(told(*whole, EntriesLost(0))).notes)
    assert "begins in the middle" in " ".join(report(told(*whole[1:])).notes)


def test_an_open_recovery_has_no_length() -> None:
    found = report(
        told(
            MasterStarted(1, is_first=True),
            NodeJoined("a", "h", 1, returns=False),
            RoundStarted(0, 1, 1, ("a",), 0, None, ""),
            RoundStopping(0, "hang", "it hangs"),
        )
    )
    assert [(it.stopping, it.seconds) for it in found.recoveries] == [(None, None)]
    assert found.recovery_sums == ()
    started = report(
        told(
            MasterStarted(1, is_first=True),
            NodeJoined("a", "h", 1, returns=False),
            RoundStarted(0, 1, 1, ("a",), 0, None, ""),
            RoundStopping(0, "hang", "it hangs"),
            RoundStarted(1, 1, 1, ("a",), 0, None, ""),
        )
    )
    assert [(it.count, it.median, it.longest) for it in started.recovery_sums] == [(1, None, None)]
    assert [(it.worst, it.losses) for it in started.slowest] == [("start", 0)]


def test_a_node_that_was_never_slow_or_here_is_no_trouble() -> None:
    found = report(told(MasterStarted(1, is_first=True), NodeJoined("a", "h", 1, returns=False)))
    assert [(it.node, it.worst, it.goodput) for it in found.slowest] == [("a", "", 0.0)]


def test_samples_are_bounded_and_even() -> None:
    found = reviewed(Settings(rounds=60))
    samples = found.series.samples
    assert SAMPLES / 4 < len(samples) < SAMPLES
    assert min(later.at - earlier.at for earlier, later in pairwise(samples)) >= found.series.every
    assert samples[0].at == 0.0


def test_hosts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review_module, "KEPT", 2)
    nodes = [NodeJoined(name, f"host of {name}", 1, returns=False) for name in "abac"]
    found = told(MasterStarted(1, is_first=True), *nodes)
    assert found.hosts == {"a": "host of a", "c": "host of c"}


@pytest.mark.parametrize(
    ("value", "short"), [(0.0, 0.0), (12345.0, 12000.0), (-98.7, -99.0), (0.01234, 0.012), (5.0, 5.0)]
)
def test_figures_have_two_digits(value: float, short: float) -> None:
    assert rounded(value) == pytest.approx(short)
