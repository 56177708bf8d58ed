"""The values of core/protocol.py as bytes, and back.

This is the only module that knows the generated code. Its two promises:

* Decoding gives a value in which every field is within its range, or raises ProtocolError with one
  sentence; it raises nothing else, whatever the bytes.
* Encoding never fails because of what a *user's program* wrote. Texts of failures and reasons are clipped
  (to MAX_FAILURE_TEXT bytes of UTF-8), characters that UTF-8 cannot express become U+FFFD and a timestamp
  that is not finite becomes 0, so that the largest message stays below MAX_MESSAGE_BYTES. Names are not
  clipped, since two names must not become equal; one that is too long is refused by the receiver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from elasticrun.core.protocol import (
    MAX_FAILURE_TEXT,
    MAX_FAILURES,
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
    RejectCode,
    Rejected,
    Report,
    StartRound,
    StopRound,
    Waiting,
    Welcome,
)
from elasticrun.errors import ProtocolError
from elasticrun.rpc import checks
from elasticrun.rpc import elastic_pb2 as pb

#: No message is larger, in bytes; an encoded one never is, and the receiver refuses one that is.
MAX_MESSAGE_BYTES = 1 << 20

#: The master's last message, in which there is nothing to decode; see elastic.proto.
GOODBYE = pb.MasterMessage(goodbye=pb.Goodbye()).SerializeToString()

_PHASE_OF = {pb.AgentPhase.Value(f"AGENT_PHASE_{phase.name}"): phase for phase in AgentPhase}
_KIND_OF = {pb.FailureKind.Value(f"FAILURE_KIND_{kind.name}"): kind for kind in FailureKind}
_OUTCOME_OF = {pb.Outcome.Value(f"OUTCOME_{outcome.name}"): outcome for outcome in Outcome}
_CODE_OF = {pb.RejectCode.Value(f"REJECT_CODE_{code.name}"): code for code in RejectCode}

_E = TypeVar("_E", bound=Enum)


# Encoding


def encode_agent(message: AgentMessage) -> bytes:
    """The bytes of an agent's message."""
    return _agent_to_pb(message).SerializeToString()


def encode_master(message: MasterMessage) -> bytes:
    """The bytes of a master's message."""
    return _master_to_pb(message).SerializeToString()


def _agent_to_pb(message: AgentMessage) -> pb.AgentMessage:
    match message:
        case Hello():
            return pb.AgentMessage(hello=_hello_to_pb(message))
        case Report(incarnation, status):
            report = pb.Report(incarnation=_clean(incarnation), status=_status_to_pb(status))
            return pb.AgentMessage(report=report)
        case Heartbeat(incarnation):
            return pb.AgentMessage(heartbeat=pb.Heartbeat(incarnation=_clean(incarnation)))
        case Leave(incarnation, reason):
            return pb.AgentMessage(leave=pb.Leave(incarnation=_clean(incarnation), reason=_head(reason)))


def _hello_to_pb(hello: Hello) -> pb.Hello:
    info = hello.info
    return pb.Hello(
        job_id=_clean(hello.job_id),
        version=_clean(hello.version),
        info=pb.NodeInfo(
            node=_clean(info.node),
            incarnation=_clean(info.incarnation),
            host=_clean(info.host),
            address=_clean(info.address),
            local_world_size=info.local_world_size,
            role=_clean(info.role),
            node_rank=info.node_rank,
            pid=info.pid,
        ),
        status=_status_to_pb(hello.status),
        epoch=hello.epoch,
    )


def _status_to_pb(status: AgentStatus) -> pb.AgentStatus:
    return pb.AgentStatus(
        sequence=status.sequence,
        phase=f"AGENT_PHASE_{status.phase.name}",
        round=status.round,
        failures=_failures_to_pb(status.failures),
        store_port=status.store_port,
    )


def _failures_to_pb(failures: Iterable[Failure]) -> list[pb.Failure]:
    return [_failure_to_pb(failure) for failure in tuple(failures)[:MAX_FAILURES]]


def _failure_to_pb(failure: Failure) -> pb.Failure:
    return pb.Failure(
        node=_clean(failure.node),
        host=_clean(failure.host),
        rank=failure.rank,
        local_rank=failure.local_rank,
        role=_clean(failure.role),
        pid=failure.pid,
        kind=f"FAILURE_KIND_{failure.kind.name}",
        exit_code=failure.exit_code,
        message=_head(failure.message),
        traceback=_tail(failure.traceback),
        stderr_tail=_tail(failure.stderr_tail),
        error_file=_tail(failure.error_file, checks.MAX_PATH),
        timestamp=failure.timestamp if math.isfinite(failure.timestamp) else 0.0,
    )


