from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_ROLE_UNSPECIFIED: _ClassVar[TaskRole]
    TASK_ROLE_CHIEF: _ClassVar[TaskRole]
    TASK_ROLE_WORKER: _ClassVar[TaskRole]
    TASK_ROLE_PS: _ClassVar[TaskRole]
    TASK_ROLE_EVALUATOR: _ClassVar[TaskRole]

class AgentPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGENT_PHASE_UNSPECIFIED: _ClassVar[AgentPhase]
    AGENT_PHASE_PREPARING: _ClassVar[AgentPhase]
    AGENT_PHASE_READY: _ClassVar[AgentPhase]
    AGENT_PHASE_RUNNING: _ClassVar[AgentPhase]
    AGENT_PHASE_FAILED: _ClassVar[AgentPhase]
    AGENT_PHASE_FINISHED: _ClassVar[AgentPhase]
    AGENT_PHASE_STOPPING: _ClassVar[AgentPhase]
    AGENT_PHASE_CHECKING: _ClassVar[AgentPhase]

class StoreStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STORE_STAGE_UNSPECIFIED: _ClassVar[StoreStage]
    STORE_STAGE_WRITING: _ClassVar[StoreStage]
    STORE_STAGE_WRITTEN: _ClassVar[StoreStage]
    STORE_STAGE_FAILED: _ClassVar[StoreStage]

class Evidence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVIDENCE_UNSPECIFIED: _ClassVar[Evidence]
    EVIDENCE_STILL: _ClassVar[Evidence]
    EVIDENCE_LAST_BOUND: _ClassVar[Evidence]
    EVIDENCE_TIMEOUT: _ClassVar[Evidence]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_EXIT: _ClassVar[FailureKind]
    FAILURE_KIND_SIGNAL: _ClassVar[FailureKind]
    FAILURE_KIND_SPAWN: _ClassVar[FailureKind]
    FAILURE_KIND_PORT_TAKEN: _ClassVar[FailureKind]
    FAILURE_KIND_HANG: _ClassVar[FailureKind]
    FAILURE_KIND_STORE_LOST: _ClassVar[FailureKind]

class RejectCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_CODE_UNSPECIFIED: _ClassVar[RejectCode]
    REJECT_CODE_WRONG_JOB: _ClassVar[RejectCode]
    REJECT_CODE_WRONG_VERSION: _ClassVar[RejectCode]
    REJECT_CODE_MALFORMED: _ClassVar[RejectCode]
    REJECT_CODE_OUT_OF_ORDER: _ClassVar[RejectCode]
    REJECT_CODE_OVERSIZED: _ClassVar[RejectCode]
    REJECT_CODE_SUPERSEDED: _ClassVar[RejectCode]
    REJECT_CODE_EXCLUDED: _ClassVar[RejectCode]
    REJECT_CODE_DRAINED: _ClassVar[RejectCode]
    REJECT_CODE_UNAUTHENTICATED: _ClassVar[RejectCode]
    REJECT_CODE_TOO_MANY: _ClassVar[RejectCode]
    REJECT_CODE_IMPLAUSIBLE: _ClassVar[RejectCode]
    REJECT_CODE_MISFIT: _ClassVar[RejectCode]
    REJECT_CODE_NAME_IN_USE: _ClassVar[RejectCode]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_SUCCEEDED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_TIMED_OUT: _ClassVar[Outcome]
    OUTCOME_REPEATED_ERROR: _ClassVar[Outcome]
    OUTCOME_UNHEALTHY: _ClassVar[Outcome]
    OUTCOME_STOPPED: _ClassVar[Outcome]

class LogStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_STREAM_UNSPECIFIED: _ClassVar[LogStream]
    LOG_STREAM_OUT: _ClassVar[LogStream]
    LOG_STREAM_ERR: _ClassVar[LogStream]

class JobPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_PHASE_UNSPECIFIED: _ClassVar[JobPhase]
    JOB_PHASE_GATHERING: _ClassVar[JobPhase]
    JOB_PHASE_CHECKING: _ClassVar[JobPhase]
    JOB_PHASE_RUNNING: _ClassVar[JobPhase]
    JOB_PHASE_STOPPING: _ClassVar[JobPhase]
    JOB_PHASE_SUCCEEDED: _ClassVar[JobPhase]
    JOB_PHASE_FAILED: _ClassVar[JobPhase]
    JOB_PHASE_TIMED_OUT: _ClassVar[JobPhase]
    JOB_PHASE_HOPELESS: _ClassVar[JobPhase]
    JOB_PHASE_UNHEALTHY: _ClassVar[JobPhase]
    JOB_PHASE_STOPPED: _ClassVar[JobPhase]
