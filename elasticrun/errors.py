"""The errors with which elasticrun ends, and its exit codes.

One tree, so that ``except ElasticRunError`` means "a reason we know and can say in one sentence",
and anything else is a bug that deserves its traceback::

    ElasticRunError
    ├─ UsageError               2  the command line, the environment or a file it names is wrong
    ├─ MasterUnreachableError   4  nothing answered at the rendezvous endpoint
    ├─ EndpointTakenError       5  the endpoint, or one node's MASTER_PORT, is held by another program
    ├─ RejectedError               the master refused this agent
    │  ├─ WrongJobError         6  the endpoint serves another job id
    │  ├─ WrongVersionError     7  the master runs another elasticrun version
    │  ├─ SupersededError       9  a newer agent joined under the same node name
    │  ├─ NameInUseError        9  another agent has this node's name
    │  ├─ ExcludedError        13  the job goes on without this node: it is faulty
    │  ├─ DrainedError         14  the job goes on without this node: it was told to leave
    │  ├─ UnauthenticatedError 15  one side cannot prove that it knows the job's token
    │  ├─ TooManyError         17  this address opens too many streams, or too fast
    │  └─ MisfitError           6  the job has other node bounds, or another framework
    ├─ NodeFaultError          10  this node cannot run workers (cannot be killed, no disk, no processes)
    ├─ OrderDeclinedError       1  the master declines an operator's order
    ├─ ScaleFailedError        18  a scale operation did not reach its goal, and the job is as it was
    ├─ CheckpointError          1  the state of the training cannot be saved or restored
    ├─ DataError                1  the samples cannot be dealt as asked, or not go on as saved
    │  └─ StreamError           1  a stream cannot be read, or its offsets not be committed
    │     ├─ BrokerAwayError       its broker does not answer
    │     └─ OffsetGoneError       records were removed before they were trained on
    └─ ProtocolError           11  a peer sent a message that breaks the protocol
    any other exception      70  a bug in elasticrun; its traceback is shown
    a signal            128 + n  the launcher was asked to stop and did; not an error

The ends of a job (1, 3, 12, 16) and of a job without a master (8) are no exceptions: the agent's machine
decides to finish with them.

Each message says what was given, what is allowed and what to do about it.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of ``elastic-run``; it is 128 + n if signal n stops it."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    RENDEZVOUS_TIMEOUT = 3
    MASTER_UNREACHABLE = 4
    ENDPOINT_TAKEN = 5
    WRONG_JOB = 6
    WRONG_VERSION = 7
    MASTER_LOST = 8
    SUPERSEDED = 9
    NODE_FAULT = 10
    PROTOCOL = 11
    REPEATED_ERROR = 12
    EXCLUDED = 13
    DRAINED = 14
    UNAUTHENTICATED = 15
    UNHEALTHY = 16
    TOO_MANY = 17
    SCALE_FAILED = 18
    INTERNAL = 70  # EX_SOFTWARE of sysexits.h


#: One line for each exit code, in the words of the manual's table.
EXIT_CODE_MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "the job succeeded: every worker of one round ended with 0 (in a TensorFlow job: its chief"
    " or worker 0). A spare, which logs that its script never ran, ends with 0 as well",
    ExitCode.JOB_FAILED: "a worker failed, and the restart budget was spent or a policy gave the job up",
    ExitCode.USAGE: "the command line, the environment or a file it names is wrong; nothing was started",
    ExitCode.RENDEZVOUS_TIMEOUT: "within `join_timeout` too few nodes came, too few of the last"
    " world were left, or their roles made no cluster",
    ExitCode.MASTER_UNREACHABLE: "nothing answered at the rendezvous endpoint",
    ExitCode.ENDPOINT_TAKEN: "another program, or the launcher of another job, has the rendezvous endpoint or"
    " the given MASTER_PORT",
    ExitCode.WRONG_JOB: "the endpoint serves another job: its `--rdzv-id`, `--nnodes` or `--framework`"
    " differs, or this node was a spare and the job ran another program",
    ExitCode.WRONG_VERSION: "the master at the endpoint runs another elasticrun version",
    ExitCode.MASTER_LOST: "the master went away and did not return within `--master-timeout`",
    ExitCode.SUPERSEDED: "another agent has this node's name, or took it over",
    ExitCode.NODE_FAULT: "this node cannot start or stop workers",
    ExitCode.PROTOCOL: "the master and this agent do not understand each other",
    ExitCode.REPEATED_ERROR: "the training program failed again with the same error and no step in between",
    ExitCode.EXCLUDED: "this node is faulty and was excluded; replace it",
    ExitCode.DRAINED: "this node left in good order, as a drain, a preemption notice or `elastic-ctl stop`"
    " told it to",
    ExitCode.UNAUTHENTICATED: "the job's token or certificate is missing or wrong",
    ExitCode.UNHEALTHY: "the health check left too few nodes, or `--health-check-only` found a fault",
    ExitCode.TOO_MANY: "this address opens too many connections to the master",
    ExitCode.SCALE_FAILED: "of `elastic-ctl scale out` only: not enough nodes came in time, or it was"
    " cancelled; the job is as it was",
    ExitCode.INTERNAL: "a bug in elasticrun; please report the traceback",
}


class ElasticRunError(Exception):
    """A failure with a known reason; ``str(error)`` is the one sentence shown to the user."""

    exit_code: ExitCode = ExitCode.JOB_FAILED


class UsageError(ElasticRunError):
    """The command line, the environment or a file named by them is wrong."""

    exit_code = ExitCode.USAGE


class MasterUnreachableError(ElasticRunError):
    """Nothing answered at the rendezvous endpoint for as long as we were told to try."""

    exit_code = ExitCode.MASTER_UNREACHABLE


class EndpointTakenError(ElasticRunError):
    """The port is held by a program that does not speak our protocol, or by a launcher of another job."""

    exit_code = ExitCode.ENDPOINT_TAKEN


class OrderDeclinedError(ElasticRunError):
    """The master understood an operator's order and declines it; the text says why."""


