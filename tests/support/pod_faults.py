"""The faults of the README's table, as they befall the pods of an ElasticJob.

Each case says to which row it belongs, how its fault is made for real, and what has to follow. One test goes
through all of them (``tests/e2e/test_faults_in_pods.py``); ``tests/test_pages.py`` finds a row without one.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticrun.core.fleet.notices import Notice
from elasticrun.platforms.kubernetes.names import JOB_LABEL
from tests.support.director import WORKER, Worker
from tests.support.kube import Object, Refused
from tests.support.kubelet import NODES, PRETENDED
from tests.support.launcher import MARK, ROOT
from tests.support.operated import JOBS, NAMESPACE, Cluster
from tests.support.processes import only, titled, wait_end

#: Rows of the README that cannot befall a pod, each with the reason.
NOT_IN_PODS: dict[str, str] = {}

BUDGETS = f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_NO_TORCH = """raise ModuleNotFoundError("No module named 'torch'", name="torch")\n"""
#: Its first process outlives the agent in pod 2, until the test has looked at what that one left behind.
_GATED = """\
case $(hostname) in *-2) ;; *) exec "$@" ;; esac
mkfifo gate
"$@"; code=$?
read -r _ < gate
exit $code
"""


@dataclass(frozen=True)
class Case:
    """One fault, and what follows."""

    name: str  # of its job
    row: str  # what the README calls it; "" if it has no row there
    strike: Callable[[Job], None]
    options: tuple[str, ...] = ()  # of elastic-run, beside those of every case
    around: str = ""  # a script of sh that runs elastic-run
    is_checked: bool = False  # by probes that find no torch, as they are quicker
    pods: int = 3  # at first
    least: int = 2
    shrinks: bool = False  # two pods train on, before a third one may come
    mend: Callable[[Job], None] = lambda _: None  # takes it back from hosts, once those two train
    gone: tuple[int, ...] = ()  # the pods that are replaced
    is_anew: bool = False  # all were told to leave, and the job began again
    notice: Notice | None = None  # how its platform takes a pod away
    grace: int | None = None
    keeps_workers: bool = False  # no worker ends
    said: str = ""  # by an agent
    told: str = ""  # by an event of the job
    counts: int = 0  # for restartLimit
    code: int = 0  # with which the job ends


class Job:
    """One ElasticJob of pods on a host each, whose workers the test directs."""

    def __init__(self, cluster: Cluster, case: Case) -> None:
        self.cluster = cluster
        self.director = cluster.director
        self.kubelet = cluster.kubelet
        self.case = case
        self.name = case.name
        self.agents: dict[int, int] = {}
        self.workers: list[Worker] = []
        self._is_mended = True

    def strike(self) -> None:
        """Have the fault befall it."""
        self._is_mended = False
        self.case.strike(self)

    def mend(self) -> None:
        """Take back what was done to hosts that other jobs share, once."""
        if not self._is_mended:
            self._is_mended = True
            self.case.mend(self)

    def start(self) -> None:
        """Return once all of its pods train."""
        case = self.case
        options = ("--last-call-timeout=60", "--max-restarts=3", "--shutdown-timeout=10", *case.options)
        if case.pods < 3:
            options = options[1:]  # there is nobody to wait for
        command = [sys.executable, "-m", "elasticrun", *options, str(WORKER)]
        if case.around:
            command = ["sh", "-c", case.around, "sh", *command]
        env = {"PYTHONPATH": f"{self._without_torch()}:{ROOT}"} if case.is_checked else {}
        self.kubelet.faults[f"{self.name}-2"] = (
            {"ELASTICRUN_PROBE_FAULT": "compute"} if case.is_checked else {}
        )
        self.cluster.apply(
            self.name, 3, case.least, command, case.pods, is_spread=True, env=env, grace=case.grace
        )
        self.workers = self.director.world(case.pods)
        self.agents = self.cluster.wait_running(self.name, *range(case.pods))

    def _without_torch(self) -> Path:
        folder = self.cluster.folder / "modules"
        folder.mkdir(exist_ok=True)
        (folder / "torch.py").write_text(_NO_TORCH)
        return folder

    def pod(self, index: int) -> str:
        return f"{self.name}-{index}"

    def host(self, index: int) -> str:
        host: str = self.cluster.agent(self.name, index).found["spec"]["nodeName"]
        return host

    def worker(self, index: int) -> Worker:
        """The worker that a pod has had since the start."""
        mark = self.cluster.agent(self.name, index).mark
        return next(worker for worker in self.workers if worker.env[MARK] == mark)

    def output(self) -> str:
        """What all of its agents have said."""
        pods = [pod for pod in self.kubelet.pods.values() if pod.name.rpartition("-")[0] == self.name]
        return "\n".join(pod.output for pod in pods)

    def codes(self) -> list[int]:
        """The exit codes of its pods."""
        ended = [
            it["status"]["containerStatuses"][0]["state"] for it in self.cluster.pods(self.name).values()
        ]
        return [state["terminated"]["exitCode"] for state in ended]

    def wait_ends(self) -> None:
        """Return once all pods have ended."""

        def over() -> bool:
            found = self.cluster.pods(self.name).values()
            return all(it["status"].get("phase") in ("Succeeded", "Failed") for it in found)

        self.cluster.kube.wait(over, f"end of the pods of {self.name}")

    def want(self, replicas: int) -> None:
        """Have another number of pods."""
        path = f"{JOBS}/{self.name}"
        roles: list[Object] = self.cluster.kube.get(path)["spec"]["roles"]
        roles[0]["replicas"] = replicas
        self.cluster.kube.merge(path, {"spec": {"roles": roles}})


# -- faults


def _kill_worker(job: Job) -> None:
    job.worker(1).kill()


def _stop_worker(job: Job) -> None:
    """One rank stops in the midst of its work; the others wait for it."""
    late = job.workers[1]
    last = job.director.last_round
    for step in (1, 2, 3):
        for worker in job.workers:
            if step < 3 or worker is not late:
                assert worker.ask(f"step {step} 0.1") == "reported"
    os.kill(late.pid, signal.SIGSTOP)
    job.director.world(3, after=last)
    found = re.search(r"all stacks are in ([^;]*);", job.output())
    assert found, "nobody has said where the stacks are"
    assert list(Path(found[1]).rglob("stacks_*.txt"))


def _raise_each_time(job: Job) -> None:
    job.director.order("raise the loss is NaN")


def _check(job: Job) -> None:
    """The health check meets a host whose processor has begun to compute wrongly."""
    job.kubelet.call(job.pod(0), sys.executable, "-m", "elasticrun.cli.ctl", "check", "--reason", "odd")


def _lose_host(index: int) -> Callable[[Job], None]:
    return lambda job: job.kubelet.lose(job.host(index))


def _forget_host(index: int) -> Callable[[Job], None]:
    return lambda job: job.kubelet.forget(job.host(index))


def _add_pod(job: Job) -> None:
    job.kubelet.can_pull.clear()
    job.want(3)
    job.cluster.kube.wait(lambda: 2 in job.cluster.pods(job.name), "another pod")
    assert not any(worker.gone for worker in job.workers), "they train on until it is ready"
    job.kubelet.can_pull.set()


def _kill_master(job: Job) -> None:
    master = only(titled(job.cluster.agent(job.name, 0).launch, "elastic-run: master"))
    os.kill(master, signal.SIGKILL)
    wait_end(master)


def _delete(job: Job) -> None:
    job.cluster.delete_pod(job.name, 2)


def _suspend(job: Job) -> None:
    job.cluster.change(job.name, suspend=True)


def _drain(job: Job) -> None:
    """As ``kubectl drain`` does; then another host is drained, and that has to wait."""
    kube = job.cluster.kube
    kube.create(BUDGETS, _budget(job.name))

    def is_free() -> bool:
        found = [it.get("status", {}) for it in kube.all(BUDGETS)]
        return any(it.get("disruptionsAllowed") == 1 for it in found)

    kube.wait(is_free, "budget that lets one pod go")
    try:
        kube.merge(f"{NODES}/{job.host(2)}", {"spec": {"unschedulable": True}})
        _request_eviction(job, 2)
        with pytest.raises(Refused, match="429"):
            _request_eviction(job, 1)
    finally:
        kube.delete(f"{BUDGETS}/{job.name}")


def _budget(job: str) -> Object:
    """Two pods have to be left."""
    selected = {"matchLabels": {JOB_LABEL: job}}
    return {"metadata": {"name": job}, "spec": {"minAvailable": 2, "selector": selected}}


def _request_eviction(job: Job, index: int) -> None:
    path, metadata = job.cluster.agent(job.name, index).path, {"name": job.pod(index)}
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
    job.cluster.kube.create(f"{path}/eviction", eviction)


def _uncordon(job: Job) -> None:
    job.cluster.kube.merge(f"{NODES}/{job.host(2)}", {"spec": {"unschedulable": None}})


def _taint(job: Job) -> None:
    """With what the cluster's taint manager does then."""
    kube, pod = job.cluster.kube, job.cluster.agent(job.name, 2)
    kube.merge(f"{NODES}/{job.host(2)}", {"spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}})
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    kube.show(pod.path, {"conditions": [target]})
    kube.delete(pod.path)


def _remove_taint(job: Job) -> None:
    job.cluster.kube.merge(f"{NODES}/{job.host(2)}", {"spec": {"taints": None}})


def _outrank(job: Job) -> None:
    """A pod that needs all memory of a host, and may push others out."""
    kube = job.cluster.kube
    kube.create(PRIORITIES, {"metadata": {"name": "urgent"}, "value": 1000})
    container = {"name": "main", "image": PRETENDED, "resources": {"requests": {"memory": "64Gi"}}}
    spec = {
        "containers": [container],
        "priorityClassName": "urgent",
        "nodeSelector": {"kubernetes.io/hostname": job.host(2)},
    }
    kube.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "rival"}, "spec": spec})


