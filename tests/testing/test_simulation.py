"""Simulated jobs from pytest: what comes of faults and policies, and what is said of bad input."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticrun.errors import ExitCode, UsageError
from elasticrun.launching.faults import Kill
from elasticrun.testing import SimulationFailed, simulate
from elasticrun.testing import simulation as sim

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"


def test_each_fault_comes_at_its_time_and_the_job_goes_on() -> None:
    runs = simulate(faults=[sim.WorkerFails(at=20, node="n1")], seeds=5)
    runs.check()
    assert [run.seed for run in runs] == [0, 1, 2, 3, 4]
    for run in runs:
        assert (run.status, run.exit_status, run.rounds, run.restarts) == ("succeeded", ExitCode.OK, 2, 1)
        assert run.why(1).startswith("worker failed: rank 1 (local rank 0, pid 1, n1) exited with 1")
        assert run.reason == "all workers of round 1 ended with 0"
        assert 60 < run.seconds < 63
        assert len(run.recoveries) == 1


def test_the_time_is_accounted_for() -> None:
    (run,) = simulate(faults=[sim.WorkerFails(at=30, node="n0")], seeds=[3], nodes=2, health_check="off")
    (free,) = simulate(seeds=[3], nodes=2, health_check="off")
    assert free.steps > run.steps > 40
    assert free.goodput > 0.95 > run.goodput > 0.7
    assert 0 < run.lost["redone"] < 12  # a save each ten seconds
    assert run.lost["restore"] + run.lost["stopped"] < run.recoveries[0] + 2
    assert sum(run.lost.values()) + run.goodput * run.seconds == pytest.approx(run.seconds, rel=0.05)


def test_a_script_that_saves_nothing_begins_anew() -> None:
    fault = sim.WorkerFails(at=50, node="n0")
    (run,) = simulate(faults=[fault], seeds=[1], save_every=None, health_check="off")
    assert 45 <= run.steps < 50  # of the first round
    assert 5 < run.lost["redone"] < 12


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (sim.AgentCrash(at=20, node="n2"), "member lost: n2 lost"),
        (sim.Reset(at=20, node="n2"), "member lost: n2 lost: reset"),
        (sim.Freeze(at=20, node="n2", until=58), "member lost: n2 lost: silent for 15 s"),
        (sim.Hang(at=20, node="n1"), "hang: "),
        (sim.Bug(at=20, node="n1", text=OUT_OF_MEMORY), "worker failed: rank 1"),
        (sim.Preempt(at=20, node="n2"), "member left: n2"),
        (sim.Scale(at=20, low=1, high=2), "resized: "),
    ],
)
def test_why_a_round_ended(fault: sim.Fault, why: str) -> None:
    runs = simulate(faults=[fault], seeds=3, min_nodes=1)
    runs.check()
    for run in runs:
        assert run.why(1).startswith(why)


@pytest.mark.parametrize(
    "fault",
    [
        sim.MasterCrash(at=20, down_for=5),
        sim.MasterCrash(at=20, down_for=0.5, memory=sim.Memory.TORN),
    ],
)
def test_what_stops_no_worker(fault: sim.Fault) -> None:
    for run in simulate(faults=[fault], seeds=3):
        assert (run.status, run.rounds, run.restarts) == ("succeeded", 1, 0)


def test_a_node_that_is_lost_ends_a_job_that_needs_it() -> None:
    (run,) = simulate(faults=[sim.AgentCrash(at=20, node="n2")], seeds=[0], join_timeout=30)
    assert (run.status, run.exit_status) == ("timed_out", ExitCode.RENDEZVOUS_TIMEOUT)
    lost, back = sim.AgentCrash(at=20, node="n2"), sim.AgentStarts(at=25, node="n2")
    (run,) = simulate(faults=[lost, back], seeds=[0], join_timeout=30)
    assert (run.status, run.rounds, run.restarts) == ("succeeded", 2, 0)


def test_nodes_may_be_spare_or_late() -> None:
    lost = sim.AgentCrash(at=20, node="n0")
    simulate(faults=[lost], seeds=3, nodes=3, max_nodes=2).check(
        lambda run: run.succeeded and run.rounds == 2
    )
    (run,) = simulate(seeds=[0], nodes=3, min_nodes=2, joins={"n2": 30})
    assert run.why(1).startswith("node joined: n2")


def test_the_policy_decides(tmp_path: Path) -> None:
    """As a file, as a dict, as the default: what is said of a failure changes what comes of it."""
    fault = sim.Bug(at=20, node="n1", text=OUT_OF_MEMORY)
    content = {"actions": {"cuda_oom": "give_up"}}
    (tmp_path / "policy.yaml").write_text(json.dumps(content))
    for policy in (content, str(tmp_path / "policy.yaml"), tmp_path / "policy.yaml"):
        (run,) = simulate(policy, [fault], [7])
        assert (run.status, run.rounds, run.exit_status) == ("failed", 1, ExitCode.JOB_FAILED)
    simulate(None, [fault], [7]).check()


def test_a_long_backoff_is_no_broken_rule() -> None:
    policy = {"backoff": {"first": 500, "longest": 500, "free": 0}, "same_error_rounds": 0}
    bug = sim.Bug(at=20, node="n1", text=OUT_OF_MEMORY, times=4)
    (run,) = simulate(policy, [bug], [0], max_restarts=5)
    assert run.succeeded
    assert run.seconds > 1000


def test_faults_may_be_drawn_for_each_seed() -> None:
    def drawn(rng: random.Random) -> list[sim.Fault]:
        return [sim.WorkerFails(at=rng.uniform(10, 50), node=rng.choice(["n0", "n1", "n2"]))]

    runs = simulate(faults=drawn, seeds=6)
    assert len({run.why(1) for run in runs}) > 1
    (again,) = simulate(faults=drawn, seeds=[4])
    assert again == runs[4]


def test_messages_may_be_late_doubled_and_out_of_order() -> None:
    network = sim.Network(delay=0.2, duplicate=0.2, reorder=0.3, late=0.5)
    cut = sim.Cut(at=20, node="n1", until=24, direction=sim.Direction.TO_AGENT)
    simulate(faults=[cut, sim.WorkerFails(at=22, node="n0")], seeds=3, network=network).check()


def test_a_seed_is_the_same_job_in_each_process() -> None:
    program = (
        "from elasticrun.testing import simulation as sim;"
        "print(sim.simulate(None, [sim.WorkerFails(20, 'n1'), sim.MasterCrash(20.1)], [5])[0].log)"
    )
    logs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(logs) == 1


def test_neither_torch_nor_grpc_is_imported() -> None:
    program = (
        "import sys; from elasticrun.testing import simulation as sim; sim.simulate(seeds=1).check();"
        "print(*{'torch', 'grpc', 'click', 'pytest', 'rich'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_a_run_can_be_looked_into(tmp_path: Path) -> None:
    (run,) = simulate(faults=[sim.WorkerFails(at=20, node="n1")], seeds=[2])
    assert '"kind":"round_started"' in run.log
    log = tmp_path / "events.jsonl"
    log.write_text(run.log)
    command = [sys.executable, "-m", "elasticrun.cli.ctl", "report", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "n1" in done.stdout
    trace = run.trace()
    assert "FAULT      WorkerFails(at=20, node='n1', exit_code=1)" in trace
    assert "seed 2 as a scenario:\nScenario(seed=2," in trace
    with pytest.raises(UsageError, match=r"^round 2 was asked for: give one of seed 2, 0, 1$"):
        run.why(2)


# -- checks


def test_a_failure_names_the_seeds_and_how_to_run_one() -> None:
    runs = simulate(faults=[sim.WorkerFails(at=20, node="n1")], seeds=[3, 4, 5], max_restarts=0)
    with pytest.raises(SimulationFailed) as caught:
        runs.check()
    assert str(caught.value).splitlines()[:2] == [
        "3 of 3 seeds break 'the job succeeds': 3, 4, 5",
        "seed 3: failed (exit status 1) after "
        f"{runs[0].seconds:.1f} s: 1 round, 0 restarts, {runs[0].steps} steps, goodput {runs[0].goodput:.2f}",
    ]
    assert "round 0 ended: worker failed: rank 1" in str(caught.value)
    assert "run it alone with simulate(..., seeds=[3])" in str(caught.value)
    assert caught.value.runs == (*runs,)


def test_a_condition_returns_or_asserts() -> None:
    runs = simulate(seeds=3)
    runs.check(lambda run: run.rounds == 1)

    def asserts(run: sim.Run) -> None:
        assert run.seed != 1, "it is the second\nand another line"

    with pytest.raises(
        SimulationFailed, match=r"^1 of 3 seeds break 'rule': 1: it is the second\n"
    ) as caught:
        runs.check(asserts, "rule")
    assert isinstance(caught.value.__cause__, AssertionError)
    with pytest.raises(SimulationFailed, match=r"^3 of 3 seeds break 'the condition': 0, 1, 2\n"):
        runs.check(lambda run: run.restarts)
    with pytest.raises(ZeroDivisionError):
        runs.check(lambda run: 1 / run.restarts)


def test_runs_are_a_sequence_with_a_summary() -> None:
    runs = simulate(seeds=3, nodes=1)
    assert (len(runs), runs[-1].seed, [run.seed for run in runs[1:]]) == (3, 2, [1, 2])
    assert str(runs).startswith("3 seeds: 3 succeeded; goodput 0.9")
    assert str(runs).endswith(", rounds 1, restarts 0")
    assert repr(runs) == f"<Runs of {runs}>"
    assert repr(runs[2]).startswith("<Run of seed 2: succeeded, 1 round, 0 restarts, goodput 0.9")


def test_a_broken_rule_of_elasticrun_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticrun.sim.invariants.Rules.free_port", lambda *_: 1)
    with pytest.raises(
        AssertionError, match=r"^seed 0 breaks a rule of elasticrun itself: .*Scenario\(seed="
    ):
        simulate(seeds=1)


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes": 0}, "nodes=0 was given: give a whole number from 1 to 256"),
        ({"nodes": True}, "nodes=True was given"),
        ({"nproc": "2"}, "nproc='2' was given: give a whole number from 1 to 64"),
        ({"max_nodes": 4}, "max_nodes=4 was given: give a whole number from 1 to 3"),
        ({"max_nodes": 2, "min_nodes": 3}, "min_nodes=3 was given: give a whole number from 1 to 2"),
        ({"max_restarts": -1}, "max_restarts=-1 was given: give a whole number from 0 to 1000"),
        ({"seconds": 0}, "seconds=0 was given: give a number of seconds from 1 to 86400"),
        ({"seconds": float("nan")}, "seconds=nan was given"),
        ({"save_every": 0}, "save_every=0 was given: give a number of seconds from 0.5 to 86400"),
        ({"join_timeout": None}, "join_timeout=None was given"),
        ({"health_check": "maybe"}, "health_check='maybe' was given: give auto, off, start, always"),
        ({"network": 0.1}, "network=0.1 was given: give a Network, such as Network(delay=0.05)"),
        ({"network": sim.Network(delay=90)}, "delay=90 was given to Network: give seconds from 0 to 60"),
        ({"network": sim.Network(late=1.5)}, "late=1.5 was given to Network: give a chance from 0 to 1"),
        ({"faults": [sim.MasterCrash(at=1, down_for=1e9)]}, "MasterCrash: give seconds from 0 to 86,400"),
        ({"joins": {"n7": 2}}, "joins={'n7': 2} was given: give when nodes come that are late"),
        ({"joins": {"n1": 90}}, "times less than 60 s"),
        ({"joins": ["n1"]}, "joins=['n1'] was given"),
        ({"seeds": 0}, "seeds=0 was given: give how many, as 100, or which, as [17]"),
        ({"seeds": []}, "seeds=[] was given"),
        ({"seeds": [-1]}, "seeds=[-1] was given"),
        ({"seeds": "12"}, "seeds='12' was given"),
        ({"policy": {"actions": {"hang": "go"}}}, "policy: actions.hang is 'go'; give restart, recheck"),
        ({"policy": "missing.yaml"}, "policy 'missing.yaml': it cannot be read (No such file or directory)"),
        ({"policy": 3}, "policy: it holds 3 instead of keys with values"),
        ({"faults": sim.PortTaken(at=1)}, "faults=PortTaken(at=1) was given: give a list, or a function"),
        ({"faults": [sim.PortTaken]}, "was given among the faults: give instances of WorkerFails, Bug"),
        ({"faults": [Kill(1, 3)]}, "Kill(rank=1, at_step=3, round=0) was given: it is placed by a step"),
        ({"faults": [sim.PortTaken(at=60)]}, "PortTaken(at=60) comes at 60 s, after the end: give less than"),
        (
            {"faults": [sim.PortTaken(at=-1)]},
            "at=-1 was given to PortTaken: give a number of virtual seconds",
        ),
        (
            {"faults": [sim.Reset(1, "n3")]},
            "Reset(at=1, node='n3') names no node of this job: they are n0 to n2",
        ),
        ({"faults": [sim.Reset(1, 2)]}, "names no node"),  # type: ignore[arg-type]
        ({"faults": [sim.LinkBreaks(1, ("n0", "n0"))]}, "names no node"),
        ({"faults": [sim.WorkerFails(1, "n0", 0)]}, "exit_code=0 was given to WorkerFails: give -64 to 255"),
        ({"faults": [sim.Freeze(5, "n0", 5)]}, "ends before it begins: give an `until` later than 5"),
        ({"faults": [sim.Freeze(5, "n0", None)]}, "until=None was given to Freeze"),  # type: ignore[arg-type]
        ({"faults": [sim.Scale(5, 2, 1)]}, "give low <= high, and high at most nodes=3"),
        ({"faults": lambda rng: None}, "faults=None was given"),
        ({"nodes": 1, "faults": [sim.Reset(1, "n1")]}, "they are n0"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        simulate(**arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_fault_has_what_its_fields_allow() -> None:
    from dataclasses import fields

    from elasticrun.testing.scenarios import _CHECKS, KINDS

    named = {field.name for kind in KINDS for field in fields(kind)}
    assert named == {*_CHECKS, "node", "nodes"}
    assert {kind.__name__ for kind in KINDS} < {*sim.__all__}
