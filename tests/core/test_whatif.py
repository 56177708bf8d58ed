"""What if: measured costs give what was measured, and it grows with what things cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.history.history import History
from elasticrun.core.history.incidents import Kind, Sums
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.core.state.interval import best_interval
from elasticrun.core.whatif.measured import Measured, measured, sum_of
from elasticrun.core.whatif.replay import (
    FIGURES,
    MEANINGS,
    Cost,
    Costs,
    as_measured,
    daly,
    intervals,
    replayed,
    torchrun,
    with_interval,
    with_spare,
)
from tests.support.long_log import Settings, log

FAILED = Sums(10, seconds=10.0, imports=1.0, redone=100.0, undone=600.0)
LOST = Sums(2, seconds=202.0, waiting=200.0, coverable=120.0, redone=20.0, undone=100.0, replaced=1)
#: A job of 1000 s on two nodes.
MEASURED = Measured(
    seconds=1000.0,
    node_seconds=2000.0,
    incidents={Kind.FAILED: FAILED, Kind.LOST: LOST, Kind.CHANGED: Sums()},
    stalled=20.0,
    trained=700.0,
    productive=580.0,
    saves=70,
    stored=7,
    setup=0.5,
    first_import=0.2,
    most_nodes=2,
)


def of(settings: Settings) -> Measured:
    history = History()
    for entry in log(settings):
        history.take(entry)
    return measured(history)


def test_what_was_measured_comes_from_a_history() -> None:
    found = of(Settings(rounds=40))
    assert found.nodes == pytest.approx(4, abs=0.2)
    assert found.all.count == 39
    assert found.stored > 0
    assert found.setup == pytest.approx(0.9, abs=0.01)  # connected 0.25, restored 0.15, the step 0.5
    assert found.between_saves == pytest.approx(10, rel=0.2)
    assert found.first_import == pytest.approx(4.0, abs=0.1)
    assert found.sees_steps
    assert found.most_nodes == 4
    assert found.productive < found.trained < found.seconds


def test_a_log_without_steps_and_saves_is_measured_as_far_as_it_goes() -> None:
    found = of(Settings(rounds=10, every=0, steps=False))
    assert (found.saves, found.setup, found.trained, found.sees_steps) == (0, 0.0, 0.0, False)
    assert found.between_saves is None
    assert found.all.count == 9


def test_saves_in_the_storage_alone_are_saves() -> None:
    assert replace(MEASURED, saves=1).between_saves is None
    entries = [it for it in log(Settings(rounds=3)) if "MEMORY" not in repr(it) and "HOSTS" not in repr(it)]
    found = History()
    for entry in entries:
        found.take(entry)
    assert measured(found).saves == measured(found).stored > 0


def test_nothing_has_no_nodes() -> None:
    assert measured(History()).nodes == 0.0
    assert sum_of([]) == Sums()


def test_a_moment_may_be_given() -> None:
    history = History()
    for entry in log(Settings(rounds=2, ends=False)):
        history.take(entry)
    end = history.last[0]
    now = measured(history).seconds
    assert measured(history, end + 10).seconds == pytest.approx(now + 10)


# -- consistency


@pytest.mark.parametrize("seed", range(8))
def test_the_costs_that_were_measured_give_the_time_that_was_measured(seed: int) -> None:
    found = of(Settings(rounds=30, nodes=1 + seed % 4, seed=seed, every=(0, 20)[seed % 2], stored=seed % 3))
    outcome = replayed(found, Costs.of(found))
    assert outcome.seconds == pytest.approx(found.seconds)
    assert outcome.node_seconds == pytest.approx(found.node_seconds)
    assert with_interval(found, 1.0).seconds == pytest.approx(found.seconds)


def test_torchrun_with_measured_figures_gives_the_time_that_was_measured() -> None:
    same = replace(
        MEASURED,
        incidents={Kind.FAILED: replace(FAILED, undone=0.0), Kind.LOST: Sums(), Kind.CHANGED: Sums()},
        first_import=0.0,
    )
    costs = torchrun(same, {"restart-nodes": 0.4, "import": 0.1})  # with a setup of 0.5 it is 1 s
    assert replayed(same, costs).seconds == pytest.approx(same.seconds)


def test_as_measured_names_what_was_lost() -> None:
    assert as_measured(MEASURED).lost == 10 + 100 + 202 + 20 + 20


# -- torchrun


@pytest.mark.parametrize("name", [*FIGURES, "every"])
def test_it_grows_with_each_figure(name: str) -> None:
    found = MEASURED if name != "stall-factor" else replace(MEASURED, stored=0)
    given = {"every": 100.0, "stall-factor": 1e-3} if name == "every" else {}
    found = found if name != "restart" else replace(found, most_nodes=1)
    times = [
        replayed(found, torchrun(found, {**given, name: figure})).seconds
        for figure in (1.0, 20.0, 60.0, 300.0)
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_a_restart_is_cold_and_a_lost_node_is_noticed_late() -> None:
    costs = torchrun(MEASURED, {})
    restart = FIGURES["restart-nodes"].usual + FIGURES["import"].usual + MEASURED.setup
    assert costs.by_kind[Kind.FAILED].recovery == pytest.approx(restart)
    assert costs.by_kind[Kind.LOST].recovery == pytest.approx(restart + 100.0)  # it waited longer here


@pytest.mark.parametrize("replaced", range(3))
def test_a_node_in_place_of_a_lost_one_spares_the_last_call(replaced: int) -> None:
    lost = Sums(2, 2.0, replaced=replaced)
    costs = torchrun(replace(MEASURED, incidents={**MEASURED.incidents, Kind.LOST: lost}), {})
    restart = FIGURES["restart-nodes"].usual + FIGURES["import"].usual + MEASURED.setup
    notices = replaced * FIGURES["replaced-node"].usual + (2 - replaced) * FIGURES["lost-node"].usual
    assert costs.by_kind[Kind.LOST].recovery == pytest.approx(restart + notices / 2)


def test_imports_are_as_long_as_in_the_log_unless_they_are_given() -> None:
    slow = replace(MEASURED, first_import=30.0)
    more = (
        torchrun(slow, {}).by_kind[Kind.FAILED].recovery
        - torchrun(MEASURED, {}).by_kind[Kind.FAILED].recovery
    )
    assert more == pytest.approx(30.0 - FIGURES["import"].usual)
    given = torchrun(slow, {"import": 1.0}).by_kind[Kind.FAILED].recovery
    assert given == pytest.approx(FIGURES["restart-nodes"].usual + 1.0 + 0.5)


def test_the_ends_of_the_range_are_around_the_usual() -> None:
    least, usual, most = (replayed(MEASURED, torchrun(MEASURED, {}, end)).seconds for end in (-1, 0, 1))
    assert least < usual < most
    exact = {name: guess.usual for name, guess in FIGURES.items()}
    assert replayed(MEASURED, torchrun(MEASURED, exact, 1)).seconds == usual


def test_the_state_goes_back_to_the_storage() -> None:
    costs = torchrun(MEASURED, {})
    assert costs.by_kind[Kind.FAILED].redone == 60.0
    assert costs.by_kind[Kind.LOST].redone == 50.0
    assert costs.stalled == MEASURED.stalled


def test_saves_in_memory_only_are_replaced_by_the_best_interval() -> None:
    found = replace(MEASURED, stored=0)
    stall = 10 * 20.0 / 70
    every = best_interval(stall, 700.0 / 12)
    costs = torchrun(found, {})
    assert costs.by_kind[Kind.FAILED].redone == pytest.approx(every / 2)
    assert costs.stalled == pytest.approx(stall * 700.0 / every)


def test_without_saves_as_much_is_done_again_as_here() -> None:
    found = replace(MEASURED, stored=0, saves=0, stalled=0.0)
    assert torchrun(found, {}).by_kind[Kind.FAILED].redone == 10.0
    assert torchrun(found, {"every": 40.0}).by_kind[Kind.FAILED].redone == 20.0


def test_saves_without_a_stall_do_not_divide_by_nothing() -> None:
    found = replace(MEASURED, stored=0, stalled=0.0)
    assert torchrun(found, {}).by_kind[Kind.FAILED].redone == 10.0
    assert torchrun(MEASURED, {"every": 0.0}).stalled == MEASURED.stalled


def test_a_job_never_saves_more_than_it_lost() -> None:
    free = Costs({kind: Cost(-1e9, 0.0) for kind in Kind}, 0.0)
    outcome = replayed(MEASURED, free)
    assert outcome.seconds == MEASURED.seconds - as_measured(MEASURED).lost
    assert outcome.lost == 0.0


def test_each_figure_has_a_meaning() -> None:
    assert set(FIGURES) | {"every"} == set(MEANINGS)
    assert all(it.least <= it.usual <= it.most for it in FIGURES.values())


# -- intervals


def test_the_best_interval_is_of_the_measured_stall_and_failures() -> None:
    assert daly(MEASURED) == best_interval(20.0 / 70, 700.0 / 12)


@pytest.mark.parametrize(
    "unknown",
    [{"saves": 0}, {"stalled": 0.0}, {"incidents": dict.fromkeys(Kind, Sums())}, {"saves": 1}],
    ids=["no saves", "no stall", "no failures", "one save"],
)
def test_without_a_figure_there_is_no_table(unknown: dict[str, object]) -> None:
    assert intervals(replace(MEASURED, **unknown)) == ()  # type: ignore[arg-type]


def test_the_table_is_in_order_and_has_one_that_was_measured_and_a_best_one() -> None:
    rows = intervals(MEASURED)
    assert [row.every for row in rows] == sorted(row.every for row in rows)
    assert [row.every for row in rows if row.is_measured] == [10.0]
    assert sum(row.is_best for row in rows) == 1


def test_longer_intervals_stall_less_and_lose_more() -> None:
    assert with_interval(MEASURED, 2.0).seconds == pytest.approx(1000.0 - 10.0 + 120.0)
    assert with_interval(MEASURED, 0.5).seconds == pytest.approx(1000.0 + 20.0 - 60.0)


def test_work_of_more_than_one_interval_has_another_cause() -> None:
    much = replace(MEASURED, incidents={**MEASURED.incidents, Kind.FAILED: replace(FAILED, redone=500.0)})
    assert with_interval(much, 2.0).seconds == pytest.approx(1000.0 - 10.0 + 120.0)  # 12 incidents of 10 s


# -- spares


def test_a_spare_covers_the_waiting_for_one_node_and_is_paid_for() -> None:
    outcome = with_spare(MEASURED)
    assert outcome.seconds == 880.0
    assert outcome.node_seconds == 880.0 * 2 + 880.0


def test_a_spare_of_a_job_that_never_waited_saves_nothing() -> None:
    calm = replace(MEASURED, incidents={**MEASURED.incidents, Kind.LOST: Sums()})
    assert with_spare(calm).seconds == calm.seconds


def test_waiting_shrinks_with_a_spare_in_a_log() -> None:
    found = of(Settings(rounds=60, waits=100.0))
    assert found.incidents[Kind.LOST].coverable > 0
    assert with_spare(found).seconds < found.seconds


def test_entries_are_entries() -> None:
    assert all(isinstance(entry, LogEntry) for entry in log(Settings(rounds=2)))
