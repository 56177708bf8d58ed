"""The adapter to Kubernetes, on a server that is a dict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

if not all(map(find_spec, ("kopf", "kubernetes"))):
    pytest.skip("needs kubernetes: pip install 'elasticrun[kubernetes]'", allow_module_level=True)

from elasticrun.core.fleet.figures import SILENT, Figures
from elasticrun.core.fleet.replicas import Amounts, Note, Usage
from elasticrun.core.fleet.training import FASTEST, Shown, Speed, Training, Trouble, note_of
from elasticrun.platforms.keeper import Keeper
from elasticrun.platforms.kubernetes.adapter import Kubernetes
from elasticrun.platforms.kubernetes.api import Api, ApiError, _refusal
from elasticrun.platforms.kubernetes.masters import Place
from elasticrun.platforms.kubernetes.names import MOST_REPLICAS
from elasticrun.platforms.protocol import PlatformError
from tests.platforms.test_kubernetes_objects import UID, job


def merged(old: Any, new: Any) -> Any:
    """A merge as RFC 7396 has it: of an object, what is not named stays."""
    if not isinstance(new, dict):
        return new
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return json.loads(json.dumps(found))


class Server:
    """The part of an API server that the adapter uses: one job, its pods, and what else is created."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = job()
        self.job["metadata"]["resourceVersion"] = "1"
        self.pods: dict[str, dict[str, Any]] = {}
        self.others: list[Mapping[str, Any]] = []
        self.writes = 0
        self.told: list[tuple[list[str], Mapping[str, str]]] = []  # of operations
        self.version, self.limit = 70, 1 << 62  # of the pods; the newest that its cache can wait for
        self.asked: list[int] = []  # the version that each list may not be older than
        self.before: Callable[[str], None] = lambda _: None

    async def get(self, path: str, **query: str) -> Any:
        self.before(f"GET {path}")
        if "fieldSelector" in query:
            found = self.pods.get(query["fieldSelector"].removeprefix("metadata.name="))
            return {"items": [found] if found else []}
        if path.endswith("/pods"):
            assert query["labelSelector"] == "elasticrun.io/job=digits"
            if "resourceVersion" not in query:
                return {"items": list(self.pods.values()), "metadata": {"resourceVersion": "7"}}
            assert query["resourceVersionMatch"] == "NotOlderThan"
            if int(query["resourceVersion"]) > self.limit:
                raise ApiError("Too large resource version: 90, current: 7", 504, "Timeout")
            self.asked.append(int(query["resourceVersion"]))
            version = str(max(self.version, self.asked[-1]))
            return {"items": list(self.pods.values()), "metadata": {"resourceVersion": version}}
        if not path.endswith("/elasticjobs/digits"):
            raise ApiError("not found", 404, "NotFound")
        return {**self.job, "metadata": dict(self.job["metadata"])}

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        self.before(f"POST {path}")
        if body["kind"] != "Pod":
            self.others.append(body)
            return None
        name = body["metadata"]["name"]
        if name in self.pods:
            raise ApiError("it is there", 409, "AlreadyExists")
        self.version += 1
        created = {**body, "status": {"phase": "Pending"}}
        created["metadata"] = {**body["metadata"], "resourceVersion": str(self.version)}
        self.pods[name] = created
        return created

    async def delete(self, path: str) -> Any:
        self.before(f"DELETE {path}")
        if self.pods.pop(path.rpartition("/")[2], None) is None:
            raise ApiError("not found", 404, "NotFound")

    async def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        self.before(f"PATCH {path}")
        if "/scale" in path:
            self.told.append((path.split("/")[-3:-1], body["status"]))
            return None
        assert path.endswith("/digits/status")
        if body["metadata"]["resourceVersion"] != self.job["metadata"]["resourceVersion"]:
            raise ApiError("it has changed", 409, "Conflict")
        self.job["status"] = merged(self.job.get("status"), body["status"])
        self.touch()
        return {**self.job, "metadata": dict(self.job["metadata"])}

    def touch(self) -> None:
        """Somebody has changed the job."""
        self.writes += 1
        self.job["metadata"]["resourceVersion"] = str(self.writes + 1)


def passes(server: Any, count: int = 1, name: str = "default/digits") -> float | None:
    keeper = Keeper(Kubernetes(server, lambda: 1000.0), lambda: 1000.0)

    async def work() -> float | None:
        found: float | None = None
        for _ in range(count):
            found = await keeper.reconcile(name)
        return found

    return asyncio.run(work())


