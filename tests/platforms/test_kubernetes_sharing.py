"""A shared cluster: what ElasticJobs ask of it, and how shares are written on a server that is a dict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

if not all(map(find_spec, ("kopf", "kubernetes"))):
    pytest.skip("needs kubernetes: pip install 'elasticrun[kubernetes]'", allow_module_level=True)

from elasticrun.core.cluster.sharing import Ask, Granted, Limit, Stage
from elasticrun.core.fleet.replicas import Bounds, Live, Record, Scaling, Shape, Share, Tally, Verdict
from elasticrun.platforms.keeper import Keeper
from elasticrun.platforms.kubernetes.adapter import Kubernetes
from elasticrun.platforms.kubernetes.api import ApiError
from elasticrun.platforms.kubernetes.asks import ask_of, kept, share_of, takes_of
from elasticrun.platforms.kubernetes.names import MOST_REPLICAS
from elasticrun.platforms.kubernetes.sharer import Sharer
from elasticrun.platforms.kubernetes.specs import SpecError
from elasticrun.platforms.kubernetes.statuses import _kept
from elasticrun.platforms.protocol import PlatformError
from tests.platforms.test_kubernetes_adapter import Server as JobServer
from tests.platforms.test_kubernetes_adapter import merged, passes
from tests.platforms.test_kubernetes_objects import job
from tests.platforms.test_kubernetes_roles import job as job_of
from tests.platforms.test_kubernetes_roles import role

GPU = "nvidia.com/gpu"
KINDS = (GPU, "cpu")
NOW = 1000.0


def a_job(name: str = "digits", status: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A job of two to four pods of two cores, which the operator has looked at."""
    made = job()
    made["metadata"] |= {"name": name, "resourceVersion": "1", "creationTimestamp": "1970-01-01T00:01:40Z"}
    made["spec"] |= spec
    made["status"] = {"held": 0, **(status or {})}
    return made


# -- what is read


def test_what_a_job_asks_for() -> None:
    hindered = {"type": "Hindered", "status": "True", "lastTransitionTime": "1970-01-01T00:10:00Z"}
    share = {"nodes": 3, "reason": "so", "at": 7.5}
    status = {
        "held": 4,
        "running": 2,
        "share": share,
        "conditions": [{"type": "Available"}, {**hindered, "message": "no room"}],
    }
    assert ask_of(a_job(status=status, priority=2), KINDS) == Ask(
        name="default/digits",
        least=2,
        most=4,
        kind="cpu",
        takes=2000,
        priority=2,
        submitted=100.0,
        granted=Granted(3, "so", 7.5),
        held=8000,
        running=2,
        hindered=600.0,
        hindrance="no room",
        pods=(("", 2000),),
    )


SPEEDS: list[dict[str, Any]] = [
    {"nodes": 2, "workers": 8, "stepRate": 3},
    {"nodes": 4, "workers": 16, "stepRate": 2.5},
]


@pytest.mark.parametrize(
    ("batch", "measured"),
    [("Global", ((2, 3.0), (4, 2.5))), ("PerWorker", ((2, 24.0), (4, 40.0))), (None, ()), (["Global"], ())],
)
def test_what_a_step_is_of_says_how_much_was_done(
    batch: Any, measured: tuple[tuple[int, float], ...]
) -> None:
    found = ask_of(a_job(status={"speeds": SPEEDS}, batch=batch), KINDS)
    assert found is not None and found.measured == measured


@pytest.mark.parametrize(
    "odd", [{"nodes": MOST_REPLICAS + 1}, {"stepRate": 10**400}, {"stepRate": True}, {"workers": 1 << 40}]
)
def test_a_speed_that_cannot_be_is_left_out(odd: Mapping[str, Any]) -> None:
    found = ask_of(a_job(status={"speeds": [{**SPEEDS[0], **odd}, SPEEDS[1]]}, batch="Global"), KINDS)
    assert found is not None and found.measured == ((4, 2.5),)


def stage(status: Mapping[str, Any] | None = None, **spec: Any) -> Stage:
    found = ask_of(a_job(status=status, **spec), KINDS)
    assert found is not None
    return found.stage


