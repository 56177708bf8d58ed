"""A TensorFlow job with real parameter servers: tasks are killed and counted anew, and training goes on.

One job goes through everything, because each process takes seconds to import tensorflow.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from glob import glob
from pathlib import Path

import pytest

from elasticrun.core.tensorflow.ps_backup import ROOTS_VARIABLE
from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import ROOT, Launcher
from tests.support.orders import TOKEN, Orders
from tests.support.processes import TORCH_DEADLINE, listener, wait_end

TRAINER = ROOT / "tests" / "support" / "tf_trainer.py"
Task = tuple[str, int]
SHARED = 10_000  # kB; what the import leaves is four times that

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]


class Job:
    """One chief under remote control, and the servers that work for it."""

    def __init__(self, cluster: Cluster, *args: str) -> None:
        cluster.director.deadline = TORCH_DEADLINE
        options = ("--role-counts", "chief=1,worker=2,ps=2", *cluster.options("1"), *args)
        env = {"ELASTICRUN_TOKEN": TOKEN, "LOGLEVEL": "INFO", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._director = cluster.director
        self._launcher: Launcher = cluster.launch(*options, TRAINER, cluster.folder / "checkpoints", env=env)
        self._life = -1
        self.chief: Worker
        self.resumed = self.meet_chief()

    def meet_chief(self) -> dict[str, object]:
        """The next attempt of the chief, and where it goes on."""
        self._life += 1
        self.chief = self._director.task("chief", attempt=self._life)
        resumed: dict[str, object] = self.chief.answer()
        return resumed

    @property
    def restarts(self) -> str:
        """How many restarts had been used when the chief started."""
        return self.chief.env["TORCHELASTIC_RESTART_COUNT"]

    def train(self, count: int) -> int:
        """So many steps; the number of the last one."""
        step: int = self.chief.ask(f"steps {count}")["step"]
        return step

    def homes(self, index: int) -> list[Path]:
        """Where a parameter server has copies."""
        port = self.chief.tf_cluster["ps"][index].rpartition(":")[2]
        roots = self.chief.env[ROOTS_VARIABLE].split(os.pathsep)
        found = [Path(root) / port for pattern in roots for root in glob(pattern)]  # noqa: PTH207 from the root
        return [home for home in found if home.is_dir()]

    def servers(self) -> dict[Task, tuple[int, int]]:
        """The pid and the attempt of each server that the chief knows."""
        return {
            (role, index): self._seat(role, index, int(address.rpartition(":")[2]))
            for role, addresses in self.chief.tf_cluster.items()
            for index, address in enumerate(addresses)
            if role != "chief"
        }

    def _seat(self, role: str, index: int, port: int) -> tuple[int, int]:
        """Each attempt says its pid in one line."""
        pid = listener(port)
        line = rf"^{role} {index}: pid (\d+), serves at "
        self._launcher.wait_lines(line.replace(r"\d+", str(pid)), 1)
        attempts = [int(match[1]) for _, text in self._launcher.lines if (match := re.search(line, text))]
        return pid, attempts.index(pid)

    def is_forked(self, pid: int) -> bool:
        """Whether a server has not imported tensorflow itself: its pages are its parent's."""
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        shared = int(rollup.partition("Shared_Dirty:")[2].split()[0])  # kB that only a fork can share
        return shared > SHARED

    def wait_start(self, task: Task, attempt: int) -> None:
        """Return once an attempt of a server serves; each of them says so in one line."""
        self._launcher.wait_lines(rf"^{task[0]} {task[1]}: pid \d+, serves at ", 1 + attempt)


@pytest.fixture
def job(cluster: Cluster) -> Job:
    return Job(cluster, "--max-restarts=4")


def test_what_is_lost_comes_back_and_what_is_counted_anew_is_moved(cluster: Cluster, job: Job) -> None:
    assert job.resumed["resumed"] == 0
    first = job.servers()
    assert job.train(20) == 20
    saved = job.chief.ask("save")

    # A worker: nobody else hears of it.
    lost = ("worker", 1)
    os.kill(first[lost][0], signal.SIGKILL)
    assert job.train(20) == 40
    job.wait_start(lost, 1)
    now = job.servers()
    assert {task: now[task][1] for task in first if now[task] != first[task]} == {lost: 1}
    assert job.train(20) == 60

    # A parameter server: its chief goes with it, and on from what was saved.
    job.chief.tell("steps 100000")
    os.kill(first["ps", 0][0], signal.SIGKILL)
    resumed = job.meet_chief()  # once it is connected to all of them
    assert (resumed["resumed"], resumed["digest"]) == (saved["saved"], saved["digest"])
    again = job.servers()
    assert again.keys() == first.keys()
    assert {task: again[task][1] for task in first if again[task] != now[task]} == {("ps", 0): 1}
    assert job.is_forked(again["ps", 0][0])
    assert job.train(10) == 30

    # The chief.
    saved = job.chief.ask("save")
    job.chief.kill()
    resumed = job.meet_chief()
    assert (resumed["resumed"], resumed["digest"]) == (30, saved["digest"])
    assert job.servers() == again

    # A parameter server and all that its host had of it: the other one has a copy, and no file is read.
    (home,) = job.homes(1)
    for file in (cluster.folder / "checkpoints").glob("ckpt-30.*"):
        file.rename(file.with_name(f"hidden-{file.name}"))
    job.chief.tell("steps 100000")
    os.kill(again["ps", 1][0], signal.SIGKILL)
    shutil.rmtree(home)
    resumed = job.meet_chief()
    assert (resumed["resumed"], resumed["digest"]) == (30, saved["digest"])
    assert resumed["from"] == [
        "ps 0: from its own copy, step 30",
        "ps 1: from its peer ps 0, step 30 (own copy: absent)",
    ]
    now = job.servers()
    assert {**now, ("ps", 1): again["ps", 1]} == again
    assert now["ps", 1][1] == 1
    again = now
    assert job.train(5) == 35

    # Two parameter servers, three, and two again: all that is saved is moved, slots included.
    orders = Orders(cluster)
    spent = job.restarts
    for count in (3, 2):
        saved = job.chief.ask("save")
        orders.done("scale", "--role", f"ps={count}")
        job.chief.tell("leave")
        moved = job.meet_chief()
        assert (moved["resumed"], moved["digest"]) == (saved["saved"], saved["digest"])
        assert moved["servers"] == count
        added = ("ps", 2)
        now = job.servers()
        if count == 3:
            again[added] = now[added]
            assert now[added][1] == 0
        else:
            wait_end(again.pop(added)[0], TORCH_DEADLINE)
            now.pop(added, None)  # unless it had ended before
        assert now == again
        step = job.train(5)
        assert step == saved["saved"] + 5

    assert job.restarts == spent, "scaling is free"
    job.chief.tell("end")
    cluster.wait_all()
