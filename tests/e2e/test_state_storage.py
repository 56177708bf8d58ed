"""Saved states get to the job's storage by themselves, and a job that is started anew goes on from there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from elasticrun.core.protocol.commits import CommitId
from elasticrun.storage.catalog import commits, newest
from elasticrun.storage.opening import open_store
from elasticrun.storage.records import METADATA
from elasticrun.storage.verifying import damages
from tests.support.cluster import Cluster
from tests.support.launcher import MODULE, Launcher
from tests.support.orders import TOKEN, Orders
from tests.support.said import KEEPER, digests, said

pytestmark = pytest.mark.torch

INFO = {"LOGLEVEL": "INFO"}
TWO = ("--standalone", "--nproc-per-node=2")
OFTEN = "--state-storage-every=0.01"
DRAINED = 14
SELDOM = "--state-storage-every=1h"
PATIENT = "--state-flush-timeout=10m"  # no test depends on how busy this box is
#: Runs a launcher that sees a file system of a few pages at a directory.
MOUNT = 'mount -t tmpfs -o mode=700,size=16k none "$1" && shift && exec "$@"'


def stored(folder: Path) -> CommitId | None:
    """The newest commit of a storage, all of which is as it was written."""
    store = open_store(str(folder))
    marker = newest(store)
    if marker is None:
        return None
    assert list(damages(store, marker)) == []
    return marker.name.commit


def finished(folder: Path) -> int:
    return sum(each.marker is not None for each in commits(open_store(str(folder))))


def is_written(launcher: Launcher, step: int, round_: int = 0) -> None:
    launcher.wait_line(f"step {step} of round {round_} is in ")


def option(folder: Path) -> str:
    return f"--state-storage={folder}"


@pytest.mark.parametrize("how", [(), ("--sharded",)], ids=["replicated", "sharded"])
def test_after_the_death_of_all_a_new_start_goes_on_from_the_storage(
    cluster: Cluster, tmp_path: Path, how: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    first = cluster.launch(*TWO, option(folder), OFTEN, KEEPER, *how, "wait=0:4", env=INFO)
    first.wait_line("waits after step 4")
    is_written(first, 4)
    first.kill_node()
    assert stored(folder) == CommitId(0, 4)
    again = cluster.launch(*TWO, option(folder), SELDOM, KEEPER, *how)
    assert again.wait() == 0
    starts = [place for place in said("starts", again) if place.round == 0]
    assert [(place.rank, place.step, place.seen) for place in starts] == [(0, 4, 16), (1, 4, 16)]
    assert digests(starts) == digests(said("waits", first))


def test_a_new_start_may_have_another_world(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = (option(folder), OFTEN, KEEPER, "--sharded")
    first = cluster.launch(*TWO, *plan, "wait=0:3", env=INFO)
    first.wait_line("waits after step 3")
    is_written(first, 3)
    first.kill_node()
    again = cluster.launch("--standalone", "--nproc-per-node=3", *plan)
    assert again.wait() == 0
    starts = said("starts", again)
    assert [(place.rank, place.step) for place in starts] == [(0, 3), (1, 3), (2, 3)]
    assert digests(starts) == digests(said("waits", first))


#: What torch reads by itself, in a process that does not have elasticrun.
STOCK = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.distributed.checkpoint.state_dict_loader import load
state = {"weight": torch.zeros(3), "step": 0}
load(state, checkpoint_id=sys.argv[1])
assert "elasticrun" not in sys.modules
print(json.dumps([state["weight"].tolist(), state["step"]]))
"""

