from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGENT_PHASE_UNSPECIFIED: _ClassVar[AgentPhase]
    AGENT_PHASE_PREPARING: _ClassVar[AgentPhase]
    AGENT_PHASE_READY: _ClassVar[AgentPhase]
    AGENT_PHASE_RUNNING: _ClassVar[AgentPhase]
    AGENT_PHASE_FAILED: _ClassVar[AgentPhase]
    AGENT_PHASE_FINISHED: _ClassVar[AgentPhase]
    AGENT_PHASE_STOPPING: _ClassVar[AgentPhase]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_EXIT: _ClassVar[FailureKind]
    FAILURE_KIND_SIGNAL: _ClassVar[FailureKind]
    FAILURE_KIND_SPAWN: _ClassVar[FailureKind]
    FAILURE_KIND_PORT_TAKEN: _ClassVar[FailureKind]

class RejectCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_CODE_UNSPECIFIED: _ClassVar[RejectCode]
    REJECT_CODE_WRONG_JOB: _ClassVar[RejectCode]
    REJECT_CODE_WRONG_VERSION: _ClassVar[RejectCode]
    REJECT_CODE_MALFORMED: _ClassVar[RejectCode]
    REJECT_CODE_OUT_OF_ORDER: _ClassVar[RejectCode]
    REJECT_CODE_OVERSIZED: _ClassVar[RejectCode]
    REJECT_CODE_SUPERSEDED: _ClassVar[RejectCode]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_SUCCEEDED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_TIMED_OUT: _ClassVar[Outcome]
AGENT_PHASE_UNSPECIFIED: AgentPhase
AGENT_PHASE_PREPARING: AgentPhase
AGENT_PHASE_READY: AgentPhase
AGENT_PHASE_RUNNING: AgentPhase
AGENT_PHASE_FAILED: AgentPhase
AGENT_PHASE_FINISHED: AgentPhase
AGENT_PHASE_STOPPING: AgentPhase
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_EXIT: FailureKind
FAILURE_KIND_SIGNAL: FailureKind
FAILURE_KIND_SPAWN: FailureKind
FAILURE_KIND_PORT_TAKEN: FailureKind
REJECT_CODE_UNSPECIFIED: RejectCode
REJECT_CODE_WRONG_JOB: RejectCode
REJECT_CODE_WRONG_VERSION: RejectCode
REJECT_CODE_MALFORMED: RejectCode
REJECT_CODE_OUT_OF_ORDER: RejectCode
REJECT_CODE_OVERSIZED: RejectCode
REJECT_CODE_SUPERSEDED: RejectCode
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_SUCCEEDED: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_TIMED_OUT: Outcome

class AgentMessage(_message.Message):
    __slots__ = ("hello", "report", "heartbeat", "leave")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    heartbeat: Heartbeat
    leave: Leave
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("welcome", "rejected", "start_round", "stop_round", "waiting", "job_ended", "goodbye")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    START_ROUND_FIELD_NUMBER: _ClassVar[int]
    STOP_ROUND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    JOB_ENDED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    rejected: Rejected
    start_round: StartRound
    stop_round: StopRound
    waiting: Waiting
    job_ended: JobEnded
    goodbye: Goodbye
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., start_round: _Optional[_Union[StartRound, _Mapping]] = ..., stop_round: _Optional[_Union[StopRound, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., job_ended: _Optional[_Union[JobEnded, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job_id", "version", "info", "status", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: str
    info: NodeInfo
    status: AgentStatus
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[str] = ..., info: _Optional[_Union[NodeInfo, _Mapping]] = ..., status: _Optional[_Union[AgentStatus, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("incarnation", "status")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    status: AgentStatus
    def __init__(self, incarnation: _Optional[str] = ..., status: _Optional[_Union[AgentStatus, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    def __init__(self, incarnation: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("incarnation", "reason")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    reason: str
    def __init__(self, incarnation: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node", "incarnation", "host", "address", "local_world_size", "role", "node_rank", "pid")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    host: str
    address: str
    local_world_size: int
    role: str
    node_rank: int
    pid: int
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., local_world_size: _Optional[int] = ..., role: _Optional[str] = ..., node_rank: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ("sequence", "phase", "round", "failures", "store_port")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    phase: AgentPhase
    round: int
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    store_port: int
    def __init__(self, sequence: _Optional[int] = ..., phase: _Optional[_Union[AgentPhase, str]] = ..., round: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., store_port: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("node", "host", "rank", "local_rank", "role", "pid", "kind", "exit_code", "message", "traceback", "stderr_tail", "error_file", "timestamp")
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
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., role: _Optional[str] = ..., pid: _Optional[int] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., stderr_tail: _Optional[str] = ..., error_file: _Optional[str] = ..., timestamp: _Optional[float] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "heartbeat_interval")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    heartbeat_interval: float
    def __init__(self, epoch: _Optional[int] = ..., heartbeat_interval: _Optional[float] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: RejectCode
    message: str
    def __init__(self, code: _Optional[_Union[RejectCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class StartRound(_message.Message):
    __slots__ = ("epoch", "sequence", "assignment", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    assignment: Assignment
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("round", "group_rank", "group_world_size", "first_rank", "world_size", "role_first_rank", "role_world_size", "store_address", "store_port", "restart_count", "max_restarts")
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
    def __init__(self, round: _Optional[int] = ..., group_rank: _Optional[int] = ..., group_world_size: _Optional[int] = ..., first_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., role_first_rank: _Optional[int] = ..., role_world_size: _Optional[int] = ..., store_address: _Optional[str] = ..., store_port: _Optional[int] = ..., restart_count: _Optional[int] = ..., max_restarts: _Optional[int] = ...) -> None: ...

class StopRound(_message.Message):
    __slots__ = ("epoch", "sequence", "round", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    round: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("epoch", "text")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    text: str
    def __init__(self, epoch: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobEnded(_message.Message):
    __slots__ = ("epoch", "sequence", "outcome", "reason", "failures")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    outcome: Outcome
    reason: str
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...
