"""The faults of the README's table inside pods: real agents, real faults, on a real control plane.

What the table promises of nodes holds for pods, and the operator touches no other pod than the one that is
lost. Where a world has to go on with fewer pods, the next pod gets no image before the smaller world trains.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from elasticrun.core.fleet.notices import CONTRACT
from elasticrun.errors import ExitCode
from tests.support.director import Worker
from tests.support.kubernetes import ControlPlane
from tests.support.launcher import MARK
from tests.support.operated import Cluster, operated, without_others
from tests.support.pod_faults import BUDGETS, CASES, PROMISES, SAVED, Case, Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ("kopf", "kubernetes"))),
        reason="needs kopf and kubernetes: pip install 'elasticrun[kubernetes]'",
    ),
]

TERMS = {terms.notice: terms for terms in CONTRACT}
HOSTS = ("host-a", "host-b", "host-c", "host-d", "host-e")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, control_plane: ControlPlane) -> Iterator[Cluster]:
    with operated(tmp_path_factory.mktemp("cluster"), control_plane, HOSTS) as made:
        made.kube.follow(BUDGETS)
        yield made


cluster = pytest.fixture(without_others)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_the_readme_promises_of_a_fault_holds_in_pods(cluster: Cluster, case: Case) -> None:
    job = Job(cluster, case)
    try:
        _goes_through(job)
    finally:
        job.mend()  # other jobs share its hosts


@pytest.mark.parametrize("lost", [(1, 2), (0, 1)], ids=["the master stays", "the master is lost"])
def test_a_job_that_loses_most_of_its_pods_begins_again_at_once(
    cluster: Cluster, lost: tuple[int, int]
) -> None:
    """Nobody waits for join_timeout: both hosts are gone for good, and their pods with them."""
    job = Job(cluster, Case(f"most-{lost[0]}", "", lambda _: None))
    job.start()
    before = {cluster.agent(job.name, index).mark for index in range(3)}
    hosts = [job.host(index) for index in lost]
    for act in (cluster.kubelet.lose, cluster.kubelet.forget):
        for host in hosts:
            act(host)
    cluster.began = time.monotonic()
    cluster.wait_told(job.name, "too few of the last world are left")
    cluster.took("from the loss to the decision")

    def others() -> list[Worker]:
        return [worker for worker in cluster.director.workers if worker.env[MARK] not in before]

    cluster.director.wait(lambda: len(others()) == 3, "world of others")
    cluster.took("from the loss to the next world")
    assert {worker.env["WORLD_SIZE"] for worker in others()} == {"3"}
    assert not cluster.running(job.name) & {0, 1, 2}
    cluster.director.order("exit 0")
    cluster.wait_phase(job.name, "Succeeded")
    assert cluster.status(job.name)["fleet"]["failures"] == 1


def _goes_through(job: Job) -> None:
    cluster, case = job.cluster, job.case
    job.start()
    last = cluster.director.last_round
    if case.shrinks:
        cluster.kubelet.can_pull.clear()
    job.strike()
    if case.is_anew:
        last = -1
    if case.shrinks:
        last = _goes_on_with_two(job, last)
    if case.code:
        cluster.wait_phase(case.name, "Failed")
        assert job.codes() == [case.code] * case.pods
    else:
        _goes_on_with_three(job, last)
        cluster.director.order("exit 0")
        cluster.wait_phase(case.name, "Succeeded")
    job.wait_ends()
    assert re.search(case.said, job.output())
    if case.notice is not None and TERMS[case.notice].saves:
        assert SAVED in job.output()
    cluster.wait_told(case.name, case.told)
    assert cluster.status(case.name)["fleet"]["failures"] == case.counts
    cluster.took(f"{case.name}: from its YAML to its end")


def _goes_on_with_two(job: Job, last: int) -> int:
    """The others train in a smaller world, at no cost, before another pod comes: the number of its round."""
    workers = job.director.world(2, after=last)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    job.mend()
    job.kubelet.can_pull.set()
    return workers[0].round


def _goes_on_with_three(job: Job, last: int) -> None:
    """Whoever was not lost is still there, and all train."""
    case = job.case
    workers = job.workers if case.keeps_workers else job.director.world(3, after=last)
    spends = PROMISES.get(case.row, False)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"1" if spends else "0"}
    assert not any(worker.gone for worker in workers)
    stay = set(range(3)) - set(case.gone)
    pids = job.cluster.wait_running(case.name, *stay, *range(3, 3 + len(case.gone)))
    kept = {index: pid for index, pid in pids.items() if index in job.agents}
    assert kept == {index: pid for index, pid in job.agents.items() if index in stay}, "an agent restarted"


#: What follows an exit code of a job's only pod, if the next one ends with 0: the phase, what it counts for
#: restartLimit, and whether its host is avoided.
ENDS = {
    ExitCode.OK: ("Succeeded", 0, False),
    **dict.fromkeys((ExitCode.JOB_FAILED, ExitCode.REPEATED_ERROR, ExitCode.UNHEALTHY), ("Failed", 0, False)),
    **dict.fromkeys((ExitCode.USAGE, ExitCode.WRONG_JOB, ExitCode.WRONG_VERSION), ("Failed", 0, False)),
    ExitCode.UNAUTHENTICATED: ("Failed", 0, False),
    ExitCode.DRAINED: ("Stopped", 0, False),
    ExitCode.EXCLUDED: ("Succeeded", 0, True),
    ExitCode.NODE_FAULT: ("Succeeded", 1, True),
    ExitCode.ENDPOINT_TAKEN: ("Succeeded", 1, True),
}
OTHERS = ("Succeeded", 1, False)


def test_each_exit_code_has_what_the_manual_says(cluster: Cluster) -> None:
    for code in ExitCode:
        script = f"case $PWD in *-0) exit {code.value};; esac"
        cluster.apply(f"code-{code.value}", least=1, most=1, command=["sh", "-c", script])
    for code in ExitCode:
        name = f"code-{code.value}"
        phase, counts, avoids = ENDS.get(code, OTHERS)
        cluster.wait_phase(name, phase)
        fleet = cluster.status(name)["fleet"]
        assert (fleet["failures"], bool(fleet["avoided"])) == (counts, avoids), name
        assert sorted(cluster.pods(name)) == ([0, 1] if counts or avoids else [0]), name
