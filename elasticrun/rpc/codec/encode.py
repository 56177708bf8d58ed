"""Values to bytes; see the package."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from elasticrun.core import bounds
from elasticrun.core.protocol import (
    MAX_CHECKS,
    MAX_ROLL,
    MAX_SEATS,
    AgentMessage,
    AgentStatus,
    Assignment,
    Charter,
    Evidence,
    Heartbeat,
    Hello,
    JobEnded,
    JournalCopy,
    Leave,
    MasterMessage,
    NodeCheck,
    ProbeGroup,
    ProbeReport,
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
from elasticrun.core.tasks import MAX_PORTS
from elasticrun.rpc import checks
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec import tasks
from elasticrun.rpc.codec.failures import failures_to_pb
from elasticrun.rpc.codec.parts import finite
from elasticrun.rpc.text import clean, head, tail

#: The master's last message, in which there is nothing to decode; see elastic.proto.
GOODBYE = pb.MasterMessage(goodbye=pb.Goodbye()).SerializeToString()
#: What stands before the length of each message in the field ``more``: its number, and that a length follows.
_MORE = bytes((pb.MasterMessage.MORE_FIELD_NUMBER << 3 | 2,))
#: Bytes that a message costs at most, beside its own, if it is joined to others.
JOINT = 5


def encode_agent(message: AgentMessage) -> bytes:
    """The bytes of an agent's message."""
    return _agent_to_pb(message).SerializeToString()


def encode_master(message: MasterMessage) -> bytes:
    """The bytes of a master's message."""
    if isinstance(message, Waiting | SaveStacks | StopRound | JobEnded):
        return _encode_for_all(message)
    return _master_to_pb(message).SerializeToString()


@lru_cache(maxsize=1)
def _encode_for_all(message: Waiting | SaveStacks | StopRound | JobEnded) -> bytes:
    """What thousands of agents are told alike is encoded once."""
    return _master_to_pb(message).SerializeToString()


def join_master(first: bytes, more: Iterable[bytes]) -> bytes:
    """One message of the wire that says what encoded messages of the master say, in order."""
    # Protobuf takes fields in any order, so what is appended is the field ``more`` of the first message.
    return b"".join((first, *(part for data in more for part in (_MORE, _varint(len(data)), data))))


def _varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _agent_to_pb(message: AgentMessage) -> pb.AgentMessage:
    match message:
        case Hello():
            return pb.AgentMessage(hello=_hello_to_pb(message))
        case Report(incarnation, status):
            report = pb.Report(incarnation=clean(incarnation), status=_status_to_pb(status))
            return pb.AgentMessage(report=report)
        case Heartbeat(incarnation, usage):
            beat = pb.Heartbeat(incarnation=clean(incarnation), usage=tasks.usage_to_pb(usage))
            return pb.AgentMessage(heartbeat=beat)
        case Leave(incarnation, reason):
            return pb.AgentMessage(leave=pb.Leave(incarnation=clean(incarnation), reason=head(reason)))


def _hello_to_pb(hello: Hello) -> pb.Hello:
    info = hello.info
    return pb.Hello(
        job_id=clean(hello.job_id),
        version=clean(hello.version),
        info=pb.NodeInfo(
            node=clean(info.node),
            incarnation=clean(info.incarnation),
            host=clean(info.host),
            address=clean(info.address),
            local_world_size=info.local_world_size,
            role=clean(info.role),
            node_rank=info.node_rank,
            pid=info.pid,
            position=info.position if info.position >= 0 else None,
            roles=map(tasks.role_to_pb, info.roles),
            program=tail(info.program, checks.MAX_SENTENCE),
            min_nodes=info.min_nodes,
            max_nodes=info.max_nodes,
        ),
        status=_status_to_pb(hello.status),
        epoch=hello.epoch,
        nonce=hello.nonce,
        proof=hello.proof,
    )


def _status_to_pb(status: AgentStatus) -> pb.AgentStatus:
    return pb.AgentStatus(
        sequence=status.sequence,
        phase=f"AGENT_PHASE_{status.phase.name}",
        round=status.round,
        failures=failures_to_pb(status.failures),
        store_port=status.store_port,
        probe=None if status.probe is None else _probe_to_pb(status.probe),
        stall=None if status.stall is None else _stall_to_pb(status.stall),
        seats=[_seat_to_pb(seat) for seat in status.seats[-MAX_SEATS:]],
        warming=status.warming,
        ports=status.ports[:MAX_PORTS],
        tasks=tasks.reports_to_pb(status.tasks, status.failures),
        hosts_store=status.hosts_store,
    )


def _probe_to_pb(probe: ProbeReport) -> pb.ProbeReport:
    groups = [
        pb.GroupReport(
            error=head(group.error, checks.MAX_SENTENCE),
            bandwidth=bounds.RATES.clip(group.bandwidth),
            latency=bounds.SECONDS.clip(group.latency),
            transport=head(group.transport, checks.MAX_SENTENCE),
        )
        for group in probe.groups
    ]
    return pb.ProbeReport(
        check=probe.check,
        error=head(probe.error),
        matmul_flops=bounds.RATES.clip(probe.matmul_flops),
        groups=groups,
        engine=head(probe.engine, checks.MAX_SENTENCE),
    )


