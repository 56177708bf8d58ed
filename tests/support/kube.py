"""A real API server as tests speak to it: requests, and a picture of its objects that watches keep up.

Standard library only. ``Kube.wait`` returns once something holds of that picture: nothing polls.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.support.processes import Hung

#: Seconds; only a hang takes that long, with a control plane on two busy cores. More than the 120 for which
#: the operator lets pods end by themselves: what is merely slow then ends.
DEADLINE = 150.0
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
Object = dict[str, Any]


class Refused(Exception):
    """The server's answer, if it is no good one."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Kube:
    """One API server, and what it is known to hold."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        found = json.loads(kubeconfig.read_text())
        self._server = urlsplit(found["clusters"][0]["cluster"]["server"])
        self._token = found["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._news = threading.Condition()
        self._objects: dict[str, dict[str, Object]] = {}  # by path of the collection, then namespace/name
        self._closed = False
        self._links: set[http.client.HTTPSConnection] = set()
        self._threads: list[threading.Thread] = []

    # -- requests

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> Any:
        """The answer; raises Refused."""
        link = self._connect()
        try:
            headers = self._headers() | {"Content-Type": content}
            link.request(method, path, None if body is None else json.dumps(body), headers)
            answer = link.getresponse()
            data = answer.read()
        finally:
            link.close()
        if answer.status >= 300:
            raise Refused(answer.status, data.decode(errors="replace"))
        return json.loads(data)

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.request("POST", path, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.request("PATCH", path, body, MERGE)

    def show(self, path: str, status: Mapping[str, Any]) -> None:
        """Change a part of a status; conditions of other types stay."""
        self.request("PATCH", f"{path}/status", {"status": status}, STRATEGIC)

    def delete(self, path: str, grace: int | None = None) -> None:
        with contextlib.suppress(Refused):  # it is gone
            options = {} if grace is None else {"gracePeriodSeconds": grace}
            self.request("DELETE", path, options)

    def _connect(self) -> http.client.HTTPSConnection:
        assert self._server.hostname is not None
        return http.client.HTTPSConnection(
            self._server.hostname, self._server.port, context=self._tls, timeout=DEADLINE
        )

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}

    # -- the picture

    def follow(self, path: str, seen: Callable[[str, Object], None] = lambda *_: None) -> None:
        """From now on keep up with a collection; ``seen`` is called with each change, in a thread."""
        ready = threading.Event()
        thread = threading.Thread(target=self._follow, args=(path, seen, ready), daemon=True)
        self._threads.append(thread)
        thread.start()
        assert ready.wait(DEADLINE), f"no answer for {path}"

    def _follow(self, path: str, seen: Callable[[str, Object], None], ready: threading.Event) -> None:
        while not self._closed:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, Refused):
                listed = self.get(path)
                known = {_key(each): each for each in listed["items"]}
                with self._news:
                    gone = [it for key, it in self._objects.get(path, {}).items() if key not in known]
                    self._objects[path] = known
                    self._news.notify_all()
                for kind, found in (("DELETED", gone), ("ADDED", listed["items"])):
                    for each in found:
                        seen(kind, each)
                ready.set()
                self._watch(path, listed["metadata"]["resourceVersion"], seen)

    def _watch(self, path: str, version: str, seen: Callable[[str, Object], None]) -> None:
        link = self._connect()
        link.timeout = None
        self._links.add(link)
        try:
            query = urlencode({"watch": "1", "resourceVersion": version})
            link.request("GET", f"{path}?{query}", headers=self._headers())
            for line in link.getresponse():
                event = json.loads(line)
                if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                    return
                self._take(path, event["type"], event["object"])
                seen(event["type"], event["object"])
        finally:
            self._links.discard(link)
            link.close()

    def _take(self, path: str, kind: str, found: Object) -> None:
        with self._news:
            if kind == "DELETED":
                self._objects[path].pop(_key(found), None)
            else:
                self._objects[path][_key(found)] = found
            self._news.notify_all()

    def all(self, path: str) -> list[Object]:
        """What there is of a collection, by name."""
        with self._news:
            return sorted(self._objects[path].values(), key=_key)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Return once it holds."""
        with self._news:
            if not self._news.wait_for(holds, DEADLINE):
                state = {path: [_brief(it) for it in known.values()] for path, known in self._objects.items()}
                raise Hung(f"no {what} within {DEADLINE:g} s:\n{json.dumps(state, indent=1)}")

    def wait_count(self, count: Callable[[], int], total: int, what: str) -> None:
        """Return once there are so many, however slowly they come: only a standstill is a hang."""
        known = count()

        def have_come() -> bool:
            return count() > known

        while known < total:
            self.wait(have_come, f"{what}: {known + 1} of {total}")
            known = count()

    def close(self) -> None:
        self._closed = True
        for link in list(self._links):
            if link.sock is not None:
                with contextlib.suppress(OSError):
                    link.sock.shutdown(2)


def _key(found: Object) -> str:
    metadata = found["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _brief(found: Object) -> Object:
    metadata = found["metadata"]
    return {
        "name": metadata["name"],
        "leaves": metadata.get("deletionTimestamp"),
        "status": found.get("status"),
    }
