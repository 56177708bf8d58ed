"""Copies of parameter servers' variables, with real servers: what is lost, damaged, old, and restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_ports
from tests.support.tf_forks import Forks, tf_forks

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

CHIEF = "tests.tf.backup_chief"
PS = 3


class Cluster:
    """One worker and three ps, each of the ps with an agent of its own, as on three hosts."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        chief, worker, *ps = (f"127.0.0.1:{port}" for port in free_ports(2 + PS))
        self.addresses = {"chief": [chief], "worker": [worker], "ps": ps}
        self.forks = forks
        self.copies = folder / "copies"
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        for index in range(PS):
            self.make_home(index)
        forks.serve(self.addresses, "worker", 0)
        self.ps = [forks.serve(self.addresses, "ps", index) for index in range(PS)]

    def home(self, index: int) -> Path:
        """The directory for copies that the agent of a ps made."""
        return self.copies / f"agent_{index}" / self.addresses["ps"][index].rpartition(":")[2]

    def make_home(self, index: int) -> None:
        self.home(index).mkdir(parents=True)

    def lose(self, index: int, with_disk: bool) -> None:
        """A ps is killed and another one starts in its place; its copies may go with it."""
        self.forks.kill(self.ps[index])
        if with_disk:
            shutil.rmtree(self.home(index))
            self.make_home(index)
        self.ps[index] = self.forks.serve(self.addresses, "ps", index)

    def chief(self, function: str, *args: object) -> dict[str, Any]:
        config = {"cluster": self.addresses, "task": {"type": "chief", "index": 0}}
        result: dict[str, Any] = self.forks.run(
            f"{CHIEF}:{function}",
            str(self.checkpoints),
            *args,
            TF_CONFIG=json.dumps(config),
            ELASTICRUN_BACKUP_ROOTS=f"/nowhere/*:{self.copies}/agent_*",
        )
        return result

    def hide_checkpoints(self) -> None:
        """Leave no file that could be read."""
        self.checkpoints.rename(self.checkpoints.with_name("hidden"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with tf_forks() as forks:
        yield Cluster(forks, tmp_path)


def test_what_is_left_of_the_copies_is_restored(cluster: Cluster) -> None:
    saved = cluster.chief("train")
    assert (saved["copies"], saved["problems"]) == (2 * PS, [])

    cluster.hide_checkpoints()
    cluster.lose(1, with_disk=True)
    assert cluster.chief("restore", 400) == {
        "equal": True,
        "from_file": False,
        "lines": [
            "ps 0: from its own copy, step 400",
            "ps 1: from its peer ps 2, step 400 (own copy: absent)",
            "ps 2: from its own copy, step 400",
        ],
    }
    cluster.lose(2, with_disk=False)  # its own copy is in no process's memory
    again = cluster.chief("restore", 400)
    assert again["equal"] and "ps 2: from its own copy, step 400" in str(again["lines"])

    cluster.checkpoints.mkdir()
    told = cluster.chief("many_ways", str(cluster.copies))
    assert told["again"] == [2 * PS, []]
    damaged = told["damaged"]
    assert "own copy: damaged, " in damaged["lines"][0] and "ps 0: from its peer ps 1" in damaged["lines"][0]
    assert damaged["lines"][1:] == [f"ps {index}: from its own copy, step 500" for index in (1, 2)]
    assert "index is not the one that was written" in told["index"]["lines"][1]
    assert "own copy: stale, of step 500" in from_file(told["stale"])
    assert told["emptied"] == 0  # bytes that stale copies take up
    assert "ps 2: no good copy (own copy: damaged" in from_file(told["all damaged"])
    assert "of other variables" in from_file(told["other variables"])
    assert "ps 1: no good copy (own copy: absent)" in from_file(told["forgotten"])
    assert told["alone"] == PS
    assert "no ps has a directory for copies" in from_file(told["nowhere"])
    assert told["no state"] == [
        "no copies can be kept of /table (MutableHashTable), whose state is in no variable; keep it in a "
        "tf.Variable, or in a checkpoint of its own"
    ]
    refused = told["failing"]
    assert refused["copies"] == 2 * PS - 1 and "ps 1: own copy could not be made" in refused["problems"][0]
    assert "ps 1: from its peer ps 2, step 700 (own copy: absent)" in refused["lines"]
    crowded = told["no room"]
    assert crowded["copies"] == 0 and len(crowded["problems"]) == PS and from_file(crowded)
    assert "more memory, but may take only 80 bytes of what is left" in crowded["problems"][2]
    assert all(result["equal"] for result in told.values() if isinstance(result, dict))


def from_file(restored: dict[str, Any]) -> str:
    """Why a checkpoint file was read."""
    assert restored["from_file"]
    return str(restored["lines"])
