"""The classes of failures: a row for each, and the texts that indicate it.

To add a class of failure, add its row to ``FailureClass`` and its texts to ``SAID``. All rules read these
tables: ``core/recovery/diagnosis.py`` (which class), ``core/recovery/cause.py`` (which failure the others
follow from), ``core/recovery/policy.py`` and ``core/recovery/settlement.py`` (what is done). A policy file
names the class by its word.
"""

from __future__ import annotations

from enum import Enum, Flag, auto
from typing import NamedTuple


class Action(Enum):
    """What is done about a failure."""

    RESTART = "restart"  # in place
    RECHECK = "recheck"  # check the node's health, then restart
    LEAVE = "leave"  # the node leaves, so that the platform replaces it; the others restart
    GIVE_UP = "give_up"  # the job ends


class Trait(Flag):
    """What else is true of failures of a class."""

    NONE = 0
    SHARED = auto()  # of something that nodes do together: the node that complains is seldom at fault
    LIKE_HARDWARE = auto()  # a broken device can look like this
    REPEATABLE = auto()  # an exception of the program that can recur in the same way


class FailureClass(Enum):
    """What made a worker fail; the words are those of a policy file."""

    action: Action  # where the policy has no rule of its own
    order: int  # of failures on several hosts, the one with the lowest is the cause
    traits: Trait

    def __new__(cls, word: str, action: Action, order: int, traits: Trait = Trait.NONE) -> FailureClass:
        """The word is the value."""
        member = object.__new__(cls)
        member._value_ = word
        member.action, member.order, member.traits = action, order, traits
        return member

    # The host ran out of memory. The kill itself has freed it, and no check would find anything wrong.
    HOST_OOM = "host_oom", Action.RESTART, 30
    # The container's memory limit was reached. Another node would have the same limit.
    CGROUP_OOM = "cgroup_oom", Action.RESTART, 20
    # A fresh process has a GPU without fragments; if the batch is too large, the same error ends the job.
    CUDA_OOM = "cuda_oom", Action.RESTART, 40, Trait.REPEATABLE
    # An exception of the training program. It may depend on the data or on chance; if it does not, the same
    # error ends the job.
    USER_ERROR = "user_error", Action.RESTART, 50, Trait.REPEATABLE
    # Some node or link is slow or stuck, seldom that of the worker that timed out: measure before going on.
    COLLECTIVE_TIMEOUT = "collective_timeout", Action.RECHECK, 90, Trait.SHARED | Trait.LIKE_HARDWARE
    # No restart repairs it, and every round on this node risks a wrong result.
    HARDWARE = "hardware", Action.LEAVE, 10, Trait.LIKE_HARDWARE
    # If the node is taken, its agent is told as well and leaves by itself; a worker alone can start again.
    PREEMPTION = "preemption", Action.RESTART, 60
    # No peer failed, or that would be the cause. So a link may be broken; the health check would show it.
    NETWORK = "network", Action.RECHECK, 100, Trait.SHARED | Trait.LIKE_HARDWARE
    # As for COLLECTIVE_TIMEOUT.
    HANG = "hang", Action.RECHECK, 70, Trait.SHARED | Trait.LIKE_HARDWARE
    # Most are kills from outside and crashes in native code, for which the fastest restart is the best. Often
    # it is only the death of a worker, after which its peers report classes of a higher order.
    UNKNOWN = "unknown", Action.RESTART, 80


class Saying(NamedTuple):
    """Texts, as regular expressions, that indicate one class."""

    failure_class: FailureClass
    sure: bool
    patterns: tuple[str, ...]
    echo: bool = False  # a worker says this if it lost a peer, or waits for one in vain


#: Said by a process that lost one of its own children to SIGKILL.
CHILD_KILLED = (
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)",
    r"BrokenProcessPool",
    r"died with <Signals\.SIGKILL",
)

