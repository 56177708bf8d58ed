"""How a process below the agent goes on when the agent ends, even if it is stopped at that moment.

Theory. The spawner, a master and an observer learn of the agent's end from a descriptor; then they clean up
and end as well. One that SIGSTOP holds reads nothing. It would stay for good, with all that is below it, as
nobody is left to resume it. So each asks the kernel for a SIGCONT at that moment. A process that runs ignores
it. One that is stopped only after the agent's end stays so.

Workers and warm parents need none of this: their death signal is SIGKILL, which ends stopped processes too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticrun.agent.spawner.exec import Prctl


def resume_with_death_of_parent(prctl: Prctl) -> None:
    """Have the kernel resume this process when the thread that forked it ends."""
    from elasticrun.agent.spawner.exec import PR_SET_PDEATHSIG  # not for a master, which starts no program

    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def resume_with_end_of(pipe: int) -> None:
    """Have the kernel resume this process when nobody holds the other end of a pipe that it reads.

    It needs no ctypes, whose import would delay the start of a master. What is written there resumes the
    process as well. Where the kernel cannot do that, nothing happens.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
