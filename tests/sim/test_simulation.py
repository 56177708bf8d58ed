"""The simulator as tests: regressions, a number of seeds, and the simulator's own bite."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticrun import config
from elasticrun.core.health import checkup
from elasticrun.core.health.checkup import HealthBook
from elasticrun.core.health.verdicts import judge
from elasticrun.core.job import growing
from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.commits import Commits
from elasticrun.core.job.formation import Formation
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import COLLECTING, FLUSH
from elasticrun.core.job.world import Decision, Step
from elasticrun.core.membership import rendezvous
from elasticrun.core.membership.quorum import Quorum, longest_stay, walk
from elasticrun.core.membership.seniority import Seniority
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import Outcome
from elasticrun.core.state.ledger import CommitLedger
from elasticrun.core.state.placement import Transfer, plan_gathering
from elasticrun.sim import ills, run, scenario
from elasticrun.sim.count_rules import counts_are_exact
from elasticrun.sim.draw import generate, generate_shrinking
from elasticrun.sim.failover import Failover, simulator
from elasticrun.sim.kernel import Violation
from elasticrun.sim.literal import literal
from elasticrun.sim.scenario import (
    NEVER,
    AgentCrash,
    AgentStarts,
    Fault,
    HostCrash,
    MasterCrash,
    Memory,
    Network,
    NodeSpec,
    Scenario,
    WorkerFails,
)
from elasticrun.sim.simulator import Simulator
from tests.sim.command import REAL, simulate
from tests.sim.regressions import REGRESSIONS

ROOT = Path(__file__).parents[2]
SEEDS = 300
CHUNK = 25


def hold_every_rule(case: Scenario) -> Outcome | None:
    """Run; a failure shows its trace and the scenario as a literal."""
    try:
        return simulator(case, saving=REAL).run().outcome
    except Exception:
        print(run.explain(case, REAL))
        raise


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression(name: str) -> None:
    hold_every_rule(REGRESSIONS[name])


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_of_8_nodes(first: int) -> None:
    for seed in range(first, first + CHUNK):
        hold_every_rule(generate(seed, 8))


@pytest.mark.parametrize("nodes", [1, 2, 3, 16])
def test_seeds_of_other_sizes(nodes: int) -> None:
    for seed in range(16):
        hold_every_rule(generate(seed, nodes))


@pytest.mark.parametrize("first", range(0, 64, 16))
def test_seeds_without_a_token(first: int) -> None:
    """Masters of other hosts have no copy of the journal, and rank 0 is one of the oldest."""
    for seed in range(first, first + 16):
        hold_every_rule(replace(generate(seed, 8), cautious=True))


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_seeds_of_jobs_that_nodes_leave(first: int) -> None:
    for seed in range(first, first + CHUNK):
        hold_every_rule(generate_shrinking(seed, 4))


GIVEN_UP = "nothing is given up before all was tried"


def test_nodes_that_leave_send_what_only_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else worlds of these seeds would go back to an older state."""
    older: list[bool] = []
    choose = Commits.choose

    def noting(commits: Commits, members: Sequence[str]) -> CommitId | None:
        chosen = choose(commits, members)
        older.append(chosen != commits._state.ledger.newest_whole())
        return chosen

    cases = [generate_shrinking(seed, 4) for seed in (53, 71, 85, 90)]
    monkeypatch.setattr(Commits, "choose", noting)
    assert violated(cases) == set()
    assert older
    assert not any(older)
    monkeypatch.setattr(Commits, "collect", lambda *_: False)
    assert violated(cases) == {GIVEN_UP}


def test_what_could_not_be_sent_once_is_tried_in_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [generate_shrinking(seed, 4) for seed in (8, 68)]
    assert violated(cases) == set()

    def once(*facts: Any) -> list[Transfer]:
        *_, tried, _ = facts
        return [] if tried else plan_gathering(*facts)

    monkeypatch.setattr("elasticrun.core.job.commits.plan_gathering", once)
    assert violated(cases) == {GIVEN_UP}


def test_a_master_that_lost_its_journal_would_forget_what_nodes_have_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = (NodeSpec("a"), NodeSpec("b"))
    lost = MasterCrash(20.0, memory=Memory.LOST)
    case = Scenario(0, nodes, 2, 2, quiet_from=40.0, step=0.5, faults=(lost,))
    assert violated([case]) == set()
    monkeypatch.setattr(CommitLedger, "_adopts", lambda *_: False)
    assert violated([case]) == {"what all hold is restored"}


def test_without_seniority_a_late_node_would_be_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seniority, "form", lambda self, order, *rest: list(order))
    cases = (replace(generate(seed, 8), cautious=True) for seed in range(0, 64, 4))
    assert "rank 0 is one of the oldest members" in violated(cases)


def test_a_quiet_job_succeeds_in_one_round() -> None:
    nodes = tuple(NodeSpec(f"n{number}") for number in range(4))
    result = Simulator(Scenario(seed=0, nodes=nodes, min_nodes=4, max_nodes=4)).run()
    assert (result.outcome, result.rounds, result.used) == (Outcome.SUCCEEDED, 1, 0)


