"""From fork to exec: how a copy of the spawner becomes a worker.

Invariant: the program starts as if from a fresh login shell, whatever its ancestors did: default signal
dispositions (nohup's and the interpreter's ignored signals included), nothing blocked, a session and a
process group of its own, only stdin, stdout and stderr open. And it dies with the spawner.

A failure is written to the error pipe, which a successful exec closes by itself.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from elasticrun.agent.spawner.wire import Message

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_NOT_EXECUTED = 127  # the shell's "cannot run"; not reported, as the error pipe tells more

Prctl = Callable[[int, int], None]


def load_prctl() -> Prctl:
    """``prctl(option, value)``, which raises OSError on failure."""
    import ctypes  # the spawner alone needs it

    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def prctl(option: int, value: int) -> None:
        if function(option, value, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    return prctl


def fork_program(request: Message, fds: list[int], prctl: Prctl) -> tuple[int, int]:
    """Start a program; return its pid, and a pipe that ends empty once it runs, else says why not.

    OSError if the host refuses another process or descriptor.
    """
    # Signals for the child wait until it is ready; ours wait too, so that none is handled twice.
    error_pipe, write_end = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        spawner = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_worker(request, fds, write_end, spawner, prctl)
    except OSError:
        os.close(error_pipe)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)
    return pid, error_pipe


def become_worker(request: Message, fds: list[int], error_pipe: int, spawner: int, prctl: Prctl) -> NoReturn:
    """Turn a forked child, all its signals blocked, into the requested program; never return."""
    try:
        problem = _exec(request, fds, spawner, prctl)
    except BaseException as error:  # noqa: BLE001 the frames below are the spawner's: nothing may unwind into them
        problem = {"code": getattr(error, "errno", None) or errno.EINVAL, "text": repr(error)}
    try:
        os.write(error_pipe, json.dumps(problem).encode("ascii"))
    finally:
        os._exit(_NOT_EXECUTED)


def _exec(request: Message, fds: list[int], spawner: int, prctl: Prctl) -> Message:
    """Execute the program; return only on failure, with what is wrong."""
    step = "cannot set up the process"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != spawner:  # it died before the line above took effect
            os._exit(_NOT_EXECUTED)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        if request["cpus"] is not None:
            step = f"cannot run on the CPUs {request['cpus']}"
            os.sched_setaffinity(0, request["cpus"])
        if request["cwd"] is not None:
            step = f"cannot enter the directory {request['cwd']}"
            os.chdir(request["cwd"])
        step = f"cannot execute {request['argv'][0]}"
        _default_signals()
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        return {"code": code, "text": f"{step}: {getattr(error, 'strerror', None) or error}"}


def _default_signals() -> None:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # pending signals act now
