"""What the event log gets to see of an agent's phases."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from elasticrun.agent.events import EventLog
from elasticrun.agent.recorder import STATES, Recorder
from elasticrun.config import (
    Endpoint,
    Entrypoint,
    EntrypointKind,
    JobConfig,
    LaunchConfig,
    RendezvousConfig,
    TaskRole,
    WorkerConfig,
)
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
    NodeInfo,
)
from elasticrun.core.protocol.tasks import Task, TaskReport

NODE = NodeInfo("box/0", "i", "box", "address", 2, role="trainer")
ASSIGNMENT = Assignment(3, 1, 2, 2, 4, 2, 4, "address", 1, 1, 5)
CONFIG = LaunchConfig(
    JobConfig("job"),
    RendezvousConfig(Endpoint("h", 1), backend="c10d"),
    WorkerConfig(Entrypoint(EntrypointKind.SCRIPT, "x.py"), 2),
)
FAILURE = Failure("box/0", "box", 2, 0, "trainer", 1, FailureKind.EXIT, 1, message="boom")


def recorder() -> tuple[Recorder, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    log = EventLog("console", lambda line: events.append(json.loads(line)))
    return Recorder(log, CONFIG, NODE), events


def test_every_phase_has_torchruns_word() -> None:
    assert STATES.keys() == set(AgentPhase)


def test_before_the_first_round_there_is_only_the_agent() -> None:
    record, events = recorder()
    record.reported(AgentStatus(1, AgentPhase.READY), None)
    (event,) = events
    assert (event["name"], event["source"]) == ("elasticrun.agent.ready", "AGENT")
    assert event["metadata"]["global_rank"] is None
    assert event["metadata"]["state"] == "STOPPED"
    assert event["metadata"]["group_rank"] is None
    assert event["metadata"]["agent_restarts"] == 0


def test_each_worker_of_a_round_and_the_agent() -> None:
    record, events = recorder()
    record.reported(AgentStatus(2, AgentPhase.RUNNING, 3), ASSIGNMENT)
    names = [(event["name"], event["source"], event["metadata"]["global_rank"]) for event in events]
    worker = "torchelastic.worker.status.HEALTHY"
    assert names == [
        (worker, "WORKER", 2),
        (worker, "WORKER", 3),
        ("elasticrun.agent.running", "AGENT", None),
    ]
    metadata = dict(events[0]["metadata"])
    assert metadata.pop("total_run_time") >= 0
    assert metadata == {
        "run_id": "job",
        "global_rank": 2,
        "group_rank": 1,
        "role": "trainer",
        "hostname": "box",
        "state": "HEALTHY",
        "round": 3,
        "rdzv_backend": "c10d",
        "raw_error": None,
        "agent_restarts": 1,
    }


def test_a_failure_is_named() -> None:
    record, events = recorder()
    record.reported(AgentStatus(3, AgentPhase.FAILED, 3, (FAILURE,)), ASSIGNMENT)
    assert {event["metadata"]["raw_error"] for event in events} == {"boom"}


def test_a_phase_is_recorded_once_and_again_in_another_round() -> None:
    record, events = recorder()
    record.reported(AgentStatus(1, AgentPhase.READY), None)
    record.reported(AgentStatus(2, AgentPhase.READY), None)
    assert len(events) == 1
    record.reported(AgentStatus(3, AgentPhase.READY, 1), None)
    assert len(events) == 2


def test_workers_that_succeeded_stay_so() -> None:
    record, events = recorder()
    for number, phase in enumerate((AgentPhase.FINISHED, AgentPhase.STOPPING, AgentPhase.READY)):
        record.reported(AgentStatus(number, phase, 3), ASSIGNMENT)
    assert {event["metadata"]["state"] for event in events} == {"SUCCEEDED"}
    record.reported(AgentStatus(4, AgentPhase.RUNNING, 4), ASSIGNMENT)
    assert events[-1]["metadata"]["state"] == "HEALTHY"


def test_a_task_that_starts_again_has_events_of_its_own() -> None:
    node = replace(NODE, role="default")
    events: list[dict[str, Any]] = []
    record = Recorder(EventLog("console", lambda line: events.append(json.loads(line))), CONFIG, node)
    seats = (Task(0, TaskRole.CHIEF, 0), Task(1, TaskRole.PS, 1), Task(2, TaskRole.PS, 2))
    assignment = replace(ASSIGNMENT, tasks=seats)

    def reported(*reports: TaskReport, round_: int = 3) -> list[tuple[object, ...]]:
        events.clear()
        status = AgentStatus(2, AgentPhase.RUNNING, round_, tasks=reports)
        record.reported(status, assignment)
        told = [event for event in events if event["name"].startswith("elasticrun.task.")]
        names = ("global_rank", "role", "task_index", "task_attempt", "state", "raw_error")
        return [(event["name"][16:], *(event["metadata"][name] for name in names)) for event in told]

    chief, ps = TaskReport(0, 0), TaskReport(1, 0)
    failed = replace(ps, ended=True, failure=FAILURE)
    assert reported(chief, ps) == []
    assert reported(chief, failed) == [("failed", 3, "ps", 1, 0, "FAILED", "boom")]
    assert reported(chief, failed) == []
    assert reported(chief, TaskReport(1, 1)) == [("started", 3, "ps", 1, 1, "HEALTHY", None)]
    assert reported(chief, TaskReport(1, 1), TaskReport(2, 0)) == [
        ("started", 5, "ps", 2, 0, "HEALTHY", None)
    ]
    ended = TaskReport(2, 0, ended=True)
    assert reported(chief, TaskReport(1, 3, ended=True), ended) == [
        ("started", 3, "ps", 1, 3, "HEALTHY", None),
        ("ended", 3, "ps", 1, 3, "SUCCEEDED", None),
        ("ended", 5, "ps", 2, 0, "SUCCEEDED", None),
    ]
    assert reported(chief, failed, round_=4) == []
