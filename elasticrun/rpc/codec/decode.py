"""Bytes to values; see the package."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError, Message

from elasticrun.core import bounds
from elasticrun.core.protocol import (
    MAX_CHECKS,
    MAX_GROUP_NODES,
    MAX_GROUPS,
    MAX_ROLL,
    MAX_SEATS,
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Assignment,
    Charter,
    Evidence,
    GroupReport,
    Heartbeat,
    Hello,
    JobEnded,
    JournalCopy,
    Leave,
    MasterMessage,
    NodeCheck,
    NodeInfo,
    Outcome,
    ProbeGroup,
    ProbeReport,
    RejectCode,
    Rejected,
    Report,
    SaveStacks,
    Seat,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    Waiting,
    Welcome,
    World,
)
from elasticrun.errors import ProtocolError
from elasticrun.rpc import checks
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.checks import MAX_MESSAGE_BYTES
from elasticrun.rpc.codec import tasks
from elasticrun.rpc.codec.failures import failures_in
from elasticrun.rpc.codec.parts import few, member

_PHASE_OF = {pb.AgentPhase.Value(f"AGENT_PHASE_{phase.name}"): phase for phase in AgentPhase}
_EVIDENCE_OF = {
    pb.Evidence.Value(f"EVIDENCE_{evidence.name}"): evidence
    for evidence in Evidence
    if evidence is not Evidence.NONE
}
_OUTCOME_OF = {pb.Outcome.Value(f"OUTCOME_{outcome.name}"): outcome for outcome in Outcome}
_CODE_OF = {pb.RejectCode.Value(f"REJECT_CODE_{code.name}"): code for code in RejectCode}
UNKNOWN = "the message is of no kind that this version knows"


def decode_agent(data: bytes) -> AgentMessage:
    """The agent's message in ``data``; raises ProtocolError."""
    message = pb.AgentMessage()
    parse(message, data)
    match message.WhichOneof("kind"):
        case "hello":
            return _hello(message.hello)
        case "report":
            report = message.report
            _present(report, "status")
            return Report(checks.name("incarnation", report.incarnation), _status(report.status))
        case "heartbeat":
            beat = message.heartbeat
            return Heartbeat(checks.name("incarnation", beat.incarnation), tasks.usage_in(beat.usage))
        case "leave":
            leave = message.leave
            return Leave(checks.name("incarnation", leave.incarnation), checks.text("reason", leave.reason))
        case _:
            raise ProtocolError(UNKNOWN)


def decode_master(data: bytes) -> tuple[MasterMessage, ...]:
    """The master's messages in ``data``, in order, at least one; raises ProtocolError."""
    message = pb.MasterMessage()
    parse(message, data)
    return (_master(message), *map(_master, message.more))


def _master(message: pb.MasterMessage) -> MasterMessage:
    match message.WhichOneof("kind"):
        case "welcome":
            return _welcome(message.welcome)
        case "rejected":
            rejected = message.rejected
            code, text = member("code", _CODE_OF, rejected.code), checks.text("message", rejected.message)
            return Rejected(code, text, token("proof", rejected.proof))
        case "start_round":
            return _start(message.start_round)
        case "stop_round":
            return _stop(message.stop_round)
        case "start_probe":
            return _start_probe(message.start_probe)
        case "save_stacks":
            return SaveStacks(_epoch(message.save_stacks.epoch))
        case "journal_copy":
            copy = message.journal_copy
            first = checks.integer("first", copy.first, 0)
            whole = checks.integer("whole", copy.whole, 0)
            return JournalCopy(_epoch(copy.epoch), first, tuple(copy.lines), whole)
        case "waiting":
            waiting = message.waiting
            return Waiting(_epoch(waiting.epoch), checks.text("text", waiting.text))
        case "job_ended":
            return _ended(message.job_ended)
        case _:
            raise ProtocolError(UNKNOWN)


def _welcome(welcome: pb.Welcome) -> Welcome:
    return Welcome(
        epoch=_epoch(welcome.epoch),
        heartbeat_interval=checks.positive("heartbeat_interval", welcome.heartbeat_interval),
        ticket=token("ticket", welcome.ticket),
        returning=token("returning", welcome.returning),
        key=token("key", welcome.key),
    )


