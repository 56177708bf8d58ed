"""``elastic-ctl`` without an endpoint: which job is meant, what is printed, and its schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from elasticrun.cli.documents import (
    DOCUMENTS,
    FOLDER,
    VERSION,
    JobsDocument,
    StatusDocument,
    listed,
    schema_text,
    text_of,
)
from elasticrun.config import TaskRole
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.orders import ControlReply, ControlRequest, DrainNode, ShowStatus
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus, TaskStatus
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.errors import ElasticRunError, ExitCode, MasterUnreachableError, WrongVersionError
from elasticrun.rpc import nearby
from elasticrun.rpc.nearby import NearbyJob, Whereabouts
from tests.support.schema import misfits


def job(job_id: str, pid: int, endpoint: str = "") -> NearbyJob:
    status = JobStatus(job_id, JobPhase.RUNNING, 3, 1, 2, 0, 1)
    return NearbyJob(f"name-{pid}", status, Whereabouts(endpoint, 1.5e9, pid))


class Host:
    """The jobs of a pretended host, and what they were ordered."""

    def __init__(self) -> None:
        self.jobs: list[NearbyJob] = []
        self.troubles: list[ElasticRunError] = []
        self.heard: list[tuple[str, ControlRequest]] = []

    async def ask(self, timeout: float) -> tuple[list[NearbyJob], list[ElasticRunError]]:
        return self.jobs, self.troubles

    async def give(
        self, name: str, request: ControlRequest, timeout: float
    ) -> tuple[ControlReply, Whereabouts]:
        self.heard.append((name, request))
        found = next(each for each in self.jobs if each.name == name)
        status = found.status if isinstance(request, ShowStatus) else None
        return ControlReply(True, "done", status=status), found.about


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(nearby, "jobs", made.ask)
    monkeypatch.setattr(nearby, "give", made.give)
    monkeypatch.delenv("ELASTICRUN_ENDPOINT", raising=False)
    return made


def ctl(*arguments: str, code: int = 0, **environ: str) -> str:
    """What is printed, on stdout if all went well, else on stderr."""
    done = CliRunner().invoke(group, arguments, env=environ)
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


def test_the_one_job_of_this_host_is_meant(host: Host) -> None:
    host.jobs = [job("a", 1)]
    assert ctl("status").startswith("job 'a': running, round 3")
    assert ctl("drain", "n", "--reason", "why") == "done\n"
    assert host.heard[-1] == ("name-1", DrainNode("n", "why"))


@pytest.mark.parametrize("options", [("--rdzv-id", "b"), ("--pid", "2")])
def test_of_several_one_is_named(host: Host, options: tuple[str, ...]) -> None:
    host.jobs = [job("a", 1), job("b", 2)]
    assert ctl("status", *options).startswith("job 'b'")


def test_several_are_listed(host: Host) -> None:
    host.jobs = [job("a", 1), job("a", 2)]
    said = ctl("restart", code=ExitCode.USAGE)
    assert said == (
        "elastic-ctl: error: 2 jobs of this user are on this host: name one of 'a' (--pid 1), 'a' (--pid 2)\n"
    )
    assert host.heard == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rdzv-id", "b"), "no job of the id 'b' is on this host; this user's are 'a' (--pid 1)"),
        (("--pid", "9"), "no job of the launcher 9 is on this host; this user's are 'a' (--pid 1)"),
    ],
)
def test_a_job_that_is_not_here_is_said_to_be_missing(
    host: Host, options: tuple[str, ...], words: str
) -> None:
    host.jobs = [job("a", 1)]
    assert words in ctl("status", *options, code=ExitCode.MASTER_UNREACHABLE)


def test_without_a_job_it_says_what_to_do(host: Host) -> None:
    said = ctl("status", code=ExitCode.MASTER_UNREACHABLE)
    assert "no job of this user has its master on this host: start one" in said
    assert "give --endpoint HOST:PORT or ELASTICRUN_ENDPOINT" in said
    assert len(said.splitlines()) == 1


def test_a_job_that_gives_no_answer_is_the_reason(host: Host) -> None:
    host.troubles = [WrongVersionError("the job runs another one")]
    assert "the job runs another one" in ctl("status", code=ExitCode.WRONG_VERSION)
    host.jobs = [job("a", 1)]
    said = ctl("restart", code=ExitCode.USAGE)
    assert "another job of this user is on this host and gives no sensible answer" in said
    assert "'a' (--pid 1)" in said
    assert ctl("status", "--pid", "1")
    done = CliRunner().invoke(group, ["ps"])
    assert done.exit_code == ExitCode.WRONG_VERSION
    assert "a " in done.stdout and "the job runs another one" in done.stderr


def test_one_that_takes_no_connections_may_be_anybody_and_counts_for_nothing(host: Host) -> None:
    host.troubles = [nearby.BusyError("what may be a job takes no more connections")]
    assert "takes no more connections" in ctl("status", code=ExitCode.MASTER_UNREACHABLE)
    host.jobs = [job("a", 1)]
    assert ctl("status")
    done = CliRunner().invoke(group, ["ps"])
    assert "takes no more connections" in done.stderr
    assert done.exit_code == 0


@pytest.mark.parametrize("option", [("--token-file", "x"), ("--insecure-token",), ("--tls-ca", "x")])
def test_what_proves_nothing_here_is_refused(host: Host, option: tuple[str, ...]) -> None:
    host.jobs = [job("a", 1)]
    said = ctl("status", *option, code=ExitCode.USAGE)
    assert f"{option[0]} is for a job that is asked at its endpoint" in said


def test_an_endpoint_in_the_environment_comes_first(host: Host) -> None:
    host.jobs = [job("a", 1)]
    code = ExitCode.USAGE
    assert "ELASTICRUN_ENDPOINT 'x:y' is not valid" in ctl("status", code=code, ELASTICRUN_ENDPOINT="x:y")
    assert "--endpoint 'z:y' is not valid" in ctl(
        "status", "--endpoint=z:y", code=code, ELASTICRUN_ENDPOINT="x:y"
    )
    assert ctl("status", ELASTICRUN_ENDPOINT="")
    assert ctl("status", "--pid", "1", ELASTICRUN_ENDPOINT="x:y"), "a launcher is one of this host"


def test_an_endpoint_and_a_launcher_exclude_each_other(host: Host) -> None:
    said = ctl("status", "--endpoint", "node0", "--pid", "1", code=ExitCode.USAGE)
    assert "--endpoint and --pid exclude each other" in said


def test_the_advice_for_an_endpoint_is_for_endpoints(host: Host) -> None:
    host.troubles = [MasterUnreachableError("it does not answer")]
    assert ctl("status", code=4) == "elastic-ctl: error: it does not answer\n"


def test_jobs_are_listed_as_a_table(host: Host) -> None:
    assert ctl("ps") == "no job of this user has its master on this host\n"
    host.jobs = [job("a\x1b[2J", 1), job("b", 22, "node0:29400")]
    heading, first, second = ctl("ps").splitlines()
    assert heading.split() == ["JOB", "PHASE", "ROUND", "NODES", "ENDPOINT", "SINCE", "(UTC)", "PID"]
    assert first.split()[1:] == ["running", "3", "0", "of", "1:2", "local", "2017-07-14", "02:40:00", "1"]
    assert "\x1b" not in first
    assert second.split()[6:] == ["node0:29400", "2017-07-14", "02:40:00", "22"]


# -- JSON


def rich_status() -> JobStatus:
    usage = TaskUsage(0)
    tasks = (
        TaskStatus(TaskRole.PS, 0, 1, "running", "n:1", usage),
        TaskStatus(TaskRole.WORKER, 0, 0, "ended"),
    )
    nodes = (
        NodeStatus("a", 0, AgentPhase.RUNNING, tasks=tasks),
        NodeStatus("b", None, AgentPhase.READY, attached=False, doubt="slow"),
    )
    commit = CommitId(0, 5)
    return JobStatus("j", JobPhase.GATHERING, -1, 1, 2, 0, 1, "b", nodes, 3, commit, commit, None)


def parsed(text: str) -> Any:
    return json.loads(text)


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_what_the_values_say(name: str) -> None:
    advice = f"run python -m elasticrun.cli.documents {name} > {FOLDER.name}/{name}.json"
    assert (FOLDER / f"{name}.json").read_text() == schema_text(name), advice


def test_a_status_fits_its_schema() -> None:
    document = parsed(text_of(StatusDocument(VERSION, rich_status())))
    assert misfits(document, schema("status")) == []
    assert document["job"]["nodes"][1]["rank"] is None


def test_a_list_fits_its_schema() -> None:
    unknown = NearbyJob("n", rich_status(), Whereabouts("", None, 7))
    jobs = JobsDocument(VERSION, (listed(job("a", 1, "node0:29400")), listed(unknown)))
    document = parsed(text_of(jobs))
    assert misfits(document, schema("ps")) == []
    first, second = document["jobs"]
    assert (first["endpoint"], first["since"]) == ("node0:29400", "2017-07-14T02:40:00+00:00")
    assert (second["endpoint"], second["since"], second["nodes"]) == (None, None, 5)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("job", "phase"), "asleep"),
        (("job", "round"), -2),
        (("job", "nodes", 0, "rank"), "0"),
        (("job", "nodes", 0, "attached"), 1),
        (("job", "nodes", 0, "name"), ""),
        (("job", "saved"), 5),
        (("job", "nodes"), {}),
    ],
)
def test_a_schema_refuses_what_is_wrong(path: tuple[str | int, ...], value: object) -> None:
    document = parsed(text_of(StatusDocument(VERSION, rich_status())))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    assert misfits(document, schema("status")) != []


def test_json_of_verbs_fits_its_schema(host: Host) -> None:
    host.jobs = [job("a", 1), job("b", 2)]
    assert misfits(parsed(ctl("ps", "--json")), schema("ps")) == []
    assert misfits(parsed(ctl("status", "--json", "--pid", "2")), schema("status")) == []