def events(server: Server) -> list[str]:
    return [it["message"] for it in server.others if it["kind"] == "Event"]


def test_a_job_gets_its_pods_and_what_they_need() -> None:
    server = Server()
    passes(server)
    assert sorted(server.pods) == ["digits-0", "digits-1", "digits-2", "digits-3"]
    assert [it["kind"] for it in server.others] == ["Service", "Secret", "Event"]
    assert events(server) == ["replicas 0, 1, 2, 3"]
    passes(server)  # which sees them
    writes = server.writes
    passes(server, 3)
    assert server.writes == writes  # nothing has changed, so nothing is written


def test_what_pods_need_is_made_again_but_no_other_token_while_some_run() -> None:
    server = Server()
    platform = Kubernetes(server, lambda: 1000.0)  # type: ignore[arg-type] # it has what is used of it
    keeper = Keeper(platform, lambda: 1000.0)

    def made(*gone: str) -> list[str]:
        """What is made once these pods are gone, beside others and what is told."""
        server.others.clear()
        for name in gone:
            del server.pods[name]
        for pod in server.pods.values():
            shown = {"name": "main", "state": {"running": {}}}
            pod["status"] = {"phase": "Running", "containerStatuses": [shown]}
        asyncio.run(keeper.reconcile("default/digits"))
        return [it["kind"] for it in server.others if it["kind"] != "Event"]

    assert made() == ["Service", "Secret"]
    assert made() == []
    assert made("digits-3") == ["Service"]
    assert made() == []
    assert made("digits-0", "digits-1", "digits-2", "digits-4") == ["Service", "Secret"]


def test_a_list_of_pods_is_no_older_than_what_is_known() -> None:
    server = Server()
    passes(server)
    server.version = 60  # another server, which is behind
    passes(server)  # by an operator that knows only the record
    assert server.asked == [0, 70]
    platform = Kubernetes(server)  # type: ignore[arg-type] # it has what is used of it
    platform.notify(lambda _: None)
    platform.notice("default", "digits", "90")
    platform.notice("default", "digits", "80")
    platform.notice("default", "digits", "new")
    asyncio.run(platform.look("default/digits"))
    assert server.asked[-1] == 90
    server.limit = 80  # its storage was restored from an earlier day
    sight = asyncio.run(platform.look("default/digits"))
    assert sight is not None
    assert len(sight.seen) == 4


def test_whoever_comes_second_looks_again() -> None:
    server = Server()
    raced: list[str] = []

    def race(request: str) -> None:
        if request.startswith("PATCH") and len(raced) < 2:
            raced.append(request)
            server.touch()

    server.before = race
    passes(server)
    assert len(raced) == 2
    assert len(server.pods) == 4


OWNED = {"labels": {}, "ownerReferences": [{"uid": job()["metadata"]["uid"], "controller": True}]}


def test_a_pod_that_is_there_is_as_good_as_started_and_one_that_is_gone_as_removed() -> None:
    server = Server()

    def quick(request: str) -> None:
        if request.startswith("POST") and request.endswith("/pods") and not server.pods:
            server.pods["digits-0"] = {"metadata": OWNED, "spec": {}, "status": {}}
        if request.startswith("DELETE"):
            server.pods.clear()

    server.before = quick
    passes(server)
    assert sorted(server.pods) == ["digits-0", "digits-1", "digits-2", "digits-3"]
    server.job["spec"]["suspend"] = True
    passes(server)
    assert server.pods == {}


def test_a_refusal_is_shown_in_the_conditions() -> None:
    server = Server()

    def full(request: str) -> None:
        if request.startswith("POST") and request.endswith("/pods"):
            raise ApiError("exceeded quota", 403, "Forbidden")

    server.before = full
    assert passes(server, 2) is not None
    assert server.job["status"]["message"] == "exceeded quota"


def test_an_error_of_the_server_ends_the_pass() -> None:
    server = Server()

    def away(request: str) -> None:
        raise ApiError("it does not answer")

    server.before = away
    with pytest.raises(PlatformError, match="does not answer"):
        passes(server)
    server.before = lambda request: away(request) if request.startswith("PATCH") else None
    with pytest.raises(PlatformError, match="does not answer"):
        passes(server)


