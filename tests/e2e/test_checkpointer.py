"""The state of a training comes back: from the agent's memory, after the last step that all ranks saved."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster
from tests.support.orders import TOKEN, Orders
from tests.support.said import KEEPER, digests, said

pytestmark = pytest.mark.torch

INFO = {"LOGLEVEL": "INFO"}
TWO = ("--standalone", "--nproc-per-node=2", "--max-restarts=3")


@pytest.mark.parametrize(
    "how",
    [(), ("--sharded",), ("--sharded", "--overlap")],
    ids=["replicated", "sharded", "sharded-overlap"],
)
def test_killed_workers_go_on_with_the_step_after_their_last_one(
    cluster: Cluster, how: tuple[str, ...]
) -> None:
    calm = cluster.launch(*TWO, KEEPER, *how)
    assert calm.wait() == 0
    killed = cluster.launch(*TWO, KEEPER, *how, "kill=0:1:4", "kill=1:0:9", env=INFO)
    assert killed.wait() == 0
    for round_, step in ((1, 4), (2, 9)):
        assert f"step {step} of round {round_ - 1} is restored from memory" in killed.err
    places = [place[:4] for place in said("starts", killed)]
    assert places == [(n, rank, *at) for n, at in enumerate(((0, 0), (4, 16), (9, 36))) for rank in (0, 1)]
    ends = said("ends", calm), said("ends", killed)
    assert [[end.rank for end in each] for each in ends] == [[0, 1]] * 2
    assert digests(ends[0]) == digests(ends[1])
    assert len(digests(ends[0])) == 1


def test_a_lost_node_takes_nothing_with_it_that_others_have(cluster: Cluster) -> None:
    """The survivor goes on alone; the node that comes back gets the state from it."""
    plan = (KEEPER, "wait=0:3", "wait=1:6")
    first, second = (cluster.node("1:2", *plan) for _ in range(2))
    second.wait_line("waits after step 3")
    first.wait_line("waits after step 3")
    second.kill_node()
    first.wait_line("round 1 rank 0 waits after step 6")
    third = cluster.node("1:2", *plan)
    assert (first.wait(), third.wait()) == (0, 0)
    waited, started = said("waits", first), said("starts", first, third)
    places = [place[:3] for place in started if place.round > 0]
    assert places == [(1, 0, 3), (2, 0, 6), (2, 1, 6)]
    assert {(it.step, it.digest) for it in waited} == {(it.step, it.digest) for it in started if it.step}
    ends = said("ends", first, third)
    assert [end.rank for end in ends] == [0, 1]
    assert len(digests(ends)) == 1


def test_shards_move_to_a_node_that_joins(cluster: Cluster) -> None:
    plan = (KEEPER, "--sharded", "wait=0:3")
    first = cluster.node("1:2", *plan)
    first.wait_line("round 0 rank 0 waits after step 3")
    second = cluster.node("1:2", *plan)
    assert (first.wait(), second.wait()) == (0, 0)
    (whole,) = digests(said("waits", first))
    resharded = [place for place in said("starts", first, second) if place.round == 1]
    assert resharded == [(1, rank, 3, 12, whole) for rank in (0, 1)]


#: Waits, after some steps, for somebody to edit it.
EDITED = """
import os, time, torch
from elasticrun import Checkpointer
keeper = Checkpointer()
state = {"weight": torch.zeros(3), "note": "first"}
step = keeper.load(state)
print(f"version 1 starts after step {step} with {state['note']} {state['weight'].sum().item():g}", flush=True)
for step in range(step + 1, 6):
    state["weight"] += 1
    state["note"] = f"of step {step}"
    keeper.save(step, state)
keeper.wait()
print("version 1 waits", flush=True)
if "version 1" != "version " + "2":
    import signal
    signal.pause()
"""


def test_an_ordered_restart_runs_the_edited_script_from_the_last_step(cluster: Cluster) -> None:
    script = cluster.folder / "edited.py"
    script.write_text(EDITED)
    launcher = cluster.node("1", script, env={"ELASTICRUN_TOKEN": TOKEN})
    launcher.wait_line("version 1 waits")
    script.write_text(EDITED.replace("version 1", "version 2"))
    said = Orders(cluster).done("restart", "--reason=edited")
    assert said == "the workers of round 0 are stopped and start again; step 5 of round 0 is in memory\n"
    launcher.wait_line("version 2 starts after step 5 with of step 5 15")
    assert launcher.wait() == 0
