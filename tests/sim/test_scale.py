"""A job of many nodes runs through, and what it cost is told; what it cost is no matter of a test."""

from __future__ import annotations

import re

import pytest

from elasticrun.cli import master
from elasticrun.core.health.candidates import Standing
from elasticrun.sim import scale
from elasticrun.sim.kernel import Violation
from elasticrun.sim.scale import Crowd, Stage
from tests.core.lines import lines_of
from tests.sim.command import simulate

NODES = 100


@pytest.mark.parametrize(("is_checked", "reports"), [(False, 1), (True, 3)])
def test_a_crowd_goes_through_all_stages(is_checked: bool, reports: int) -> None:
    stages = Crowd(NODES, is_checked).run()
    assert [stage.name for stage in stages] == ["first world", "after a failed worker", "after a lost node"]
    # At first all come, are ready (in a check: three times) and start; then they stop, are ready and start.
    assert stages[0].events == 1 + (2 + reports) * NODES
    assert [stage.events for stage in stages[1:]] == [1 + 3 * NODES, 1 + 3 * (NODES - 1)]
    assert all(stage.seconds > 0 for stage in stages)


@pytest.mark.parametrize("is_checked", [False, True])
def test_the_cost_of_a_node_does_not_grow_with_their_number(is_checked: bool) -> None:
    few, many = (lines_of(Crowd(nodes, is_checked).run) / nodes for nodes in (NODES, 6 * NODES))
    assert many <= 1.02 * few, f"{few:.0f} lines of core for a node, and {many:.0f} among six times as many"


def test_garbage_is_collected_as_in_a_master() -> None:
    assert scale.COLLECTOR == master._COLLECTOR


def test_another_seed_is_another_order() -> None:
    def order(seed: int) -> list[str]:
        crowd = Crowd(NODES, False, seed)
        crowd.run()
        return list(crowd.machine.state.members.nodes)

    assert order(1) == order(1) != order(2)


def test_what_does_not_hold_is_found_at_the_end_of_a_stage() -> None:
    crowd = Crowd(NODES, False)
    crowd.run()
    crowd._holds(2)
    crowd.machine.state.candidates.standings[Standing.UNKNOWN] += 1
    with pytest.raises(Violation, match="numbers of standings"):
        crowd._holds(2)
    next(iter(crowd.nodes.values())).assignment = None
    with pytest.raises(Violation, match="everybody knows its assignment"):
        crowd._holds(2)


def test_the_command_line_measures_a_large_job(capfd: pytest.CaptureFixture[str]) -> None:
    assert simulate("--nodes", str(NODES)) == 0
    printed = capfd.readouterr().out
    assert re.findall(r"^(\d+) nodes, (\w+) a health check$", printed, re.MULTILINE) == [
        (str(NODES), "without"),
        (str(NODES), "with"),
    ]
    assert (
        len(re.findall(r"^  after a lost node +\d\.\d{3} s of one core, +[\d.]+ us a node", printed, re.M))
        == 2
    )
    assert len(re.findall(r"^  memory: \d+ MB at most, \d+ MB of it before", printed, re.M)) == 2


def test_a_curve_has_a_line_for_each_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (Stage("first world", 300, 0.05), Stage("after a lost node", 300, 0.02))
    monkeypatch.setattr(
        scale,
        "costs_of",
        lambda sizes: [
            scale.Cost(n, is_checked, stages, 20_000_000, 30_000_000)
            for n in sizes
            for is_checked in (False, True)
        ],
    )
    assert simulate("--nodes", "1000", "--curve") == 0
    *_, header, first, second, third, fourth, _, _, _, last = capsys.readouterr().out.splitlines()
    words = ["us", "a", "node", "check", "first", "world", "after", "a", "lost", "node", "peak", "MB"]
    assert header.split() == words
    assert first.split() == ["100", "no", "500.0", "200.0", "30"]
    assert [line.split()[0] for line in (second, third, fourth)] == ["200", "500", "1000"]
    assert last.split() == ["1000", "yes", "50.0", "20.0", "30"]


@pytest.mark.parametrize("arguments", [["--seed", "1"], ["--seeds", "1"]])
def test_seeds_that_are_asked_for_are_run_however_many_nodes_there_are(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--nodes", "65", *arguments) == 0
    assert "1 seeds of 65 nodes" in capsys.readouterr().out