def version_in(data: bytes) -> str | None:
    """The version that a Hello claims, even if the rest of it means nothing to us; None if it is no Hello.

    Lets a master answer an agent of a later version with "wrong version" instead of "malformed".
    """
    message = pb.AgentMessage()
    try:
        parse(message, data)
    except ProtocolError:
        return None
    return message.hello.version[: checks.MAX_NAME] or None


def parse(message: Message, data: bytes) -> None:
    """Fill ``message`` from bytes; raises ProtocolError."""
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
        epoch=checks.within("epoch", hello.epoch, bounds.EPOCHS_HEARD),
        nonce=token("nonce", hello.nonce),
        proof=token("proof", hello.proof),
    )


def _info(info: pb.NodeInfo) -> NodeInfo:
    node_rank = (
        checks.within("node_rank", info.node_rank, bounds.RANKS) if info.HasField("node_rank") else None
    )
    position = info.position if info.HasField("position") else -1
    return NodeInfo(
        node=checks.name("node", info.node),
        incarnation=checks.name("incarnation", info.incarnation),
        host=checks.name("host", info.host),
        address=checks.address("address", info.address),
        local_world_size=checks.within("local_world_size", info.local_world_size, bounds.LOCAL_SIZES),
        role=checks.name("role", info.role),
        node_rank=node_rank,
        pid=checks.within("pid", info.pid, bounds.PIDS),
        position=checks.within("position", position, bounds.POSITIONS),
        roles=tasks.roles_in(info.roles),
        program=checks.text("program", info.program, checks.MAX_SENTENCE),
        min_nodes=checks.within("min_nodes", info.min_nodes, bounds.COUNTS),
        max_nodes=checks.within("max_nodes", info.max_nodes, bounds.COUNTS),
    )


def _status(status: pb.AgentStatus) -> AgentStatus:
    failures = failures_in(status.failures)
    seats = few("seats", MAX_SEATS, map(_seat, status.seats))
    if any(seat.world.round > status.round for seat in seats):
        raise ProtocolError(f"seats must be of rounds up to {status.round}, the last that was accepted")
    return AgentStatus(
        sequence=checks.within("sequence", status.sequence, bounds.SEQUENCES),
        phase=member("phase", _PHASE_OF, status.phase),
        round=checks.within("round", status.round, bounds.ROUNDS_HEARD),
        failures=failures,
        store_port=checks.port("store_port", status.store_port),
        probe=_probe(status.probe) if status.HasField("probe") else None,
        stall=_stall(status.stall) if status.HasField("stall") else None,
        seats=seats,
        warming=status.warming,
        ports=tasks.ports_in(status.ports),
        tasks=tasks.reports_in(status.tasks, failures),
        hosts_store=status.hosts_store,
    )


def _probe(probe: pb.ProbeReport) -> ProbeReport:
    return ProbeReport(
        check=checks.within("probe.check", probe.check, bounds.CHECKS),
        error=checks.text("probe.error", probe.error),
        matmul_flops=checks.within("probe.matmul_flops", probe.matmul_flops, bounds.RATES),
        groups=few("probe.groups", MAX_GROUPS, map(_group_report, probe.groups)),
        engine=checks.text("probe.engine", probe.engine, checks.MAX_SENTENCE),
    )


def _group_report(group: pb.GroupReport) -> GroupReport:
    return GroupReport(
        error=checks.text("group.error", group.error, checks.MAX_SENTENCE),
        bandwidth=checks.within("group.bandwidth", group.bandwidth, bounds.RATES),
        latency=checks.within("group.latency", group.latency, bounds.SECONDS),
        transport=checks.text("group.transport", group.transport, checks.MAX_SENTENCE),
    )


def _stall(stall: pb.Stall) -> Stall:
    return Stall(
        rank=checks.within("stall.rank", stall.rank, bounds.RANKS),
        local_rank=checks.within("stall.local_rank", stall.local_rank, bounds.RANKS),
        step=checks.within("stall.step", stall.step, bounds.STEPS),
        silence=checks.within("stall.silence", stall.silence, bounds.SECONDS),
        allowed=checks.within("stall.allowed", stall.allowed, bounds.SECONDS),
        in_collective=stall.in_collective,
        where=checks.text("stall.where", stall.where, checks.MAX_SENTENCE),
        stacks=checks.text("stall.stacks", stall.stacks, checks.MAX_PATH),
        timestamp=checks.within("stall.timestamp", stall.timestamp, bounds.TIMESTAMPS),
        evidence=_EVIDENCE_OF.get(stall.evidence, Evidence.NONE),  # of a kind that is not known: none
        lasting=checks.within("stall.lasting", stall.lasting, bounds.SECONDS),
        doubt=checks.text("stall.doubt", stall.doubt, checks.MAX_SENTENCE),
    )


