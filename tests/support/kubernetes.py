"""A real control plane of Kubernetes 1.20, which lies beside the checkout; asked by plain HTTP."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2].parent / "shared" / "kubernetes"
PROGRAMS = {"etcd": "Debian's etcd-server", "openssl": "openssl"}
DEADLINE = 120.0
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def why_not() -> str:
    """Why there can be no control plane here; "" if there can."""
    if not (FOLDER / "control_plane.py").exists():
        return "needs ../shared/kubernetes beside the checkout"
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    return f"needs {' and '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class ControlPlane:
    """An API server on loopback, asked as its administrator."""

    url: str
    token: str
    kubeconfig: Path

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """HTTP status and decoded answer."""
        with self._open(method, path, body) as answer:
            return answer.status, json.load(answer)

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """The events of a watch, until whoever asks stops reading."""
        with self._open("GET", f"{path}?watch=1&timeoutSeconds={DEADLINE:.0f}") as answer:
            for line in answer:
                yield json.loads(line)

    def _open(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            return urllib.request.urlopen(request, context=context, timeout=DEADLINE)
        except urllib.error.HTTPError as error:
            return error


@contextmanager
def _alone() -> Iterator[None]:
    """No other process starts a control plane now: the first one on a machine fetches it."""
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def started(folder: Path) -> Iterator[ControlPlane]:
    """Start the control plane, with its CRDs, and stop it again."""
    command = [sys.executable, str(FOLDER / "control_plane.py"), str(folder)]
    with _alone(), ExitStack() as stack:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(_stop, process)
        alarm = threading.Timer(DEADLINE, process.terminate)
        stack.callback(alarm.cancel)
        alarm.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        alarm.cancel()
        running = stack.pop_all()
    with running:
        log = folder / "apiserver.log"
        assert line.startswith("READY"), f"{line}{log.read_text()[-3000:] if log.exists() else ''}"
        config = json.loads((folder / "kubeconfig").read_text())
        found = ControlPlane(
            config["clusters"][0]["cluster"]["server"],
            config["users"][0]["user"]["token"],
            folder / "kubeconfig",
        )
        _install(found)
        yield found


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)


def _install(control_plane: ControlPlane) -> None:
    """Install all CRDs, and wait until they are served."""
    import yaml

    waited_for = set[str]()
    for path in sorted((FOLDER / "crds").glob("*.yaml")):
        crd = _simplified(yaml.load(path.read_text(), yaml.CSafeLoader))
        crd.pop("status", None)
        crd["spec"].pop("conversion", None)
        for version in crd["spec"]["versions"]:
            version.pop("selectableFields", None)
        status, answer = control_plane.ask("POST", CRDS, crd)
        assert status == 201, answer
        waited_for.add(crd["metadata"]["name"])
    for event in control_plane.watch(CRDS):
        conditions = event["object"].get("status", {}).get("conditions") or ()
        if any(it["type"] == "Established" and it["status"] == "True" for it in conditions):
            waited_for.discard(event["object"]["metadata"]["name"])
        if not waited_for:
            return
    raise AssertionError(f"not served: {waited_for}")


def _simplified(node: Any) -> Any:
    """A schema without what an API server of 1.20 does not know, as load_crds.py leaves it out."""
    if isinstance(node, list):
        return [_simplified(part) for part in node]
    if not isinstance(node, dict):
        return node
    node = {
        key: _simplified(part)
        for key, part in node.items()
        if key != "x-kubernetes-validations" and not (key == "default" and part == "")
    }
    if node.get("x-kubernetes-list-type") == "map":
        items, keys = node.get("items", {}), node.get("x-kubernetes-list-map-keys", [])
        if not set(keys) <= set(items.get("required", ())):
            node.pop("x-kubernetes-list-type")
            node.pop("x-kubernetes-list-map-keys", None)
    return node