TASK_ROLE_UNSPECIFIED: TaskRole
TASK_ROLE_CHIEF: TaskRole
TASK_ROLE_WORKER: TaskRole
TASK_ROLE_PS: TaskRole
TASK_ROLE_EVALUATOR: TaskRole
AGENT_PHASE_UNSPECIFIED: AgentPhase
AGENT_PHASE_PREPARING: AgentPhase
AGENT_PHASE_READY: AgentPhase
AGENT_PHASE_RUNNING: AgentPhase
AGENT_PHASE_FAILED: AgentPhase
AGENT_PHASE_FINISHED: AgentPhase
AGENT_PHASE_STOPPING: AgentPhase
AGENT_PHASE_CHECKING: AgentPhase
STORE_STAGE_UNSPECIFIED: StoreStage
STORE_STAGE_WRITING: StoreStage
STORE_STAGE_WRITTEN: StoreStage
STORE_STAGE_FAILED: StoreStage
EVIDENCE_UNSPECIFIED: Evidence
EVIDENCE_STILL: Evidence
EVIDENCE_LAST_BOUND: Evidence
EVIDENCE_TIMEOUT: Evidence
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_EXIT: FailureKind
FAILURE_KIND_SIGNAL: FailureKind
FAILURE_KIND_SPAWN: FailureKind
FAILURE_KIND_PORT_TAKEN: FailureKind
FAILURE_KIND_HANG: FailureKind
FAILURE_KIND_STORE_LOST: FailureKind
REJECT_CODE_UNSPECIFIED: RejectCode
REJECT_CODE_WRONG_JOB: RejectCode
REJECT_CODE_WRONG_VERSION: RejectCode
REJECT_CODE_MALFORMED: RejectCode
REJECT_CODE_OUT_OF_ORDER: RejectCode
REJECT_CODE_OVERSIZED: RejectCode
REJECT_CODE_SUPERSEDED: RejectCode
REJECT_CODE_EXCLUDED: RejectCode
REJECT_CODE_DRAINED: RejectCode
REJECT_CODE_UNAUTHENTICATED: RejectCode
REJECT_CODE_TOO_MANY: RejectCode
REJECT_CODE_IMPLAUSIBLE: RejectCode
REJECT_CODE_MISFIT: RejectCode
REJECT_CODE_NAME_IN_USE: RejectCode
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_SUCCEEDED: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_TIMED_OUT: Outcome
OUTCOME_REPEATED_ERROR: Outcome
OUTCOME_UNHEALTHY: Outcome
OUTCOME_STOPPED: Outcome
LOG_STREAM_UNSPECIFIED: LogStream
LOG_STREAM_OUT: LogStream
LOG_STREAM_ERR: LogStream
JOB_PHASE_UNSPECIFIED: JobPhase
JOB_PHASE_GATHERING: JobPhase
JOB_PHASE_CHECKING: JobPhase
JOB_PHASE_RUNNING: JobPhase
JOB_PHASE_STOPPING: JobPhase
JOB_PHASE_SUCCEEDED: JobPhase
JOB_PHASE_FAILED: JobPhase
JOB_PHASE_TIMED_OUT: JobPhase
JOB_PHASE_HOPELESS: JobPhase
JOB_PHASE_UNHEALTHY: JobPhase
JOB_PHASE_STOPPED: JobPhase