def _shut_down(job: Job) -> None:
    job.kubelet.shut_down(job.pod(2))


def _announce(job: Job) -> None:
    (job.cluster.agent(job.name, 2).folder / "notice").write_text("the spot market wants it back\n")


def _saving(act: Callable[[Job], None], *indices: int) -> Callable[[Job], None]:
    """What takes pods away, whose workers have to have the time to save before they end."""

    def strike(job: Job) -> None:
        workers = [job.worker(index) for index in indices]
        for worker in workers:
            assert worker.ask(f"note {int(signal.SIGTERM)}") == "noting"
        act(job)
        for worker in workers:
            assert worker.answer() == {"signal": signal.SIGTERM}
            assert worker.ask(f"out {SAVED}") == "printed"
        for worker in workers:
            worker.tell("exit 0")

    return strike


def _resume(job: Job) -> None:
    """After all have left, and saved."""
    _saving(_suspend, 0, 1, 2)(job)
    job.cluster.wait_phase(job.name, "Suspended")
    job.director.forget()
    job.cluster.change(job.name, suspend=False)


def _kill_agent(job: Job) -> None:
    """Nobody but the kernel, and what the agent has left for that, can end its worker."""
    pod, worker = job.cluster.agent(job.name, 2), job.worker(2)
    child = worker.ask("child detached")
    (agent,) = psutil.Process(pod.pid).children()
    agent.kill()
    worker.wait_end()
    wait_end(child)
    (pod.folder / "gate").write_text("\n")