def test_a_pod_of_somebody_else_is_left_alone_and_told() -> None:
    server = Server()
    server.pods["digits-1"] = other = {"metadata": {"name": "digits-1"}, "spec": {}, "status": {}}
    assert passes(server, 2) is not None
    assert server.pods["digits-1"] is other
    assert sorted(server.pods) == ["digits-0", "digits-1", "digits-2", "digits-3"]
    assert server.job["status"]["message"] == "there is a pod digits-1 already, which is not of this job"
    del server.pods["digits-1"]
    passes(server)
    assert "uid" in server.pods["digits-1"]["metadata"]["ownerReferences"][0]


@pytest.mark.parametrize(("part", "value"), [("env", {"A": "b"}), ("env", 7), ("env", [None])])
def test_a_template_that_makes_no_pod_is_told(part: str, value: Any) -> None:
    server = Server()
    server.job["spec"]["roles"][0]["template"]["spec"]["containers"][0][part] = value
    passes(server, 2)
    assert "the template makes no pod" in server.job["status"]["message"]


def test_an_absurd_version_is_none() -> None:
    server = Server()
    server.job["status"] = {"podsVersion": "9" * 5000}
    passes(server)
    assert server.asked == [0]


def test_lost_events_do_no_harm() -> None:
    server = Server()

    def forgetful(request: str) -> None:
        if request.endswith("/events"):
            raise ApiError("no room", 500)

    server.before = forgetful
    passes(server)
    assert len(server.pods) == 4


def test_a_job_that_is_gone_or_going_is_left_alone() -> None:
    server = Server()
    assert passes(server, name="default/another") is None
    server.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert passes(server) is None
    assert not server.pods


def test_a_job_that_makes_no_sense_is_told_so_once() -> None:
    server = Server()
    server.job["spec"]["roles"][0]["minReplicas"] = 9
    passes(server, 3)
    assert (server.writes, server.pods) == (1, {})
    assert "more than maxReplicas" in server.job["status"]["message"]


def test_refusals_are_put_into_words() -> None:
    told = _refusal(403, b'{"message": "no\\nway", "reason": "Forbidden"}')
    assert (str(told), told.status, told.reason) == ("the API server refuses (403): no?way", 403, "Forbidden")
    for data in (b"<html>", b"[]", b"7", b"{}"):
        assert _refusal(502, data).reason == ""


def test_a_server_that_is_not_there_is_told() -> None:
    class Client:
        async def param_serialize(self, *_: Any, **__: Any) -> tuple[str, ...]:
            return ()

        async def call_api(self, *_: Any, **__: Any) -> Any:
            raise ConnectionRefusedError("refused")

    figures = Figures()
    with pytest.raises(ApiError, match="does not answer: refused"):
        asyncio.run(Api(Client(), None, figures).get("/x"))
    assert figures.requests["get", SILENT] == 1


class Answer:
    def __init__(self, status: int, data: bytes) -> None:
        self.status, self.data = status, data

    async def read(self) -> bytes:
        return self.data


class Renewed:
    """A client whose access holds for a while only."""

    def __init__(self) -> None:
        self.configuration = "old"
        self.answers = {"old": Answer(401, b"{}"), "new": Answer(200, b"7"), "odd": Answer(200, b"<html>")}

    async def param_serialize(self, *_: Any, **__: Any) -> tuple[str, ...]:
        return ()

    async def call_api(self, *_: Any, **__: Any) -> Any:
        return self.answers[self.configuration]


def test_access_that_holds_no_more_is_renewed() -> None:
    async def renew() -> str:
        return "new"

    client, figures = Renewed(), Figures()
    assert asyncio.run(Api(client, renew, figures).get("/x")) == 7
    assert {key: count for key, count in figures.requests.items() if count} == {
        ("get", "4xx"): 1,
        ("get", "2xx"): 1,
    }
    client.configuration = "old"
    with pytest.raises(ApiError, match="refuses"):
        asyncio.run(Api(client).get("/x"))
    client.configuration = "odd"
    with pytest.raises(ApiError, match="no JSON"):
        asyncio.run(Api(client).get("/x"))


def operation(uid: str, job: str = "digits", **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": f"op-{uid}",
        "namespace": "default",
        "uid": uid,
        "creationTimestamp": f"2026-01-01T00:00:0{uid}Z",
    }
    return {"metadata": metadata, "spec": {"jobName": job, **spec}}


