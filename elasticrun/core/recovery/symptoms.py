"""What broken hardware looks like in the kernel's log, and a stop signal in a program's words.

Every text is one that a program, the kernel or NVIDIA's driver prints. What exceptions and output say of each
class of failure is in ``elasticrun/faults.py``.

The numbers of NVIDIA's driver ("Xid") are sorted by the action that NVIDIA's catalog of Xid errors
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) calls for. Those that ask for a reset
of the GPU, a restart of the machine or a look at its links are proof. Those of memory that the GPU itself has
set aside or contained make it suspect. Those that a faulty program causes (13, 31, 43, 45 and others that
ask for no more than a restart of the program) are no evidence about the hardware. Nor is ``an illegal memory
access``, which is Xid 31 seen from CUDA: it is by far most often a bug in a kernel, and where memory did
break, the driver also logs that under a number of its own.
"""

from __future__ import annotations

#: How the driver logs an Xid.
XID = r"NVRM: Xid \([^)]*\): (\d+)"
#: Xids after which the GPU, its links or the machine need a reset at least.
BROKEN_XIDS = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 158, 167, 171, 172},
)
#: Xids of faults that the GPU contained, or may have: it goes on, but deserves a check.
SUSPECT_XIDS = frozenset({63, 92, 94, 109, 121, *range(144, 151), 154, 156, 157, 160, 161, 169})


#: What a program says of itself if a stop signal, and nothing else, ended it.
TOLD_TO_STOP = (
    r"\bSIG(?:TERM|INT|HUP|QUIT|USR1)\b",
    r"\b(?:[Rr]eceived|[Cc]aught|[Gg]ot) (?:an? |the )?(?:termination |stop |interrupt )?signal\b",
    r"\b[Ss]ignal 15\b|\b[Ii]nterrupted by (?:a )?signal\b",
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