def test_what_a_job_needs() -> None:
    grows = {"fleet": _kept(Record(1, scaling=Scaling("out", 3, True, 0, NOW)))}
    found = ask_of(a_job(status=grows), KINDS)
    assert found is not None and found.is_asked
    over = {"fleet": _kept(Record(1, live=(Live(0),), verdict=Verdict.FAILED))}
    gone = {"fleet": _kept(Record(1, verdict=Verdict.FAILED))}
    again = {"fleet": _kept(Record(1, verdict=Verdict.AGAIN))}
    assert stage() is stage(again) is Stage.ACTIVE
    assert stage(suspend=True) is Stage.SUSPENDED
    assert stage(over) is stage(gone) is stage(over, cleanPodPolicy="None") is Stage.OVER
    assert stage(gone, cleanPodPolicy="None") is stage(roles=[]) is Stage.FIXED


def test_a_job_of_an_operator_that_shared_nothing_is_not_overlooked() -> None:
    runs = a_job(status={"fleet": _kept(Record(2, live=(Live(0), Live(1)))), "running": 2})
    del runs["status"]["held"]
    found = ask_of(runs, KINDS)
    assert found is not None
    assert (found.live, found.held, found.running) == (2, 4000, 2)


GIVEN = kept(Granted(2, "so", NOW), Ask("", 1, 1, "cpu", 2000, pods=(("", 2000),)))
LIVE = {"fleet": _kept(Record(2, live=(Live(0), Live(1)))), "held": 2, "running": 2, "share": GIVEN}


def test_another_template_takes_no_more_while_pods_of_the_first_are_there() -> None:
    edited = a_job(status=LIVE)
    container = edited["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {GPU: 6}}
    found = ask_of(edited, KINDS)
    assert found is not None
    assert (found.kind, found.takes, found.held) == ("cpu", 2000, 4000)
    wrong = a_job(status=LIVE, roles=[{**edited["spec"]["roles"][0], "minReplicas": 9}])
    found = ask_of(wrong, KINDS)
    assert found is not None
    assert (found.stage, found.kind, found.held) == (Stage.FIXED, "cpu", 4000)
    edited["status"]["fleet"] = _kept(Record(2))
    found = ask_of(edited, KINDS)
    assert found is not None
    assert (found.kind, found.takes) == (GPU, 6)


@pytest.mark.parametrize(
    "pods",
    [
        {"kind": "cpu"},
        {"kind": "cpu", "units": [["", -1]]},
        {"kind": "cpu", "units": [["", 1 << 70]]},
        {"kind": "cpu", "units": [["other", 1]]},
        {"kind": "cpu", "units": [[""]]},
        {"kind": "another", "units": [["", 1]]},
    ],
)
def test_what_makes_no_sense_as_kept_is_read_from_the_template(pods: dict[str, Any]) -> None:
    found = ask_of(a_job(status={**LIVE, "share": {**GIVEN, "pods": pods}}), KINDS)
    assert found is not None
    assert (found.kind, found.takes) == ("cpu", 2000)


def test_a_job_that_nobody_has_looked_at_or_that_is_going_asks_for_nothing() -> None:
    new, going = a_job(), a_job()
    del new["status"]
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert ask_of(new, KINDS) is ask_of(going, KINDS) is None


def test_a_job_that_makes_no_sense_keeps_what_it_has() -> None:
    wrong = a_job(status={"held": 3})
    wrong["spec"]["roles"][0]["minReplicas"] = 9
    found = ask_of(wrong, KINDS)
    assert found is not None
    assert (found.stage, found.takes, found.held) == (Stage.FIXED, 2000, 6000)


def of(**resources: Any) -> dict[str, Any]:
    return {"resources": resources}


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        ({}, ("", 0)),
        ({"containers": [of(limits={"cpu": "500m"}), of(requests={"cpu": 1})]}, ("cpu", 1500)),
        ({"containers": [of(limits={"cpu": 4}, requests={"cpu": 1})]}, ("cpu", 1000)),
        ({"containers": [of(limits={GPU: 8, "cpu": 64})]}, (GPU, 8)),
        ({"containers": [of(limits={GPU: 0, "cpu": 1})]}, ("cpu", 1000)),
        ({"containers": [of(limits={GPU: 1})], "initContainers": [of(limits={GPU: 2})]}, (GPU, 2)),
        (
            {
                "containers": [of(limits={GPU: 2})],
                "initContainers": [{**of(limits={GPU: 1}), "restartPolicy": "Always"}, of(limits={GPU: 3})],
            },
            (GPU, 4),
        ),
        ({"containers": [of(limits={"cpu": 1})], "resources": {"requests": {"cpu": 3}}}, ("cpu", 3000)),
        ({"containers": [None, {"resources": 7}, of(limits=[])]}, ("", 0)),
    ],
)
def test_what_a_pod_takes(pod: dict[str, Any], found: tuple[str, int]) -> None:
    assert takes_of({"spec": pod}, KINDS) == found


