"""A real control plane with a fake kubelet and a real operator, as tests of ElasticJobs drive them."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticrun.platforms.kubernetes.crd import crds, rbac
from elasticrun.platforms.kubernetes.names import (
    API_VERSION,
    INDEX_LABEL,
    JOB_LABEL,
    OPERATIONS,
    PLURAL,
    job_path,
)
from tests.support.director import WORKER, Director
from tests.support.hosts import why_no_hosts
from tests.support.kube import DEADLINE, Kube, Object
from tests.support.kubelet import PODS, Kubelet, Pod
from tests.support.kubernetes import ControlPlane
from tests.support.launcher import Launcher
from tests.support.relay import Relay
from tests.support.scrapes import Scrape, scrape

NAMESPACE = "training"
JOBS = f"/apis/elasticrun.io/v1alpha1/namespaces/{NAMESPACE}/{PLURAL}"
SCALES = {kind: f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/{plural}" for plural, kind in OPERATIONS.items()}
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOB = """
apiVersion: elasticrun.io/v1alpha1
kind: ElasticJob
metadata:
  name: {name}
spec:
  roles:
  - minReplicas: {least}
    maxReplicas: {most}
    template:
      spec:
        containers:
        - name: main
          image: none
          command: [{python}, -m, elasticrun, --max-restarts=3, {script}]
          resources:
            limits: {{memory: 64Mi}}
"""


class Cluster:
    """The control plane, a kubelet, and an operator, shared by the tests of a file."""

    def __init__(
        self, kube: Kube, kubelet: Kubelet, director: Director, folder: Path, enter: tuple[str, ...]
    ) -> None:
        """``enter``: goes in front of an operator's command, so that it runs where it can reach pods."""
        self.enter = enter
        self.kube = kube
        self.kubelet = kubelet
        self.director = director
        self.folder = folder
        self.began = time.monotonic()
        self.operator: Launcher  # the one that is meant to run, once it does
        self.operators: list[Launcher] = []

    def close(self) -> None:
        for operator in self.operators:
            operator.finish()
            print(operator.story())
        print(self.story())

    def operate(self, *options: str, name: str = "operator") -> Launcher:
        """One more operator, once it watches."""
        operator = self.launch(*options, name=name)
        operator.wait_line("keeps the ElasticJobs")
        return operator

    def launch(self, *options: str, name: str = "operator") -> Launcher:
        """An operator that may not get so far."""
        words = (
            "operator",
            "--kubeconfig",
            str(self.folder / "operator.kubeconfig"),
            "--namespace",
            NAMESPACE,
        )
        command = (*self.enter, sys.executable, "-m", "elasticrun.cli.ctl")
        operator = Launcher(*words, *options, cwd=self.folder, command=command, name=name)
        operator.patience = DEADLINE
        self.operators.append(operator)
        return operator

    def scrape(self) -> Scrape:
        """What the operator tells of its own work; it was started with ``--metrics``."""
        return scrape(self.operator.wait_line(r"metrics at (http://\S+)")[1], self.enter)

    def apply(
        self,
        name: str,
        most: int = 4,
        least: int = 2,
        command: list[str] | None = None,
        wanted: int | None = None,
        is_spread: bool = False,
        env: Mapping[str, str] | None = None,
        grace: int | None = None,
        resources: Object | None = None,
        priority: int = 0,
    ) -> None:
        """Create a job from its YAML; ``is_spread``: no two of its pods on one host."""
        text = JOB.format(name=name, least=least, most=most, python=sys.executable, script=WORKER)
        job = yaml.safe_load(text)
        job["spec"]["priority"] = priority
        role = job["spec"]["roles"][0]
        pod = role["template"]["spec"]
        if command:
            pod["containers"][0]["command"] = command
        if wanted is not None:
            role["replicas"] = wanted
        if is_spread:
            pod["affinity"] = _apart(name)
        if grace is not None:
            pod["terminationGracePeriodSeconds"] = grace
        if resources is not None:
            pod["containers"][0]["resources"] = resources
        if env:
            pod["containers"][0]["env"] = [{"name": key, "value": value} for key, value in env.items()]
        self.kube.create(JOBS, job)
        self.began = time.monotonic()

    def scale(self, kind: str, name: str, job: str, **spec: Any) -> str:
        """Ask for more or fewer pods, and wait for the end of that: what is told of it."""
        self.began = time.monotonic()
        metadata, path = {"name": name}, SCALES[kind]
        body = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": metadata,
            "spec": {"jobName": job, **spec},
        }
        self.kube.create(path, body)

        def status() -> Object:
            found = [it for it in self.kube.all(path) if it["metadata"]["name"] == name]
            return found[0].get("status", {}) if found else {}

        self.kube.wait(lambda: status().get("phase") in ("Succeeded", "Failed"), f"end of {kind} {name}")
        self.took(f"{kind} {spec}")
        return f"{status()['phase']}: {status()['message']}"

    def change(self, name: str, **spec: Any) -> None:
        self.kube.merge(job_path(NAMESPACE, name), {"spec": spec})
        self.began = time.monotonic()

    def status(self, name: str) -> Object:
        found = [it for it in self.kube.all(JOBS) if it["metadata"]["name"] == name]
        status: Object = found[0].get("status", {}) if found else {}
        return status

    def wait_phase(self, name: str, phase: str) -> None:
        self.kube.wait(lambda: self.status(name).get("phase") == phase, f"{phase} of {name}")

    def pods(self, name: str) -> dict[int, Object]:
        """The pods of a job, by index."""
        found = [it for it in self.kube.all(PODS) if it["metadata"].get("labels", {}).get(JOB_LABEL) == name]
        return {int(it["metadata"]["labels"][INDEX_LABEL]): it for it in found}

    def running(self, name: str) -> set[int]:
        return {
            index
            for index, pod in self.pods(name).items()
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        }

    def wait_running(self, name: str, *indices: int) -> dict[int, int]:
        """Return once exactly these pods run: the pids of their agents."""
        self.kube.wait(lambda: self.running(name) == set(indices), f"pods {indices} of {name}")
        return {index: self.agent(name, index).pid for index in indices}

    def wait_pods(self, count: int) -> None:
        self.kube.wait_count(lambda: len(self.kube.all(PODS)), count, "pods")

    def wait_statuses(self, field: str, value: object, jobs: int) -> None:
        """Return once the status of each job of very many has this value."""

        def count() -> int:
            return sum(it.get("status", {}).get(field) == value for it in self.kube.all(JOBS))

        self.kube.wait_count(count, jobs, f"jobs with {field} {value}")

    def agent(self, name: str, index: int) -> Pod:
        return self.kubelet.named(f"{name}-{index}")

    def delete_pod(self, name: str, index: int) -> None:
        self.began = time.monotonic()
        self.kube.delete(self.agent(name, index).path)

    def told(self, name: str) -> list[str]:
        """The events of a job."""
        return [it["message"] for it in self.kube.all(EVENTS) if it["involvedObject"]["name"] == name]

    def wait_told(self, name: str, pattern: str) -> None:
        """Return once an event of a job has the pattern."""
        self.kube.wait(
            lambda: any(re.search(pattern, text) for text in self.told(name)), f"word of {pattern}"
        )

    def took(self, what: str) -> None:
        """Print a time; no test decides by it."""
        print(f"{what}: {time.monotonic() - self.began:.1f} s")

    def clear(self) -> None:
        """Remove all jobs, and return once nothing is left of them."""
        self.kubelet.can_pull.set()
        for job in self.kube.all(JOBS):
            self.kube.delete(f"{JOBS}/{job['metadata']['name']}")
        self.kube.wait(lambda: not self.kube.all(JOBS), "end of all jobs")
        # The cluster's own garbage collector knows new kinds of owners only after a while.
        self.kube.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", grace=0)
        self.kube.wait(lambda: not self.kube.all(PODS), "end of all pods")
        self.director.forget()
        self.director.order("")

    def story(self) -> str:
        pods = list(self.kubelet.pods.values())
        return "\n".join(f"-- {pod.name}\n{pod.output}" for pod in pods if pod.process is not None)