def _exceed_memory(job: Job) -> None:
    job.kubelet.oom(job.pod(2))


def _evict(job: Job) -> None:
    job.kubelet.evict(job.pod(2))


def _unplug(job: Job) -> None:
    job.kubelet.unplug(job.pod(2))


def _plug(job: Job) -> None:
    job.kubelet.plug(job.pod(2))


SAVED = "the step is saved"
LOST = "a node is lost, or its agent killed"


def _takes_one(name: str, row: str, strike: Callable[[Job], None], told: str, **more: Any) -> Case:
    """Pod 2 goes, the others train on, and another one comes."""
    return Case(name, row, strike, told=told, shrinks=True, gone=(2,), **more)


CASES = (
    Case("killed", "a worker fails", _kill_worker, said=r"pid \d+, \w+-m1\) was killed by SIGKILL"),
    Case(
        "spent",
        "... and no restart is left",
        _kill_worker,
        options=("--max-restarts=0",),
        said=r"pid \d+, \w+-m1\) was killed by SIGKILL",
        told="1: a worker failed",
        code=1,
    ),
    Case(
        "hung",
        "workers hang in collectives",
        _stop_worker,
        options=("--hang-timeout=5",),
        said="the slowest is rank 1, at step 2",
    ),
    Case(
        "repeated",
        "the same exception at the same step, 3 rounds in a row",
        _raise_each_time,
        options=("--max-restarts=10",),
        said="RuntimeError: the loss is NaN",
        told="12: the training program failed again with the same error",
        code=12,
    ),
    _takes_one(
        "faulty",
        "a node is faulty",
        _check,
        is_checked=True,
        said="this node was excluded from the job: its self test failed",
        told="13: this node is faulty",
    ),
    _takes_one(
        "lost",
        LOST,
        _lose_host(2),
        mend=_forget_host(2),
        notice=Notice.LOST,
        told="replica 2 was deleted",
    ),
    Case("came", "a node comes", _add_pod, pods=2, said="can join"),
    Case("master", "the master process dies", _kill_master, keeps_workers=True, said="the master is back"),
    Case(
        "capital",
        "the master's host is lost",
        _lose_host(0),
        mend=_forget_host(0),
        shrinks=True,
        gone=(0,),
        told="replica 0 was deleted",
    ),
    _takes_one(
        "leaving",
        "the launcher gets SIGTERM, SIGINT, ...",
        _saving(_delete, 2),
        told="replica 2 .*was deleted",
        notice=Notice.DELETED,
    ),
    _takes_one(
        "struck",
        "the launcher gets SIGKILL",
        _kill_agent,
        around=_GATED,
        told="137: signal 9",
        counts=1,
    ),
    _takes_one(
        "oom",
        "",
        _exceed_memory,
        told="its memory limit of 64 MiB",
        counts=1,
    ),
    _takes_one("evicted", "", _evict, told="was evicted", notice=Notice.SQUEEZED),
    _takes_one(
        "drained",
        "",
        _saving(_drain, 2),
        mend=_uncordon,
        told="was deleted",
        notice=Notice.DRAINED,
    ),
    _takes_one(
        "tainted",
        "",
        _saving(_taint, 2),
        mend=_remove_taint,
        told="was preempted",
        notice=Notice.TAINTED,
    ),
    _takes_one(
        "outranked",
        "",
        _saving(_outrank, 2),
        told="was deleted|was preempted",
        notice=Notice.OUTRANKED,
    ),
    _takes_one(
        "shut",
        "",
        _saving(_shut_down, 2),
        told="was preempted",
        notice=Notice.SHUT_DOWN,
    ),
    _takes_one(
        "announced",
        "",
        _saving(_announce, 2),
        options=("--preemption-file=notice",),
        said="the spot market wants it back",
        told="14: this node left in good order",
        notice=Notice.ANNOUNCED,
        grace=1,
    ),
    Case("paused", "", _resume, gone=(0, 1, 2), is_anew=True, notice=Notice.SUSPENDED),
    Case("few", "", _saving(_delete, 2), least=3, gone=(2,), told="was deleted", notice=Notice.TOO_FEW),
    Case("parted", "", _unplug, mend=_plug, shrinks=True, said="round 1 .* 2 nodes of 2:3 ready"),
)


def promises(readme: str) -> dict[str, bool]:
    """The rows of the README's table of faults, and whether such a fault spends a restart."""
    table = readme.partition("\n## Faults\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[2].strip() == "yes" for row in rows[1:]}


PROMISES = promises((ROOT / "README.md").read_text())