#: Saves three steps; then it ends as it is told: by a failure, or not at all.
SCRIPT = """
import os, signal, sys, torch
import torch.distributed as dist
from elasticrun import Checkpointer
keeper = Checkpointer()
state = {"weight": torch.zeros(3), "step": 0}
begin = keeper.load(state)
print(f"rank {os.environ['RANK']} begins after step {begin} with {state['weight'].tolist()}", flush=True)
for step in range(begin + 1, begin + 4):
    state["weight"] += step
    state["step"] = step
    while not keeper.save(step, state):  # until the last one is confirmed
        pass
    keeper.wait()
dist.init_process_group("gloo")
dist.barrier()
print(f"rank {os.environ['RANK']} has saved", flush=True)
if sys.argv[1] == "fails":
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    signal.pause()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    made = tmp_path / "saves.py"
    made.write_text(SCRIPT)
    return made


def test_stock_torch_reads_what_is_in_the_storage(cluster: Cluster, tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.launch(*TWO, option(folder), SELDOM, PATIENT, script, "fails")
    assert job.wait() == 1
    store = open_store(str(folder))
    marker = newest(store)
    assert marker is not None
    assert (folder / marker.name.folder / METADATA).exists()
    stock = tmp_path / "stock.py"
    stock.write_text(STOCK)
    read = cluster.launch("--standalone", stock, folder / marker.name.folder)
    assert read.wait() == 0
    assert json.loads(read.out.splitlines()[-1]) == [[6.0] * 3, 3]


def test_a_job_that_fails_writes_its_newest_step_first(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    folder = tmp_path / "run"
    job = cluster.launch(*TWO, option(folder), SELDOM, PATIENT, script, "fails")
    assert job.wait() == 1
    assert stored(folder) == CommitId(0, 3)
    again = cluster.launch(*TWO, option(folder), SELDOM, PATIENT, "--state-keep=1", script, "fails")
    assert again.wait() == 1
    assert "rank 0 begins after step 3 with [6.0, 6.0, 6.0]" in again.out
    assert stored(folder) == CommitId(0, 6)
    assert finished(folder) == 1, "older ones are not kept"


def test_a_good_end_writes_the_newest_step_first(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.launch(*TWO, option(folder), SELDOM, PATIENT, KEEPER)
    assert job.wait() == 0
    assert stored(folder) == CommitId(0, 12)


def test_a_job_of_two_nodes_that_is_taken_away_writes_its_newest_step(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    folder = tmp_path / "run"
    nodes = [cluster.node("2", option(folder), SELDOM, PATIENT, script, "waits") for _ in range(2)]
    for node in nodes:
        node.wait_line("has saved")
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [128 + signal.SIGTERM] * 2
    assert stored(folder) == CommitId(0, 3)
    cluster.nobody_left()


def test_a_job_that_loses_too_many_nodes_by_order_writes_its_newest_step(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    folder = tmp_path / "run"
    token = {"ELASTICRUN_TOKEN": TOKEN}
    plan = (option(folder), SELDOM, PATIENT, script, "waits")
    nodes = [cluster.node("2", *plan, env={**INFO, **token}) for _ in range(2)]
    for node in nodes:
        node.wait_line("has saved")
    leaver = next(node for node in nodes if node is not cluster.host())
    rank = leaver.wait_line(r"round 0: node (\d) of 2")[1]
    order = cluster.host().wait_line(r"round 0 starts with (\S+), (\S+):")
    Orders(cluster).done("drain", order[1 + int(rank)])
    assert leaver.wait() == DRAINED
    assert stored(folder) == CommitId(0, 3)


@pytest.mark.slow
def test_a_hang_that_ends_the_job_has_its_newest_step_written_first(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = (option(folder), SELDOM, PATIENT, "--hang-timeout=10", "--shutdown-timeout=1")
    job = cluster.launch(*TWO, *options, KEEPER, "hang=0:4")
    assert job.wait() == 1
    job.wait_line("made no step for")
    assert stored(folder) == CommitId(0, 4)


@pytest.mark.root
def test_a_full_storage_is_told_and_stops_no_training(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    tiny = ("unshare", "--mount", "sh", "-ec", MOUNT, "sh", str(folder))
    plan = (option(folder), OFTEN, KEEPER, "wait=0:3")
    job = cluster.launch(*TWO, *plan, command=(*tiny, *MODULE))
    told = job.wait_line(r"is not written to .*: .*No space left on device.*").group()
    assert "make room there, or keep fewer commits" in told
    job.wait_line("waits after step 3")
    job.signal(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM, "nobody waits for it for ever"
    assert "Traceback" not in job.err
    cluster.nobody_left()


def test_a_storage_that_cannot_be_read_is_no_reason_to_begin_anew(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    folder = tmp_path / "run"
    folder.write_text("no directory")
    job = cluster.launch(*TWO, option(folder), script, "fails")
    assert job.wait() == 1
    assert "CheckpointError" in job.err
    assert "begins" not in job.out


def test_another_model_is_refused_by_name_and_shape(cluster: Cluster, tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "run"
    assert cluster.launch(*TWO, option(folder), SELDOM, PATIENT, script, "fails").wait() == 1
    script.write_text(SCRIPT.replace("torch.zeros(3)", "torch.zeros(4)"))
    other = cluster.launch(*TWO, option(folder), SELDOM, PATIENT, script, "fails")
    assert other.wait() == 1
    assert (
        "weight is a tensor of float32 of shape [4] here, and was saved as float32 of shape [3]" in other.err
    )
    assert stored(folder) == CommitId(0, 3)