def test_a_request_that_is_no_amount_is_told() -> None:
    with pytest.raises(SpecError, match="'many' is no amount of nvidia"):
        takes_of({"spec": {"containers": [of(limits={GPU: "many"})]}}, KINDS)


def test_a_share_comes_back_as_it_was_kept() -> None:
    granted = Granted(2, "so", 7.5, Limit(2, 99.0, 1, "no room"))
    found = ask_of(a_job(status={"share": kept(granted, Ask("", 1, 1))}), KINDS)
    assert found is not None and found.granted == granted
    assert share_of({"share": kept(granted, Ask("", 1, 1))}) == Share(2, "so")
    assert share_of({}) == share_of({"share": {"nodes": -1}}) == share_of({"share": []}) == Share()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.fixed_dictionaries(dict.fromkeys(("nodes", "reason", "at", "limit"), ANY)), ANY, ANY, ANY)
def test_nothing_that_is_read_raises(share: Any, running: Any, conditions: Any, priority: Any) -> None:
    status = {"held": 1, "share": share, "running": running, "conditions": conditions}
    found = ask_of(a_job(status=status, priority=priority), KINDS)
    assert found is not None
    assert -10 <= found.priority <= 10
    assert found.granted is None or 0 <= found.granted.nodes <= 10_000


def served(status: Mapping[str, Any], *roles: dict[str, Any], kinds: Sequence[str] = KINDS) -> Ask:
    """What a job of several roles asks for; each of its pods takes two cores."""
    made = job_of(*(roles or (role("chief", 1, 1), role("ps", 2, 2), role("worker", 1, 4, replicas=3))))
    found = ask_of({**made, "status": {"held": 0, **status}}, kinds)
    assert found is not None
    return found


def test_of_several_roles_the_elastic_one_shares_and_the_others_are_besides() -> None:
    found = served({})
    assert (found.least, found.most, found.kind, found.takes, found.besides) == (1, 3, "cpu", 2000, 6000)
    roles = ("chief", "ps", "ps", "worker", "worker")
    record = Record(5, live=tuple(Live(index, seen=True, role=name) for index, name in enumerate(roles)))
    running = [{"name": name, "running": roles.count(name)} for name in ("chief", "ps", "worker")]
    status = {"fleet": _kept(record), "held": 6, "running": 5, "roles": running}
    found = served(status)
    assert (found.live, found.running, found.held) == (2, 2, 12_000)  # one still ends
    grows = replace(record, scaling=Scaling("out", 3, True, 0, NOW, "ps"))
    assert not served({**status, "fleet": _kept(grows)}).is_asked
    grows = replace(record, scaling=Scaling("out", 3, True, 0, NOW, "worker"))
    assert served({**status, "fleet": _kept(grows)}).is_asked


def test_nodes_whose_parameter_servers_do_not_run_do_nothing() -> None:
    counts = {"chief": 1, "ps": 1, "worker": 3}
    running = [{"name": name, "running": count} for name, count in counts.items()]
    assert served({"roles": running}).running == 0
    given_up = Record(1, tallies=(Tally("ps", halted="it fails"),))
    assert served({"roles": running, "fleet": _kept(given_up)}).running == 3
    assert served({"roles": [7, {"name": {}, "running": []}]}).running == 0
    spot = role("steady", 1, 1), role("spot", 0, 4)
    assert served({"roles": running}, *spot).running == 0
    alone = served({"roles": [{"name": "steady", "running": 1}]}, *spot)
    assert (alone.least, alone.running) == (1, 1)