def test_operations_are_carried_out_and_told() -> None:
    server = Server()
    server.job["spec"]["roles"][0]["replicas"] = 2
    platform = Kubernetes(server, lambda: 1000.0)  # type: ignore[arg-type] # it has what is used of it
    keeper, noticed = Keeper(platform, lambda: 1000.0), list[str]()
    platform.notify(noticed.append)
    platform.notice_operation("scaleins", operation("2", count=1), False)
    platform.notice_operation("scaleouts", operation("1", count=2), False)
    platform.notice_operation("scaleouts", operation("3", job="another", count=2), False)
    assert noticed == ["default/digits", "default/digits", "default/another"]

    async def work() -> None:
        await keeper.reconcile("default/digits")
        await keeper.reconcile("default/another")
        assert sorted(server.pods) == ["digits-0", "digits-1", "digits-2", "digits-3"]
        for pod in server.pods.values():
            shown = {"name": "main", "state": {"running": {}}}
            pod["status"] = {"phase": "Running", "containerStatuses": [shown]}
        for _ in range(3):
            await keeper.reconcile("default/digits")

    asyncio.run(work())
    assert sorted(server.pods) == ["digits-0", "digits-1", "digits-2"]
    assert [(where[1], status["phase"]) for where, status in server.told] == [
        ("op-1", "Running"),
        ("op-2", "Waiting"),
        ("op-3", "Failed"),
        ("op-1", "Succeeded"),
        ("op-2", "Running"),
        ("op-2", "Succeeded"),
    ]
    assert server.told[2][1]["message"] == "there is no job another"
    platform.notice_operation("scaleins", operation("2", count=1), True)
    asyncio.run(keeper.reconcile("default/digits"))
    assert len(server.told) == 6


@pytest.mark.parametrize(
    "name", ["../../victim/elasticjobs/digits", "..", "digits?watch=1", "digits#", "", "Digits"]
)
def test_what_names_no_job_leads_to_no_request(name: str) -> None:
    noticed = list[str]()
    platform = Kubernetes(Server())  # type: ignore[arg-type] # it has what is used of it
    platform.notify(noticed.append)
    platform.notice("default", name, "90")
    platform.notice_operation("scaleouts", operation("1", job=name, count=2), False)
    assert noticed == []


def test_what_another_version_has_added_to_the_record_leads_to_no_writes() -> None:
    server = Server()
    passes(server, 2)
    server.job["status"]["fleet"] |= {"later": [1], "live": [*server.job["status"]["fleet"]["live"]]}
    server.job["status"]["fleet"]["live"][0]["later"] = True
    writes = server.writes
    passes(server, 3)
    assert server.writes == writes
    server.pods.pop("digits-3")
    passes(server)
    assert server.writes == writes + 1


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_a_result_that_cannot_be_told_keeps_no_pod_from_its_start(status: int) -> None:
    server = Server()

    def forbidden(request: str) -> None:
        if request.startswith("PATCH") and "/scaleouts/" in request:
            raise ApiError("no right to", status)

    server.before = forbidden
    server.job["spec"]["roles"][0]["replicas"] = 2
    platform = Kubernetes(server, lambda: 1000.0)  # type: ignore[arg-type] # it has what is used of it
    platform.notify(lambda _: None)
    platform.notice_operation("scaleouts", operation("1", count=1), False)
    asyncio.run(Keeper(platform, lambda: 1000.0).reconcile("default/digits"))
    assert len(server.pods) == 3


@pytest.mark.parametrize("status", [0, 401, 429, 500])
def test_a_result_that_could_not_be_told_is_told_later(status: int) -> None:
    server, refusals = Server(), [ApiError("not now", status)]

    def busy(request: str) -> None:
        if request.startswith("PATCH") and "/scaleouts/" in request and refusals:
            raise refusals.pop()

    server.before = busy
    server.job["spec"]["roles"][0]["replicas"] = 2
    platform = Kubernetes(server, lambda: 1000.0)  # type: ignore[arg-type] # it has what is used of it
    platform.notify(lambda _: None)
    platform.notice_operation("scaleouts", operation("1", count=1), False)
    keeper = Keeper(platform, lambda: 1000.0)
    with pytest.raises(PlatformError, match="not now"):
        asyncio.run(keeper.reconcile("default/digits"))
    asyncio.run(keeper.reconcile("default/digits"))
    assert [shown["phase"] for _, shown in server.told] == ["Running"]


