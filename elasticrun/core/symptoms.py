"""What failures look like: the texts and numbers by which ``core/diagnosis.py`` tells them apart.

Every text is one that torch, NCCL, gloo, CUDA, Python, the C library, the kernel or NVIDIA's driver prints.

The numbers of NVIDIA's driver ("Xid") are sorted by the action that NVIDIA's catalog of Xid errors
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) calls for. Those that ask for a reset
of the GPU, a restart of the machine or a look at its links are proof. Those of memory that the GPU itself has
set aside or contained make it suspect. Those that a faulty program causes (13, 31, 43, 45 and others that
ask for no more than a restart of the program) are no evidence about the hardware. So is ``an illegal memory
access``, which is Xid 31 seen from CUDA: a bug in a kernel by far the most often, and where memory did break,
the driver logs that as well, with a number of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticrun.config import FailureClass

#: How the driver logs an Xid.
XID = r"NVRM: Xid \([^)]*\): (\d+)"
#: Xids after which the GPU, its links or the machine need a reset at least.
BROKEN_XIDS = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 158, 167, 171, 172},
)
#: Xids of faults that the GPU contained, or may have: it goes on, but deserves a check.
SUSPECT_XIDS = frozenset({63, 92, 94, 109, 121, *range(144, 151), 154, 156, 157, 160, 161, 169})


@dataclass(frozen=True, slots=True)
class Saying:
    """Texts, as regular expressions, that speak for one class."""

    failure_class: FailureClass
    sure: bool
    patterns: tuple[str, ...]
    echo: bool = False  # it is what somebody says who lost a peer, or waits for one in vain


#: What a process that lost one of its own children to SIGKILL says.
CHILD_KILLED = (
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)",
    r"BrokenProcessPool",
    r"died with <Signals\.SIGKILL",
)

#: What a program says of itself if a stop signal, and nothing else, ended it.
TOLD_TO_STOP = (
    r"\bSIG(?:TERM|INT|HUP|QUIT|USR1)\b",
    r"\b(?:[Rr]eceived|[Cc]aught|[Gg]ot) (?:an? |the )?(?:termination |stop |interrupt )?signal\b",
    r"\b[Ss]ignal 15\b|\b[Ii]nterrupted by (?:a )?signal\b",
)

#: What exceptions and output say; of several rows that fit, the first one counts.
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

#: What the kernel says of hardware, apart from Xids. Lines about errors that were corrected are left out.
BROKEN_HARDWARE = (
    r"fallen off the bus",
    r"SXid \([^)]*\): \d+, Fatal",
    r"due to hardware memory corruption",
    r"Processor context corrupt",
    r"severity[=:] ?(?:Uncorrect(?:ed|able) \()?[Ff]atal",
    r"EDAC .*\bUE\b",
)
SUSPECT_HARDWARE = (
    r"\[Hardware Error\]",
    r"[Mm]achine check",
    r"SXid \([^)]*\): \d+",
    r"[Uu]ncorrect(?:ed|able)",
    r"NVLink.{0,40}(?:error|[Ff]atal)",
)
CORRECTED = r"\b[Cc]orrect(?:ed|able)\b"
