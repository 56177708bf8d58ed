"""The bytes of one message of each kind, as they have always been; and every field is mapped.

Bytes on the wire are for ever (see elastic.proto). A change of the codec that changes one of these changes
the protocol, and agents and masters of two versions would not agree.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, make_dataclass, replace

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.protocol import (
    commits,
    data,
    failure,
    orders,
    probing,
    questions,
    round_progress,
    stall,
    status,
    storing,
    tasks,
    usage,
)
from elasticrun.core.protocol import messages as protocol
from elasticrun.core.protocol.bounds import Epoch, Name
from elasticrun.core.protocol.commits import Copy, Inlet, Part, Sent
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
    AgentMessage,
    AgentPhase,
    AgentStatus,
    AskNode,
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
    NodeAnswer,
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
from elasticrun.core.protocol.orders import (
    AwaitStatus,
    CancelScale,
    CheckNodes,
    ControlHello,
    ControlReply,
    ControlRequest,
    CordonNode,
    DrainNode,
    RestartRound,
    SaveAllStacks,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    ScaleRole,
    ShowStatus,
    StopJob,
    UncordonNode,
)
from elasticrun.core.protocol.questions import (
    Found,
    ListRanks,
    LogPiece,
    LogPlace,
    LogQuestion,
    LogStream,
    RankAnswer,
    RankRange,
    ReadLog,
    ShowStacks,
)
from elasticrun.core.protocol.round_progress import Reached, RolePeak, RoundProgress, StepTimes, UsagePeak
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus, ScaleEnd, TaskStatus
from elasticrun.core.protocol.storing import StorePart, StoreStage
from elasticrun.core.protocol.tasks import Task, TaskReport
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.rpc import codec
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.control import decode_control, decode_reply, encode_control, encode_reply
from elasticrun.rpc.codec.mapper import Shape

FAILURE = Failure(
    "n0",
    "h0",
    5,
    1,
    "trainer",
    4711,
    FailureKind.SIGNAL,
    -9,
    "killed \ud800",
    "at x",
    "oom",
    "/e.json",
    1.5,
    7,
    2,
    True,
    "mce",
    "/stacks",
    True,
    2.5,
)
INLET = Inlet(7777, b"k" * 32)
WORLD, BASE = World(3, 2, 4), World(1, 1, 2)
STATUS = AgentStatus(
    3,
    AgentPhase.FAILED,
    4,
    (FAILURE,),
    29500,
    ProbeReport(2, "hot", 1e12, (GroupReport("slow", 2e9, 0.25, "gloo"), GroupReport()), "torch/cpu"),
    Stall(5, 1, 7, 30.0, 20.0, True, "f (a.py:3)", "/stacks", 9.5, Evidence.STILL, 4.5, "disk"),
    (Vote(WORLD, BASE, ("i0", "i1")), Vote(BASE, None)),
    True,
    (7000, 7001),
    (TaskReport(0, 2, True, FAILURE), TaskReport(1, 0)),
    True,
    (Holding(CommitId(3, 7), 4, (Part(1, "d1", True, "alike"), Part(2))),),
    INLET,
    Sent(CommitId(3, 6), 5, (1,)),
    StoreReport(5, "run7", StoreStage.FAILED, "full"),
    "preempted",
)
INFO = NodeInfo(
    "n0", "i0", "h0", "10.0.0.1", 2, "trainer", 0, 99, 1, (TaskRole.PS, TaskRole.WORKER), "/train.py", 1, 4
)
ASSIGNMENT = Assignment(
    4,
    1,
    2,
    2,
    4,
    2,
    4,
    "10.0.0.1",
    29500,
    1,
    3,
    Proposal(WORLD, BASE, None, ("i0",)),
    (Task(0, TaskRole.PS, 1, 2, 7000, True), Task(1, TaskRole.EVALUATOR, 0)),
    ((TaskRole.CHIEF, ("h:1",)), (TaskRole.PS, ("h:2", "h:3"))),
    "tag",
    True,
    CommitId(3, 7),
)
READER = DataReader(3, 1, "data", "ab12", 1)
PIECE = ShardPiece(1, 7, 20, 0)
LEFT = DataLeft(1, 8, (PIECE,), (FailedPiece(ShardPiece(0, 2, 0, 5), "no such sector"),))
LOG = LogPiece(LogStream.ERR, "ab:4.1:9", b"x\n", 4, 1, True, True, True, "why")
TIMES = StepTimes(1, 48, 0.05, 0.25)
AGENT: list[AgentMessage] = [
    Hello("job", "1.0", INFO, STATUS, 6, b"nonce", b"proof"),
    Hello("", "1.0", replace(INFO, node_rank=None, position=-1), AgentStatus(0, AgentPhase.READY)),
    Report("i0", STATUS),
    Heartbeat("i0", (TaskUsage(0, 0.0, 2**31, 0, 1.5, 0.25), TaskUsage(1))),
    Heartbeat("i0", progress=RoundProgress(4, (Reached(2, 1.5),), 9, 2.0, 0.5, 0.25, TIMES)),
    Leave("i0", "told to"),
    OpenData("i0", READER, 1, "d1", 12, 2, 600.0, "d2", LEFT),
    AskData("i0", READER, 2, 1, 4, (ShardProgress(9, 30, True, 40),), (ShardFault(8, 3, "gone"),), True),
    NodeAnswer("i0", 9, answer=RankAnswer((LOG,), "File x")),
    NodeAnswer("i0", 9, "it has not started yet"),
]
MASTER: list[MasterMessage] = [
    Welcome(2, 2.5, b"ticket", b"returning", b"key"),
    StartRound(2, 9, ASSIGNMENT, "all are ready"),
    StartRound(2, 9, Assignment(0, 0, 1, 0, 1, 0, 1, "h", 1, 0, 0), ""),
    StopRound(2, 10, 4, "n1 failed", True),
    StartProbe(2, 11, 3, (ProbeGroup(1, 0, ("n0", "n1"), "10.0.0.1", 7000),), 2, 30.0, b"secret"),
    SaveStacks(0),
    JudgeCommits(
        2, 4, CommitId(4, 9), CommitId(4, 8), CommitId(4, 6), CommitId(4, 7), (Copy(5, "10.0.0.2", INLET),), 3
    ),
    WriteState(2, StoreOrder(5, "run7", CommitId(3, 7), (StorePart(1, 0, 1, 2),), 2, True, True)),
    WriteState(2),
    JournalCopy(2, 5, ("{}", ""), 3),
    Waiting(2, "n1 is missing"),
    JobEnded(
        2,
        12,
        Outcome.REPEATED_ERROR,
        "again",
        (FAILURE,),
        (NodeCheck("n0", 1e12, 2e9, 0.5, "slow", "d", "e"),),
        "/other.py",
    ),
    Rejected(RejectCode.NAME_IN_USE, "taken", b"proof"),
    DataAnswer(2, 3, "ab12", 2, "over", True, (ShardLease(9, PIECE),), LEFT),
    AskNode(2, 9, 1, LogQuestion((LogPlace(LogStream.OUT, "ab:0.1:7"), LogPlace(LogStream.ERR)), 10, 2.5)),
    AskNode(2, 9, 1),
]
CONTROL: list[ControlHello | ControlRequest] = [
    ControlHello("job", "1.0", b"nonce", b"proof"),
    ShowStatus(),
    DrainNode("n0", "maintenance"),
    ScaleJob(1, 4),
    ScaleRole(TaskRole.EVALUATOR, 3),
    SaveAllStacks(),
    RestartRound("edited"),
    ScaleIn("night", 2),
    ScaleIn("night", nodes=("n0", "n1")),
    ScaleOut(2, 1.5),
    CordonNode("n0", "loud"),
    UncordonNode("n0"),
    CheckNodes("slow"),
    StopJob("no money"),
    CancelScale("no money"),
    ReadLog(3, (LogPlace(LogStream.ERR, "ab:0.1:7"),), 10, 2.5),
    ShowStacks(3),
    ListRanks(),
    AwaitStatus("4:running:2:8:1", 2.5),
]
FOUND = ControlReply(True, "", found=Found((RankRange(0, 4),), RankAnswer((LOG,))))
REPLY = ControlReply(True, "drained", b"proof")
SHOWN = JobStatus(
    "job",
    JobPhase.RUNNING,
    4,
    1,
    4,
    2,
    3,
    "nobody",
    (
        NodeStatus(
            "n0",
            0,
            AgentPhase.RUNNING,
            True,
            "slow",
            (TaskStatus(TaskRole.PS, 1, 2, "running", "h:1", TaskUsage(0, 0.5)),),
        ),
        NodeStatus("n1", None, AgentPhase.READY, False, cordoned="loud"),
    ),
    5,
    CommitId(2, 9),
    CommitId(2, 8),
    CommitId(1, 7),
    scaling="scale out by 1",
    scaled=ScaleEnd(3, True, "done"),
    world=2,
    workers=8,
    cause="lost",
    peak=UsagePeak(1.5, 1024, 4, 4096),
    stranded=2,
    role_peaks=(RolePeak("ps", UsagePeak(0.5, 512, 4, 4096)),),
)

AGENT_BYTES = [
    (
        "0aff040a036a6f621203312e301a3a0a026e30120269301a026830220831302e302e302e3128023207747261696e6572"
        "380040634801520203025a092f747261696e2e70796001680422a60408031004180422720a026e301202683018052001"
        "2a07747261696e657230e724380240f7ffffffffffffffff014a0a6b696c6c656420efbfbd5204617420785a036f6f6d"
        "62072f652e6a736f6e69000000000000f83f700778028001018a01036d63659201072f737461636b73980101a1010000"
        "00000000044028bce601323d08021203686f7419000000a2941a6d42221e0a04736c6f77110000000065cddd41190000"
        "00000000d03f2204676c6f6f22002a09746f7263682f6370753a49080510011807210000000000003e40290000000000"
        "00344030013a0a662028612e70793a332942072f737461636b7349000000000000234050015900000000000012406204"
        "6469736b42180a0608031002180412060801100118021a0269301a02693142080a0608011001180248015204d836d936"
        "5a781002180122720a026e3012026830180520012a07747261696e657230e724380240f7ffffffffffffffff014a0a6b"
        "696c6c656420efbfbd5204617420785a036f6f6d62072f652e6a736f6e69000000000000f83f700778028001018a0103"
        "6d63659201072f737461636b73980101a10100000000000004405a02080160016a1d0a040803100710041a0f08011202"
        "643118012205616c696b651a020802722508e13c12206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b"
        "6b6b6b6b6b6b7a0b0a040803100610051a01018201100805120472756e371803220466756c6c8a0109707265656d7074"
        "6564280632056e6f6e63653a0570726f6f66"
    ),
    (
        "0a571203312e301a360a026e30120269301a026830220831302e302e302e3128023207747261696e6572406352020302"
        "5a092f747261696e2e707960016804220d100218ffffffffffffffffff0128ffffffffffffffffff01"
    ),
    (
        "12ad040a02693012a60408031004180422720a026e3012026830180520012a07747261696e657230e724380240f7ffff"
        "ffffffffffff014a0a6b696c6c656420efbfbd5204617420785a036f6f6d62072f652e6a736f6e69000000000000f83f"
        "700778028001018a01036d63659201072f737461636b73980101a101000000000000044028bce601323d08021203686f"
        "7419000000a2941a6d42221e0a04736c6f77110000000065cddd4119000000000000d03f2204676c6f6f22002a09746f"
        "7263682f6370753a49080510011807210000000000003e4029000000000000344030013a0a662028612e70793a332942"
        "072f737461636b73490000000000002340500159000000000000124062046469736b42180a0608031002180412060801"
        "100118021a0269301a02693142080a0608011001180248015204d836d9365a781002180122720a026e30120268301805"
        "20012a07747261696e657230e724380240f7ffffffffffffffff014a0a6b696c6c656420efbfbd5204617420785a036f"
        "6f6d62072f652e6a736f6e69000000000000f83f700778028001018a01036d63659201072f737461636b73980101a101"
        "00000000000004405a02080160016a1d0a040803100710041a0f08011202643118012205616c696b651a020802722508"
        "e13c12206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b7a0b0a040803100610051a01"
        "018201100805120472756e371803220466756c6c8a0109707265656d70746564"
    ),
    "1a2d0a0269301223110000000000000000188080808008200029000000000000f83f31000000000000d03f12020801",
    (
        "1a4a0a0269301a440804120b080211000000000000f83f180921000000000000004029000000000000e03f3100000000"
        "0000d03f3a1608011030199a9999999999a93f21000000000000d03f"
    ),
    "220d0a0269301207746f6c6420746f",
    (
        "2a550a0269301212080310011a04646174612204616231322801180122026431280c3002390000000000c08240420264"
        "324a24080110081a0608011007181422160a0410022005120e6e6f207375636820736563746f72"
    ),
    (
        "32360a0269301212080310011a0464617461220461623132280118022001280432080809101e180120283a0a08081003"
        "1a04676f6e654001"
    ),
    (
        "a201310a026930100922290a1f0802120861623a342e313a391a02780a200428013001380140014a0377687912064669"
        "6c652078"
    ),
    "a2011e0a02693010091a16697420686173206e6f74207374617274656420796574",
]
MASTER_BYTES = [
    "0a23080211000000000000044022067469636b65742a0972657475726e696e6732036b6579",
    (
        "1a8401080210091a6f0804100118022002280430023804420831302e302e302e3148bce6015001580362140a06080310"
        "0218041206080110011802220269306a0b10031801200228d83630016a0408011004720708011203683a31720c080312"
        "03683a321203683a33780182010408031007920303746167220d616c6c20617265207265616479"
    ),
    "1a11080210091a0b1801280138014201684801",
    "22130802100a180422096e31206661696c65642801",
    (
        "42320802100b1803221712026e3012026e311a0831302e302e302e3120d8362801290000000000003e4030023a067365"
        "63726574"
    ),
    "4a00",
    (
        "6253080210041a04080410092204080410082a04080410063204080410073a330805120831302e302e302e321a2508e1"
        "3c12206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b4003"
    ),
    "72200802121c0805120472756e371a04080310072206080118012002280230013801",
    "72020802",
    "520d080210051a027b7d1a00900303",
    "2a110802120d6e31206973206d697373696e67",
    (
        "32ba010802100c18042205616761696e2a720a026e3012026830180520012a07747261696e657230e724380240f7ffff"
        "ffffffffffff014a0a6b696c6c656420efbfbd5204617420785a036f6f6d62072f652e6a736f6e69000000000000f83f"
        "700778028001018a01036d63659201072f737461636b73980101a1010000000000000440322b0a026e3011000000a294"
        "1a6d42190000000065cddd4121000000000000e03f2a04736c6f773201643a01659203092f6f746865722e7079"
    ),
    "1211080c120574616b656e92030570726f6f66",
    (
        "6a46080210031a046162313220022a046f76657230013a0a080912060801100718144224080110081a06080110071814"
        "22160a0410022005120e6e6f207375636820736563746f72"
    ),
    "a20125080210091801221d0a0c0801120861623a302e313a370a020802100a190000000000000440",
    "a20106080210091801",
]
CONTROL_BYTES = [
    "0a180a036a6f621203312e301a056e6f6e6365220570726f6f66",
    "1200",
    "1a110a026e30120b6d61696e74656e616e6365",
    "220408011004",
    "320408041003",
    "2a00",
    "3a080a06656469746564",
    "a201090a056e696768741002",
    "a2010f0a056e696768741a026e301a026e31",
    "aa010b080211000000000000f83f",
    "b2010a0a026e3012046c6f7564",
    "ba01040a026e30",
    "c201060a04736c6f77",
    "ca010a0a086e6f206d6f6e6579",
    "d2010a0a086e6f206d6f6e6579",
    "f2011b0803120c0802120861623a302e313a37180a210000000000000440",
    "fa01020803",
    "820200",
    "8a021a0a0f343a72756e6e696e673a323a383a31110000000000000440",
]
FOUND_BYTES = "080152270a02100412210a1f0802120861623a342e313a391a02780a200428013001380140014a03776879"
REPLY_BYTES = [
    "08011207647261696e65641a0570726f6f66",
]

STATUS_BYTES = (
    "080122ca010a036a6f6210031804200128043002380342066e6f626f64794a310a026e301000180320012a04736c6f77"
    "321f080310011802220772756e6e696e672a03683a31320911000000000000e03f4a0c0a026e31180242046c6f756450"
    "055a04080210096204080210086a0408011007a2010e7363616c65206f75742062792031aa010a080310011a04646f6e"
    "65b00102b80108c201046c6f7374ca011109000000000000f83f1080081804208020d00102da01170a02707312110900"
    "0000000000e03f1080041804208020"
)
#: What stands on the wire for one who speaks it, and in no value.
WITHOUT_VALUE = {"AgentMessage", "MasterMessage", "ControlMessage", "Goodbye", "ClusterRole"}
APART = {("Hello", "returning")}  # see rpc/codec/proofs.py


@pytest.mark.parametrize(("message", "data"), [*zip(AGENT, AGENT_BYTES, strict=True)])
def test_an_agents_bytes_stay_as_they_are(message: AgentMessage, data: str) -> None:
    assert codec.encode_agent(message).hex() == data


@pytest.mark.parametrize(("message", "data"), [*zip(MASTER, MASTER_BYTES, strict=True)])
def test_a_masters_bytes_stay_as_they_are(message: MasterMessage, data: str) -> None:
    assert codec.encode_master(message).hex() == data


@pytest.mark.parametrize(("message", "data"), [*zip(CONTROL, CONTROL_BYTES, strict=True)])
def test_the_bytes_of_orders_stay_as_they_are(message: ControlHello | ControlRequest, data: str) -> None:
    assert encode_control(message).hex() == data
    assert decode_control(bytes.fromhex(data)) == message


def test_the_bytes_of_a_reply_stay_as_they_are() -> None:
    assert [encode_reply(REPLY).hex()] == REPLY_BYTES
    assert decode_reply(bytes.fromhex(REPLY_BYTES[0])) == REPLY


def test_the_bytes_of_what_was_found_stay_as_they_are() -> None:
    assert encode_reply(FOUND).hex() == FOUND_BYTES
    assert decode_reply(bytes.fromhex(FOUND_BYTES)) == FOUND


def test_the_bytes_of_a_status_stay_as_they_are() -> None:
    shown = ControlReply(True, "", status=SHOWN)
    assert encode_reply(shown).hex() == STATUS_BYTES
    assert decode_reply(bytes.fromhex(STATUS_BYTES)) == shown


def _kinds() -> dict[str, type]:
    modules = (
        *(commits, data, failure, orders, probing, protocol, questions, round_progress, stall, status),
        *(storing, tasks, usage),
    )
    found = {name: kind for module in modules for name, kind in vars(module).items() if is_dataclass(kind)}
    return {name: kind for name, kind in found.items() if isinstance(kind, type)}


@pytest.mark.parametrize("name", sorted(set(pb.DESCRIPTOR.message_types_by_name) - WITHOUT_VALUE))
def test_each_field_of_each_message_is_mapped_and_has_limits(name: str) -> None:
    descriptor, kind = pb.DESCRIPTOR.message_types_by_name[name], _kinds()[name]
    shape = Shape(kind, descriptor)
    assert (callable(shape.dump), callable(shape.load)) == (True, True)
    wired = {(name, field.name) for field in descriptor.fields}
    assert wired - {(name, field.name) for field in fields(kind)} <= APART


def test_a_field_without_limits_is_not_decoded() -> None:
    kind = make_dataclass("Waiting", [("epoch", int), ("text", str)])
    with pytest.raises(TypeError, match="epoch: <class 'int'> has no limits"):
        _ = Shape(kind, pb.Waiting.DESCRIPTOR).load


def test_a_field_that_no_message_has_must_be_local() -> None:
    kind = make_dataclass("SaveStacks", [("epoch", Epoch), ("whose", Name)])
    with pytest.raises(KeyError, match="whose"):
        _ = Shape(kind, pb.SaveStacks.DESCRIPTOR).load