#: Texts in exceptions and output; if several rows match, the first one counts.
SAID: tuple[Saying, ...] = (
    Saying(FailureClass.PREEMPTION, True, (r"\bKeyboardInterrupt\b", r"\bSignalException\b")),
    Saying(
        FailureClass.HARDWARE,
        True,
        (
            r"uncorrectable ECC error",
            r"uncorrectable NVLink error",
            r"peer GPU memory over nvlink or a hardware error",
            r"fallen off the bus",
            r"GPU is lost",
            r"hardware stack error",
        ),
    ),
    Saying(
        FailureClass.CUDA_OOM,
        True,
        (
            r"\b(?:CUDA|HIP|XPU) out of memory",
            r"torch\.(?:cuda\.)?OutOfMemoryError",
            r"CUDA(?: driver)? error: out of memory",
            r"Cuda failure\b.{0,20}out of memory",  # as NCCL quotes it
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"cudaErrorMemoryAllocation",
            r"CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_(?:STATUS_)?ALLOC_FAILED",
        ),
    ),
    Saying(
        FailureClass.HOST_OOM,
        True,
        (
            r"\b_?(?:Array)?MemoryError\b",
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
            r"std::bad_alloc",
            r"Cannot allocate memory|\bENOMEM\b",
            r"(?:out of|insufficient) shared memory",  # /dev/shm is memory, too
            r"unable to (?:allocate shared memory|mmap \d+ bytes|write to file </torch_)",
        ),
    ),
    Saying(
        FailureClass.COLLECTIVE_TIMEOUT,
        True,
        (
            r"Watchdog caught collective operation timeout",
            r"watchdog got stuck for",
            r"Heartbeat monitor timed out",
            r"Timeout at NCCL work",
            r"Timed out waiting \d+ ?ms for (?:recv|send) operation",
            r"Application timeout caused pair closure",
            r"timed out in monitoredBarrier|failed to pass monitoredBarrier",
            r"Timed out after \d+ seconds waiting for clients",
            r"wait timeout after \d+ ?ms, keys",
        ),
        echo=True,
    ),
    Saying(
        FailureClass.USER_ERROR,
        False,
        (
            r"an illegal memory access was encountered",
            r"device-side assert triggered",
            r"misaligned address",
            r"invalid device ordinal",
            r"no kernel image is available",
        ),
    ),
    Saying(
        FailureClass.HARDWARE,
        False,
        (
            r"unspecified launch failure",
            r"an illegal instruction was encountered",
            r"the launch timed out and was terminated",
            r"CUDA (?:error: )?unknown error",
            r"CUDA error: system not yet initialized",
            r"no CUDA-capable device is detected",
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            r"CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED",
            r"Unable to determine the device handle",
            r"unhandled cuda error",
            r"\b[Bb]us error\b",
        ),
    ),
    Saying(
        FailureClass.NETWORK,
        True,
        (
            r"Temporary failure in name resolution|Name or service not known",
            r"Max retries exceeded with url",
        ),
    ),
    Saying(
        FailureClass.NETWORK,
        True,
        (
            r"Connection (?:reset|closed) by (?:remote )?peer",
            r"\bConnection(?:Reset|Refused|Aborted)?Error\b|\bBrokenPipeError\b",
            r"[Cc]onnection (?:refused|aborted|timed out)|[Bb]roken pipe",
            r"\bE(?:CONNRESET|CONNREFUSED|CONNABORTED|TIMEDOUT|PIPE|HOSTUNREACH|NETUNREACH)\b",
            r"Network is unreachable|No route to host",
            r"remote process exited or there was a network error",
            r"\bncclRemoteError\b|\bncclSystemError\b|unhandled system error",
            r"NET/(?:IB|Socket|OFI)\b.{0,80}(?:error|failed)",
            r"DistNetworkError",
            r"client socket has (?:timed out|failed to connect)",
            r"failed to recv, got 0 bytes",
            r"\b[Ss]ocket ?[Tt]imeout\b|\bConnect timeout\b",
        ),
        echo=True,
    ),
    # Torch says this after every other error of NCCL as well, so it comes last.
    Saying(FailureClass.COLLECTIVE_TIMEOUT, True, (r"Some NCCL operations have failed or timed out",), True),
    Saying(FailureClass.UNKNOWN, False, CHILD_KILLED),
)
