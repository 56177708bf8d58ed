"""ElasticJobs on a real control plane, from YAML to the end: real agents in pods that a fake kubelet runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from elasticrun.core.protocol.commits import CommitId
from elasticrun.platforms.kubernetes.names import job_path
from tests.e2e.test_state_storage import stored
from tests.support.director import WORKER, Worker
from tests.support.kube import Object, Refused
from tests.support.kubelet import NODES, PODS, PRETENDED
from tests.support.kubernetes import ControlPlane
from tests.support.operated import JOB, JOBS, NAMESPACE, Cluster, operated, without_others
from tests.support.scrapes import Work

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ("kopf", "kubernetes", "prometheus_client"))),
        reason="needs kopf and kubernetes: pip install 'elasticrun[kubernetes,metrics]'",
    ),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, control_plane: ControlPlane) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with operated(folder, control_plane, ("host-a", "host-b", "host-c")) as made:
        yield made


cluster = pytest.fixture(without_others)


def test_one_yaml_runs_to_its_end(cluster: Cluster) -> None:
    cluster.apply("whole")
    workers = cluster.director.world(4)
    cluster.took("from kubectl apply to a world of four")
    assert len({worker.env["ELASTICRUN_TEST_DIRECTOR"] for worker in workers}) == 1
    cluster.wait_running("whole", 0, 1, 2, 3)
    cluster.wait_phase("whole", "Running")
    cluster.director.order("exit 0")
    cluster.wait_phase("whole", "Succeeded")
    cluster.took("and to Succeeded")
    held = {it["type"] for it in cluster.status("whole")["conditions"] if it["status"] == "True"}
    assert held - {"StatusFresh"} == {"Complete"}  # whether the master was heard in so short a life varies
    assert sorted(cluster.pods("whole")) == [0, 1, 2, 3]
    assert any("replicas 0, 1, 2, 3" in text for text in cluster.told("whole"))


def test_the_status_is_what_the_master_tells(cluster: Cluster) -> None:
    def training() -> Object:
        found: Object = cluster.status("told").get("training", {})
        return found

    def fresh() -> Object:
        found = cluster.status("told").get("conditions", [])
        return next((it for it in found if it["type"] == "StatusFresh"), {})

    cluster.apply("told", most=3)
    cluster.director.world(3)
    cluster.kube.wait(lambda: training().get("workers") == 3, "a world of three in the status")
    cluster.took("from kubectl apply to its world in the status")
    assert fresh()["status"] == "True"
    formed = f"round {training()['round']} was formed: "  # not 0, if the third pod came late
    cluster.kube.wait(lambda: any(it.startswith(formed) for it in cluster.told("told")), "its event")
    last = cluster.director.last_round
    cluster.delete_pod("told", 2)
    cluster.director.world(3, after=last)
    newest = cluster.director.last_round
    cluster.kube.wait(lambda: training().get("round") == newest, "the newest round in the status")
    cluster.took("from a pod's deletion to the next round in the status")
    assert (training()["nodes"], training()["workers"], training()["restarts"]) == (3, 3, 0)
    assert training()["cause"]
    cluster.kube.wait(
        lambda: any(it.startswith(f"round {newest} was formed: 3 nodes") for it in cluster.told("told")),
        "the event of the newest round",
    )
    before = training()
    cluster.began = time.monotonic()
    for name in ("told-0", "told-1", "told-3"):
        cluster.kubelet.unplug(name)
    cluster.kube.wait(lambda: fresh().get("status") == "False", "a status that is not fresh")
    cluster.took("from a silent master to StatusFresh=False")
    assert fresh()["reason"] == "Unreachable" and fresh()["message"]
    assert training() == before
    assert sorted(cluster.pods("told")) == [0, 1, 3]  # what a master tells, or does not, decides nothing


def test_a_pod_requests_what_earlier_ones_used(cluster: Cluster) -> None:
    def resources(index: int) -> Object:
        found: Object = cluster.pods("sized")[index]["spec"]["containers"][0].get("resources", {})
        return found

    cluster.apply("sized", most=3, resources={})
    cluster.director.world(3)
    before = cluster.wait_running("sized", 0, 1, 2)
    assert not resources(0)
    cluster.kube.wait(lambda: cluster.status("sized").get("sizing", {}).get("memory"), "what was measured")
    cluster.took("from kubectl apply to a request by what was measured")
    assert cluster.running("sized") == set(before)
    last = cluster.director.last_round
    cluster.delete_pod("sized", 2)
    cluster.director.world(3, after=last)
    after = cluster.wait_running("sized", 0, 1, 3)
    assert {index: after[index] for index in (0, 1)} == {index: before[index] for index in (0, 1)}
    sizing = cluster.status("sized")["sizing"]
    print(f"requests {resources(3)['requests']}, by {sizing}")
    assert resources(3)["requests"]["memory"].endswith("Mi") and "limits" not in resources(3)


def test_a_deleted_pod_is_replaced_while_the_others_go_on(cluster: Cluster) -> None:
    cluster.apply("deleted")
    cluster.director.world(4)
    before = cluster.wait_running("deleted", 0, 1, 2, 3)
    last = cluster.director.last_round
    cluster.delete_pod("deleted", 3)
    cluster.director.world(4, after=last)
    cluster.took("from a pod's deletion to a world of four again")
    after = cluster.wait_running("deleted", 0, 1, 2, 4)
    assert {index: after[index] for index in (0, 1, 2)} == {index: before[index] for index in (0, 1, 2)}
    cluster.director.order("exit 0")
    cluster.wait_phase("deleted", "Succeeded")


def test_the_pod_of_the_master_is_replaced_under_its_name(cluster: Cluster) -> None:
    cluster.apply("master")
    cluster.director.world(4)
    before = cluster.wait_running("master", 0, 1, 2, 3)
    last = cluster.director.last_round
    cluster.delete_pod("master", 0)
    cluster.director.world(4, after=last)
    cluster.took("from the deletion of the master's pod to a world of four again")
    after = cluster.wait_running("master", 1, 2, 3, 4)
    assert cluster.pods("master")[4]["spec"]["hostname"] == "master-m0"
    assert {index: after[index] for index in (1, 2, 3)} == {index: before[index] for index in (1, 2, 3)}
    cluster.director.order("exit 0")
    cluster.wait_phase("master", "Succeeded")


def test_a_pod_out_of_memory_comes_back_with_twice_as_much(cluster: Cluster) -> None:
    cluster.apply("oom", most=3)
    cluster.director.world(3)
    cluster.wait_running("oom", 0, 1, 2)
    last, cluster.began = cluster.director.last_round, time.monotonic()
    cluster.kubelet.oom("oom-2")
    cluster.director.world(3, after=last)
    cluster.took("from an OOM kill to a world of three again")
    cluster.wait_running("oom", 0, 1, 3)
    resources = cluster.pods("oom")[3]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"memory": "128Mi"}
    assert resources["requests"]["memory"] == "128Mi"
    assert any("reached its memory limit of 64 MiB" in text for text in cluster.told("oom"))


def test_an_evicted_pod_comes_back_with_the_same_memory(cluster: Cluster) -> None:
    cluster.apply("evicted", most=3)
    cluster.director.world(3)
    cluster.wait_running("evicted", 0, 1, 2)
    last = cluster.director.last_round
    cluster.kubelet.evict("evicted-2")
    cluster.director.world(3, after=last)
    cluster.wait_running("evicted", 0, 1, 3)
    assert cluster.pods("evicted")[3]["spec"]["containers"][0]["resources"]["limits"] == {"memory": "64Mi"}
    assert cluster.status("evicted")["fleet"]["failures"] == 0
    assert any(
        "was evicted" in text and "low on resource: memory" in text for text in cluster.told("evicted")
    )


def test_hosts_that_agents_call_faulty_are_avoided(cluster: Cluster) -> None:
    cluster.apply("faulty", least=1, most=1, command=["sh", "-c", "exit 13"])
    cluster.kube.wait(lambda: "Unschedulable" in cluster.status("faulty").get("message", ""), "lack of hosts")
    pods = cluster.pods("faulty")
    assert sorted(pods) == [0, 1, 2, 3]
    tried = sorted(pods[index]["spec"]["nodeName"] for index in (0, 1, 2))
    assert tried == sorted(cluster.status("faulty")["fleet"]["avoided"]) == ["host-a", "host-b", "host-c"]
    assert cluster.status("faulty")["phase"] == "Pending"


def test_a_job_that_fails_is_not_begun_again(cluster: Cluster) -> None:
    cluster.apply("failing", least=1, most=1, command=["sh", "-c", "echo the loss is NaN; exit 12"])
    cluster.wait_phase("failing", "Failed")
    assert sorted(cluster.pods("failing")) == [0]
    assert "failed again with the same error" in cluster.status("failing")["message"]


def test_pods_that_keep_failing_are_replaced_so_often_only(cluster: Cluster) -> None:
    cluster.apply("crashing", least=1, most=1, command=["sh", "-c", "exit 70"])
    roles = yaml.safe_load(JOB.format(name="x", least=1, most=1, python="sh", script="x"))["spec"]["roles"]
    roles[0] |= {"restartLimit": 1}
    roles[0]["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", "exit 70"]
    cluster.change("crashing", roles=roles)
    cluster.wait_phase("crashing", "Failed")
    assert "1 replacements were spent" in cluster.status("crashing")["message"]
    assert sorted(cluster.pods("crashing")) == [0, 1]


def test_a_quota_that_is_spent_is_told_and_waited_for(cluster: Cluster) -> None:
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    cluster.kube.follow(quotas)
    cluster.kube.create(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    try:
        cluster.kube.wait(
            lambda: any(it.get("status", {}).get("hard") for it in cluster.kube.all(quotas)), "quota"
        )
        cluster.apply("poor", most=2)
        cluster.kube.wait(lambda: "exceeded quota" in cluster.status("poor").get("message", ""), "refusal")
        assert len(cluster.pods("poor")) == 1
    finally:
        cluster.kube.delete(f"{quotas}/few")
    cluster.director.world(2)
    cluster.wait_running("poor", 0, 1)


def test_an_operator_that_is_killed_leaves_nothing_lost_or_doubled(cluster: Cluster) -> None:
    cluster.apply("orphaned")
    cluster.director.world(4)
    before = cluster.wait_running("orphaned", 0, 1, 2, 3)
    last = cluster.director.last_round
    cluster.operator.kill()
    cluster.operator.wait()
    cluster.delete_pod("orphaned", 3)
    cluster.director.world(3, after=last)  # without an operator the agents see to it
    cluster.kube.wait(lambda: 3 not in cluster.pods("orphaned"), "end of the pod")
    assert sorted(cluster.pods("orphaned")) == [0, 1, 2]
    cluster.operator = cluster.operate(name="its successor")
    beside = cluster.operate(name="another beside it")
    cluster.director.world(4, after=last)
    after = cluster.wait_running("orphaned", 0, 1, 2, 4)
    assert {index: after[index] for index in (0, 1, 2)} == {index: before[index] for index in (0, 1, 2)}
    last = cluster.director.last_round
    cluster.delete_pod("orphaned", 4)
    cluster.wait_running("orphaned", 0, 1, 2, 5)
    cluster.director.world(4, after=last)
    beside.kill()
    beside.wait()
    last = cluster.director.last_round
    cluster.delete_pod("orphaned", 5)
    cluster.wait_running("orphaned", 0, 1, 2, 6)
    cluster.director.world(4, after=last)
    assert cluster.status("orphaned")["fleet"]["nextIndex"] == 7
    cluster.director.order("exit 0")
    cluster.wait_phase("orphaned", "Succeeded")


def test_scale_out_and_in_by_count_and_by_name(cluster: Cluster) -> None:
    cluster.apply("scaled", wanted=2)
    cluster.director.world(2)
    before = cluster.wait_running("scaled", 0, 1)
    assert cluster.scale("ScaleOut", "more", "scaled", count=2) == "Succeeded: 4 replicas, as was asked for"
    cluster.director.world(4)
    cluster.wait_running("scaled", 0, 1, 2, 3)
    last = cluster.director.last_round
    assert cluster.scale("ScaleIn", "named", "scaled", podNames=["scaled-2"]).startswith("Succeeded")
    cluster.director.world(3, after=last)
    cluster.wait_running("scaled", 0, 1, 3)
    last = cluster.director.last_round
    assert cluster.scale("ScaleIn", "fewer", "scaled", count=1).startswith("Succeeded")
    cluster.director.world(2, after=last)
    after = cluster.wait_running("scaled", 0, 1)
    assert after == before
    refusal = "Failed: there would be 1 replicas of at least 2"
    assert cluster.scale("ScaleIn", "few", "scaled", count=1) == refusal
    assert cluster.scale("ScaleOut", "lost", "nobody", count=1) == "Failed: there is no job nobody"
    last = cluster.director.last_round
    assert cluster.scale("ScaleOut", "again", "scaled", count=1).startswith("Succeeded")
    cluster.director.world(3, after=last)  # else it would look for a job that is over
    cluster.wait_running("scaled", 0, 1, 4)  # no index is used twice
    cluster.director.order("exit 0")
    cluster.wait_phase("scaled", "Succeeded")


def test_an_operator_without_rights_in_a_namespace_ends_and_says_so(cluster: Cluster) -> None:
    operator = cluster.launch("--namespace", "default", name="operator without rights")
    assert operator.wait() == 1
    assert "no right to list elasticjobs in namespace default" in operator.err
    assert "keeps the ElasticJobs" not in operator.err


def test_suspend_and_resume(cluster: Cluster) -> None:
    cluster.apply("paused", most=2)
    cluster.director.world(2)
    cluster.wait_running("paused", 0, 1)
    cluster.change("paused", suspend=True)
    cluster.wait_phase("paused", "Suspended")
    cluster.took("suspended after")
    cluster.kube.wait(lambda: not cluster.pods("paused"), "end of its pods")
    cluster.director.forget()
    cluster.change("paused", suspend=False)
    cluster.director.world(2)
    cluster.took("a world again, after the resume")
    cluster.wait_running("paused", 2, 3)
    cluster.director.order("exit 0")
    cluster.wait_phase("paused", "Succeeded")


@pytest.mark.torch
def test_the_newest_step_is_in_the_storage_before_all_pods_of_a_job_are_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    options = (f"--state-storage={tmp_path / 'run'}", "--state-storage-every=1h")
    cluster.apply("stored", most=2, command=[sys.executable, "-m", "elasticrun", *options, str(WORKER)])
    workers = cluster.director.world(2)
    assert _answers(workers, "load") == [0, 0]
    assert _answers(workers, "save 3") == ["saved", "saved"]
    cluster.change("stored", suspend=True)
    cluster.wait_phase("stored", "Suspended")
    assert stored(tmp_path / "run") == CommitId(0, 3)
    cluster.director.forget()
    cluster.change("stored", suspend=False)
    assert _answers(cluster.director.world(2), "load") == [3, 3]
    cluster.director.order("exit 0")
    cluster.wait_phase("stored", "Succeeded")


def _answers(workers: list[Worker], command: str) -> list[object]:
    """What all of them answer, who may have to wait for one another."""
    for worker in workers:
        worker.tell(command)
    return [worker.answer() for worker in workers]


def test_a_wrong_job_is_refused_by_name(cluster: Cluster) -> None:
    good = yaml.safe_load(JOB.format(name="wrong", least=2, most=4, python="python", script="x"))
    for change, named in WRONG:
        wrong = yaml.safe_load(yaml.safe_dump(good))
        change(wrong["spec"]["roles"][0])
        with pytest.raises(Refused, match=named):
            cluster.kube.create(f"{JOBS}?dryRun=All", wrong)


WRONG: list[tuple[Callable[[Object], object], str]] = [
    (lambda role: role.update(minReplicas="two"), "spec.roles.minReplicas"),
    (lambda role: role.pop("template"), "template"),
    (lambda role: role["template"]["spec"].update(containers=[]), "containers"),
    (lambda role: role["template"]["spec"]["containers"][0].update(env={"A": "b"}), "containers.env"),
    (lambda role: role["template"].update(metadata={"labels": {"a": 1}}), "metadata.labels"),
]


def test_a_job_that_makes_no_sense_is_told_so(cluster: Cluster) -> None:
    cluster.apply("senseless", most=1)
    cluster.kube.wait(lambda: cluster.status("senseless").get("message"), "message")
    assert cluster.status("senseless")["message"] == "minReplicas is 2, which is more than maxReplicas, 1"
    assert not cluster.pods("senseless")


def test_a_job_nested_thousands_of_levels_deep_does_no_harm(cluster: Cluster) -> None:
    levels, usual = 9000, sys.getrecursionlimit()
    sys.setrecursionlimit(5 * levels)  # as this process reads and writes it as well
    try:
        deep: Object = {}
        for _ in range(levels):
            deep = {"a": deep}
        job = yaml.safe_load(JOB.format(name="deep", least=1, most=1, python="python", script="x"))
        job["spec"]["roles"][0]["template"]["spec"]["containers"][0]["x"] = deep
        cluster.kube.create(JOBS, job)
        cluster.kube.wait(lambda: cluster.status("deep").get("message"), "message")
        assert "nested more than" in cluster.status("deep")["message"]
        cluster.operator.kill()
        cluster.operator.wait()
        cluster.operator = cluster.operate(name="operator that lists it")
        cluster.apply("usual", most=2)
        cluster.wait_running("usual", 0, 1)
        assert not cluster.pods("deep")
        cluster.kube.delete(job_path(NAMESPACE, "deep"))
        cluster.kube.wait(lambda: not cluster.status("deep"), "end of the job")
    finally:
        sys.setrecursionlimit(usual)


def test_a_drained_host_shrinks_a_job_and_it_grows_again_elsewhere(cluster: Cluster) -> None:
    cluster.apply("moved")
    cluster.director.world(4)
    before = cluster.wait_running("moved", 0, 1, 2, 3)
    last = cluster.director.last_round
    places: dict[str, list[int]] = {}
    for index, pod in cluster.pods("moved").items():
        places.setdefault(pod["spec"]["nodeName"], []).append(index)
    # Half of the nodes at once, the master's among them, would be too many to go on without.
    host, there = next((host, indices) for host, indices in places.items() if 0 not in indices)
    cluster.kube.merge(f"{NODES}/{host}", {"spec": {"unschedulable": True}})
    try:
        cluster.began = time.monotonic()
        for index in there:
            name, path = f"moved-{index}", cluster.agent("moved", index).path
            eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
            cluster.kube.create(f"{path}/eviction", eviction)
        cluster.director.world(4, after=last)
        cluster.took("from a drain to a world of four elsewhere")
        stayed = [index for index in range(4) if index not in there]
        after = cluster.wait_running("moved", *stayed, *range(4, 4 + len(there)))
        assert {index: after[index] for index in stayed} == {index: before[index] for index in stayed}
        assert all(
            pod["spec"]["nodeName"] != host for index, pod in cluster.pods("moved").items() if index in after
        )
        assert cluster.status("moved")["fleet"]["failures"] == 0
    finally:
        cluster.kube.merge(f"{NODES}/{host}", {"spec": {"unschedulable": None}})
    cluster.director.order("exit 0")
    cluster.wait_phase("moved", "Succeeded")


MANY = 200
#: So few that the test takes seconds. That many jobs cost no more each, the end of very many shows.
FEW = 40
#: API requests for a job of two pods. Something happens to it 10 times at most until it runs: it is created,
#: its status changes 3 times, and each pod is created, bound, and runs. Each leads to at most one pass, which
#: reads twice and writes once; and a Service, a Secret, two pods and an Event are created. Its end is less.
MOST_CALLS = 10 * 3 + 5


@pytest.mark.timeout(900)
def test_very_many_jobs_while_their_operator_is_killed_again_and_again(cluster: Cluster) -> None:
    _create_many(cluster, "many", MANY)
    for part in range(1, 11):
        cluster.wait_pods(2 * MANY * part // 11)
        cluster.operator.kill()
        cluster.operator.wait()
        cluster.operator = cluster.operate("--metrics", ":0", name=f"operator {part}")
    born = cluster.scrape()
    cluster.wait_statuses("running", 2, MANY)
    cluster.took(f"{MANY} jobs run, after 10 kills")
    running = cluster.scrape()
    print(f"the last operator, from its start: {Work(born, running, MANY)}")
    assert len(cluster.kube.all(PODS)) == 2 * MANY
    assert {it["status"]["fleet"]["nextIndex"] for it in cluster.kube.all(JOBS)} == {2}
    _end_many(cluster, MANY)
    ended = Work(running, cluster.scrape(), MANY)
    print(f"their end: {ended}")
    assert ended.all_calls <= MOST_CALLS * MANY
    assert len(cluster.kube.all(PODS)) == 2 * MANY
    _remove_many(cluster)


@pytest.mark.timeout(900)
def test_what_jobs_cost_the_api_server(cluster: Cluster) -> None:
    cluster.operator.kill()
    cluster.operator.wait()
    cluster.operator = cluster.operate("--metrics", ":0", name="operator that counts")
    before = cluster.scrape()
    _create_many(cluster, "calm", FEW)
    cluster.wait_statuses("running", 2, FEW)
    running = cluster.scrape()
    cluster.took(f"{FEW} jobs run")
    _end_many(cluster, FEW)
    after = cluster.scrape()
    begun, ended = Work(before, running, FEW), Work(running, after, FEW)
    print(f"from creation to running: {begun}\nfrom running to the end: {ended}")
    assert after["jobs"] == FEW
    assert begun.all_calls <= MOST_CALLS * FEW
    assert ended.all_calls <= MOST_CALLS * FEW
    _remove_many(cluster)


def _create_many(cluster: Cluster, name: str, count: int) -> None:
    job = yaml.safe_load(JOB.format(name=name, least=1, most=2, python="sh", script="x"))
    job["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = PRETENDED
    cluster.kubelet.pretend_again()
    cluster.began = time.monotonic()
    for number in range(count):
        job["metadata"]["name"] = f"{name}-{number}"
        cluster.kube.create(JOBS, job)
    cluster.took(f"{count} jobs created")


def _end_many(cluster: Cluster, count: int) -> None:
    cluster.began = time.monotonic()
    cluster.kubelet.pretend_end()
    cluster.wait_statuses("phase", "Succeeded", count)
    cluster.took(f"{count} jobs ended")


def _remove_many(cluster: Cluster) -> None:
    # The cluster's own garbage collector would take minutes for so many.
    cluster.kube.delete(JOBS)
    cluster.kube.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", grace=0)
    cluster.kube.wait(lambda: not cluster.kube.all(JOBS), "end of all jobs")
    cluster.kube.wait(lambda: not cluster.kube.all(PODS), "end of all pods")
