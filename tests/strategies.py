"""Hypothesis strategies for the values of core/protocol, within the ranges that the wire allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from elasticrun.config import TaskRole
from elasticrun.core.protocol.commits import MAX_HOLDINGS, MAX_PARTS, Part
from elasticrun.core.protocol.data import (
    AskData,
    DataAnswer,
    DataLeft,
    DataReader,
    FailedPiece,
    OpenData,
    ShardFault,
    ShardLease,
    ShardPiece,
    ShardProgress,
)
from elasticrun.core.protocol.messages import (
    MAX_FAILURES,
    MAX_NAMED_MEMBERS,
    MAX_VOTES,
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Assignment,
    CommitId,
    Evidence,
    Failure,
    FailureKind,
    GroupReport,
    Heartbeat,
    Hello,
    Holding,
    JobEnded,
    JournalCopy,
    JudgeCommits,
    Leave,
    MasterMessage,
    NodeCheck,
    NodeInfo,
    Outcome,
    ProbeGroup,
    ProbeReport,
    Proposal,
    RejectCode,
    Rejected,
    Report,
    SaveStacks,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    StoreOrder,
    StoreReport,
    Vote,
    Waiting,
    Welcome,
    World,
    WriteState,
)
from elasticrun.core.protocol.questions import (
    AskNode,
    LogPiece,
    LogPlace,
    LogQuestion,
    LogStream,
    NodeAnswer,
    RankAnswer,
)
from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures, Reached, RoundProgress, StepTimes
from elasticrun.core.protocol.storing import MAX_RUN, StorePart, StoreStage
from elasticrun.core.protocol.tasks import MAX_PORTS, MAX_TASKS, Task, TaskReport
from elasticrun.core.protocol.usage import TaskUsage

names = st.text(min_size=1, max_size=30)
texts = st.text(max_size=200)
counts = st.integers(0, 2**30)
ports = st.integers(0, 65535)
numbers = st.integers(0, 2**53)  # sequences, rounds, epochs
seconds = st.floats(min_value=0.001, max_value=1e9)
measures = st.floats(min_value=0.0, max_value=1e9)
tokens = st.binary(max_size=64)


def _from_minus_one(highest: int = 2**53) -> st.SearchStrategy[int]:
    return st.integers(-1, highest)


failures = st.builds(
    Failure,
    node=names,
    host=names,
    rank=counts,
    local_rank=counts,
    role=names,
    pid=counts,
    kind=st.sampled_from(FailureKind),
    exit_code=st.integers(-(2**31), 2**31 - 1),
    message=texts,
    traceback=texts,
    stderr_tail=texts,
    error_file=texts,
    timestamp=st.floats(min_value=0.0, max_value=1e11),
    step=_from_minus_one(),
    oom_kills=counts,
    host_oom=st.booleans(),
    kernel_log=texts,
    stacks=texts,
)
failure_tuples = st.lists(failures, max_size=3).map(tuple) | st.tuples(*[failures] * MAX_FAILURES)

roles = st.sampled_from(TaskRole)
node_infos = st.builds(
    NodeInfo,
    node=names,
    incarnation=names,
    host=names,
    address=names,
    local_world_size=st.integers(1, 2**14),
    role=names,
    node_rank=st.none() | counts,
    pid=counts,
    position=_from_minus_one(2**10),
    roles=st.lists(roles, max_size=5).map(tuple) | st.builds(lambda role: (role,) * MAX_TASKS, roles),
    program=st.just("") | names.map(lambda name: name[:100]),
    min_nodes=st.integers(0, 2**30),
    max_nodes=st.integers(0, 2**30),
)
probes = st.builds(
    ProbeReport,
    check=numbers,
    error=texts,
    matmul_flops=measures,
    groups=st.lists(
        st.builds(GroupReport, error=texts, bandwidth=measures, latency=measures, transport=texts), max_size=3
    ).map(tuple),
    engine=texts,
)
stalls = st.builds(
    Stall,
    rank=counts,
    local_rank=counts,
    step=_from_minus_one(),
    silence=measures,
    allowed=measures,
    in_collective=st.booleans(),
    where=texts,
    stacks=texts,
    timestamp=st.floats(min_value=0.0, max_value=1e11),
    evidence=st.sampled_from(Evidence),
    lasting=measures,
    doubt=texts,
)


worlds = st.builds(World, round=numbers, epoch=numbers, size=st.integers(1, 10_000))
rolls = st.lists(names, max_size=3).map(tuple) | st.tuples(*[names] * MAX_NAMED_MEMBERS)


@st.composite
def _votes(draw: st.DrawFn) -> Vote:
    """A vote, whose base is older."""
    world, base = draw(worlds), draw(st.none() | worlds)
    if base is not None:
        base = replace(base, round=min(base.round, world.round))
    return Vote(world, base, draw(rolls))


votes = _votes()
proposals = st.builds(Proposal, worlds, st.none() | worlds, st.none() | worlds, rolls)


used_ports = st.integers(1, 65535)
tasks = st.builds(
    Task, local_rank=counts, role=roles, index=counts, attempt=numbers, port=ports, saves=st.booleans()
)
usages = st.builds(
    TaskUsage,
    local_rank=counts,
    cpu=st.none() | measures,
    memory=st.none() | numbers,
    step=st.none() | numbers,
    step_rate=st.none() | measures,
    graph_time=st.none() | measures,
)
task_reports = st.builds(
    TaskReport, local_rank=counts, attempt=numbers, ended=st.booleans(), failure=st.none() | failures
)


def _some_of(each: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """A few of them, or as many as there may be; no two have the same local rank."""
    few = st.lists(each, max_size=3, unique_by=lambda one: one.local_rank).map(tuple)
    return few | each.map(lambda one: tuple(replace(one, local_rank=rank) for rank in range(MAX_TASKS)))


def _carried(reports: tuple[TaskReport, ...], beside: int) -> tuple[TaskReport, ...]:
    """The reports without the failures that a status with others has no room for; those arrive abridged."""
    room = MAX_FAILURES - beside
    failed = [report.local_rank for report in reports if report.failure is not None]
    return tuple(
        replace(report, failure=None) if report.local_rank in failed[room:] else report for report in reports
    )


commit_ids = st.builds(CommitId, round=numbers, step=numbers)


@st.composite
def holdings(draw: st.DrawFn) -> Holding:
    """What a node has in memory of one commit."""
    size = draw(st.integers(1, 1000))
    ranks = draw(st.sets(st.integers(0, size - 1), max_size=MAX_PARTS))
    digests = st.text("0123456789abcdef", max_size=64)
    parts = tuple(Part(rank, draw(digests), draw(st.booleans()), draw(digests)) for rank in ranks)
    return Holding(draw(commit_ids), size, parts)


store_reports = st.builds(
    StoreReport,
    number=numbers,
    run=st.text("0123456789abcdef", max_size=MAX_RUN),
    stage=st.sampled_from(StoreStage),
    reason=st.just("") | names.map(lambda name: name[:100]),
)
store_orders = st.builds(
    StoreOrder,
    number=numbers,
    run=st.text("0123456789abcdef", max_size=MAX_RUN),
    commit=commit_ids,
    parts=st.lists(
        st.builds(
            StorePart,
            group_rank=counts,
            number=counts,
            which=st.integers(0, 7),
            of=st.integers(1, 8),
        ),
        max_size=MAX_PARTS,
    ).map(tuple),
    files=st.integers(1, 2**20),
    partial=st.booleans(),
    urgent=st.booleans(),
)


@st.composite
def _statuses(draw: st.DrawFn) -> AgentStatus:
    """All that the master needs to know of an agent's workers."""
    failed = draw(failure_tuples)
    held = draw(st.lists(votes, max_size=3).map(tuple) | votes.map(lambda vote: (vote,) * MAX_VOTES))
    states = draw(st.lists(holdings(), max_size=MAX_HOLDINGS, unique_by=lambda one: one.commit).map(tuple))
    return AgentStatus(
        sequence=draw(numbers),
        phase=draw(st.sampled_from(AgentPhase)),
        round=max(
            [
                draw(_from_minus_one()),
                *(vote.world.round for vote in held),
                *(holding.commit.round for holding in states),
            ]
        ),
        failures=failed,
        store_port=draw(ports),
        probe=draw(st.none() | probes),
        stall=draw(st.none() | stalls),
        votes=held,
        warming=draw(st.booleans()),
        ports=draw(
            st.lists(used_ports, max_size=3).map(tuple) | used_ports.map(lambda port: (port,) * MAX_PORTS)
        ),
        tasks=_carried(draw(_some_of(task_reports)), len(failed)),
        hosts_store=draw(st.booleans()),
        holdings=states,
        stored=draw(st.none() | store_reports),
        leaving=draw(st.just("") | names.map(lambda name: name[:100])),
    )