def test_a_port_that_is_taken_is_free_ten_times_in_a_row() -> None:
    assert hold_every_rule(REGRESSIONS["the port is taken again and again"]) is Outcome.SUCCEEDED
    assert hold_every_rule(REGRESSIONS["the port is taken once too often"]) is Outcome.FAILED


def test_a_failure_is_charged() -> None:
    nodes = (NodeSpec("a"), NodeSpec("b"))
    faults = (WorkerFails(5.0, "a"), WorkerFails(15.0, "b"))
    case = Scenario(0, nodes, 2, 2, max_restarts=1, quiet_from=20.0, faults=faults)
    assert hold_every_rule(case) is Outcome.FAILED


MOVES = [name for name, case in REGRESSIONS.items() if case.hosts]


def test_the_next_host_takes_over() -> None:
    nodes = tuple(NodeSpec(f"n{number}") for number in range(3))
    case = Scenario(0, nodes, 2, 3, quiet_from=60.0, hosts=("n0", "n1"), faults=(HostCrash(10.0, "n0"),))
    result = simulator(case).run()
    assert (result.outcome, result.rounds, result.used) == (Outcome.SUCCEEDED, 2, 0)


def test_a_listed_host_may_be_a_spare() -> None:
    """It hears of each world although it is in none, so nobody waits for it."""
    joins = {"n0": 0.0, "n1": 0.1, "n2": 0.3, "n3": 0.2}
    nodes = tuple(NodeSpec(name, joins=instant) for name, instant in joins.items())
    faults = (WorkerFails(8.0, "n0"), AgentCrash(20.0, "n1"))
    case = Scenario(0, nodes, 2, 2, max_restarts=1, quiet_from=60.0, hosts=("n0", "n1", "n2"), faults=faults)
    result = simulator(case).run()
    assert (result.outcome, result.rounds, result.used) == (Outcome.SUCCEEDED, 3, 1)


@pytest.mark.parametrize("cautious", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_a_host_that_forgets_ends_the_job_within_a_bound(count: int, cautious: bool) -> None:
    """Half of the last world is lost with the master that formed it; masters come and step down."""
    names = tuple(f"n{number}" for number in range(count))
    nodes = tuple(NodeSpec(name) for name in names)
    faults: tuple[Fault, ...] = (HostCrash(10.0, "n0", 10.5),)
    if count == 3:
        faults += (AgentCrash(10.0, "n1"), AgentStarts(10.5, "n1"))
    for seed in range(3):
        case = Scenario(seed, nodes, count, count, quiet_from=20.0, hosts=names, faults=faults)
        sim = simulator(replace(case, cautious=cautious))
        result = sim.run()
        assert result.rounds == 1
        assert {agent.finish.exit_status for agent in sim.agents if agent.finish is not None} == {3}
        assert 600.0 < result.ended_at - 10.0 < 600.0 + longest_stay(count) + walk(count)


@pytest.mark.parametrize("name", MOVES)
def test_whatever_happens_to_masters_the_job_succeeds(name: str) -> None:
    assert hold_every_rule(REGRESSIONS[name]) is Outcome.SUCCEEDED


def violated(cases: Iterable[Scenario]) -> set[str]:
    """The rules that do not hold in these cases."""
    rules = set()
    for case in cases:
        try:
            simulator(case).run()
        except Violation as violation:
            rules.add(violation.rule)
    return rules


def test_without_votes_two_masters_would_act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quorum, "obstacle", lambda quorum, nodes: "")
    assert "each world has a quorum of the last" in violated(generate(seed, 8) for seed in range(3, 83, 4))


def test_who_only_waits_for_the_job_to_begin_would_be_called_stranded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Quorum, "is_lost", lambda *_: True)
    assert violated([generate(7, 8)]) == {"who is stranded trains no more"}


def test_who_is_stranded_is_found() -> None:
    """Else the rule about them would prove nothing."""
    found = [simulator(generate(seed, 3)) for seed in range(3, 83, 4)]
    for sim in found:
        sim.run()
    assert any(sim.rules.are_stranded for sim in found if isinstance(sim, Failover))


def test_one_host_could_begin_the_job_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(quorum: Quorum, positions: Iterable[int], is_known: bool) -> str:
        begins = quorum._is_founder and not is_known
        return "" if quorum.base is not None or begins else "it has begun"

    monkeypatch.setattr(Quorum, "obstacle_to_begin", alone)
    assert violated([REGRESSIONS[MOVES[0]]]) == {"complete worlds have rounds of their own"}


def test_who_leaves_in_a_check_would_be_called_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "judge", lambda evidence, ratio, gone: judge(evidence, ratio))
    cases = [REGRESSIONS["a node leaves in the check, and another one is drained"]]
    assert violated(cases) == {"only who is there is called faulty"}


def test_the_host_of_a_suspect_that_went_would_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(book: HealthBook, name: str, host: str) -> None:
        for names in (book.trusted, book.suspects):
            names.discard(name)
        book.doubtful.pop(name, None)

    monkeypatch.setattr(HealthBook, "forget", forget)
    cases = [REGRESSIONS["a suspect is lost, and its host comes back"]]
    assert violated(cases) == {"who comes from the host of a suspect is checked before it works"}