def _stall_to_pb(stall: Stall) -> pb.Stall:
    return pb.Stall(
        rank=stall.rank,
        local_rank=stall.local_rank,
        step=bounds.STEPS.clip(stall.step),
        silence=bounds.SECONDS.clip(stall.silence),
        allowed=bounds.SECONDS.clip(stall.allowed),
        in_collective=stall.in_collective,
        where=head(stall.where, checks.MAX_SENTENCE),
        stacks=tail(stall.stacks, checks.MAX_PATH),
        timestamp=bounds.TIMESTAMPS.clip(stall.timestamp),
        evidence=None if stall.evidence is Evidence.NONE else f"EVIDENCE_{stall.evidence.name}",
        lasting=bounds.SECONDS.clip(stall.lasting),
        doubt=head(stall.doubt, checks.MAX_SENTENCE),
    )


def _seat_to_pb(seat: Seat) -> pb.Seat:
    roll = map(clean, seat.roll[:MAX_ROLL])
    return pb.Seat(world=_world_to_pb(seat.world), base=_world_to_pb(seat.base), roll=roll)


def _world_to_pb(world: World | None) -> pb.World | None:
    return None if world is None else pb.World(round=world.round, epoch=world.epoch, size=world.size)


def _charter_to_pb(charter: Charter | None) -> pb.Charter | None:
    if charter is None:
        return None
    return pb.Charter(
        world=_world_to_pb(charter.world),
        base=_world_to_pb(charter.base),
        prior=_world_to_pb(charter.prior),
        roll=map(clean, charter.roll[:MAX_ROLL]),
    )


def _master_to_pb(message: MasterMessage) -> pb.MasterMessage:
    match message:
        case Welcome():
            return pb.MasterMessage(welcome=_welcome_to_pb(message))
        case Rejected(code, text, proof):
            rejected = pb.Rejected(code=f"REJECT_CODE_{code.name}", message=head(text), proof=proof)
            return pb.MasterMessage(rejected=rejected)
        case StartRound(epoch, sequence, assignment, reason):
            start = pb.StartRound(
                epoch=epoch, sequence=sequence, assignment=_assignment_to_pb(assignment), reason=head(reason)
            )
            return pb.MasterMessage(start_round=start)
        case StopRound(epoch, sequence, number, reason, drain):
            stop = pb.StopRound(
                epoch=epoch, sequence=sequence, round=number, reason=head(reason), drain=drain
            )
            return pb.MasterMessage(stop_round=stop)
        case StartProbe():
            return pb.MasterMessage(start_probe=_start_probe_to_pb(message))
        case SaveStacks(epoch):
            return pb.MasterMessage(save_stacks=pb.SaveStacks(epoch=epoch))
        case JournalCopy(epoch, first, lines, whole):
            copy = pb.JournalCopy(epoch=epoch, first=first, lines=map(clean, lines), whole=whole)
            return pb.MasterMessage(journal_copy=copy)
        case Waiting(epoch, text):
            return pb.MasterMessage(waiting=pb.Waiting(epoch=epoch, text=head(text)))
        case JobEnded():
            return pb.MasterMessage(job_ended=_ended_to_pb(message))


def _welcome_to_pb(welcome: Welcome) -> pb.Welcome:
    return pb.Welcome(
        epoch=welcome.epoch,
        heartbeat_interval=welcome.heartbeat_interval,
        ticket=welcome.ticket,
        returning=welcome.returning,
        key=welcome.key,
    )


def _ended_to_pb(ended: JobEnded) -> pb.JobEnded:
    return pb.JobEnded(
        epoch=ended.epoch,
        sequence=ended.sequence,
        outcome=f"OUTCOME_{ended.outcome.name}",
        reason=head(ended.reason),
        failures=failures_to_pb(ended.failures),
        checkup=[_check_to_pb(check) for check in ended.checkup[:MAX_CHECKS]],
        other_program=head(ended.other_program, checks.MAX_SENTENCE),
    )


def _check_to_pb(check: NodeCheck) -> pb.NodeCheck:
    return pb.NodeCheck(
        node=head(check.node, checks.MAX_SENTENCE),
        matmul_flops=finite(check.matmul_flops),
        bandwidth=finite(check.bandwidth),
        latency=finite(check.latency),
        verdict=head(check.verdict, checks.MAX_SENTENCE),
        detail=head(check.detail, checks.MAX_SENTENCE),
        engine=head(check.engine, checks.MAX_SENTENCE),
    )


def _start_probe_to_pb(start: StartProbe) -> pb.StartProbe:
    return pb.StartProbe(
        epoch=start.epoch,
        sequence=start.sequence,
        check=start.check,
        groups=[_group_to_pb(group) for group in start.groups],
        slots=start.slots,
        timeout=start.timeout,
        secret=start.secret,
    )


def _group_to_pb(group: ProbeGroup) -> pb.ProbeGroup:
    nodes = [clean(node) for node in group.nodes]
    address = clean(group.address)
    return pb.ProbeGroup(slot=group.slot, rank=group.rank, nodes=nodes, address=address, port=group.port)


def _assignment_to_pb(assignment: Assignment) -> pb.Assignment:
    return pb.Assignment(
        round=assignment.round,
        group_rank=assignment.group_rank,
        group_world_size=assignment.group_world_size,
        first_rank=assignment.first_rank,
        world_size=assignment.world_size,
        role_first_rank=assignment.role_first_rank,
        role_world_size=assignment.role_world_size,
        store_address=clean(assignment.store_address),
        store_port=assignment.store_port,
        restart_count=assignment.restart_count,
        max_restarts=assignment.max_restarts,
        charter=_charter_to_pb(assignment.charter),
        tasks=tasks.tasks_to_pb(assignment.tasks),
        cluster=tasks.cluster_to_pb(assignment.cluster),
        tag=clean(assignment.tag),
        store_hosted=assignment.store_hosted,
    )