statuses = _statuses()


addresses = st.builds(lambda host, port: f"{host}:{port}", names, used_ports)
clusters = st.dictionaries(roles, st.lists(addresses, max_size=3).map(tuple)).map(
    lambda found: tuple(found.items())
)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    """An agent's place in a world that is possible."""
    nodes = draw(st.integers(1, 10_000))
    world_size = draw(st.integers(nodes, nodes * 100))
    role_world_size = draw(st.integers(1, world_size))
    return Assignment(
        round=draw(numbers),
        group_rank=draw(st.integers(0, nodes - 1)),
        group_world_size=nodes,
        first_rank=draw(st.integers(0, world_size - 1)),
        world_size=world_size,
        role_first_rank=draw(st.integers(0, role_world_size - 1)),
        role_world_size=role_world_size,
        store_address=draw(names),
        store_port=draw(ports),
        restart_count=draw(counts),
        max_restarts=draw(counts),
        proposal=draw(st.none() | proposals),
        tasks=draw(_some_of(tasks)),
        cluster=draw(clusters),
        tag=draw(names),
        store_hosted=draw(st.booleans()),
        restore=draw(st.none() | commit_ids),
    )


@st.composite
def probe_groups(draw: st.DrawFn) -> ProbeGroup:
    """A node's part in an all-gather."""
    members = draw(st.lists(names, min_size=1, max_size=4).map(tuple))
    rank = draw(st.integers(0, len(members) - 1))
    return ProbeGroup(draw(counts), rank, members, draw(names), draw(ports))