TRAINING = Training("running", 4, 2, 8, 2, 0.97, "lost")


class Told:
    """Masters that tell this."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.now: Shown | None = None
        self.told: int | None = None
        self.lacks = 0
        self.speeds: list[Speed] = []

    def know(self, job: str, place: Place) -> None:
        self.places[job] = place

    def forget(self, job: str) -> None:
        self.places.pop(job, None)

    def shown(self, _job: str) -> Shown | None:
        return self.now

    def kept(self, _job: str, speed: Speed) -> None:
        self.speeds.append(speed)

    def stranded(self, _job: str) -> int:
        return self.lacks

    def news(self, _job: str, told: int | None) -> Note | None:
        self.told = told
        return note_of(None if self.now is None else self.now.training, told)


def with_masters(server: Any, masters: Any) -> Kubernetes:
    platform = Kubernetes(server, lambda: 1000.0, masters)
    asyncio.run(Keeper(platform, lambda: 1000.0).reconcile("default/digits"))
    return platform


def fresh(server: Server) -> dict[str, Any] | None:
    found = [it for it in server.job["status"]["conditions"] if it["type"] == "StatusFresh"]
    assert len(found) < 2
    return found[0] if found else None


def test_a_job_whose_pods_are_all_stranded_begins_again() -> None:
    server, masters = Server(), Told()
    with_masters(server, masters)
    for pod in server.pods.values():
        name = pod["spec"]["containers"][0]["name"]
        pod["status"] = {"containerStatuses": [{"name": name, "state": {"running": {}}}]}
    with_masters(server, masters)
    masters.lacks = len(server.pods)
    with_masters(server, masters)
    assert server.job["status"]["phase"] == "Ending"
    assert "too few of the last world are left" in str(events(server))


def test_what_a_master_tells_is_shown_and_told_once() -> None:
    server, masters = Server(), Told()
    with_masters(server, masters)
    assert "training" not in server.job["status"] and fresh(server) is None
    with_masters(server, masters)  # which sees the pods
    masters.now = Shown(TRAINING)
    writes, actions = server.writes, dict(server.pods)
    platform = with_masters(server, masters)
    assert server.job["status"]["training"] == {
        "phase": "running",
        "round": 4,
        "nodes": 2,
        "workers": 8,
        "restarts": 2,
        "goodput": 0.97,
        "cause": "lost",
    }
    assert fresh(server) == {
        "type": "StatusFresh",
        "status": "True",
        "reason": "Heard",
        "lastTransitionTime": "1970-01-01T00:16:40Z",
    }
    assert events(server)[-1] == "round 4 was formed: 2 nodes, 8 workers; the last one ended: lost"
    assert server.writes == writes + 1 and server.pods == actions
    assert platform.is_own({**server.job["metadata"]})
    server.touch()
    assert not platform.is_own({**server.job["metadata"]})
    told, writes = len(events(server)), server.writes
    with_masters(server, masters)
    assert (server.writes, len(events(server)), masters.told) == (writes, told, 4)


def test_what_was_told_last_stays_without_answers_and_without_an_operator_that_asks() -> None:
    server, masters = Server(), Told()
    masters.now = Shown(TRAINING)
    with_masters(server, masters)
    masters.now = Shown(TRAINING, Trouble("Unreachable", "no answer"))
    with_masters(server, masters)
    shown = server.job["status"]["training"]
    assert shown["round"] == 4
    told = fresh(server)
    assert told is not None
    assert (told["status"], told["reason"], told["message"]) == ("False", "Unreachable", "no answer")
    for others in (Told(), None):  # another operator, which has heard nothing yet, and one that never asks
        with_masters(server, others)
        assert (server.job["status"]["training"], fresh(server)) == (shown, told)
    masters.now = Shown(None, Trouble("Unreachable", "no answer"))  # started again, and heard nothing either
    with_masters(server, masters)
    assert (server.job["status"]["training"], fresh(server)) == (shown, told)


def test_how_fast_the_job_was_with_so_many_nodes_stays_in_its_status() -> None:
    server, masters = Server(), Told()
    odd: Any = [
        5,
        {"nodes": True, "workers": 1, "stepRate": 1.0},
        {"nodes": 3, "workers": 3, "stepRate": "x"},
    ]
    kept = {"nodes": 4, "workers": 16, "stepRate": 2.5}
    server.job["status"] = {"speeds": [*odd, {"nodes": 2, "workers": 8, "stepRate": 9.0}, kept]}
    masters.now = Shown(TRAINING, None, Speed(2, 8, 1.5))
    with_masters(server, masters)
    assert server.job["status"]["speeds"] == [{"nodes": 2, "workers": 8, "stepRate": 1.5}, kept]
    absurd = (Speed(MOST_REPLICAS + 1, 8, 1.5), Speed(2, 1 << 40, 1.5), Speed(2, 8, FASTEST))
    for shown in (Shown(TRAINING), *(Shown(TRAINING, None, speed) for speed in absurd)):
        masters.now = shown
        with_masters(server, masters)
        assert server.job["status"]["speeds"] == [{"nodes": 2, "workers": 8, "stepRate": 1.5}, kept]
    assert masters.speeds == [Speed(2, 8, 1.5), *absurd]


def test_what_is_not_known_any_more_is_left_out() -> None:
    server, masters = Server(), Told()
    for training in (TRAINING, replace(TRAINING, round=-1, goodput=None, cause="")):
        masters.now = Shown(training)
        with_masters(server, masters)
    assert server.job["status"]["training"] == {"phase": "running", "nodes": 2, "workers": 8, "restarts": 2}
    writes = server.writes
    with_masters(server, masters)
    assert server.writes == writes


@pytest.mark.parametrize("status", [{"training": 5}, {"training": {"round": "x"}}, {"conditions": [5, {}]}])
def test_whatever_stands_in_a_status_is_written_over(status: dict[str, Any]) -> None:
    server, masters = Server(), Told()
    server.job["status"] = status
    masters.now = Shown(TRAINING)
    with_masters(server, masters)
    assert server.job["status"]["training"]["round"] == 4
    assert masters.told is None


def test_a_master_is_looked_for_at_the_pods_that_may_have_it() -> None:
    server, masters = Server(), Told()

    def found() -> Place:
        with_masters(server, masters)
        return masters.places["default/digits"]

    assert found() == Place("default", "digits", UID, ())
    addresses = {0: "10.0.0.9", 1: "fd00::1", 2: "10.0.0.3", 3: "10.0.0.4"}  # the last two have no slot
    for index, address in addresses.items():
        server.pods[f"digits-{index}"]["status"] = {"phase": "Running", "podIP": address}
    assert found().addresses == ("10.0.0.9", "fd00::1")
    server.pods["digits-0"]["status"]["podIP"] = "api.example.com"
    assert found().addresses == ("fd00::1",)
    server.pods["digits-1"]["status"] = {"phase": "Running", "podIP": ["10.0.0.1"]}
    assert found() == Place("default", "digits", UID, ())
    server.pods["digits-0"]["status"] = {"phase": "Failed", "podIP": "10.0.0.9"}
    assert found() == Place("default", "digits", UID, ())


def test_the_master_of_a_job_that_is_gone_is_forgotten() -> None:
    server, masters = Server(), Told()
    platform = with_masters(server, masters)
    masters.places["default/gone"] = masters.places["default/digits"]
    asyncio.run(platform.look("default/gone"))
    assert set(masters.places) == {"default/digits"}


def test_the_pod_that_replaces_another_one_requests_what_was_measured() -> None:
    server, masters = Server(), Told()
    container = server.job["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"memory": "4Gi"}}
    with_masters(server, masters)
    with_masters(server, masters)
    before = {name: pod["spec"] for name, pod in server.pods.items()}
    used = Usage(Amounts(1 << 30, 800), Amounts(8 << 30, 8000))
    masters.now = Shown(replace(TRAINING, usage=used))
    with_masters(server, masters)
    assert {name: pod["spec"] for name, pod in server.pods.items()} == before
    assert server.job["status"]["sizing"] == {"cpu": "1100m", "peakCpu": "800m"}
    del server.pods["digits-3"]
    masters.now = None  # another operator, which has heard nothing yet
    with_masters(server, masters)
    resources = {name: pod["spec"]["containers"][0]["resources"] for name, pod in server.pods.items()}
    assert resources.pop("digits-4") == {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1100m"}}
    assert set(map(str, resources.values())) == {"{'limits': {'memory': '4Gi'}}"}
