"""A kubelet for tests: it runs the pods that a real scheduler binds to its hosts, as processes of this box.

Each pod has a network namespace and a host name (``hosts.py``), its own /etc/hosts in which the names of a
headless Service are, and one container, whose image does not matter. What a kubelet does for a pod's life is
done: Running, Succeeded or Failed with the exit code and reason, SIGTERM and after the grace SIGKILL when it
is deleted, and its removal at the end. ``oom`` kills one as the kernel would, ``unplug`` cuts one off from
the others, ``lose`` takes a whole host, of which nobody hears again. While ``can_pull`` is not set no new pod
starts, as no image comes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.support.hosts import INTERFACE, Namespace, NoHostsError
from tests.support.kube import DEADLINE, Kube, Object, Refused
from tests.support.launcher import MARK, clean_environment, private_folders
from tests.support.processes import kill_marked, wait_end

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
#: The image of a container that is only pretended to run, for tests with very many.
PRETENDED = "pretended"
#: The address of whoever is beside the pods.
BESIDE = "10.88.255.2"
#: Written in place, so that it is never seen half: readers see the old or the new bytes of this many.
_HOSTS_SIZE = 8192
#: What a kubelet says of pods that it has ended for such a reason.
_MESSAGES = {
    "Evicted": "The node was low on resource: memory.",
    "Terminated": "Pod was terminated in response to imminent node shutdown.",
}
_BIND = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


class Pod:
    """One pod that runs, or did."""

    def __init__(self, found: Object, number: int, parent: Path) -> None:
        self.found = found
        self.number = number
        self.name: str = found["metadata"]["name"]
        self.path = f"/api/v1/namespaces/{found['metadata']['namespace']}/pods/{self.name}"
        self.folder = parent / f"{number}-{self.name}"
        self.address = f"10.88.{number // 250}.{number % 250 + 1}"
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}  # of its process, once that runs
        self.reason = ""  # of its end, if it is not in the exit code
        self.started = _now()
        self.is_told = False  # to end
        self.is_lost = False  # with its host
        self.has_ended = False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def launch(self) -> str:
        """The mark of its processes."""
        return f"{MARK}={self.mark}"

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")


class Kubelet:
    """All hosts of one cluster."""

    def __init__(self, kube: Kube, folder: Path, hosts: Sequence[str], env: dict[str, str]) -> None:
        self.kube = kube
        self.env = env  # of every container
        self.faults: dict[str, dict[str, str]] = {}  # more of that, by pod: what its host does to it
        self.pods: dict[str, Pod] = {}  # by uid
        self.can_pull = threading.Event()
        self.can_pull.set()
        self._folder = folder
        self._lock = threading.RLock()
        self._timers: list[threading.Timer] = []
        self._number = 0
        self._are_over = False  # pods without a process
        self._calls = ThreadPoolExecutor(4)
        self._names = folder / "hosts"
        self._names.write_bytes(b"\n" * _HOSTS_SIZE)
        self._switch = Namespace("switch")
        self._switch.ip("link add bridge type bridge", "link set bridge up")
        kube.follow(NODES)
        for host in hosts:
            self._register(host)
        kube.follow(PODS, self._seen)

    def _register(self, host: str) -> None:
        self.kube.create(NODES, {"metadata": {"name": host, "labels": {"kubernetes.io/hostname": host}}})
        resources = {"cpu": "32", "memory": "64Gi", "pods": "500"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        self.kube.merge(f"{NODES}/{host}/status", {"status": status})
        self.kube.merge(f"{NODES}/{host}", {"spec": {"taints": None}})  # not ready, as it was at first

    def beside(self, name: str) -> Namespace:
        """A host beside the pods, for whoever has to reach them; whoever asks for it closes it."""
        namespace = Namespace(name)
        self._switch.ip(
            f"link add {name} type veth peer name {INTERFACE} netns {namespace.pid}",
            f"link set {name} master bridge up",
        )
        namespace.ip(f"addr add {BESIDE}/16 dev {INTERFACE}", f"link set {INTERFACE} up")
        return namespace

    def named(self, name: str) -> Pod:
        """The pod of this name that ran last."""
        with self._lock:
            return [pod for pod in self.pods.values() if pod.name == name][-1]

    def oom(self, name: str) -> None:
        """The kernel kills the container: it has reached its memory limit."""
        pod = self.named(name)
        pod.reason = "OOMKilled"
        self._kill(pod)

    def evict(self, name: str) -> None:
        """The host runs low on memory, and sends the pod away."""
        pod = self.named(name)
        pod.reason = "Evicted"
        self._kill(pod)

    def shut_down(self, name: str) -> None:
        """The host of a pod shuts down, and gives it time to end; nobody deletes the pod."""
        pod = self.named(name)
        pod.reason = "Terminated"
        self._stop(pod, pod.found["spec"]["terminationGracePeriodSeconds"])

    def unplug(self, name: str) -> None:
        """Nothing comes to a pod or goes from it any more, and nobody is told."""
        self._switch.ip(f"link set port{self.named(name).number} down")

    def plug(self, name: str) -> None:
        self._switch.ip(f"link set port{self.named(name).number} up")

    def lose(self, host: str) -> None:
        """A host loses power: its pods are silent, and the API server hears no more of them."""
        for pod in self._on(host):
            if pod.has_ended:
                continue
            pod.is_lost = True
            self.unplug(pod.name)
            kill_marked(pod.launch)

    def forget(self, host: str) -> None:
        """The cloud removes a host that is lost, and the cluster then forgets its pods; another one comes."""
        self.kube.delete(f"{NODES}/{host}")
        for pod in self._on(host):
            if pod.is_lost:
                self.kube.delete(pod.path, grace=0)
        self._register(host)

    def _on(self, host: str) -> list[Pod]:
        with self._lock:
            return [pod for pod in self.pods.values() if pod.found["spec"]["nodeName"] == host]

    def call(self, name: str, *words: str) -> str:
        """Run a command in a pod, as ``kubectl exec`` does: what it printed."""
        pod = self.named(name)
        enter = ("nsenter", f"--target={pod.pid}", "--net", "--uts", "--mount", f"--wdns={pod.folder}")
        done = subprocess.run(
            [*enter, *words], env=pod.environment, capture_output=True, text=True, timeout=DEADLINE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # -- what happens to pods

    def _seen(self, kind: str, found: Object) -> None:
        uid, bound = found["metadata"]["uid"], found["spec"].get("nodeName")
        with self._lock:
            pod = self.pods.get(uid)
            if kind == "DELETED":
                if pod is not None:
                    self._kill(pod)
                return
            leaves = found["metadata"].get("deletionTimestamp")
            if found["spec"]["containers"][0]["image"] == PRETENDED:
                self._pretend(found)
            elif pod is None and bound and not leaves and found.get("status", {}).get("phase") == "Pending":
                self._number += 1
                pod = self.pods[uid] = Pod(found, self._number, self._folder)
                threading.Thread(target=self._run, args=(pod,), daemon=True).start()
            elif leaves and pod is not None and not pod.is_told and not pod.is_lost:
                pod.is_told = True
                if pod.has_ended:
                    self.kube.delete(pod.path, grace=0)
                self._stop(pod, found["metadata"].get("deletionGracePeriodSeconds", 30))
            elif leaves and pod is None:
                self.kube.delete(_path(found), grace=0)

    def _pretend(self, found: Object) -> None:
        """A pod without a process: it runs once it is bound, and ends with 0 after ``pretend_end``."""
        phase, path = found.get("status", {}).get("phase"), _path(found)
        if found["metadata"].get("deletionTimestamp"):
            self._later(self.kube.delete, path, 0)
        elif found["spec"].get("nodeName") and phase == "Pending":
            self._later(self._show, path, found, "Running", {"running": {"startedAt": _now()}})
        elif phase == "Running" and self._are_over:
            self._later(self._show, path, found, "Succeeded", {"terminated": {"exitCode": 0}})

    def pretend_end(self) -> None:
        """All pods without a process end with 0, and those that come end as soon as they run."""
        with self._lock:
            self._are_over = True
            for found in self.kube.all(PODS):
                self._pretend(found)

    def pretend_again(self) -> None:
        """Pods without a process that come from now on run on."""
        with self._lock:
            self._are_over = False

    def _later(self, call: Callable[..., object], *words: object) -> None:
        def work() -> None:
            with contextlib.suppress(Refused, OSError):
                call(*words)

        self._calls.submit(work)

    def _show(self, path: str, found: Object, phase: str, state: dict[str, Any]) -> None:
        shown = {
            "name": "main",
            "image": PRETENDED,
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": state,
        }
        self.kube.merge(f"{path}/status", {"status": {"phase": phase, "containerStatuses": [shown]}})

    def _run(self, pod: Pod) -> None:
        """From its making to its removal; what goes wrong with one pod is told of this one only."""
        assert self.can_pull.wait(DEADLINE), "a test forgot to let images come"
        try:
            code = self._live(pod)
        except (NoHostsError, Refused, OSError, subprocess.SubprocessError) as error:
            print(f"pod {pod.name} could not run: {error}")
            self._kill(pod)
            code = 128
        reason = pod.reason if pod.reason == "OOMKilled" else "Error" if code else "Completed"
        ended = {
            "exitCode": code,
            "reason": reason,
            "finishedAt": _now(),
        }
        if not pod.is_lost:
            self._report(pod, "Failed" if code else "Succeeded", {"terminated": ended})
        with self._lock:
            pod.has_ended = True
            is_told = pod.is_told
        if is_told:
            self.kube.delete(pod.path, grace=0)

    def _join(self, pod: Pod) -> Namespace:
        """A host for a pod, on the switch."""
        namespace = Namespace(pod.found["spec"].get("hostname", pod.name))
        self._switch.ip(
            f"link add port{pod.number} type veth peer name {INTERFACE} netns {namespace.pid}",
            f"link set port{pod.number} master bridge up",
        )
        namespace.ip(f"addr add {pod.address}/16 dev {INTERFACE}", f"link set {INTERFACE} up")
        return namespace

    def _live(self, pod: Pod) -> int:
        """From the start of its process to the end: the exit code."""
        container = pod.found["spec"]["containers"][0]
        pod.folder.mkdir()
        namespace = self._join(pod)
        with self._lock:
            self._publish(pod)
            self._start(pod, namespace, container)
            if pod.is_told:
                pod.process.terminate()  # type: ignore[union-attr] # it was told before it was there
        self._report(pod, "Running", {"running": {"startedAt": pod.started}})
        wait_end(pod.pid, 3600.0)
        assert pod.process is not None
        status = pod.process.wait()
        kill_marked(pod.launch)
        namespace.close()
        with self._lock:
            self._publish()
        return status if status >= 0 else 128 - status

    def _start(self, pod: Pod, namespace: Namespace, container: dict[str, Any]) -> None:
        temporary = pod.folder / "tmp"
        for folder in (temporary, pod.folder / "session"):
            folder.mkdir()
        pod.environment = {
            **clean_environment(**private_folders(pod.folder), TMPDIR=str(temporary)),
            **self.env,
            **self._variables(pod, container),
            **self.faults.get(pod.name, {}),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            MARK: pod.mark,
        }
        words = [*container.get("command", ()), *container.get("args", ())]
        inside = ("unshare", "--mount", "sh", "-ec", _BIND, "sh", str(self._names))
        with (pod.folder / "output").open("wb") as output:
            pod.process = subprocess.Popen(
                [*namespace.enter, *inside, *words],
                env=pod.environment,
                cwd=pod.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _variables(self, pod: Pod, container: dict[str, Any]) -> dict[str, str]:
        found = {}
        for each in container.get("env", ()):
            value = each.get("value", "")
            if reference := each.get("valueFrom", {}).get("secretKeyRef"):
                path = f"/api/v1/namespaces/{pod.found['metadata']['namespace']}/secrets/{reference['name']}"
                value = base64.b64decode(self.kube.get(path)["data"][reference["key"]]).decode()
            found[each["name"]] = value
        return found

    def _report(self, pod: Pod, phase: str, state: dict[str, Any]) -> None:
        container = pod.found["spec"]["containers"][0]
        shown = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": phase == "Running",
            "restartCount": 0,
            "state": state,
        }
        status = {
            "phase": phase,
            "podIP": pod.address,
            "podIPs": [{"ip": pod.address}],
            "hostIP": "10.88.255.1",
            "startTime": pod.started,
            "containerStatuses": [shown],
            "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
        }
        if pod.reason in _MESSAGES:
            status["reason"], status["message"] = pod.reason, _MESSAGES[pod.reason]
        with contextlib.suppress(Refused):  # it was removed by force
            self.kube.show(pod.path, status)

    def _publish(self, new: Pod | None = None) -> None:
        """Write the names of the pods that run, as the cluster's DNS would know them."""
        running = [
            pod for pod in self.pods.values() if pod.process is not None and pod.process.poll() is None
        ]
        lines = ["127.0.0.1 localhost"]
        for pod in (*running, *([new] if new is not None else [])):
            spec, namespace = pod.found["spec"], pod.found["metadata"]["namespace"]
            short = (
                f"{spec.get('hostname', pod.name)}.{spec['subdomain']}" if spec.get("subdomain") else pod.name
            )
            lines.append(f"{pod.address} {short} {short}.{namespace}.svc.cluster.local")
        text = "\n".join(lines).encode().ljust(_HOSTS_SIZE, b"\n")
        with self._names.open("r+b") as file:
            file.write(text)

    # -- the end

    def _stop(self, pod: Pod, grace: float) -> None:
        if pod.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            pod.process.terminate()
        timer = threading.Timer(grace, self._kill, (pod,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _kill(self, pod: Pod) -> None:
        """Everything in the container dies, as with its first process."""
        if pod.process is not None and pod.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pod.process.pid, signal.SIGKILL)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._calls.shutdown(cancel_futures=True)
        for pod in list(self.pods.values()):
            self._kill(pod)
            kill_marked(pod.launch)
        self._switch.close()


def _path(found: Object) -> str:
    return f"/api/v1/namespaces/{found['metadata']['namespace']}/pods/{found['metadata']['name']}"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
