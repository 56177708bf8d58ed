"""A worker is killed at each stage of a save: at every call that the save makes, none left out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

KEEPER = ROOT / "tests" / "support" / "staged_keeper.py"
NEVER = 1_000_000  # calls
PATIENCE = 700.0  # seconds
SPARE = 5  # calls that one save may make more than another, as when a thread is late


def test_a_save_that_dies_before_it_has_digests_is_restored(cluster: Cluster) -> None:
    job = cluster.launch("--standalone", "--nproc-per-node=2", "--max-restarts=1", KEEPER, "checksum", "1")
    assert job.wait() == 0, job.story()
    assert {each[1] for each in job.wait_lines(r"round 1 rank \d: (.*)", 2)} == {"step 2, right"}


def test_a_save_that_dies_at_any_call_restores_that_step_or_the_one_before(cluster: Cluster) -> None:
    job = ("--standalone", "--nproc-per-node=2")
    whole = cluster.launch(*job, "--max-restarts=1", KEEPER, str(NEVER), "1")
    left = int(whole.wait_line(r"round 0: the save was over, with (\d+) calls to go", "out")[1])
    assert whole.wait() == 0, whole.story()
    rounds = NEVER - left + SPARE
    assert rounds > 50
    killed = cluster.launch(*job, f"--max-restarts={rounds}", KEEPER, "0", str(rounds))
    assert killed.wait(PATIENCE) == 0, killed.story()
    assert "WRONG" not in killed.out
    starts = [killed.wait_lines(rf"round {n} rank \d: step (\d+), right", 2) for n in range(rounds + 1)]
    assert all(one[1] == other[1] for one, other in starts), "all ranks restore the same step"
    gained = [int(after[1]) - int(before[1]) for (before, _), (after, _) in pairwise(starts)]
    assert {*gained} == {1, 2}
    assert gained[0] == 1, "at its first call nothing is saved"
    assert gained[-1] == 2, "after its last call all is"
