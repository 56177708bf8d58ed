"""Ranks share shards: each record is in the final model's history once, whoever was killed.

The workers write down what they train on, and ``elastic-ctl audit`` reads what their saves recorded. Which
rank gets which shard depends on the time, so only the sums are compared.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from elasticrun.core.history.history import History
from elasticrun.core.protocol.chronicle import DataProgress
from elasticrun.master.event_log import NAME
from elasticrun.observer.model import view
from elasticrun.rpc.event_lines import from_line
from tests.e2e.test_elastic_data import UNHURRIED, Diary, brief, folder
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT

__all__ = ["brief", "folder"]
pytestmark = pytest.mark.torch

READER = ROOT / "tests" / "support" / "shared_reader.py"
FILES = {"a": 23, "b": 1, "c": 17, "d": 12}
EPOCHS = 3
ALL = Counter(100 * number + n for number, length in enumerate(FILES.values()) for n in range(length))


def audited(folder: Path) -> tuple[int, dict[str, Any]]:
    """What ``elastic-ctl audit`` says."""
    done = CliRunner().invoke(group, ["audit", f"{folder}-run", "--json"])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads(done.stdout)["data"]["data"]


def check(folder: Path, due: Counter[int] = ALL) -> Diary:
    """By counting what was written down."""
    diary = Diary.read(folder)
    for epoch in range(EPOCHS):
        lines = [line for lines in diary.history for line in lines if line["epoch"] == epoch]
        assert Counter(record for line in lines for record in line["taken"]) == due
    return diary


def check_exact(folder: Path) -> Diary:
    diary = check(folder)
    code, found = audited(folder)
    assert (code, found["exact"]) == (0, True), found
    assert [each["samples"] for each in found["epochs"]] == [ALL.total()] * EPOCHS
    return diary


def test_killed_workers_lose_and_repeat_nothing(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    launcher = cluster.launch(
        *("--standalone", "--nproc-per-node=2", "--max-restarts=4", READER, folder),
        *("kill=0:1:4", "kill=1:0:8", "kill=2:1:9"),
        env=brief,
    )
    assert launcher.wait() == 0
    assert len(check_exact(folder).starts) == 4
    for path in Path(f"{folder}-run", "data").glob("round_3_rank_0*"):  # a rank that went on from too early
        path.write_text(path.read_text().replace('"trained":[', '"trained":[[0,"a",2,4],', 1))
    code, found = audited(folder)
    assert (code, found["exact"]) == (1, False)
    assert found["epochs"][0]["repeated"] == {"count": 2, "first": ["2 to 3 of a"]}


def test_two_nodes_of_which_one_is_lost(cluster: Cluster, folder: Path, brief: dict[str, str]) -> None:
    options = (UNHURRIED, "--max-restarts=2", READER, folder, "kill=0:1:3", "wait=1:7")
    first, second = (cluster.node("1:2", *options, env=brief) for _ in range(2))
    second.wait_line("waits after step 7")
    first.wait_line("waits after step 7")
    second.kill_node()
    assert first.wait() == 0
    diary = check_exact(folder)
    assert [len(lines) for lines in diary.history][-1] == 1


def test_a_master_that_is_killed_goes_on_with_the_same_leases(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    os.mkfifo(f"{folder}-go")
    options = (UNHURRIED, READER, folder, "pause=6")
    first, second = (cluster.node("2", *options, env=brief) for _ in range(2))
    second.wait_line("pauses after step 6")
    os.kill(cluster.master_of(cluster.host()), signal.SIGKILL)
    go = os.open(f"{folder}-go", os.O_RDWR)  # it has a writer as long as this is open
    try:
        assert [first.wait(), second.wait()] == [0, 0]
    finally:
        os.close(go)
    assert len(check_exact(folder).starts) == 1, "no worker was restarted for it"


def test_a_job_that_goes_on_from_the_storage_of_another_one_is_checked_from_there_on(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=0", f"--state-storage={folder}-states")
    first = cluster.launch(*options, READER, folder, "kill=0:1:9", env=brief)
    assert first.wait() != 0
    (other := Path(f"{folder}-other")).mkdir()
    second = cluster.launch(*options, READER, other, env=brief)
    assert second.wait() == 0
    begun = Diary.read(other).starts[0]
    assert 0 < begun < 9
    done = CliRunner().invoke(group, ["audit", f"{other}-run"])
    assert f"went on from step {begun} of another job" in done.stdout
    assert done.exit_code == 0, done.stdout
    code, found = audited(other)
    assert (code, found["exact"]) == (0, True)
    assert found["epochs"][-1]["samples"] == ALL.total()
    assert 0 < found["epochs"][0]["samples"] < ALL.total()


def test_what_cannot_be_read_is_left_out_and_named(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    launcher = cluster.launch(
        *("--standalone", "--nproc-per-node=2", READER, folder, "bad=5"), env={**brief, "LOGLEVEL": "INFO"}
    )
    assert launcher.wait() == 0
    launcher.wait_line("data: a shard of epoch 0 is left out: a: no such sector")
    check(folder, ALL - Counter([5, 6, 7]))
    code, found = audited(folder)
    assert code == 1
    assert found["problems"] == [
        f"left out: 5 to 7 of a of epoch {epoch} (a: no such sector)" for epoch in range(EPOCHS)
    ]


def test_the_event_log_and_the_page_say_how_far_the_data_are(
    cluster: Cluster, folder: Path, brief: dict[str, str], tmp_path: Path
) -> None:
    launcher = cluster.launch(
        *("--standalone", "--nproc-per-node=2", "--max-restarts=2", f"--state-dir={tmp_path}"),
        *(READER, folder, "kill=0:1:4"),
        env=brief,
    )
    assert launcher.wait() == 0
    [path] = tmp_path.rglob(NAME)
    told = [entry for line in path.read_text().splitlines() if (entry := from_line(line)) is not None]
    found = [each.told for each in told if isinstance(each.told, DataProgress)]
    assert {each.round for each in found} == {0, 1}
    assert all(each.done + each.leased + each.failed <= each.total for each in found)
    assert not any(each.leased or each.epoch for each in found[:1]), "it begins with nothing"
    history = History()
    for each in told:
        history.take(each)
    [row] = view(history, None, history.last[0]).data
    shards = sum(-(-length // 4) for length in FILES.values())
    assert (row.name, row.epoch, row.done, row.failed, row.total) == ("data", EPOCHS - 1, shards, 0, shards)