def test_what_roles_take_is_of_the_kind_of_the_elastic_one() -> None:
    worker = role("worker", 1, 4)
    worker["template"]["spec"]["containers"][0] = of(limits={GPU: 4})
    found = served({}, role("chief", 1, 1), role("ps", 2, 2), worker)
    assert (found.kind, found.takes, found.besides) == (GPU, 4, 0)
    found = served({}, role("chief", 1, 1), role("ps", 2, 2), worker, kinds=("cpu",))
    assert (found.kind, found.takes, found.besides) == ("cpu", 0, 6000)


def test_roles_that_make_no_sense_keep_what_they_have_as_the_largest_pod_counts() -> None:
    large = role("b", 1, 1)
    large["template"]["spec"]["containers"].append(of(limits={"cpu": 4}))
    found = served({"held": 3}, role("a", 3, 2), large)
    assert (found.stage, found.kind, found.held) == (Stage.FIXED, "cpu", 18_000)
    begun = Record(1, Shape(2, 2, 2, (Bounds("a", 1, 1), Bounds("gone", 1, 1))))
    assert served({"fleet": _kept(begun)}, role("a", 1, 1), role("b", 1, 1)).stage is Stage.FIXED


# -- what is written


class Server:
    """All jobs, their shares, and events."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = {it["metadata"]["name"]: it for it in jobs}
        self.lists = 0
        self.writes: list[str] = []
        self.told: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self.happened: Callable[[Mapping[str, Any]], None] = lambda _: None

    async def get(self, path: str) -> Any:
        assert path == "/apis/elasticrun.io/v1alpha1/namespaces/default/elasticjobs"
        self.lists += 1
        self.before("list")
        return {"items": list(self.jobs.values())}

    async def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        name = path.split("/")[-2]
        self.before(name)
        found = self.jobs[name]
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiError("it has changed", 409, "Conflict")
        self.writes.append(name)
        self.show(name, **body["status"])
        return self.jobs[name]

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        self.told.append(f"{body['involvedObject']['name']}: {body['message']}")
        self.before("event")

    def show(self, name: str, **status: Any) -> None:
        """The status of a job changes."""
        found = self.jobs[name]
        version = str(int(found["metadata"]["resourceVersion"]) + 1)
        metadata = {**found["metadata"], "resourceVersion": version}
        self.jobs[name] = {**found, "metadata": metadata, "status": merged(found["status"], status)}
        self.happened(self.jobs[name])

    def nodes(self) -> dict[str, int]:
        return {name: it["status"].get("share", {}).get("nodes") for name, it in self.jobs.items()}


class Reached(asyncio.Event):
    """Set once something holds, after a change of a job or a list of all."""

    def __init__(self, server: Server, holds: Callable[[], bool]) -> None:
        super().__init__()
        happened, before = server.happened, server.before

        def changed(body: Mapping[str, Any]) -> None:
            happened(body)
            self.look(holds)

        def asked(what: str) -> None:
            self.look(holds)
            before(what)

        server.happened, server.before = changed, asked

    def look(self, holds: Callable[[], bool]) -> None:
        if holds():
            self.set()


class Counting(Sharer):
    """Counts the changes that lead to a plan."""

    looks = 0

    def look(self) -> None:
        self.looks += 1
        super().look()


def run(server: Server, work: Callable[[Counting], Awaitable[object]], others: int = 0) -> None:
    """With one that shares, and others beside it; each of them hears of all jobs."""

    async def whole() -> None:
        places, capacity = ("/namespaces/default",), {"cpu": 8000}
        made = [Counting(server, places, capacity, lambda: NOW) for _ in range(1 + others)]  # type: ignore[arg-type] # it has what is used

        def happened(body: Mapping[str, Any]) -> None:
            for each in made:
                each.notice(body, is_gone=False)

        server.happened = happened
        for body in list(server.jobs.values()):
            happened(body)
        try:
            await asyncio.wait_for(work(made[0]), 60.0)
        finally:
            for each in made:
                await each.close()

    asyncio.run(whole())


def test_a_burst_of_changes_has_one_plan_and_what_it_writes_none() -> None:
    server = Server(*(a_job(f"job-{number}") for number in range(3)))

    async def work(made: Counting) -> None:
        for body in list(server.jobs.values()):
            made.notice(body, is_gone=False)
        await Reached(server, lambda: len(server.told) == 2 and len(server.writes) == 3).wait()
        assert (server.lists, made.looks) == (1, 3)
        assert server.nodes() == {"job-0": 2, "job-1": 2, "job-2": 0}
        made.notice(server.jobs.pop("job-0"), is_gone=True)
        await Reached(server, lambda: len(server.told) == 3).wait()
        assert server.lists == 2

    run(server, work)
    assert server.told == [
        f"job-{number}: 2 replicas, 0 before: its least number of nodes can be had" for number in range(3)
    ]


def test_a_job_that_was_changed_meanwhile_is_looked_at_again() -> None:
    server = Server(a_job())
    changes = ["digits"]

    def change(what: str) -> None:
        if what in changes:
            changes.remove(what)
            happened, server.happened = server.happened, lambda _: None  # the watch is late
            server.show("digits")
            server.happened = happened

    server.before = change
    run(server, lambda _: Reached(server, lambda: server.nodes() == {"digits": 4}).wait())
    assert server.lists == 2
    assert server.writes == ["digits"]


def test_nothing_grows_before_what_frees_units_is_written() -> None:
    share = {"nodes": 4, "reason": "so", "at": NOW}
    server = Server(a_job("large", status={"share": share, "held": 2}), a_job("new"))

    def refuse(what: str) -> None:
        if what == "large" and server.lists < 2:
            raise ApiError("the API server does not answer")
        assert what != "new" or server.nodes()["large"] == 2

    server.before = refuse
    run(server, lambda _: Reached(server, lambda: server.nodes()["new"] == 2).wait())
    assert server.writes == ["large", "new"]


def test_while_the_server_is_away_nothing_changes() -> None:
    server = Server(a_job())

    def refuse(what: str) -> None:
        if what == "list" and server.lists < 3:
            raise ApiError("the API server does not answer")
        assert server.lists == 3

    server.before = refuse
    run(server, lambda _: Reached(server, lambda: server.nodes() == {"digits": 4}).wait())


def test_two_beside_each_other_write_each_share_once() -> None:
    server = Server(*(a_job(f"job-{number}") for number in range(6)))
    done = {f"job-{number}": 2 if number < 2 else 0 for number in range(6)}
    run(server, lambda _: Reached(server, lambda: server.nodes() == done).wait(), others=1)
    assert sorted(server.writes) == sorted(done)


# -- what follows


def test_a_definition_that_knows_no_shares_is_told() -> None:
    server = JobServer()
    merge = server.merge

    async def pruned(path: str, body: Mapping[str, Any]) -> Any:
        written = await merge(path, body)
        server.job["status"].pop("held")
        return {**written, "status": server.job["status"]}

    server.merge = pruned  # type: ignore[method-assign] # a server that leaves out what it does not know
    platform = Kubernetes(server, lambda: NOW, is_shared=True)  # type: ignore[arg-type] # it has what is used of it
    with pytest.raises(PlatformError, match="apply what elastic-ctl operator --crds prints"):
        asyncio.run(Keeper(platform, lambda: NOW).reconcile("default/digits"))


def test_a_job_has_its_share_and_waits_without() -> None:
    server = JobServer()
    platform = Kubernetes(server, lambda: NOW, is_shared=True)  # type: ignore[arg-type] # it has what is used of it
    keeper = Keeper(platform, lambda: NOW)
    asyncio.run(keeper.reconcile("default/digits"))
    status = server.job["status"]
    assert not server.pods
    assert (status["phase"], status["held"]) == ("Waiting", 0)
    assert status["message"] == "its share of the cluster is not decided yet"
    server.job["status"]["share"] = kept(Granted(0, "it needs 9 units, and 4 can be had", NOW), Ask("", 1, 1))
    asyncio.run(keeper.reconcile("default/digits"))
    assert server.job["status"]["message"] == "it needs 9 units, and 4 can be had"
    server.job["status"]["share"] = kept(Granted(3, "so", NOW), Ask("", 1, 1))
    asyncio.run(keeper.reconcile("default/digits"))
    assert sorted(server.pods) == ["digits-0", "digits-1", "digits-2"]
    passes(server)  # by an operator that does not share
    assert len(server.pods) == 4
    assert not {"share", "held"} & set(server.job["status"])
