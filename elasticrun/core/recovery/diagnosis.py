"""What went wrong in a worker that failed: one class, and the evidence for it.

Evidence is weighed by how well it is tied to this worker's end, not by how serious it looks:

1. The kernel counts kills for lack of memory. This class needs both: a worker, or a process of its own, that
   was killed, and a count or log line that says so. The cgroup's count is of our own processes, so it beats
   the host's.
2. The exception that ended the worker, from its error file, else from the end of its stderr. Other text
   on stderr beside an exception decides nothing: programs print errors that they survive.
3. Without an exception, the signal where it says enough, then what the output says. Texts are told apart by
   the table of ``elasticrun/faults.py``.
4. The kernel's log speaks of the host, perhaps of another program's GPU. It therefore overrules only what a
   broken device would look like from above: errors of CUDA and NCCL, timeouts, broken connections, hangs.

A class is ``sure`` if the evidence proves it. SIGBUS, say, may be memory that broke, but far more often is a
full ``/dev/shm``: that is a reason to check the node, but not to exclude it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from elasticrun.config import FailureClass
from elasticrun.core.protocol.failure import headline
from elasticrun.core.protocol.messages import Failure, FailureKind
from elasticrun.core.recovery.symptoms import (
    BROKEN_HARDWARE,
    BROKEN_XIDS,
    CORRECTED,
    SUSPECT_HARDWARE,
    SUSPECT_XIDS,
    XID,
)
from elasticrun.core.recovery.traceback_text import Raised, last_raised, raised_by_line
from elasticrun.dataclass import dataclass
from elasticrun.faults import CHILD_KILLED, SAID, Trait

#: Longest part of a line, in characters, that evidence quotes.
MAX_QUOTE = 160

SIGABRT, SIGBUS, SIGKILL = 6, 7, 9
#: Signals by which somebody else ends a program: SIGHUP, SIGINT, SIGTERM.
FROM_OUTSIDE = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong; ``evidence`` is a short sentence of what was seen, and where."""

    failure_class: FailureClass
    evidence: str
    sure: bool = True  # False: it may as well have been something else
    echo: bool = False  # such as a worker reports that lost a peer


#: Words in an exception behind which there may be a broken device.
_OF_A_DEVICE = r"(?i)\bcuda|nccl|cudnn|cublas|nvml|nvlink"


def diagnose(failure: Failure) -> Diagnosis:
    """What went wrong in this worker."""
    return (
        _killed_for_memory(failure)
        or _weigh(_own_account(failure), _kernel_account(failure.kernel_log))
        or _bare_end(failure)
    )


def is_from_outside(failure: Failure) -> bool:
    """Whether only a signal from outside ended this worker, which says nothing of the program."""
    match diagnose(failure).failure_class:
        case FailureClass.PREEMPTION:
            return True
        case FailureClass.UNKNOWN:
            return _lost_a_process(failure)  # memory was not short, or that would be the class
        case _:
            return False


def error_signature(failure: Failure) -> str:
    """What identifies the exception that ended a worker, the same for every rank; "" if there is none."""
    raised, _ = _raised(failure)
    return raised.signature if raised is not None else ""


def error_text(failure: Failure) -> str:
    """The exception that ended a worker, for its user to read; "" if there is none."""
    raised, _ = _raised(failure)
    return raised.shown if raised is not None else ""


def _raised(failure: Failure) -> tuple[Raised | None, str]:
    """The exception that ended the worker, and where it was found."""
    if failure.traceback and (raised := last_raised(failure.traceback)):
        return raised, "error file"
    if failure.error_file and (raised := raised_by_line(headline(failure.message))):
        return raised, "error file"
    # Python prints an exception and exits with 1; the abort of a library on the way out changes that.
    if failure.kind is FailureKind.EXIT or failure.exit_code == -SIGABRT or failure.stopped:
        return last_raised(failure.stderr_tail), "stderr"
    return None, ""


def _killed_for_memory(failure: Failure) -> Diagnosis | None:
    if failure.kind is FailureKind.HANG or not _lost_a_process(failure):
        return None
    logged = re.search(rf"^.*\bKill(?:ed)? process {failure.pid}\b.*$", failure.kernel_log, re.MULTILINE)
    if logged:
        of_cgroup = "Memory cgroup" in logged[0]
        return _quote(
            FailureClass.CGROUP_OOM if of_cgroup else FailureClass.HOST_OOM, "kernel log", logged[0]
        )
    if failure.oom_kills > 0:
        kills = "1 OOM kill" if failure.oom_kills == 1 else f"{failure.oom_kills} OOM kills"
        return Diagnosis(FailureClass.CGROUP_OOM, f"its cgroup counted {kills} in this round")
    if failure.host_oom:
        return Diagnosis(FailureClass.HOST_OOM, "the kernel's OOM killer was at work in this round")
    return None


def _lost_a_process(failure: Failure) -> bool:
    if _signal(failure) == SIGKILL:
        return True
    child_killed = _any_of(CHILD_KILLED)
    return any(child_killed.search(text) for _, text in (*_told(failure), ("", failure.traceback)))