class ScaleFailedError(ElasticRunError):
    """A scale operation was begun and did not reach its goal; the text says why, and how the job is now."""

    exit_code = ExitCode.SCALE_FAILED


class RejectedError(ElasticRunError):
    """The master refused this agent; unless a subclass says otherwise, trying again cannot help."""

    exit_code = ExitCode.PROTOCOL


class WrongJobError(RejectedError):
    """The endpoint serves a job with another id."""

    exit_code = ExitCode.WRONG_JOB


class MisfitError(RejectedError):
    """This node was started for a job with other node bounds, or for another framework."""

    exit_code = ExitCode.WRONG_JOB


class WrongVersionError(RejectedError):
    """The master runs another elasticrun version."""

    exit_code = ExitCode.WRONG_VERSION


class SupersededError(RejectedError):
    """A newer incarnation joined under this node's name."""

    exit_code = ExitCode.SUPERSEDED


class NameInUseError(RejectedError):
    """Another agent has this node's name; trying again helps once that one is gone."""

    exit_code = ExitCode.SUPERSEDED


class ExcludedError(RejectedError):
    """The job goes on without this node, which is faulty."""

    exit_code = ExitCode.EXCLUDED


class DrainedError(RejectedError):
    """The job goes on without this node, which was told to leave."""

    exit_code = ExitCode.DRAINED


class UnauthenticatedError(RejectedError):
    """One side cannot prove that it knows the job's token."""

    exit_code = ExitCode.UNAUTHENTICATED


class TooManyError(RejectedError):
    """This address opens too many streams, or opens them too fast."""

    exit_code = ExitCode.TOO_MANY


class NodeFaultError(ElasticRunError):
    """This node cannot start or stop its workers."""

    exit_code = ExitCode.NODE_FAULT


class CheckpointError(ElasticRunError):
    """The state of the training cannot be saved or restored; the text says which part, and why."""


class DataError(ElasticRunError):
    """The samples of a dataset cannot be dealt as asked, or cannot go on as they were saved."""


class StreamError(DataError):
    """A stream cannot be read, or its offsets cannot be committed; the text says why."""


class BrokerAwayError(StreamError):
    """The broker of a stream does not answer; trying again may help."""


class OffsetGoneError(StreamError):
    """Records of a partition were removed before they were trained on."""

    def __init__(self, text: str, partition: str, wanted: int, oldest: int) -> None:
        super().__init__(text)
        self.partition = partition
        self.wanted = wanted  # the offset to go on at
        self.oldest = oldest  # the first one that is left


class ProtocolError(ElasticRunError):
    """A message is malformed, oversized, out of order or of an unknown kind."""

    exit_code = ExitCode.PROTOCOL


class JobFailedError(ElasticRunError):
    """A job that was launched from Python ended without its result, for another reason than a worker's."""

    def __init__(self, reason: str, exit_status: int) -> None:
        """``reason``: in words. ``exit_status``: of the launcher, see ``ExitCode``."""
        super().__init__(f"{reason} (exit status {exit_status})")
        self.reason = reason
        self.exit_status = exit_status

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.reason, self.exit_status)


class WorkerFailed(ElasticRunError):
    """A worker failed, and with it a job that was launched from Python.

    It is the root cause: the first worker that failed, not one that failed because another had. What its
    function raised is the ``__cause__``, if that can be pickled.
    """

    exit_code = ExitCode.JOB_FAILED

    def __init__(
        self,
        rank: int,
        summary: str,
        worker_exit_code: int,
        traceback: str,
        output: str,
        others: tuple[str, ...] = (),
    ) -> None:
        """All of these are attributes as well.

        Args:
            rank: Of the worker.
            summary: One line: which worker, where, and how it ended.
            worker_exit_code: Its exit status; negative: the number of the signal.
            traceback: As the worker left it; "": it left none.
            output: The end of its stderr, perhaps "".
            others: One line for each worker that failed later.
        """
        parts = (summary, traceback or output, *(f"later, {other}" for other in others))
        super().__init__("\n".join(part.rstrip() for part in parts if part))
        self.rank = rank
        self.summary = summary
        self.worker_exit_code = worker_exit_code
        self.traceback = traceback
        self.output = output
        self.others = others

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        told = (self.rank, self.summary, self.worker_exit_code, self.traceback, self.output, self.others)
        return type(self), told
