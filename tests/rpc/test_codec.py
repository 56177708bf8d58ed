"""Values survive the wire; bytes that are no message, or a message out of range, give ProtocolError only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticrun.config import TaskRole
from elasticrun.core.protocol.bounds import MAX_ADDRESS, MAX_FAILURE_TEXT, MAX_NAME
from elasticrun.core.protocol.messages import (
    MAX_FAILURES,
    MAX_NAMED_MEMBERS,
    MAX_SUMMARY_TEXT,
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
    Heartbeat,
    Hello,
    JobEnded,
    Leave,
    MasterMessage,
    NodeInfo,
    Outcome,
    ProbeReport,
    Proposal,
    RejectCode,
    Rejected,
    Report,
    Stall,
    StartRound,
    StopRound,
    Vote,
    Waiting,
    Welcome,
    World,
)
from elasticrun.core.protocol.tasks import MAX_CLUSTER, MAX_PORTS, MAX_TASKS, Task, TaskReport
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.errors import ProtocolError
from elasticrun.rpc import codec
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.control import decode_control
from tests import strategies

FAILURE = Failure("n0", "h0", 0, 0, "default", 7, FailureKind.EXIT, 1)
INFO = NodeInfo("n0", "i0", "h0", "10.0.0.1", 2)
STATUS = AgentStatus(3, AgentPhase.FAILED, 1, (FAILURE,), 29500)
HELLO = Hello("job", "1.0", INFO, STATUS)
ASSIGNMENT = Assignment(0, 1, 2, 2, 4, 2, 4, "10.0.0.1", 29500, 0, 3)

#: Any str that a program could come up with, lone surrogates included.
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@given(strategies.agent_messages)
def test_agent_messages_survive(message: AgentMessage) -> None:
    assert codec.decode_agent(codec.encode_agent(message)) == message


@given(strategies.master_messages)
def test_master_messages_survive(message: MasterMessage) -> None:
    assert codec.decode_master(codec.encode_master(message)) == (message,)


@given(strategies.master_messages, st.lists(strategies.master_messages, max_size=5))
def test_joined_messages_survive_in_their_order(first: MasterMessage, more: list[MasterMessage]) -> None:
    data = codec.encode_master(first)
    encoded = [codec.encode_master(message) for message in more]
    joined = codec.join_master(data, encoded)
    assert codec.decode_master(joined) == (first, *more)
    assert len(joined) <= len(data) + sum(len(each) + codec.JOINT for each in encoded)


def test_a_joined_message_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no kind"):
        codec.decode_master(codec.join_master(codec.encode_master(Waiting(1, "")), [b""]))


def test_the_longest_message_can_be_joined_as_cheaply() -> None:
    longest = b"x" * codec.MAX_MESSAGE_BYTES
    assert len(codec.join_master(b"", [longest])) <= len(longest) + codec.JOINT


def test_what_all_are_told_alike_is_encoded_once_and_each_text_anew() -> None:
    texts = [codec.encode_master(Waiting(1, text)) for text in ("a", "a", "b")]
    assert texts[0] is texts[1] != texts[2]
    assert codec.decode_master(codec.encode_master(Waiting(2, "b"))) == (Waiting(2, "b"),)


def _decodes_or_refuses(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except ProtocolError as error:
        sentence = str(error)
        assert sentence and "\n" not in sentence


@given(st.binary() | strategies.mutated(strategies.agent_messages.map(codec.encode_agent)))
@example(b"")
def test_any_bytes_from_an_agent_decode_or_are_refused(data: bytes) -> None:
    _decodes_or_refuses(codec.decode_agent, data)
    codec.version_in(data)


@given(st.binary() | strategies.mutated(strategies.master_messages.map(codec.encode_master)))
@example(b"")
def test_any_bytes_from_a_master_decode_or_are_refused(data: bytes) -> None:
    _decodes_or_refuses(codec.decode_master, data)


#: The field that the sentence names, and what makes it wrong.
Bad = tuple[str, dict[str, Any]]

BAD_FAILURES: list[Bad] = [
    ("status.failures.node", {"node": ""}),
    ("status.failures.host", {"host": "h" * 513}),
    ("status.failures.rank", {"rank": -1}),
    ("status.failures.local_rank", {"local_rank": -1}),
    ("status.failures.role", {"role": ""}),
    ("status.failures.pid", {"pid": -1}),
]
BAD_STATUSES: list[Bad] = [
    ("status.sequence", {"sequence": 2**62}),
    ("status.round", {"round": 2**62}),
    ("status.probe.check", {"probe": ProbeReport(2**62)}),
    ("status.stall.rank", {"stall": Stall(-1, 0, 2, 1.0, 1.0, False)}),
    ("status.votes.world.epoch", {"votes": (Vote(World(1, 2**62, 1), None),), "round": 1}),
    ("status.votes.world.size", {"votes": (Vote(World(1, 1, 2**30), None),), "round": 1}),
    ("status.votes", {"votes": (Vote(World(4, 1, 1), None),), "round": 3}),
    ("status.votes.base", {"votes": (Vote(World(4, 1, 1), World(5, 1, 1)),), "round": 9}),
    ("status.sequence", {"sequence": -1}),
    ("status.round", {"round": -2}),
    ("status.store_port", {"store_port": -1}),
    ("status.store_port", {"store_port": 65536}),
    ("status.ports", {"ports": (7000, 0)}),
    ("status.ports", {"ports": (65536,)}),
    ("status.tasks", {"tasks": tuple(TaskReport(rank, 0) for rank in range(MAX_TASKS + 1))}),
    ("status.tasks", {"tasks": (TaskReport(4, 0), TaskReport(4, 1))}),
    ("status.tasks.local_rank", {"tasks": (TaskReport(-1, 0),)}),
    ("status.tasks.attempt", {"tasks": (TaskReport(0, -1),)}),
    ("status.tasks.failure.node", {"tasks": (TaskReport(0, 0, True, replace(FAILURE, node="")),)}),
    ("status.tasks.failure.rank", {"tasks": (TaskReport(0, 0, True, replace(FAILURE, rank=-1)),)}),
]
BAD_INFOS: list[Bad] = [
    ("info.local_world_size", {"local_world_size": 2**31 - 1}),
    ("info.position", {"position": 2**20}),
    ("info.node", {"node": ""}),
    ("info.incarnation", {"incarnation": ""}),
    ("info.host", {"host": ""}),
    ("info.address", {"address": ""}),
    ("info.address", {"address": "a" * 201}),
    ("info.address", {"address": "\xe9" * 101}),
    ("info.local_world_size", {"local_world_size": 0}),
    ("info.role", {"role": ""}),
    ("info.node_rank", {"node_rank": -1}),
    ("info.pid", {"pid": -1}),
    ("info.roles", {"roles": (TaskRole.PS,) * (MAX_TASKS + 1)}),
]

BAD_USAGES: list[tuple[str, tuple[TaskUsage, ...]]] = [
    ("usage", tuple(TaskUsage(rank) for rank in range(MAX_TASKS + 1))),
    ("usage", (TaskUsage(3), TaskUsage(3, 0.5))),
    ("usage.local_rank", (TaskUsage(-1),)),
]
BAD_AGENT_MESSAGES: list[tuple[str, AgentMessage]] = [
    *[(field, replace(HELLO, info=replace(INFO, **bad))) for field, bad in BAD_INFOS],
    *[(field, Report("i", replace(STATUS, **bad))) for field, bad in BAD_STATUSES],
    *[(f, Report("i", replace(STATUS, failures=(replace(FAILURE, **bad),)))) for f, bad in BAD_FAILURES],
    ("job_id", replace(HELLO, job_id="j" * 513)),
    ("version", replace(HELLO, version="")),
    ("epoch", replace(HELLO, epoch=-2)),
    ("incarnation", Report("", STATUS)),
    ("incarnation", Heartbeat("")),
    *[(field, Heartbeat("i", usage)) for field, usage in BAD_USAGES],
    ("incarnation", Leave("", "why")),
    ("incarnation", Leave("i" * 513, "why")),
]


@pytest.mark.parametrize(("field", "message"), BAD_AGENT_MESSAGES)
def test_a_field_out_of_range_is_named(field: str, message: AgentMessage) -> None:
    with pytest.raises(ProtocolError, match=f"^{field} "):
        codec.decode_agent(codec.encode_agent(message))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_not_known(number: float) -> None:
    told = Heartbeat("i", (TaskUsage(0, number, 1, 2, number, number),))
    assert codec.decode_agent(codec.encode_agent(told)) == Heartbeat("i", (TaskUsage(0, None, 1, 2),))


BAD_ASSIGNMENTS: list[Bad] = [
    ("assignment.round", {"round": -1}),
    ("assignment.group_rank", {"group_rank": -1}),
    ("assignment.group_rank", {"group_rank": 2}),
    ("assignment.group_world_size", {"group_world_size": 5}),
    ("assignment.first_rank", {"first_rank": 4}),
    ("assignment.first_rank", {"first_rank": -1}),
    ("assignment.role_first_rank", {"role_first_rank": 4}),
    ("assignment.role_world_size", {"role_world_size": 5}),
    ("assignment.store_address", {"store_address": ""}),
    ("assignment.store_port", {"store_port": 65536}),
    ("assignment.restart_count", {"restart_count": -1}),
    ("assignment.max_restarts", {"max_restarts": -1}),
    (
        "assignment.tasks",
        {"tasks": tuple(Task(rank, TaskRole.WORKER, rank) for rank in range(MAX_TASKS + 1))},
    ),
    ("assignment.tasks", {"tasks": (Task(1, TaskRole.PS, 0), Task(1, TaskRole.PS, 1))}),
    ("assignment.tasks.local_rank", {"tasks": (Task(-1, TaskRole.PS, 0),)}),
    ("assignment.tasks.index", {"tasks": (Task(0, TaskRole.PS, -1),)}),
    ("assignment.tasks.attempt", {"tasks": (Task(0, TaskRole.PS, 0, -1),)}),
    ("assignment.tasks.port", {"tasks": (Task(0, TaskRole.PS, 0, 0, 65536),)}),
    ("assignment.cluster", {"cluster": ((TaskRole.PS, ()), (TaskRole.PS, ()))}),
    ("assignment.cluster", {"cluster": ((TaskRole.PS, ("h:1",)), (TaskRole.WORKER, ("h:2",) * MAX_CLUSTER))}),
    ("assignment.cluster.addresses", {"cluster": ((TaskRole.WORKER, ("h:2",) * (MAX_CLUSTER + 1)),)}),
    *[
        ("assignment.cluster.addresses", {"cluster": ((TaskRole.PS, (address,)),)})
        for address in (
            "",
            "h",
            "h:",
            ":1",
            "h:0",
            "h:65536",
            "h:-1",
            "h:1_0",
            "h:\u00b2",
            "h:" + "1" * 400,
            "h" * 511 + ":1",
        )
    ],
]
BAD_MASTER_MESSAGES: list[tuple[str, MasterMessage]] = [
    *[(field, StartRound(1, 1, replace(ASSIGNMENT, **bad), "r")) for field, bad in BAD_ASSIGNMENTS],
    ("epoch", Welcome(-1, 1.0)),
    ("heartbeat_interval", Welcome(1, 0.0)),
    ("heartbeat_interval", Welcome(1, float("inf"))),
    ("heartbeat_interval", Welcome(1, float("nan"))),
    ("epoch", StartRound(-1, 1, ASSIGNMENT, "r")),
    ("sequence", StartRound(1, -1, ASSIGNMENT, "r")),
    ("epoch", StopRound(-1, 1, 1, "r")),
    ("sequence", StopRound(1, -1, 1, "r")),
    ("round", StopRound(1, 1, -2, "r")),
    ("epoch", Waiting(-1, "t")),
    ("epoch", JobEnded(-1, 1, Outcome.FAILED, "r")),
    ("sequence", JobEnded(1, -1, Outcome.FAILED, "r")),
]


@pytest.mark.parametrize(("field", "message"), BAD_MASTER_MESSAGES)
def test_a_masters_field_out_of_range_is_named(field: str, message: MasterMessage) -> None:
    with pytest.raises(ProtocolError, match=f"^{field} "):
        codec.decode_master(codec.encode_master(message))


def _status(**fields: Any) -> pb.AgentMessage:
    given: dict[str, Any] = {"sequence": 1, "phase": "AGENT_PHASE_READY"} | fields
    return pb.AgentMessage(report=pb.Report(incarnation="i", status=pb.AgentStatus(**given)))


def _failure(**fields: Any) -> pb.AgentMessage:
    given: dict[str, Any] = {"node": "n", "host": "h", "role": "r", "kind": "FAILURE_KIND_EXIT"} | fields
    return _status(failures=[pb.Failure(**given)])


def _abridged(**fields: Any) -> pb.Failure:
    return pb.Failure(role="r", kind="FAILURE_KIND_EXIT", **fields)


def _info(**fields: Any) -> pb.NodeInfo:
    return pb.NodeInfo(
        node="n", incarnation="i", host="h", address="a", local_world_size=1, role="r", **fields
    )


def _start(**fields: Any) -> pb.MasterMessage:
    started = codec.encode_master(StartRound(1, 1, ASSIGNMENT, "r"))
    message = pb.MasterMessage.FromString(started)
    message.start_round.assignment.MergeFrom(pb.Assignment(**fields))
    return message


STARTED = _status().report.status
UNSENDABLE = [
    ("no kind", pb.AgentMessage()),
    ("status is missing", pb.AgentMessage(report=pb.Report(incarnation="i"))),
    ("info is missing", pb.AgentMessage(hello=pb.Hello(version="1", status=pb.AgentStatus()))),
    ("status is missing", pb.AgentMessage(hello=pb.Hello(version="1", info=_info()))),
    ("status.phase has the value 0", _status(phase=0)),
    ("status.phase has the value 99", _status(phase=99)),
    ("status.failures.kind has the value 0", _failure(kind=0)),
    ("status.failures.kind has the value 99", _failure(kind=99)),
    ("status.failures.message must have at most", _failure(message="m" * (MAX_FAILURE_TEXT + 1))),
    ("status.failures.error_file must have at most", _failure(error_file="m" * 4097)),
    ("status.failures.stacks must have at most", _failure(stacks="m" * 4097)),
    ("status.failures.timestamp must be between", _failure(timestamp=float("nan"))),
    (
        "info.roles has the value 9",
        pb.AgentMessage(hello=pb.Hello(version="1", info=_info(roles=[9]), status=STARTED)),
    ),
    (
        "info.roles has the value 0",
        pb.AgentMessage(hello=pb.Hello(version="1", info=_info(roles=[0]), status=STARTED)),
    ),
    ("status.ports must have at most 256", _status(ports=[1] * (MAX_PORTS + 1))),
    ("status.tasks.failure.node must not be empty", _status(tasks=[pb.TaskReport(failure=_abridged())])),
    (
        "status.tasks.failure.host must not be empty",
        _status(tasks=[pb.TaskReport(failure=_abridged(node="n"))]),
    ),
    (
        "status.failures must have at most",
        _status(failures=[*_failure().report.status.failures] * (MAX_FAILURES + 1)),
    ),
]


@pytest.mark.parametrize(("sentence", "message"), UNSENDABLE)
def test_what_we_never_send_is_refused(sentence: str, message: pb.AgentMessage) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        codec.decode_agent(message.SerializeToString())


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("no kind", pb.MasterMessage()),
        ("code has the value 0", pb.MasterMessage(rejected=pb.Rejected())),
        ("outcome has the value 77", pb.MasterMessage(job_ended=pb.JobEnded(outcome=77))),  # type: ignore[arg-type]
        ("assignment.tasks.role has the value 0", _start(tasks=[pb.Task()])),
        ("assignment.tasks.role has the value 5", _start(tasks=[pb.Task(role=5)])),  # type: ignore[arg-type]
        ("assignment.cluster.role has the value 0", _start(cluster=[pb.ClusterRole()])),
        ("assignment is missing", pb.MasterMessage(start_round=pb.StartRound())),
    ],
)
def test_what_no_master_sends_is_refused(sentence: str, message: pb.MasterMessage) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        codec.decode_master(message.SerializeToString())


@pytest.mark.parametrize(
    ("sentence", "order"),
    [
        ("no kind", pb.ControlMessage()),
        ("min_nodes must be between 1", pb.ControlMessage(scale_job=pb.ScaleJob(max_nodes=2))),
        ("role has the value 0", pb.ControlMessage(scale_role=pb.ScaleRole(count=2))),
        ("role has the value 9", pb.ControlMessage(scale_role=pb.ScaleRole(role=9, count=2))),  # type: ignore[arg-type]
        ("count must be between 1", pb.ControlMessage(scale_role=pb.ScaleRole(role="TASK_ROLE_PS"))),
        (
            "count must be between 1 and 4096, got 4097",
            pb.ControlMessage(scale_role=pb.ScaleRole(role="TASK_ROLE_PS", count=MAX_CLUSTER + 1)),
        ),
    ],
)
def test_what_no_operator_sends_is_refused(sentence: str, order: pb.ControlMessage) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        decode_control(order.SerializeToString())


@pytest.mark.parametrize("name", ["cpu", "memory", "step", "step_rate", "graph_time"])
def test_figures_below_zero_are_refused_with_their_name(name: str) -> None:
    usage = pb.TaskUsage(local_rank=0)
    setattr(usage, name, -1)
    said = pb.AgentMessage(heartbeat=pb.Heartbeat(incarnation="i", usage=[usage]))
    with pytest.raises(ProtocolError, match=rf"^usage\.{name} must be between 0"):
        codec.decode_agent(said.SerializeToString())


def test_figures_that_a_worker_made_up_cost_no_node_its_place() -> None:
    """The page in which workers count their steps is theirs to write."""
    absurd = TaskUsage(0, cpu=-0.5, memory=2**70, step=-3, step_rate=float("nan"), graph_time=-1e300)
    told = codec.decode_agent(codec.encode_agent(Heartbeat("i", (absurd,))))
    assert told == Heartbeat("i", (TaskUsage(0, memory=2**60, step=0),))


def test_a_message_of_an_unknown_kind_is_refused() -> None:
    unknown = b"\xa2\x06\x00"  # field 100, empty message: what a later version might send
    with pytest.raises(ProtocolError, match="no kind"):
        codec.decode_agent(unknown)
    with pytest.raises(ProtocolError, match="no kind"):
        codec.decode_master(unknown)


def test_an_oversized_message_is_refused() -> None:
    with pytest.raises(ProtocolError, match="at most 1048576 bytes, got 1048577"):
        codec.decode_agent(bytes(codec.MAX_MESSAGE_BYTES + 1))


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, st.floats())
@example("", "", "", float("nan"))
@example("\ud800", "", "", float("-inf"))
def test_nothing_that_a_worker_wrote_stops_its_report(a: str, b: str, c: str, timestamp: float) -> None:
    failure = replace(FAILURE, message=a, traceback=b, stderr_tail=c, error_file=a, timestamp=timestamp)
    sent = Report("i", replace(STATUS, failures=(failure,)))
    assert isinstance(codec.decode_agent(codec.encode_agent(sent)), Report)


def test_a_lone_surrogate_is_replaced() -> None:
    leave = codec.decode_agent(codec.encode_agent(Leave("i\ud800", "caf\u00e9 \udce9!")))
    assert leave == Leave("i\ufffd", "caf\u00e9 \ufffd!")


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u4e2d", "\U0001f600", "\ud800"])
def test_the_largest_report_fits(letter: str) -> None:
    text, name, path = letter * (2 * MAX_FAILURE_TEXT), letter * 512, letter * 5000
    failure = Failure(
        name, name, 0, 0, name, 1, FailureKind.EXIT, 1, text, text, text, path, 1.0, stacks=path
    )
    tasks = tuple(TaskReport(rank, 2**53, True, failure) for rank in range(MAX_TASKS))
    ports = (65535,) * MAX_PORTS
    status = replace(STATUS, failures=(failure,) * (MAX_FAILURES + 5), ports=ports, tasks=tasks)
    info = NodeInfo(name, name, name, "h", 1, name, roles=(TaskRole.PS,) * MAX_TASKS)
    hello = Hello(name, name, info, status)
    ended = JobEnded(1, 1, Outcome.FAILED, text, status.failures)
    said, told = codec.encode_agent(hello), codec.encode_master(ended)
    assert max(len(said), len(told)) < codec.MAX_MESSAGE_BYTES
    assert isinstance(codec.decode_agent(said), Hello)
    assert [type(message) for message in codec.decode_master(told)] == [JobEnded]


def test_of_many_tasks_that_fail_at_once_the_first_failures_are_whole() -> None:
    failed = [
        replace(FAILURE, local_rank=rank, message=f"{rank}" + "-" * 300, traceback="t", stderr_tail="s")
        for rank in range(MAX_FAILURES + 2)
    ]
    status = AgentStatus(
        1,
        AgentPhase.RUNNING,
        1,
        tuple(failed[:1]),
        tasks=tuple(TaskReport(f.local_rank, 0, True, f) for f in failed),
    )
    report = codec.decode_agent(codec.encode_agent(Report("i", status)))
    assert isinstance(report, Report)
    got = [task.failure for task in report.status.tasks]
    whole = MAX_FAILURES - len(status.failures)
    assert got[:whole] == failed[:whole]
    short = [replace(f, message=f.message[:MAX_SUMMARY_TEXT], traceback="", stderr_tail="") for f in failed]
    assert got[whole:] == short[whole:]


def test_abridged_failures_are_of_the_node_that_the_first_one_names() -> None:
    tasks = tuple(TaskReport(rank, 0, True, FAILURE) for rank in range(MAX_TASKS))
    report = codec.decode_agent(codec.encode_agent(Report("i", replace(STATUS, failures=(), tasks=tasks))))
    assert isinstance(report, Report)
    assert report.status.tasks == tasks


@pytest.mark.parametrize("letter", ["x", "\u4e2d"])
def test_the_largest_cluster_fits(letter: str) -> None:
    """Its hosts have the longest addresses that a Hello may name, and its proposal the longest names."""
    host = letter * (MAX_ADDRESS // len(letter.encode()))
    workers = tuple(f"{host}:{port}" for port in range(10_000, 10_000 + MAX_CLUSTER))
    tasks = tuple(Task(rank, TaskRole.WORKER, rank, 2**62, 65535, True) for rank in range(MAX_TASKS))
    proposal = Proposal(World(1, 1, 64), None, None, ("\U0001f600" * MAX_NAME,) * MAX_NAMED_MEMBERS)
    assignment = replace(ASSIGNMENT, tasks=tasks, cluster=((TaskRole.WORKER, workers),), proposal=proposal)
    start = StartRound(1, 1, assignment, "r" * 20_000)
    data = codec.encode_master(start)
    assert len(data) < codec.MAX_MESSAGE_BYTES
    assert codec.decode_master(data) == (replace(start, reason=start.reason[:MAX_FAILURE_TEXT]),)


def test_a_peer_that_says_nothing_of_tasks_has_none() -> None:
    report = codec.decode_agent(_status().SerializeToString())
    assert isinstance(report, Report)
    assert (report.status.ports, report.status.tasks) == ((), ())


def test_long_texts_keep_the_end_that_matters() -> None:
    text = "begin" + "-" * 50_000 + "end"
    failure = replace(FAILURE, message=text, traceback=text, stderr_tail=text)
    report = codec.decode_agent(codec.encode_agent(Report("i", replace(STATUS, failures=(failure,)))))
    assert isinstance(report, Report)
    (got,) = report.status.failures
    assert got.message.startswith("begin") and len(got.message) == MAX_FAILURE_TEXT
    assert got.traceback.endswith("end") and len(got.traceback) == MAX_FAILURE_TEXT
    assert got.stderr_tail.endswith("end") and len(got.stderr_tail) == MAX_FAILURE_TEXT


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u4e2d", "\U0001f600"])
def test_texts_are_clipped_by_their_bytes(letter: str) -> None:
    text = letter * MAX_FAILURE_TEXT
    failure = replace(FAILURE, message=text, traceback=text)
    report = codec.decode_agent(codec.encode_agent(Report("i", replace(STATUS, failures=(failure,)))))
    assert isinstance(report, Report)
    for got in (report.status.failures[0].message, report.status.failures[0].traceback):
        assert set(got) == {letter}
        assert MAX_FAILURE_TEXT - 4 < len(got.encode()) <= MAX_FAILURE_TEXT


def test_too_long_reasons_are_clipped_and_not_refused() -> None:
    long = "r" * 100_000
    for message in (
        StartRound(1, 1, ASSIGNMENT, long),
        StopRound(1, 1, 1, long),
        Waiting(1, long),
        Rejected(RejectCode.MALFORMED, long),
    ):
        (clipped,) = codec.decode_master(codec.encode_master(message))
        assert type(clipped) is type(message)
    assert codec.decode_agent(codec.encode_agent(Leave("i", long))) == Leave("i", long[:MAX_FAILURE_TEXT])


def test_the_version_is_found_in_a_hello_that_makes_no_sense_otherwise() -> None:
    hello = pb.AgentMessage(hello=pb.Hello(version="9.9"))
    assert codec.version_in(hello.SerializeToString()) == "9.9"
    assert codec.version_in(codec.encode_agent(Heartbeat("i"))) is None
    assert codec.version_in(b"\xff\xff") is None