def _seat(seat: pb.Seat) -> Seat:
    world, base = _world(seat.world), _world(seat.base) if seat.HasField("base") else None
    if base is not None and base.round > world.round:
        raise ProtocolError(f"seats must have an older base: round {world.round} has {base.round}")
    return Seat(world, base, _roll(seat.roll))


def _roll(roll: Iterable[str]) -> tuple[str, ...]:
    return few("roll", MAX_ROLL, (checks.name("roll", name) for name in roll))


def _world(world: pb.World) -> World:
    return World(
        round=checks.within("world.round", world.round, bounds.ROUNDS),
        epoch=checks.within("world.epoch", world.epoch, bounds.EPOCHS),
        size=checks.within("world.size", world.size, bounds.WORLD_SIZES),
    )


def _charter(charter: pb.Charter) -> Charter:
    return Charter(
        world=_world(charter.world),
        base=_world(charter.base) if charter.HasField("base") else None,
        prior=_world(charter.prior) if charter.HasField("prior") else None,
        roll=_roll(charter.roll),
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
        stop.drain,
    )


def _start_probe(start: pb.StartProbe) -> StartProbe:
    return StartProbe(
        _epoch(start.epoch),
        checks.integer("sequence", start.sequence, 0),
        checks.integer("check", start.check, 0),
        few("groups", MAX_GROUPS, map(_group, start.groups)),
        checks.integer("slots", start.slots, 0),
        checks.positive("timeout", start.timeout),
        token("secret", start.secret),
    )


def _group(group: pb.ProbeGroup) -> ProbeGroup:
    nodes = few("group.nodes", MAX_GROUP_NODES, (checks.name("group.node", node) for node in group.nodes))
    return ProbeGroup(
        slot=checks.integer("group.slot", group.slot, 0),
        rank=checks.rank("group.rank", group.rank, len(nodes)),
        nodes=nodes,
        address=checks.name("group.address", group.address),
        port=checks.port("group.port", group.port),
    )


def _ended(ended: pb.JobEnded) -> JobEnded:
    return JobEnded(
        _epoch(ended.epoch),
        checks.integer("sequence", ended.sequence, 0),
        member("outcome", _OUTCOME_OF, ended.outcome),
        checks.text("reason", ended.reason),
        failures_in(ended.failures),
        few("checkup", MAX_CHECKS, map(_check, ended.checkup)),
        checks.text("other_program", ended.other_program, checks.MAX_SENTENCE),
    )


def _check(check: pb.NodeCheck) -> NodeCheck:
    return NodeCheck(
        node=checks.name("check.node", check.node),
        matmul_flops=checks.measure("check.matmul_flops", check.matmul_flops),
        bandwidth=checks.measure("check.bandwidth", check.bandwidth),
        latency=checks.measure("check.latency", check.latency),
        verdict=checks.text("check.verdict", check.verdict, checks.MAX_SENTENCE),
        detail=checks.text("check.detail", check.detail, checks.MAX_SENTENCE),
        engine=checks.text("check.engine", check.engine, checks.MAX_SENTENCE),
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
        charter=_charter(given.charter) if given.HasField("charter") else None,
        tasks=tasks.tasks_in(given.tasks),
        cluster=tasks.cluster_in(given.cluster),
        tag=checks.text("tag", given.tag, checks.MAX_NAME),
        store_hosted=given.store_hosted,
    )


def _epoch(epoch: int) -> int:
    return checks.within("epoch", epoch, bounds.EPOCHS)


def token(field: str, value: bytes) -> bytes:
    """A nonce or a proof; raises ProtocolError if it is too long."""
    if len(value) > checks.MAX_TOKEN:
        raise ProtocolError(f"{field} must have at most {checks.MAX_TOKEN} bytes, got {len(value)}")
    return value


def _present(message: Message, field: str) -> None:
    if not message.HasField(field):
        raise ProtocolError(f"{field} is missing")