def _master_to_pb(message: MasterMessage) -> pb.MasterMessage:
    match message:
        case Welcome(epoch, interval):
            return pb.MasterMessage(welcome=pb.Welcome(epoch=epoch, heartbeat_interval=interval))
        case Rejected(code, text):
            rejected = pb.Rejected(code=f"REJECT_CODE_{code.name}", message=_head(text))
            return pb.MasterMessage(rejected=rejected)
        case StartRound(epoch, sequence, assignment, reason):
            start = pb.StartRound(
                epoch=epoch, sequence=sequence, assignment=_assignment_to_pb(assignment), reason=_head(reason)
            )
            return pb.MasterMessage(start_round=start)
        case StopRound(epoch, sequence, number, reason):
            stop = pb.StopRound(epoch=epoch, sequence=sequence, round=number, reason=_head(reason))
            return pb.MasterMessage(stop_round=stop)
        case Waiting(epoch, text):
            return pb.MasterMessage(waiting=pb.Waiting(epoch=epoch, text=_head(text)))
        case JobEnded():
            return pb.MasterMessage(job_ended=_ended_to_pb(message))


def _ended_to_pb(ended: JobEnded) -> pb.JobEnded:
    return pb.JobEnded(
        epoch=ended.epoch,
        sequence=ended.sequence,
        outcome=f"OUTCOME_{ended.outcome.name}",
        reason=_head(ended.reason),
        failures=_failures_to_pb(ended.failures),
    )


def _assignment_to_pb(assignment: Assignment) -> pb.Assignment:
    return pb.Assignment(
        round=assignment.round,
        group_rank=assignment.group_rank,
        group_world_size=assignment.group_world_size,
        first_rank=assignment.first_rank,
        world_size=assignment.world_size,
        role_first_rank=assignment.role_first_rank,
        role_world_size=assignment.role_world_size,
        store_address=_clean(assignment.store_address),
        store_port=assignment.store_port,
        restart_count=assignment.restart_count,
        max_restarts=assignment.max_restarts,
    )


def _clean(text: str) -> str:
    """The text with every lone surrogate replaced, since UTF-8 has no bytes for one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _head(text: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """The beginning of a text, at most ``limit`` bytes of UTF-8."""
    return _clean(text[:limit]).encode()[:limit].decode(errors="ignore")


def _tail(text: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """The end of a text, at most ``limit`` bytes of UTF-8: a traceback's end says what happened."""
    return _clean(text[-limit:]).encode()[-limit:].decode(errors="ignore")


# Decoding


def decode_agent(data: bytes) -> AgentMessage:
    """The agent's message in ``data``; raises ProtocolError."""
    message = pb.AgentMessage()
    _parse(message, data)
    match message.WhichOneof("kind"):
        case "hello":
            return _hello(message.hello)
        case "report":
            report = message.report
            _present(report, "status")
            return Report(checks.name("incarnation", report.incarnation), _status(report.status))
        case "heartbeat":
            return Heartbeat(checks.name("incarnation", message.heartbeat.incarnation))
        case "leave":
            leave = message.leave
            return Leave(checks.name("incarnation", leave.incarnation), checks.text("reason", leave.reason))
        case _:
            raise ProtocolError("the message is of no kind that this version knows")


def decode_master(data: bytes) -> MasterMessage:
    """The master's message in ``data``; raises ProtocolError."""
    message = pb.MasterMessage()
    _parse(message, data)
    match message.WhichOneof("kind"):
        case "welcome":
            welcome = message.welcome
            interval = checks.positive("heartbeat_interval", welcome.heartbeat_interval)
            return Welcome(_epoch(welcome.epoch), interval)
        case "rejected":
            code = _member("code", _CODE_OF, message.rejected.code)
            return Rejected(code, checks.text("message", message.rejected.message))
        case "start_round":
            return _start(message.start_round)
        case "stop_round":
            return _stop(message.stop_round)
        case "waiting":
            waiting = message.waiting
            return Waiting(_epoch(waiting.epoch), checks.text("text", waiting.text))
        case "job_ended":
            return _ended(message.job_ended)
        case _:
            raise ProtocolError("the message is of no kind that this version knows")


def version_in(data: bytes) -> str | None:
    """The version that a Hello claims, even if the rest of it means nothing to us; None if it is no Hello.

    Lets a master answer an agent of a later version with "wrong version" instead of "malformed".
    """
    message = pb.AgentMessage()
    try:
        _parse(message, data)
    except ProtocolError:
        return None
    return message.hello.version[: checks.MAX_NAME] or None


def _parse(message: Message, data: bytes) -> None:
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message must have at most {MAX_MESSAGE_BYTES} bytes, got {len(data)}")
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ProtocolError(f"{len(data)} bytes are not a message of the elasticrun protocol") from None


