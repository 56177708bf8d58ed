"""From fork to exec: how a copy of the spawner becomes a worker.

Invariant: the program starts as if from a fresh login shell, whatever its ancestors did: default signal
dispositions (nohup's and the interpreter's ignored signals included), nothing blocked, a session and a
process group of its own, only stdin, stdout and stderr open. And it dies with the spawner.

A failure is written to the error pipe, which a successful exec closes by itself.

A spawner whose ancestor has imported what workers need may be given a function to call in place of the exec
(``Preloaded``): then a worker starts in the time of a fork. It never returns, so nothing of the spawner's is
ever unwound, collected or closed twice there.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from elasticrun.agent.spawner.descriptors import close_files
from elasticrun.agent.spawner.wire import Message
from elasticrun.dataclass import dataclass

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_STREAMS = ("stdin", "stdout", "stderr")
_NOT_EXECUTED = 127  # the shell's "cannot run"; not reported, as the error pipe tells more

Prctl = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What workers are in place of an exec."""

    run: Callable[[Sequence[str], Mapping[str, str]], NoReturn]  # a command line, in an environment
    keeps: frozenset[int] = frozenset()  # descriptors that belong to what was loaded


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


def fork_program(
    request: Message, fds: list[int], prctl: Prctl, preloaded: Preloaded | None = None
) -> tuple[int, int]:
    """Start a program; return its pid, and a pipe that ends empty once it runs, else says why not.
    ``preloaded`` is called in place of an exec.

    OSError if the host refuses another process or descriptor.
    """
    # Signals for the child wait until it is ready; ours wait too, so that none is handled twice.
    error_pipe, write_end = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        spawner = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_worker(request, fds, write_end, spawner, prctl, preloaded)
    except OSError:
        os.close(error_pipe)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)
    return pid, error_pipe


def become_worker(
    request: Message,
    fds: list[int],
    error_pipe: int,
    spawner: int,
    prctl: Prctl,
    preloaded: Preloaded | None = None,
) -> NoReturn:
    """Turn a forked child, all its signals blocked, into the requested program; never return."""
    try:
        problem = _exec(request, fds, spawner, prctl, preloaded)
    except BaseException as error:  # noqa: BLE001 the frames below are the spawner's: nothing may unwind into them
        problem = {"code": getattr(error, "errno", None) or errno.EINVAL, "text": repr(error)}
    try:
        os.write(error_pipe, json.dumps(problem).encode("ascii"))
    finally:
        os._exit(_NOT_EXECUTED)


def _exec(
    request: Message, fds: list[int], spawner: int, prctl: Prctl, preloaded: Preloaded | None
) -> Message:
    """Execute the program; return only on failure, with what is wrong."""
    step = "cannot set up the process"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != spawner:  # it died before the line above took effect
            os._exit(_NOT_EXECUTED)
        for number, fd in enumerate(fds):
            step = f"cannot make descriptor {fd} its {_STREAMS[number]}"
            os.dup2(fd, number)
        if request["cpus"] is not None:
            step = f"cannot run on the CPUs {request['cpus']}"
            os.sched_setaffinity(0, request["cpus"])
        if request["cwd"] is not None:
            step = f"cannot enter the directory {request['cwd']}"
            os.chdir(request["cwd"])
        step = f"cannot execute {request['argv'][0]}"
        _default_signals()
        if preloaded is not None:
            _become_interpreter(preloaded.keeps)
            preloaded.run(request["argv"], request["env"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        return {"code": code, "text": f"{step}: {getattr(error, 'strerror', None) or error}"}


def _default_signals() -> None:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # pending signals act now


def _become_interpreter(keeps: frozenset[int]) -> None:
    """What a Python that starts does with signals, and what an exec does with files: the error pipe, too."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_IGN)
    close_files(keep={0, 1, 2, *keeps})
