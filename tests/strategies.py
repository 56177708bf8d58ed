"""Hypothesis strategies for the values of core/protocol.py, within the ranges that the wire allows."""

from __future__ import annotations

from hypothesis import strategies as st

from elasticrun.core.protocol import (
    MAX_FAILURES,
    MAX_ROLL,
    MAX_SEATS,
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Assignment,
    Charter,
    Failure,
    FailureKind,
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

names = st.text(min_size=1, max_size=30)
texts = st.text(max_size=200)
counts = st.integers(0, 2**31 - 1)
ports = st.integers(0, 65535)
numbers = st.integers(0, 2**63 - 1)  # sequences, rounds, epochs
seconds = st.floats(min_value=0.001, max_value=1e9)
measures = st.floats(min_value=0.0, max_value=1e18)
tokens = st.binary(max_size=64)


def _from_minus_one(highest: int = 2**63 - 1) -> st.SearchStrategy[int]:
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
    timestamp=st.floats(allow_nan=False, allow_infinity=False),
    step=_from_minus_one(),
    oom_kills=counts,
    host_oom=st.booleans(),
    kernel_log=texts,
    stacks=texts,
)
failure_tuples = st.lists(failures, max_size=3).map(tuple) | st.tuples(*[failures] * MAX_FAILURES)

node_infos = st.builds(
    NodeInfo,
    node=names,
    incarnation=names,
    host=names,
    address=names,
    local_world_size=st.integers(1, 2**31 - 1),
    role=names,
    node_rank=st.none() | counts,
    pid=counts,
    position=_from_minus_one(2**31 - 1),
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
    timestamp=st.floats(allow_nan=False, allow_infinity=False),
)


worlds = st.builds(World, round=numbers, epoch=numbers, size=st.integers(1, 10_000))
rolls = st.lists(names, max_size=3).map(tuple) | st.tuples(*[names] * MAX_ROLL)
seats = st.builds(Seat, worlds, st.none() | worlds, rolls)
charters = st.builds(Charter, worlds, st.none() | worlds, st.none() | worlds, rolls)


statuses = st.builds(
    AgentStatus,
    sequence=numbers,
    phase=st.sampled_from(AgentPhase),
    round=_from_minus_one(),
    failures=failure_tuples,
    store_port=ports,
    probe=st.none() | probes,
    stall=st.none() | stalls,
    seats=st.lists(seats, max_size=3).map(tuple) | st.builds(lambda seat: (seat,) * MAX_SEATS, seats),
    warming=st.booleans(),
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
        charter=draw(st.none() | charters),
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

agent_messages: st.SearchStrategy[AgentMessage] = st.one_of(
    hellos,
    st.builds(Report, incarnation=names, status=statuses),
    st.builds(Heartbeat, incarnation=names),
    st.builds(Leave, incarnation=names, reason=texts),
)

master_messages: st.SearchStrategy[MasterMessage] = st.one_of(
    st.builds(Welcome, epoch=numbers, heartbeat_interval=seconds, proof=tokens),
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
    ),
    st.builds(SaveStacks, epoch=numbers),
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
    ),
    st.builds(Rejected, code=st.sampled_from(RejectCode), message=texts),
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
