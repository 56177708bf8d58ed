"""The simulator with jobs of TensorFlow: seeds, what single tasks go through, and that mistakes are seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from elasticrun import config
from elasticrun.config import Policy, TaskRole
from elasticrun.core.agent.tasks import SingleTasks as OwnTasks
from elasticrun.core.job.state import MENDING
from elasticrun.core.job.tasks import SingleTasks
from elasticrun.core.protocol.messages import Outcome
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.core.tensorflow import round_tasks
from elasticrun.core.tensorflow.role_recovery import Loss
from elasticrun.core.tensorflow.round_tasks import RoundTasks
from elasticrun.sim import scenario
from elasticrun.sim.scenario import AgentCrash, AgentStarts, Fault, MasterCrash, ScaleRole, Scenario, TaskDies
from elasticrun.sim.simulator import Result, Simulator
from elasticrun.sim.tf_job import CALM, CHIEF, EVALUATOR, PS, WORKER, generate_tf, tf_node
from tests.sim.command import simulate
from tests.sim.test_simulation import hold_every_rule, violated

SEEDS = 200
CHUNK = 50
SERVED = (tf_node("n0", CHIEF, PS), tf_node("n1", WORKER, PS), tf_node("n2", WORKER, EVALUATOR))
MIRRORED = (tf_node("n0", WORKER, EVALUATOR), tf_node("n1", WORKER))
PATIENT = Policy(fast_failures_free=0, backoff_first=5.0)


def job(*faults: Fault, restarts: int = 10, policy: Policy | None = None) -> Scenario:
    """A job with parameter servers that is quiet for long enough after its last fault."""
    quiet = max([0.0, *(fault.at for fault in faults)]) + CALM
    return Scenario(
        0, SERVED, 3, 3, max_restarts=restarts, quiet_from=quiet, faults=faults, policy=policy or Policy()
    )


def run(case: Scenario) -> Result:
    result = Simulator(case).run()
    assert result.outcome is Outcome.SUCCEEDED
    return result


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_of_tensorflow_jobs(first: int) -> None:
    for seed in range(first, first + CHUNK):
        hold_every_rule(generate_tf(seed))


def test_all_of_it_happens_in_some_seed() -> None:
    cases = [generate_tf(seed) for seed in range(SEEDS)]
    kinds = {type(fault) for case in cases for fault in case.faults}
    assert kinds >= {TaskDies, ScaleRole, AgentCrash, AgentStarts, MasterCrash}
    assert {tuple(node.roles for node in case.nodes) for case in cases} >= {
        ((CHIEF, WORKER, WORKER, PS, PS),),
        ((WORKER, WORKER, EVALUATOR), (WORKER,)),
    }


@pytest.mark.parametrize(
    ("role", "index"), [(CHIEF, 0), (WORKER, 0), (WORKER, 1), (PS, 0), (PS, 1), (EVALUATOR, 0)]
)
def test_a_lost_task_costs_one_restart_and_no_round(role: TaskRole, index: int) -> None:
    result = run(job(TaskDies(5.0, role, index)))
    assert (result.rounds, result.used) == (1, 1)


def test_tasks_that_are_lost_one_after_the_other_cost_one_restart_each() -> None:
    result = run(job(*(TaskDies(5.0 + 10 * n, PS if n % 2 else WORKER, n // 3) for n in range(6))))
    assert (result.rounds, result.used) == (1, 6)


def test_a_saved_state_is_free() -> None:
    result = run(job(TaskDies(5.0, CHIEF, exit_code=42), TaskDies(50.0, CHIEF, exit_code=42), restarts=0))
    assert (result.rounds, result.used) == (1, 0)


def test_parameter_servers_are_counted_anew_again_and_again() -> None:
    counts = (3, 2, 5, 1, 4)
    result = run(job(*(ScaleRole(5.0 + 10 * n, PS, count) for n, count in enumerate(counts)), restarts=0))
    assert (result.rounds, result.used) == (1, 0)
    result = run(job(*(ScaleRole(5.0 + n / 10, PS, count) for n, count in enumerate(counts)), restarts=0))
    assert (result.rounds, result.used) == (1, 0)


def test_a_mirrored_job_restarts_as_a_whole() -> None:
    case = replace(job(TaskDies(5.0, WORKER, 1)), nodes=MIRRORED, min_nodes=2, max_nodes=2)
    assert (run(case).rounds, run(case).used) == (2, 1)
    case = replace(case, faults=(TaskDies(5.0, EVALUATOR, 0),))
    assert (run(case).rounds, run(case).used) == (1, 1)


def test_a_spent_budget_ends_the_job() -> None:
    faults = (TaskDies(5.0, WORKER), TaskDies(15.0, PS))
    assert Simulator(job(*faults, restarts=1)).run().outcome is Outcome.FAILED


def test_a_lost_server_is_taken_away_while_it_waits_to_be_restarted() -> None:
    """The master raised KeyError once."""
    faults = (TaskDies(2.0, PS, 1, exit_code=1), ScaleRole(3.0, PS, 1))
    result = run(job(*faults, policy=PATIENT))
    assert (result.rounds, result.used) == (1, 1)


def test_seeds_can_be_run_alone_and_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--tensorflow", "--seeds", "2", "--first", "5") == 0
    assert "2 seeds of TensorFlow jobs" in capsys.readouterr().out
    assert simulate("--tensorflow", "--seed", "3", "--trace") == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert eval(printed, vars(config) | vars(scenario)) == generate_tf(3)


# -- mistakes are seen


def seen(*faults: Fault, policy: Policy | None = None) -> set[str]:
    return violated([job(*faults, policy=policy)])


def test_a_chief_that_kept_its_life_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_tasks, "takes_chief", lambda losses: False)
    assert seen(TaskDies(5.0, PS)) == {"the chief is restarted with its servers"}


def test_a_restart_of_everybody_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    restart = RoundTasks.restart

    def restart_all(tasks: RoundTasks, losses: Sequence[Loss]) -> list[str]:
        for key, _ in tasks._listed(WORKER):
            tasks._raise_attempt(key, saves=False)
        restart(tasks, losses)
        return list(tasks.wanted)

    monkeypatch.setattr(RoundTasks, "restart", restart_all)
    assert seen(TaskDies(5.0, EVALUATOR)) == {"only the lost are restarted"}


def test_a_life_that_did_not_wait_for_the_end_of_the_one_before_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        OwnTasks, "_tell_to_end", lambda tasks, rank, attempt, wanted, now: start(tasks, rank)
    )

    def start(tasks: OwnTasks, rank: int) -> list[object]:
        tasks._attempts[rank] = replace(tasks._attempts[rank], ended=True)
        return tasks.follow(0.0)  # type: ignore[return-value]

    assert seen(TaskDies(5.0, PS, 1)) == {"the attempt before is dead"}


def test_a_server_that_was_taken_from_a_chief_that_knows_it_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absorb = RoundTasks.absorb

    def release(tasks: RoundTasks, node: str, reports: Iterable[TaskReport]) -> bool:
        return absorb(tasks, node, reports) or bool(tasks._retiring)

    monkeypatch.setattr(RoundTasks, "absorb", release)
    faults = (ScaleRole(5.0, PS, 1), TaskDies(5.0, EVALUATOR))
    assert seen(*faults) == {"no server is taken from a chief that knows it"}


def test_a_lost_task_that_its_node_does_not_start_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnTasks, "follow", lambda tasks, now: [])
    assert seen(TaskDies(5.0, WORKER)) == {"every wanted task runs, and no other"}


def test_a_lost_task_that_is_not_wanted_again_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleTasks, "_repair", lambda part, losses: None)
    assert seen(TaskDies(5.0, WORKER)) == {"every wanted task runs, and no other"}


def test_a_wait_without_an_end_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(part: SingleTasks, _: str) -> None:
        part._state.timers.set((MENDING, ""), part._state.now + 1)

    monkeypatch.setattr(SingleTasks, "expire_wait", wait_on)
    assert seen(TaskDies(2.0, WORKER, exit_code=1), policy=PATIENT) == {"nobody waits to be restarted"}


def test_a_job_that_outlives_its_leader_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleTasks, "ended", lambda part: "")
    assert seen() == {"the job ends with its leader"}


def test_two_tasks_at_one_address_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(tasks: RoundTasks, node: str, ports: Iterable[int]) -> list[int]:
        return list(ports)

    monkeypatch.setattr(RoundTasks, "_free_ports", offered)
    assert seen(ScaleRole(5.0, PS, 3)) == {"each address is one task's"}