def _own_account(failure: Failure) -> Diagnosis | None:
    """The diagnosis from the worker's own words and the way it ended."""
    if failure.kind is FailureKind.PORT_TAKEN:
        return Diagnosis(FailureClass.NETWORK, "the port of the workers' store was taken")
    if failure.kind is FailureKind.STORE_LOST:
        return Diagnosis(FailureClass.UNKNOWN, f"the workers' store: {_shown(failure.message)}")
    if failure.kind is FailureKind.HANG:
        return Diagnosis(FailureClass.HANG, _shown(failure.message) or "it made no step for too long")
    signum = _signal(failure)
    if signum in FROM_OUTSIDE and not failure.traceback:
        return Diagnosis(FailureClass.PREEMPTION, f"{FROM_OUTSIDE[signum]} from outside")
    if signum == SIGKILL and not failure.traceback:
        return None  # it had no time to say why
    if failure.exit_code == -SIGABRT and not failure.error_file and (said := _search(_told(failure))):
        return said  # of native code, which prints no traceback
    raised, where = _raised(failure)
    if raised is None:
        return _search(_told(failure))
    found = _by_exception(raised, where)
    if found.failure_class is FailureClass.UNKNOWN:  # a child died; the reason stands before that
        return _search([(where, failure.traceback or failure.stderr_tail)])
    return found


def _by_exception(raised: Raised, where: str) -> Diagnosis:
    found = _search([(where, raised.text)])
    if found is not None:
        return found
    is_of_device = _compiled(_OF_A_DEVICE).search(raised.text) is not None
    _, _, of_nccl = raised.text.partition("\nLast error:\n")  # tells more than what torch says before it
    said = of_nccl.strip().partition("\n")[0] or headline(raised.text)
    return _quote(FailureClass.USER_ERROR, where, said, sure=not is_of_device)


def _told(failure: Failure) -> Iterator[tuple[str, str]]:
    """What the worker said, and where. A message that is not from the worker is our own sentence."""
    if failure.error_file or failure.kind is FailureKind.SPAWN:
        yield "error file" if failure.error_file else "start", failure.message
    yield "stderr", failure.stderr_tail


def _search(texts: Iterable[tuple[str, str]]) -> Diagnosis | None:
    """The first row of the table that fits any of the texts."""
    given = list(texts)
    for row in SAID:
        pattern = _any_of(row.patterns)
        for where, text in given:
            if match := pattern.search(text):
                found = _quote(row.failure_class, where, _line_around(text, match), sure=row.sure)
                return replace(found, echo=row.echo)
    return None


def _kernel_account(log: str) -> Diagnosis | None:
    """What the kernel's log says of the hardware; proof comes before hints."""
    suspect = None
    for line in log.splitlines():
        sure = _speaks_of_hardware(line)
        if sure:
            return _quote(FailureClass.HARDWARE, "kernel log", line)
        if sure is False and suspect is None:
            suspect = _quote(FailureClass.HARDWARE, "kernel log", line, sure=False)
    return suspect


def _speaks_of_hardware(line: str) -> bool | None:
    """True if it is proof that something is broken, False if it is a hint, None if neither."""
    if xid := _compiled(XID).search(line):
        number = int(xid[1])
        return True if number in BROKEN_XIDS else False if number in SUSPECT_XIDS else None
    if _any_of(BROKEN_HARDWARE).search(line):
        return True
    if _any_of(SUSPECT_HARDWARE).search(line) and not _compiled(CORRECTED).search(line):
        return False
    return None


def _weigh(own: Diagnosis | None, kernel: Diagnosis | None) -> Diagnosis | None:
    if own is None or kernel is None:
        return own or kernel
    overruled = not own.sure or (kernel.sure and Trait.LIKE_HARDWARE in own.failure_class.traits)
    return kernel if overruled else own


def _bare_end(failure: Failure) -> Diagnosis:
    """The diagnosis if only the way it ended is known."""
    ending = _shown(failure.message.partition("\n")[0]) or f"exit code {failure.exit_code}"
    if _signal(failure) == SIGBUS:
        return Diagnosis(FailureClass.HARDWARE, ending, sure=False)
    return Diagnosis(FailureClass.UNKNOWN, ending, sure=False)


def _signal(failure: Failure) -> int:
    """The signal that ended it, or ended it according to a shell; 0 if none, or if it was ours."""
    if failure.stopped:
        return 0
    if failure.exit_code < 0:
        return -failure.exit_code
    return failure.exit_code - 128 if 128 < failure.exit_code <= 128 + 64 else 0


def _line_around(text: str, match: re.Match[str]) -> str:
    line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
    return line if len(line) <= MAX_QUOTE else text[match.start() :].partition("\n")[0]


def _quote(failure_class: FailureClass, where: str, line: str, sure: bool = True) -> Diagnosis:
    return Diagnosis(failure_class, f"{where}: '{_shown(line)}'", sure)


def _shown(text: str) -> str:
    """``text`` as it may stand in one line of a log."""
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 3] + "..."


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compiled at the first failure, not at the start of every launch."""
    return re.compile("|".join(patterns))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