def _hello(hello: pb.Hello) -> Hello:
    _present(hello, "info")
    _present(hello, "status")
    return Hello(
        # Empty is a job id like any other: `--rdzv-id "$UNSET"` works with torchrun.
        job_id=checks.text("job_id", hello.job_id, checks.MAX_NAME),
        version=checks.name("version", hello.version),
        info=_info(hello.info),
        status=_status(hello.status),
        epoch=checks.integer("epoch", hello.epoch, -1),
    )


def _info(info: pb.NodeInfo) -> NodeInfo:
    node_rank = checks.integer("node_rank", info.node_rank, 0) if info.HasField("node_rank") else None
    return NodeInfo(
        node=checks.name("node", info.node),
        incarnation=checks.name("incarnation", info.incarnation),
        host=checks.name("host", info.host),
        address=checks.name("address", info.address),
        local_world_size=checks.integer("local_world_size", info.local_world_size, 1),
        role=checks.name("role", info.role),
        node_rank=node_rank,
        pid=checks.integer("pid", info.pid, 0),
    )


def _status(status: pb.AgentStatus) -> AgentStatus:
    return AgentStatus(
        sequence=checks.integer("sequence", status.sequence, 0),
        phase=_member("phase", _PHASE_OF, status.phase),
        round=checks.integer("round", status.round, -1),
        failures=_failures(status.failures),
        store_port=checks.port("store_port", status.store_port),
    )


def _failures(failures: Iterable[pb.Failure]) -> tuple[Failure, ...]:
    decoded = tuple(_failure(failure) for failure in failures)
    if len(decoded) > MAX_FAILURES:
        raise ProtocolError(f"failures must be at most {MAX_FAILURES}, got {len(decoded)}")
    return decoded


def _failure(failure: pb.Failure) -> Failure:
    return Failure(
        node=checks.name("failure.node", failure.node),
        host=checks.name("failure.host", failure.host),
        rank=checks.integer("failure.rank", failure.rank, 0),
        local_rank=checks.integer("failure.local_rank", failure.local_rank, 0),
        role=checks.name("failure.role", failure.role),
        pid=checks.integer("failure.pid", failure.pid, 0),
        kind=_member("failure.kind", _KIND_OF, failure.kind),
        exit_code=failure.exit_code,
        message=checks.text("failure.message", failure.message),
        traceback=checks.text("failure.traceback", failure.traceback),
        stderr_tail=checks.text("failure.stderr_tail", failure.stderr_tail),
        error_file=checks.text("failure.error_file", failure.error_file, checks.MAX_PATH),
        timestamp=checks.finite("failure.timestamp", failure.timestamp),
    )


def _start(start: pb.StartRound) -> StartRound:
    _present(start, "assignment")
    return StartRound(
        _epoch(start.epoch),
        checks.integer("sequence", start.sequence, 0),
        _assignment(start.assignment),
        checks.text("reason", start.reason),
    )


def _stop(stop: pb.StopRound) -> StopRound:
    return StopRound(
        _epoch(stop.epoch),
        checks.integer("sequence", stop.sequence, 0),
        checks.integer("round", stop.round, -1),
        checks.text("reason", stop.reason),
    )


def _ended(ended: pb.JobEnded) -> JobEnded:
    return JobEnded(
        _epoch(ended.epoch),
        checks.integer("sequence", ended.sequence, 0),
        _member("outcome", _OUTCOME_OF, ended.outcome),
        checks.text("reason", ended.reason),
        _failures(ended.failures),
    )


def _assignment(given: pb.Assignment) -> Assignment:
    return Assignment(
        round=checks.integer("round", given.round, 0),
        group_rank=checks.rank("group_rank", given.group_rank, given.group_world_size),
        group_world_size=checks.integer("group_world_size", given.group_world_size, 1, given.world_size),
        first_rank=checks.rank("first_rank", given.first_rank, given.world_size),
        world_size=checks.integer("world_size", given.world_size, 1),
        role_first_rank=checks.rank("role_first_rank", given.role_first_rank, given.role_world_size),
        role_world_size=checks.integer("role_world_size", given.role_world_size, 1, given.world_size),
        store_address=checks.name("store_address", given.store_address),
        store_port=checks.port("store_port", given.store_port),
        restart_count=checks.integer("restart_count", given.restart_count, 0),
        max_restarts=checks.integer("max_restarts", given.max_restarts, 0),
    )


def _epoch(epoch: int) -> int:
    return checks.integer("epoch", epoch, 0)


def _member(field: str, table: Mapping[int, _E], number: int) -> _E:
    member = table.get(number)
    if member is None:
        raise ProtocolError(f"{field} has the value {number}, which this version does not know")
    return member


def _present(message: Message, field: str) -> None:
    if not message.HasField(field):
        raise ProtocolError(f"{field} is missing")