def _apart(name: str) -> Object:
    """The affinity of pods that do not want one another on their host."""
    own = {"labelSelector": {"matchLabels": {JOB_LABEL: name}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}


def without_others(shared: Cluster) -> Iterator[Cluster]:
    """The shared cluster without jobs of other tests; the body of a fixture."""
    shared.director.forget()
    yield shared
    shared.clear()


@contextlib.contextmanager
def operated(
    folder: Path, control_plane: ControlPlane, hosts: Sequence[str], options: Sequence[str] = ()
) -> Iterator[Cluster]:
    """A cluster with these hosts, whose operator runs with these options; it has to end well."""
    if why := why_no_hosts():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        director = stack.enter_context(contextlib.closing(Director(folder)))
        director.deadline = DEADLINE
        kube = stack.enter_context(contextlib.closing(Kube(control_plane.kubeconfig)))
        _install(kube, folder)
        env = {**director.env, "PET_HEALTH_CHECK": "off", "LOGLEVEL": "INFO"}
        kubelet = Kubelet(kube, folder, hosts, env)
        stack.callback(kubelet.close)
        home = stack.enter_context(contextlib.closing(kubelet.beside("operator")))
        access = yaml.safe_load(control_plane.kubeconfig.read_text())
        port = int(access["clusters"][0]["cluster"]["server"].rpartition(":")[2])
        stack.enter_context(contextlib.closing(Relay(home, port)))
        made = stack.enter_context(contextlib.closing(Cluster(kube, kubelet, director, folder, home.enter)))
        made.operator = made.operate(*options)
        yield made
        made.operator.process.terminate()
        assert made.operator.wait() == 0


def _install(kube: Kube, folder: Path) -> None:
    """What an administrator does once; the operator gets the rights that it says it needs, and no others."""
    kube.follow(CRDS)
    definitions = crds()
    for definition in definitions:
        kube.create(CRDS, definition)
    names = {definition["metadata"]["name"] for definition in definitions}
    kube.wait(
        lambda: names <= {it["metadata"]["name"] for it in kube.all(CRDS) if _is_served(it)}, "ElasticJob"
    )
    kube.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    homes = {
        "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
        "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    }
    for document in rbac(NAMESPACE):
        kube.create(homes[document["kind"]], document)
    account = f"{homes['ServiceAccount']}/elasticrun-operator/token"
    token = kube.create(
        account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    access = yaml.safe_load(kube.kubeconfig.read_text())
    access["users"][0]["user"] = {"token": token["status"]["token"]}
    (folder / "operator.kubeconfig").write_text(yaml.safe_dump(access))
    for path in (JOBS, *SCALES.values()):
        kube.follow(path)
    kube.follow(EVENTS)


def _is_served(found: Object) -> bool:
    conditions = found.get("status", {}).get("conditions") or []
    return any(it["type"] == "Established" and it["status"] == "True" for it in conditions)