class AgentMessage(_message.Message):
    __slots__ = ("hello", "report", "heartbeat", "leave", "open_data", "ask_data", "node_answer")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    OPEN_DATA_FIELD_NUMBER: _ClassVar[int]
    ASK_DATA_FIELD_NUMBER: _ClassVar[int]
    NODE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    heartbeat: Heartbeat
    leave: Leave
    open_data: OpenData
    ask_data: AskData
    node_answer: NodeAnswer
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., open_data: _Optional[_Union[OpenData, _Mapping]] = ..., ask_data: _Optional[_Union[AskData, _Mapping]] = ..., node_answer: _Optional[_Union[NodeAnswer, _Mapping]] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("welcome", "rejected", "start_round", "stop_round", "waiting", "job_ended", "goodbye", "start_probe", "save_stacks", "journal_copy", "judge_commits", "data_answer", "write_state", "ask_node", "more")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    START_ROUND_FIELD_NUMBER: _ClassVar[int]
    STOP_ROUND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    JOB_ENDED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    START_PROBE_FIELD_NUMBER: _ClassVar[int]
    SAVE_STACKS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_COPY_FIELD_NUMBER: _ClassVar[int]
    JUDGE_COMMITS_FIELD_NUMBER: _ClassVar[int]
    DATA_ANSWER_FIELD_NUMBER: _ClassVar[int]
    WRITE_STATE_FIELD_NUMBER: _ClassVar[int]
    ASK_NODE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    rejected: Rejected
    start_round: StartRound
    stop_round: StopRound
    waiting: Waiting
    job_ended: JobEnded
    goodbye: Goodbye
    start_probe: StartProbe
    save_stacks: SaveStacks
    journal_copy: JournalCopy
    judge_commits: JudgeCommits
    data_answer: DataAnswer
    write_state: WriteState
    ask_node: AskNode
    more: _containers.RepeatedCompositeFieldContainer[MasterMessage]
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., start_round: _Optional[_Union[StartRound, _Mapping]] = ..., stop_round: _Optional[_Union[StopRound, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., job_ended: _Optional[_Union[JobEnded, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., start_probe: _Optional[_Union[StartProbe, _Mapping]] = ..., save_stacks: _Optional[_Union[SaveStacks, _Mapping]] = ..., journal_copy: _Optional[_Union[JournalCopy, _Mapping]] = ..., judge_commits: _Optional[_Union[JudgeCommits, _Mapping]] = ..., data_answer: _Optional[_Union[DataAnswer, _Mapping]] = ..., write_state: _Optional[_Union[WriteState, _Mapping]] = ..., ask_node: _Optional[_Union[AskNode, _Mapping]] = ..., more: _Optional[_Iterable[_Union[MasterMessage, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job_id", "version", "info", "status", "epoch", "nonce", "proof", "returning")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RETURNING_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: str
    info: NodeInfo
    status: AgentStatus
    epoch: int
    nonce: bytes
    proof: bytes
    returning: bytes
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[str] = ..., info: _Optional[_Union[NodeInfo, _Mapping]] = ..., status: _Optional[_Union[AgentStatus, _Mapping]] = ..., epoch: _Optional[int] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., returning: _Optional[bytes] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("incarnation", "status")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    status: AgentStatus
    def __init__(self, incarnation: _Optional[str] = ..., status: _Optional[_Union[AgentStatus, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("incarnation", "usage", "progress", "figures")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    usage: _containers.RepeatedCompositeFieldContainer[TaskUsage]
    progress: RoundProgress
    figures: NodeFigures
    def __init__(self, incarnation: _Optional[str] = ..., usage: _Optional[_Iterable[_Union[TaskUsage, _Mapping]]] = ..., progress: _Optional[_Union[RoundProgress, _Mapping]] = ..., figures: _Optional[_Union[NodeFigures, _Mapping]] = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ("milestone", "ago")
    MILESTONE_FIELD_NUMBER: _ClassVar[int]
    AGO_FIELD_NUMBER: _ClassVar[int]
    milestone: int
    ago: float
    def __init__(self, milestone: _Optional[int] = ..., ago: _Optional[float] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("local_rank", "steps", "own", "whole")
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    steps: int
    own: float
    whole: float
    def __init__(self, local_rank: _Optional[int] = ..., steps: _Optional[int] = ..., own: _Optional[float] = ..., whole: _Optional[float] = ...) -> None: ...

class RoundProgress(_message.Message):
    __slots__ = ("round", "reached", "step", "step_rate", "stalled", "step_ago", "times")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_RATE_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    STEP_AGO_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    round: int
    reached: _containers.RepeatedCompositeFieldContainer[Reached]
    step: int
    step_rate: float
    stalled: float
    step_ago: float
    times: StepTimes
    def __init__(self, round: _Optional[int] = ..., reached: _Optional[_Iterable[_Union[Reached, _Mapping]]] = ..., step: _Optional[int] = ..., step_rate: _Optional[float] = ..., stalled: _Optional[float] = ..., step_ago: _Optional[float] = ..., times: _Optional[_Union[StepTimes, _Mapping]] = ...) -> None: ...

class GpuFigures(_message.Message):
    __slots__ = ("name", "busy", "memory", "memory_limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    busy: float
    memory: int
    memory_limit: int
    def __init__(self, name: _Optional[str] = ..., busy: _Optional[float] = ..., memory: _Optional[int] = ..., memory_limit: _Optional[int] = ...) -> None: ...

class NodeFigures(_message.Message):
    __slots__ = ("cpu", "cpus", "memory", "memory_limit", "received", "sent", "gpus")
    CPU_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    cpu: float
    cpus: int
    memory: int
    memory_limit: int
    received: float
    sent: float
    gpus: _containers.RepeatedCompositeFieldContainer[GpuFigures]
    def __init__(self, cpu: _Optional[float] = ..., cpus: _Optional[int] = ..., memory: _Optional[int] = ..., memory_limit: _Optional[int] = ..., received: _Optional[float] = ..., sent: _Optional[float] = ..., gpus: _Optional[_Iterable[_Union[GpuFigures, _Mapping]]] = ...) -> None: ...

class TaskUsage(_message.Message):
    __slots__ = ("local_rank", "cpu", "memory", "step", "step_rate", "graph_time")
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_RATE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_TIME_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    cpu: float
    memory: int
    step: int
    step_rate: float
    graph_time: float
    def __init__(self, local_rank: _Optional[int] = ..., cpu: _Optional[float] = ..., memory: _Optional[int] = ..., step: _Optional[int] = ..., step_rate: _Optional[float] = ..., graph_time: _Optional[float] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("incarnation", "reason")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    reason: str
    def __init__(self, incarnation: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DataReader(_message.Message):
    __slots__ = ("round", "local_rank", "name", "instance", "load")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    round: int
    local_rank: int
    name: str
    instance: str
    load: int
    def __init__(self, round: _Optional[int] = ..., local_rank: _Optional[int] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ..., load: _Optional[int] = ...) -> None: ...

class ShardPiece(_message.Message):
    __slots__ = ("epoch", "place", "start", "stop")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    place: int
    start: int
    stop: int
    def __init__(self, epoch: _Optional[int] = ..., place: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class FailedPiece(_message.Message):
    __slots__ = ("piece", "reason")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    piece: ShardPiece
    reason: str
    def __init__(self, piece: _Optional[_Union[ShardPiece, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class DataLeft(_message.Message):
    __slots__ = ("epoch", "place", "free", "failed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    place: int
    free: _containers.RepeatedCompositeFieldContainer[ShardPiece]
    failed: _containers.RepeatedCompositeFieldContainer[FailedPiece]
    def __init__(self, epoch: _Optional[int] = ..., place: _Optional[int] = ..., free: _Optional[_Iterable[_Union[ShardPiece, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[FailedPiece, _Mapping]]] = ...) -> None: ...

class ShardLease(_message.Message):
    __slots__ = ("id", "piece")
    ID_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    id: int
    piece: ShardPiece
    def __init__(self, id: _Optional[int] = ..., piece: _Optional[_Union[ShardPiece, _Mapping]] = ...) -> None: ...

class ShardProgress(_message.Message):
    __slots__ = ("lease", "upto", "is_over", "stop")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    lease: int
    upto: int
    is_over: bool
    stop: int
    def __init__(self, lease: _Optional[int] = ..., upto: _Optional[int] = ..., is_over: bool = ..., stop: _Optional[int] = ...) -> None: ...

class ShardFault(_message.Message):
    __slots__ = ("lease", "at", "reason")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease: int
    at: int
    reason: str
    def __init__(self, lease: _Optional[int] = ..., at: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class OpenData(_message.Message):
    __slots__ = ("incarnation", "reader", "call", "plan", "shards", "readers", "patience", "state", "left")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    reader: DataReader
    call: int
    plan: str
    shards: int
    readers: int
    patience: float
    state: str
    left: DataLeft
    def __init__(self, incarnation: _Optional[str] = ..., reader: _Optional[_Union[DataReader, _Mapping]] = ..., call: _Optional[int] = ..., plan: _Optional[str] = ..., shards: _Optional[int] = ..., readers: _Optional[int] = ..., patience: _Optional[float] = ..., state: _Optional[str] = ..., left: _Optional[_Union[DataLeft, _Mapping]] = ...) -> None: ...

class AskData(_message.Message):
    __slots__ = ("incarnation", "reader", "call", "epoch", "wanted", "progress", "faults", "saves")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    reader: DataReader
    call: int
    epoch: int
    wanted: int
    progress: _containers.RepeatedCompositeFieldContainer[ShardProgress]
    faults: _containers.RepeatedCompositeFieldContainer[ShardFault]
    saves: bool
    def __init__(self, incarnation: _Optional[str] = ..., reader: _Optional[_Union[DataReader, _Mapping]] = ..., call: _Optional[int] = ..., epoch: _Optional[int] = ..., wanted: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[ShardProgress, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[ShardFault, _Mapping]]] = ..., saves: bool = ...) -> None: ...

class DataAnswer(_message.Message):
    __slots__ = ("epoch", "round", "instance", "call", "refused", "needs_left", "leases", "left")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NEEDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    instance: str
    call: int
    refused: str
    needs_left: bool
    leases: _containers.RepeatedCompositeFieldContainer[ShardLease]
    left: DataLeft
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., instance: _Optional[str] = ..., call: _Optional[int] = ..., refused: _Optional[str] = ..., needs_left: bool = ..., leases: _Optional[_Iterable[_Union[ShardLease, _Mapping]]] = ..., left: _Optional[_Union[DataLeft, _Mapping]] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node", "incarnation", "host", "address", "local_world_size", "role", "node_rank", "pid", "position", "roles", "program", "min_nodes", "max_nodes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    host: str
    address: str
    local_world_size: int
    role: str
    node_rank: int
    pid: int
    position: int
    roles: _containers.RepeatedScalarFieldContainer[TaskRole]
    program: str
    min_nodes: int
    max_nodes: int
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., local_world_size: _Optional[int] = ..., role: _Optional[str] = ..., node_rank: _Optional[int] = ..., pid: _Optional[int] = ..., position: _Optional[int] = ..., roles: _Optional[_Iterable[_Union[TaskRole, str]]] = ..., program: _Optional[str] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ...) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ("sequence", "phase", "round", "failures", "store_port", "probe", "stall", "votes", "warming", "ports", "tasks", "hosts_store", "holdings", "inlet", "copied", "stored", "leaving")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    WARMING_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_STORE_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    INLET_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    phase: AgentPhase
    round: int
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    store_port: int
    probe: ProbeReport
    stall: Stall
    votes: _containers.RepeatedCompositeFieldContainer[Vote]
    warming: bool
    ports: _containers.RepeatedScalarFieldContainer[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskReport]
    hosts_store: bool
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    inlet: Inlet
    copied: Sent
    stored: StoreReport
    leaving: str
    def __init__(self, sequence: _Optional[int] = ..., phase: _Optional[_Union[AgentPhase, str]] = ..., round: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., store_port: _Optional[int] = ..., probe: _Optional[_Union[ProbeReport, _Mapping]] = ..., stall: _Optional[_Union[Stall, _Mapping]] = ..., votes: _Optional[_Iterable[_Union[Vote, _Mapping]]] = ..., warming: bool = ..., ports: _Optional[_Iterable[int]] = ..., tasks: _Optional[_Iterable[_Union[TaskReport, _Mapping]]] = ..., hosts_store: bool = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., inlet: _Optional[_Union[Inlet, _Mapping]] = ..., copied: _Optional[_Union[Sent, _Mapping]] = ..., stored: _Optional[_Union[StoreReport, _Mapping]] = ..., leaving: _Optional[str] = ...) -> None: ...

class StoreReport(_message.Message):
    __slots__ = ("number", "run", "stage", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    run: str
    stage: StoreStage
    reason: str
    def __init__(self, number: _Optional[int] = ..., run: _Optional[str] = ..., stage: _Optional[_Union[StoreStage, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Inlet(_message.Message):
    __slots__ = ("port", "key")
    PORT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    port: int
    key: bytes
    def __init__(self, port: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("group_rank", "address", "inlet")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INLET_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    address: str
    inlet: Inlet
    def __init__(self, group_rank: _Optional[int] = ..., address: _Optional[str] = ..., inlet: _Optional[_Union[Inlet, _Mapping]] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("commit", "number", "missed")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    commit: CommitId
    number: int
    missed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, commit: _Optional[_Union[CommitId, _Mapping]] = ..., number: _Optional[int] = ..., missed: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitId(_message.Message):
    __slots__ = ("round", "step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("group_rank", "digest", "own", "shared")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    digest: str
    own: bool
    shared: str
    def __init__(self, group_rank: _Optional[int] = ..., digest: _Optional[str] = ..., own: bool = ..., shared: _Optional[str] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("commit", "size", "parts")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    commit: CommitId
    size: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, commit: _Optional[_Union[CommitId, _Mapping]] = ..., size: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class TaskReport(_message.Message):
    __slots__ = ("local_rank", "attempt", "ended", "failure")
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    attempt: int
    ended: bool
    failure: Failure
    def __init__(self, local_rank: _Optional[int] = ..., attempt: _Optional[int] = ..., ended: bool = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class GroupReport(_message.Message):
    __slots__ = ("error", "bandwidth", "latency", "transport")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    error: str
    bandwidth: float
    latency: float
    transport: str
    def __init__(self, error: _Optional[str] = ..., bandwidth: _Optional[float] = ..., latency: _Optional[float] = ..., transport: _Optional[str] = ...) -> None: ...

class ProbeReport(_message.Message):
    __slots__ = ("check", "error", "matmul_flops", "groups", "engine")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MATMUL_FLOPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    check: int
    error: str
    matmul_flops: float
    groups: _containers.RepeatedCompositeFieldContainer[GroupReport]
    engine: str
    def __init__(self, check: _Optional[int] = ..., error: _Optional[str] = ..., matmul_flops: _Optional[float] = ..., groups: _Optional[_Iterable[_Union[GroupReport, _Mapping]]] = ..., engine: _Optional[str] = ...) -> None: ...

class Stall(_message.Message):
    __slots__ = ("rank", "local_rank", "step", "silence", "allowed", "in_collective", "where", "stacks", "timestamp", "evidence", "lasting", "doubt")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    IN_COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    LASTING_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    step: int
    silence: float
    allowed: float
    in_collective: bool
    where: str
    stacks: str
    timestamp: float
    evidence: Evidence
    lasting: float
    doubt: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., step: _Optional[int] = ..., silence: _Optional[float] = ..., allowed: _Optional[float] = ..., in_collective: bool = ..., where: _Optional[str] = ..., stacks: _Optional[str] = ..., timestamp: _Optional[float] = ..., evidence: _Optional[_Union[Evidence, str]] = ..., lasting: _Optional[float] = ..., doubt: _Optional[str] = ...) -> None: ...

class World(_message.Message):
    __slots__ = ("round", "epoch", "size")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    round: int
    epoch: int
    size: int
    def __init__(self, round: _Optional[int] = ..., epoch: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("world", "base", "members")
    WORLD_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    world: World
    base: World
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, world: _Optional[_Union[World, _Mapping]] = ..., base: _Optional[_Union[World, _Mapping]] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("world", "base", "prior", "members")
    WORLD_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    world: World
    base: World
    prior: World
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, world: _Optional[_Union[World, _Mapping]] = ..., base: _Optional[_Union[World, _Mapping]] = ..., prior: _Optional[_Union[World, _Mapping]] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("node", "host", "rank", "local_rank", "role", "pid", "kind", "exit_code", "message", "traceback", "stderr_tail", "error_file", "timestamp", "step", "oom_kills", "host_oom", "kernel_log", "stacks", "stopped", "raised")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    STDERR_TAIL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FILE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OOM_KILLS_FIELD_NUMBER: _ClassVar[int]
    HOST_OOM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_LOG_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    rank: int
    local_rank: int
    role: str
    pid: int
    kind: FailureKind
    exit_code: int
    message: str
    traceback: str
    stderr_tail: str
    error_file: str
    timestamp: float
    step: int
    oom_kills: int
    host_oom: bool
    kernel_log: str
    stacks: str
    stopped: bool
    raised: float
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., role: _Optional[str] = ..., pid: _Optional[int] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., stderr_tail: _Optional[str] = ..., error_file: _Optional[str] = ..., timestamp: _Optional[float] = ..., step: _Optional[int] = ..., oom_kills: _Optional[int] = ..., host_oom: bool = ..., kernel_log: _Optional[str] = ..., stacks: _Optional[str] = ..., stopped: bool = ..., raised: _Optional[float] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "heartbeat_interval", "ticket", "returning", "key")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    RETURNING_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    heartbeat_interval: float
    ticket: bytes
    returning: bytes
    key: bytes
    def __init__(self, epoch: _Optional[int] = ..., heartbeat_interval: _Optional[float] = ..., ticket: _Optional[bytes] = ..., returning: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("code", "message", "proof")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    code: RejectCode
    message: str
    proof: bytes
    def __init__(self, code: _Optional[_Union[RejectCode, str]] = ..., message: _Optional[str] = ..., proof: _Optional[bytes] = ...) -> None: ...

class StartRound(_message.Message):
    __slots__ = ("epoch", "sequence", "assignment", "reason", "after")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    assignment: Assignment
    reason: str
    after: str
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., reason: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("round", "group_rank", "group_world_size", "first_rank", "world_size", "role_first_rank", "role_world_size", "store_address", "store_port", "restart_count", "max_restarts", "proposal", "tasks", "cluster", "tag", "store_hosted", "restore")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    ROLE_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    STORE_HOSTED_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    round: int
    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    role_first_rank: int
    role_world_size: int
    store_address: str
    store_port: int
    restart_count: int
    max_restarts: int
    proposal: Proposal
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    cluster: _containers.RepeatedCompositeFieldContainer[ClusterRole]
    tag: str
    store_hosted: bool
    restore: CommitId
    def __init__(self, round: _Optional[int] = ..., group_rank: _Optional[int] = ..., group_world_size: _Optional[int] = ..., first_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., role_first_rank: _Optional[int] = ..., role_world_size: _Optional[int] = ..., store_address: _Optional[str] = ..., store_port: _Optional[int] = ..., restart_count: _Optional[int] = ..., max_restarts: _Optional[int] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., cluster: _Optional[_Iterable[_Union[ClusterRole, _Mapping]]] = ..., tag: _Optional[str] = ..., store_hosted: bool = ..., restore: _Optional[_Union[CommitId, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("local_rank", "role", "index", "attempt", "port", "saves")
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    role: TaskRole
    index: int
    attempt: int
    port: int
    saves: bool
    def __init__(self, local_rank: _Optional[int] = ..., role: _Optional[_Union[TaskRole, str]] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., port: _Optional[int] = ..., saves: bool = ...) -> None: ...

class ClusterRole(_message.Message):
    __slots__ = ("role", "addresses")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    role: TaskRole
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, role: _Optional[_Union[TaskRole, str]] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class StopRound(_message.Message):
    __slots__ = ("epoch", "sequence", "round", "reason", "drain")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    round: int
    reason: str
    drain: bool
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ..., drain: bool = ...) -> None: ...

class ProbeGroup(_message.Message):
    __slots__ = ("rank", "nodes", "address", "port", "slot")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    address: str
    port: int
    slot: int
    def __init__(self, rank: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class StartProbe(_message.Message):
    __slots__ = ("epoch", "sequence", "check", "groups", "timeout", "slots", "secret")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    check: int
    groups: _containers.RepeatedCompositeFieldContainer[ProbeGroup]
    timeout: float
    slots: int
    secret: bytes
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., check: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[ProbeGroup, _Mapping]]] = ..., timeout: _Optional[float] = ..., slots: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class SaveStacks(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class JudgeCommits(_message.Message):
    __slots__ = ("epoch", "round", "kept", "void", "safe", "copying", "copies", "number")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    SAFE_FIELD_NUMBER: _ClassVar[int]
    COPYING_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    kept: CommitId
    void: CommitId
    safe: CommitId
    copying: CommitId
    copies: _containers.RepeatedCompositeFieldContainer[Copy]
    number: int
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., kept: _Optional[_Union[CommitId, _Mapping]] = ..., void: _Optional[_Union[CommitId, _Mapping]] = ..., safe: _Optional[_Union[CommitId, _Mapping]] = ..., copying: _Optional[_Union[CommitId, _Mapping]] = ..., copies: _Optional[_Iterable[_Union[Copy, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class WriteState(_message.Message):
    __slots__ = ("epoch", "order")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: StoreOrder
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[_Union[StoreOrder, _Mapping]] = ...) -> None: ...

class StoreOrder(_message.Message):
    __slots__ = ("number", "run", "commit", "parts", "files", "partial", "urgent")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    run: str
    commit: CommitId
    parts: _containers.RepeatedCompositeFieldContainer[StorePart]
    files: int
    partial: bool
    urgent: bool
    def __init__(self, number: _Optional[int] = ..., run: _Optional[str] = ..., commit: _Optional[_Union[CommitId, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[StorePart, _Mapping]]] = ..., files: _Optional[int] = ..., partial: bool = ..., urgent: bool = ...) -> None: ...

class StorePart(_message.Message):
    __slots__ = ("group_rank", "number", "which", "of")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHICH_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    number: int
    which: int
    of: int
    def __init__(self, group_rank: _Optional[int] = ..., number: _Optional[int] = ..., which: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class JournalCopy(_message.Message):
    __slots__ = ("epoch", "first", "lines", "whole")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first: int
    lines: _containers.RepeatedScalarFieldContainer[str]
    whole: int
    def __init__(self, epoch: _Optional[int] = ..., first: _Optional[int] = ..., lines: _Optional[_Iterable[str]] = ..., whole: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("epoch", "text")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    text: str
    def __init__(self, epoch: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class NodeCheck(_message.Message):
    __slots__ = ("node", "matmul_flops", "bandwidth", "latency", "verdict", "detail", "engine")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MATMUL_FLOPS_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    node: str
    matmul_flops: float
    bandwidth: float
    latency: float
    verdict: str
    detail: str
    engine: str
    def __init__(self, node: _Optional[str] = ..., matmul_flops: _Optional[float] = ..., bandwidth: _Optional[float] = ..., latency: _Optional[float] = ..., verdict: _Optional[str] = ..., detail: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobEnded(_message.Message):
    __slots__ = ("epoch", "sequence", "outcome", "reason", "failures", "checkup", "other_program")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    CHECKUP_FIELD_NUMBER: _ClassVar[int]
    OTHER_PROGRAM_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    outcome: Outcome
    reason: str
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    checkup: _containers.RepeatedCompositeFieldContainer[NodeCheck]
    other_program: str
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., checkup: _Optional[_Iterable[_Union[NodeCheck, _Mapping]]] = ..., other_program: _Optional[str] = ...) -> None: ...

class ControlMessage(_message.Message):
    __slots__ = ("hello", "show_status", "drain_node", "scale_job", "save_all_stacks", "scale_role", "restart_round", "watch_events", "scale_in", "scale_out", "cordon_node", "uncordon_node", "check_nodes", "stop_job", "cancel_scale", "read_log", "show_stacks", "list_ranks", "await_status")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SHOW_STATUS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_NODE_FIELD_NUMBER: _ClassVar[int]
    SCALE_JOB_FIELD_NUMBER: _ClassVar[int]
    SAVE_ALL_STACKS_FIELD_NUMBER: _ClassVar[int]
    SCALE_ROLE_FIELD_NUMBER: _ClassVar[int]
    RESTART_ROUND_FIELD_NUMBER: _ClassVar[int]
    WATCH_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SCALE_IN_FIELD_NUMBER: _ClassVar[int]
    SCALE_OUT_FIELD_NUMBER: _ClassVar[int]
    CORDON_NODE_FIELD_NUMBER: _ClassVar[int]
    UNCORDON_NODE_FIELD_NUMBER: _ClassVar[int]
    CHECK_NODES_FIELD_NUMBER: _ClassVar[int]
    STOP_JOB_FIELD_NUMBER: _ClassVar[int]
    CANCEL_SCALE_FIELD_NUMBER: _ClassVar[int]
    READ_LOG_FIELD_NUMBER: _ClassVar[int]
    SHOW_STACKS_FIELD_NUMBER: _ClassVar[int]
    LIST_RANKS_FIELD_NUMBER: _ClassVar[int]
    AWAIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    hello: ControlHello
    show_status: ShowStatus
    drain_node: DrainNode
    scale_job: ScaleJob
    save_all_stacks: SaveAllStacks
    scale_role: ScaleRole
    restart_round: RestartRound
    watch_events: WatchEvents
    scale_in: ScaleIn
    scale_out: ScaleOut
    cordon_node: CordonNode
    uncordon_node: UncordonNode
    check_nodes: CheckNodes
    stop_job: StopJob
    cancel_scale: CancelScale
    read_log: ReadLog
    show_stacks: ShowStacks
    list_ranks: ListRanks
    await_status: AwaitStatus
    def __init__(self, hello: _Optional[_Union[ControlHello, _Mapping]] = ..., show_status: _Optional[_Union[ShowStatus, _Mapping]] = ..., drain_node: _Optional[_Union[DrainNode, _Mapping]] = ..., scale_job: _Optional[_Union[ScaleJob, _Mapping]] = ..., save_all_stacks: _Optional[_Union[SaveAllStacks, _Mapping]] = ..., scale_role: _Optional[_Union[ScaleRole, _Mapping]] = ..., restart_round: _Optional[_Union[RestartRound, _Mapping]] = ..., watch_events: _Optional[_Union[WatchEvents, _Mapping]] = ..., scale_in: _Optional[_Union[ScaleIn, _Mapping]] = ..., scale_out: _Optional[_Union[ScaleOut, _Mapping]] = ..., cordon_node: _Optional[_Union[CordonNode, _Mapping]] = ..., uncordon_node: _Optional[_Union[UncordonNode, _Mapping]] = ..., check_nodes: _Optional[_Union[CheckNodes, _Mapping]] = ..., stop_job: _Optional[_Union[StopJob, _Mapping]] = ..., cancel_scale: _Optional[_Union[CancelScale, _Mapping]] = ..., read_log: _Optional[_Union[ReadLog, _Mapping]] = ..., show_stacks: _Optional[_Union[ShowStacks, _Mapping]] = ..., list_ranks: _Optional[_Union[ListRanks, _Mapping]] = ..., await_status: _Optional[_Union[AwaitStatus, _Mapping]] = ...) -> None: ...

class ControlHello(_message.Message):
    __slots__ = ("job_id", "version", "nonce", "proof")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: str
    nonce: bytes
    proof: bytes
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[str] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class ShowStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AwaitStatus(_message.Message):
    __slots__ = ("after", "wait")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    wait: float
    def __init__(self, after: _Optional[str] = ..., wait: _Optional[float] = ...) -> None: ...

class DrainNode(_message.Message):
    __slots__ = ("node", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ScaleJob(_message.Message):
    __slots__ = ("min_nodes", "max_nodes")
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    min_nodes: int
    max_nodes: int
    def __init__(self, min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ...) -> None: ...

class ScaleRole(_message.Message):
    __slots__ = ("role", "count")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    role: TaskRole
    count: int
    def __init__(self, role: _Optional[_Union[TaskRole, str]] = ..., count: _Optional[int] = ...) -> None: ...

class SaveAllStacks(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartRound(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ScaleIn(_message.Message):
    __slots__ = ("reason", "count", "nodes")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class ScaleOut(_message.Message):
    __slots__ = ("count", "timeout")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    count: int
    timeout: float
    def __init__(self, count: _Optional[int] = ..., timeout: _Optional[float] = ...) -> None: ...

class CordonNode(_message.Message):
    __slots__ = ("node", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class UncordonNode(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class CheckNodes(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopJob(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CancelScale(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ControlReply(_message.Message):
    __slots__ = ("ok", "text", "proof", "status", "watched", "found")
    OK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WATCHED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    text: str
    proof: bytes
    status: JobStatus
    watched: Watched
    found: Found
    def __init__(self, ok: bool = ..., text: _Optional[str] = ..., proof: _Optional[bytes] = ..., status: _Optional[_Union[JobStatus, _Mapping]] = ..., watched: _Optional[_Union[Watched, _Mapping]] = ..., found: _Optional[_Union[Found, _Mapping]] = ...) -> None: ...

class LogPlace(_message.Message):
    __slots__ = ("stream", "after")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    stream: LogStream
    after: str
    def __init__(self, stream: _Optional[_Union[LogStream, str]] = ..., after: _Optional[str] = ...) -> None: ...

class ReadLog(_message.Message):
    __slots__ = ("rank", "places", "lines", "wait")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    places: _containers.RepeatedCompositeFieldContainer[LogPlace]
    lines: int
    wait: float
    def __init__(self, rank: _Optional[int] = ..., places: _Optional[_Iterable[_Union[LogPlace, _Mapping]]] = ..., lines: _Optional[int] = ..., wait: _Optional[float] = ...) -> None: ...

class ShowStacks(_message.Message):
    __slots__ = ("rank",)
    RANK_FIELD_NUMBER: _ClassVar[int]
    rank: int
    def __init__(self, rank: _Optional[int] = ...) -> None: ...

class ListRanks(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankRange(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("stream", "place", "data", "round", "attempt", "begins", "missed", "more", "note")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    stream: LogStream
    place: str
    data: bytes
    round: int
    attempt: int
    begins: bool
    missed: bool
    more: bool
    note: str
    def __init__(self, stream: _Optional[_Union[LogStream, str]] = ..., place: _Optional[str] = ..., data: _Optional[bytes] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., begins: bool = ..., missed: bool = ..., more: bool = ..., note: _Optional[str] = ...) -> None: ...

class RankAnswer(_message.Message):
    __slots__ = ("pieces", "stacks")
    PIECES_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[LogPiece]
    stacks: str
    def __init__(self, pieces: _Optional[_Iterable[_Union[LogPiece, _Mapping]]] = ..., stacks: _Optional[str] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("ranks", "answer")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[RankRange]
    answer: RankAnswer
    def __init__(self, ranks: _Optional[_Iterable[_Union[RankRange, _Mapping]]] = ..., answer: _Optional[_Union[RankAnswer, _Mapping]] = ...) -> None: ...

class LogQuestion(_message.Message):
    __slots__ = ("places", "lines", "wait")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[LogPlace]
    lines: int
    wait: float
    def __init__(self, places: _Optional[_Iterable[_Union[LogPlace, _Mapping]]] = ..., lines: _Optional[int] = ..., wait: _Optional[float] = ...) -> None: ...

class AskNode(_message.Message):
    __slots__ = ("epoch", "id", "local_rank", "log")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    id: int
    local_rank: int
    log: LogQuestion
    def __init__(self, epoch: _Optional[int] = ..., id: _Optional[int] = ..., local_rank: _Optional[int] = ..., log: _Optional[_Union[LogQuestion, _Mapping]] = ...) -> None: ...

class NodeAnswer(_message.Message):
    __slots__ = ("incarnation", "id", "refused", "answer")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    id: int
    refused: str
    answer: RankAnswer
    def __init__(self, incarnation: _Optional[str] = ..., id: _Optional[int] = ..., refused: _Optional[str] = ..., answer: _Optional[_Union[RankAnswer, _Mapping]] = ...) -> None: ...

class WatchEvents(_message.Message):
    __slots__ = ("after", "wait")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    wait: float
    def __init__(self, after: _Optional[str] = ..., wait: _Optional[float] = ...) -> None: ...

class Watched(_message.Message):
    __slots__ = ("upto", "lines", "missed", "more")
    UPTO_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    upto: str
    lines: _containers.RepeatedScalarFieldContainer[str]
    missed: bool
    more: bool
    def __init__(self, upto: _Optional[str] = ..., lines: _Optional[_Iterable[str]] = ..., missed: bool = ..., more: bool = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job_id", "phase", "round", "min_nodes", "max_nodes", "restarts_used", "max_restarts", "waiting_for", "nodes", "unlisted", "saved", "safe", "durable", "goodput", "ettr", "steps_rate", "step", "uptime", "scaling", "scaled", "world", "workers", "cause", "peak", "stranded", "role_peaks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_USED_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    UNLISTED_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    SAFE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    ETTR_FIELD_NUMBER: _ClassVar[int]
    STEPS_RATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    SCALED_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    STRANDED_FIELD_NUMBER: _ClassVar[int]
    ROLE_PEAKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    phase: JobPhase
    round: int
    min_nodes: int
    max_nodes: int
    restarts_used: int
    max_restarts: int
    waiting_for: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    unlisted: int
    saved: CommitId
    safe: CommitId
    durable: CommitId
    goodput: float
    ettr: float
    steps_rate: float
    step: int
    uptime: float
    scaling: str
    scaled: ScaleEnd
    world: int
    workers: int
    cause: str
    peak: UsagePeak
    stranded: int
    role_peaks: _containers.RepeatedCompositeFieldContainer[RolePeak]
    def __init__(self, job_id: _Optional[str] = ..., phase: _Optional[_Union[JobPhase, str]] = ..., round: _Optional[int] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., restarts_used: _Optional[int] = ..., max_restarts: _Optional[int] = ..., waiting_for: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., unlisted: _Optional[int] = ..., saved: _Optional[_Union[CommitId, _Mapping]] = ..., safe: _Optional[_Union[CommitId, _Mapping]] = ..., durable: _Optional[_Union[CommitId, _Mapping]] = ..., goodput: _Optional[float] = ..., ettr: _Optional[float] = ..., steps_rate: _Optional[float] = ..., step: _Optional[int] = ..., uptime: _Optional[float] = ..., scaling: _Optional[str] = ..., scaled: _Optional[_Union[ScaleEnd, _Mapping]] = ..., world: _Optional[int] = ..., workers: _Optional[int] = ..., cause: _Optional[str] = ..., peak: _Optional[_Union[UsagePeak, _Mapping]] = ..., stranded: _Optional[int] = ..., role_peaks: _Optional[_Iterable[_Union[RolePeak, _Mapping]]] = ...) -> None: ...

class RolePeak(_message.Message):
    __slots__ = ("role", "peak")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    role: str
    peak: UsagePeak
    def __init__(self, role: _Optional[str] = ..., peak: _Optional[_Union[UsagePeak, _Mapping]] = ...) -> None: ...

class UsagePeak(_message.Message):
    __slots__ = ("cpu", "memory", "cpus", "memory_limit")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    cpu: float
    memory: int
    cpus: int
    memory_limit: int
    def __init__(self, cpu: _Optional[float] = ..., memory: _Optional[int] = ..., cpus: _Optional[int] = ..., memory_limit: _Optional[int] = ...) -> None: ...

class ScaleEnd(_message.Message):
    __slots__ = ("order", "reached", "reason")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    order: int
    reached: bool
    reason: str
    def __init__(self, order: _Optional[int] = ..., reached: bool = ..., reason: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("name", "rank", "phase", "attached", "doubt", "tasks", "figures", "cordoned")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    name: str
    rank: int
    phase: AgentPhase
    attached: bool
    doubt: str
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    figures: NodeFigures
    cordoned: str
    def __init__(self, name: _Optional[str] = ..., rank: _Optional[int] = ..., phase: _Optional[_Union[AgentPhase, str]] = ..., attached: bool = ..., doubt: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ..., figures: _Optional[_Union[NodeFigures, _Mapping]] = ..., cordoned: _Optional[str] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("role", "index", "attempt", "state", "address", "usage")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    role: TaskRole
    index: int
    attempt: int
    state: str
    address: str
    usage: TaskUsage
    def __init__(self, role: _Optional[_Union[TaskRole, str]] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., state: _Optional[str] = ..., address: _Optional[str] = ..., usage: _Optional[_Union[TaskUsage, _Mapping]] = ...) -> None: ...