checks = st.builds(
    NodeCheck,
    node=names,
    matmul_flops=measures,
    bandwidth=measures,
    latency=measures,
    verdict=names,
    detail=texts,
    engine=texts,
)


hellos = st.builds(
    Hello,
    job_id=texts,
    version=names,
    info=node_infos,
    status=statuses,
    epoch=_from_minus_one(),
    nonce=tokens,
    proof=tokens,
)

readers = st.builds(
    DataReader, round=numbers, local_rank=st.integers(0, 2**14 - 1), name=names, instance=names, load=numbers
)
records = st.integers(0, 2**62)
pieces = st.builds(ShardPiece, epoch=numbers, place=numbers, start=records, stop=records)
causes = st.text(max_size=20)


def _few(each: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(each, max_size=3).map(tuple)


lefts = st.builds(
    DataLeft,
    epoch=numbers,
    place=numbers,
    free=_few(pieces),
    failed=_few(st.builds(FailedPiece, piece=pieces, reason=causes)),
)

_seconds = st.floats(0, 1e6)
_rates = st.none() | st.floats(0, 1e9)
progresses = st.builds(
    RoundProgress,
    round=numbers,
    reached=st.lists(
        st.builds(Reached, milestone=st.integers(1, 5), ago=_seconds),
        max_size=5,
        unique_by=lambda it: it.milestone,
    ).map(tuple),
    step=st.integers(-1, 10**9),
    step_rate=_rates,
    stalled=_seconds,
    step_ago=_seconds,
    times=st.none()
    | st.builds(
        StepTimes, local_rank=st.integers(0, 100), steps=st.integers(0, 2**30), own=_seconds, whole=_seconds
    ),
)
gpus = st.builds(
    GpuFigures, name=names, busy=_rates, memory=st.integers(0, 2**60), memory_limit=st.integers(0, 2**60)
)
figures = st.builds(
    NodeFigures,
    cpu=_seconds,
    cpus=st.integers(0, 2**30),
    memory=st.integers(0, 2**60),
    memory_limit=st.integers(0, 2**60),
    received=_seconds,
    sent=_seconds,
    gpus=st.lists(gpus, max_size=2).map(tuple),
)
streams = st.sampled_from(LogStream)
places = st.builds(LogPlace, stream=streams, after=causes)
log_questions = st.builds(
    LogQuestion,
    places=st.lists(places, min_size=1, max_size=2).map(tuple),
    lines=st.integers(0, 10_000),
    wait=st.floats(0.0, 20.0),
)
log_pieces = st.builds(
    LogPiece,
    stream=streams,
    place=causes,
    data=st.binary(max_size=99),
    round=_from_minus_one(),
    attempt=numbers,
    begins=st.booleans(),
    missed=st.booleans(),
    more=st.booleans(),
    note=causes,
)
answers = st.builds(RankAnswer, pieces=st.lists(log_pieces, max_size=2).map(tuple), stacks=causes)

agent_messages: st.SearchStrategy[AgentMessage] = st.one_of(
    hellos,
    st.builds(Report, incarnation=names, status=statuses),
    st.builds(
        Heartbeat,
        incarnation=names,
        usage=_some_of(usages),
        progress=st.none() | progresses,
        figures=st.none() | figures,
    ),
    st.builds(Leave, incarnation=names, reason=texts),
    st.builds(
        OpenData,
        incarnation=names,
        reader=readers,
        call=numbers,
        plan=names,
        shards=st.integers(1, 2**62),
        readers=st.integers(1, 2**20),
        patience=seconds,
        state=names,
        left=st.none() | lefts,
    ),
    st.builds(
        AskData,
        incarnation=names,
        reader=readers,
        call=numbers,
        epoch=numbers,
        wanted=st.integers(0, 256),
        progress=_few(
            st.builds(ShardProgress, lease=numbers, upto=records, is_over=st.booleans(), stop=records)
        ),
        faults=_few(st.builds(ShardFault, lease=numbers, at=records, reason=causes)),
        saves=st.booleans(),
    ),
    st.builds(NodeAnswer, incarnation=names, id=numbers, refused=causes, answer=st.none() | answers),
)

master_messages: st.SearchStrategy[MasterMessage] = st.one_of(
    st.builds(
        Welcome, epoch=numbers, heartbeat_interval=seconds, ticket=tokens, returning=tokens, key=tokens
    ),
    st.builds(StartRound, epoch=numbers, sequence=numbers, assignment=assignments(), reason=texts),
    st.builds(
        StopRound,
        epoch=numbers,
        sequence=numbers,
        round=_from_minus_one(),
        reason=texts,
        drain=st.booleans(),
    ),
    st.builds(
        StartProbe,
        epoch=numbers,
        sequence=numbers,
        check=numbers,
        groups=st.lists(probe_groups(), max_size=3).map(tuple),
        slots=counts,
        timeout=seconds,
        secret=tokens,
    ),
    st.builds(SaveStacks, epoch=numbers),
    st.builds(
        JudgeCommits,
        epoch=numbers,
        round=numbers,
        kept=st.none() | commit_ids,
        void=st.none() | commit_ids,
    ),
    st.builds(WriteState, epoch=numbers, order=st.none() | store_orders),
    st.builds(JournalCopy, epoch=numbers, first=numbers, lines=st.lists(texts, max_size=3).map(tuple)),
    st.builds(Waiting, epoch=numbers, text=texts),
    st.builds(
        JobEnded,
        epoch=numbers,
        sequence=numbers,
        outcome=st.sampled_from(Outcome),
        reason=texts,
        failures=failure_tuples,
        checkup=st.lists(checks, max_size=3).map(tuple),
        other_program=st.just("") | names.map(lambda name: name[:100]),
    ),
    st.builds(Rejected, code=st.sampled_from(RejectCode), message=texts, proof=tokens),
    st.builds(
        DataAnswer,
        epoch=numbers,
        round=numbers,
        instance=names,
        call=numbers,
        refused=causes,
        needs_left=st.booleans(),
        leases=_few(st.builds(ShardLease, id=numbers, piece=pieces)),
        left=st.none() | lefts,
    ),
    st.builds(
        AskNode, epoch=numbers, id=numbers, local_rank=st.integers(0, 99), log=st.none() | log_questions
    ),
)


@st.composite
def mutated(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Bytes a few edits away from valid ones."""
    data = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["replace", "insert", "delete", "cut"])):
            case "replace" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "delete":
                del data[at : at + draw(st.integers(1, 8))]
            case _:
                del data[at:]
    return bytes(data)
