"""Faults that are placed by steps: what befalls the ranks of a launched function."""

from __future__ import annotations

import os
import time

import pytest

import elasticrun
from elasticrun.errors import UsageError
from elasticrun.testing import Fault, Freeze, Kill, Slow


def test_a_rank_is_killed_at_its_step(capfd: pytest.CaptureFixture[str]) -> None:
    def train() -> int:
        for step in range(5):
            elasticrun.report_step(step)
            print(f"round {os.environ['ELASTICRUN_ROUND']} rank {os.environ['RANK']} step {step}", flush=True)
        return int(os.environ["ELASTICRUN_ROUND"])

    with elasticrun.start(train, max_restarts=1, faults=[Kill(rank=1, at_step=3)]) as job:
        results = job.wait()
    assert [result.value for result in results] == [1, 1]
    assert (job.rounds, job.restarts) == (2, 1)
    out = capfd.readouterr().out
    assert "round 0 rank 1 step 2\n" in out
    assert "round 0 rank 1 step 3\n" not in out
    assert "round 1 rank 1 step 4\n" in out


@pytest.mark.torch
def test_steps_of_optimizers_count() -> None:
    def train() -> int:
        import torch

        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight])
        for _ in range(3):
            optimizer.step()
        return int(os.environ["ELASTICRUN_ROUND"])

    faults = [Kill(rank=0, at_step=2)]
    results = elasticrun.launch(train, nproc=1, max_restarts=1, faults=faults, preload=["torch"])
    assert [result.value for result in results] == [1]


def test_a_frozen_rank_is_found_by_its_silence() -> None:
    def train() -> int:
        for step in range(3):
            elasticrun.report_step(step)
        return int(os.environ["ELASTICRUN_ROUND"])

    faults = [Freeze(rank=0, at_step=1)]
    assert [it.value for it in elasticrun.launch(train, max_restarts=1, faults=faults, hang_timeout=1)] == [
        1,
        1,
    ]


def test_a_slow_rank_takes_longer() -> None:
    def train() -> float:
        began = time.monotonic()
        for step in range(4):
            end = time.monotonic() + 0.02
            while time.monotonic() < end:
                pass
            elasticrun.report_step(step)
        return time.monotonic() - began

    slow, _ = (it.value for it in elasticrun.launch(train, faults=[Slow(rank=0, factor=20)]))
    assert slow >= 4 * 0.02 * 20, "it is never quicker, however busy the machine is"


def test_faults_of_two_rounds() -> None:
    def train() -> int:
        for step in range(3):
            elasticrun.report_step(step)
        return int(os.environ["ELASTICRUN_ROUND"])

    faults: list[Fault] = [Kill(rank=0, at_step=1), Kill(rank=1, at_step=0, round=1)]
    with elasticrun.start(train, max_restarts=2, faults=faults) as job:
        assert [it.value for it in job.wait()] == [2, 2]
    assert (job.rounds, job.restarts) == (3, 2)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([Kill(rank="1", at_step=0)], "give numbers, and whole ones for rank"),  # type: ignore[arg-type]
        ([Slow(rank=1, factor="much")], "give numbers"),  # type: ignore[arg-type]
        ([Kill(rank=2, at_step=0)], "names no rank of this job: give one from 0 to 1"),
        (["kill"], "give a list of Kill, Freeze and Slow"),
        (Kill(0, 0), "give a list of Kill, Freeze and Slow"),
    ],
)
def test_wrong_faults_are_refused(faults: list[Fault], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        elasticrun.launch(print, faults=faults)


def test_scripts_meet_none() -> None:
    with pytest.raises(UsageError, match="they befall functions only"):
        elasticrun.launch("script.py", faults=[Kill(0, 0)])