def joiners(*imports: float) -> Scenario:
    """A node trains; others are started together, and import for so many seconds."""
    late = (
        NodeSpec(f"n{number}", 10.0 + number / 100, imports=each) for number, each in enumerate(imports, 1)
    )
    nodes = (NodeSpec("n0", imports=2.0), *late)
    return Scenario(0, nodes, 1, len(nodes), last_call=0.0, quiet_from=200.0)


def test_nodes_that_are_started_together_are_taken_in_together() -> None:
    result = simulator(joiners(2.0, 2.9, 2.2, 2.5)).run()
    assert (result.outcome, result.rounds) == (Outcome.SUCCEEDED, 2)


def test_a_node_whose_import_hangs_is_taken_in_at_last() -> None:
    result = simulator(joiners(2.0, NEVER)).run()
    assert (result.outcome, result.rounds) == (Outcome.SUCCEEDED, 3)


def test_without_holding_back_a_world_would_wait_for_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attendance, "hold_back", Attendance.admit)
    assert violated([joiners(20.0)]) == {"no world is stopped for an import"}
    assert violated([replace(joiners(20.0), faults=(WorkerFails(0.9, "n0"),))])


def test_a_joiner_that_waited_for_others_without_bound_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "SETTLE", 5.0)
    assert violated([joiners(2.0, 20.0)]) == {"who could join does"}


@pytest.mark.parametrize("timer", [COLLECTING, FLUSH])
def test_a_node_that_is_needed_while_states_are_collected_would_be_seen(timer: str) -> None:
    """A world may wait for saved states, and nodes may be held back meanwhile, but none that it needs."""
    sim = simulator(REGRESSIONS["a node imports while the others collect what one that leaves has saved"])
    seen: list[str] = []

    def look(*_: Any) -> None:
        state = copy.deepcopy(sim.master.machine.state)
        if not state.held or (COLLECTING, "") not in state.timers:
            return
        state.timers.cancel((COLLECTING, ""))
        state.timers.set((timer, ""), state.now + 5.0)
        counts_are_exact(JobMachine(sim.config, state))
        state.limits = replace(state.limits, min_nodes=len(state.ready) + 1)
        with pytest.raises(Violation, match="nobody is held back who is needed"):
            counts_are_exact(JobMachine(sim.config, state))
        seen.extend(state.held.since)

    sim.observers.append(look)
    sim.run()
    assert set(seen) == {"n0"}


def test_a_world_that_waited_for_an_import_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Formation._decide

    def decide_for_all(part: Formation) -> Decision:
        decision = decide(part)
        if decision.step is not Step.FORM:
            return decision
        part._attendance.admit_held()
        return decide(part)

    case = replace(joiners(20.0), faults=(WorkerFails(12.0, "n0"),))
    assert violated([case]) == set()
    monkeypatch.setattr(Formation, "_decide", decide_for_all)
    assert violated([case]) == {"nobody waits for an import"}


def test_the_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-m", "elasticrun.cli.ctl", "simulate", "--seed", "7", "--trace"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert "Result(" in traces[0]


def test_what_is_printed_for_a_failing_seed_can_be_pasted() -> None:
    for seed in range(20):
        case = generate(seed, 4)
        assert eval(literal(case), vars(config) | vars(ills) | vars(scenario)) == case


def test_a_broken_rule_is_shown_with_its_trace_and_its_scenario(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Simulator) -> None:
        raise Violation("a rule", "does not hold")

    monkeypatch.setattr(Simulator, "run", refuse)
    assert simulate("--seeds", "3", "--nodes", "2") == 1
    printed = capsys.readouterr().out
    assert "a rule: does not hold" in printed
    assert "Scenario(seed=0" in printed


def test_the_command_line_reports_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--seeds", "2", "--first", "5", "--nodes", "2") == 0
    assert "every rule held" in capsys.readouterr().out
    assert simulate("--seed", "1", "--nodes", "2") == 0


def test_hostility_happens() -> None:
    """A network that does nothing to messages would prove nothing."""
    nodes = tuple(NodeSpec(f"n{number}") for number in range(3))
    calm = Simulator(Scenario(0, nodes, 3, 3, quiet_from=30.0)).run()
    hostile = Simulator(Scenario(0, nodes, 3, 3, quiet_from=30.0, network=Network(0.01, 1.0, 1.0, 1.0))).run()
    assert hostile.steps > calm.steps


def test_a_digest_tells_decisions_apart_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str) -> list[str]:
        assert simulate("--digest", *arguments) == 0
        return capsys.readouterr().out.split("\n")[:-1]

    (whole,) = told("--seeds", "3:6")
    *each, last = told("--seeds", "3", "--first", "3", "--verbose")
    assert (last, len(each), len(set(each))) == (whole, 3, 3)
    found = subprocess.run(
        [sys.executable, "-m", "elasticrun.cli.ctl", "simulate", "--digest", "--seeds", "3:6"],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert found == f"{whole}\n"
    monkeypatch.setattr(rendezvous, "_nodes", str)  # words are decisions, too
    assert told("--seeds", "3:6") != [whole]
