"""Runs a function of the caller's as a worker, and leaves what it returned or raised where the caller reads.

Theory. The caller keeps the pickled call, and one file for each rank's answer, as memory files of its own; a
worker reaches them through /proc/PID/fd, so nothing is left behind on a disk, whoever is killed. An answer
begins with a header that is written last: a worker that is killed meanwhile has left none. Each worker of a
rank overwrites what those of earlier rounds have left, and nothing else, so the newest round's answer stands.

The program is this file and the place of the call: ``PID:FD:TOKEN``. The token is in the names of the files:
a worker that outlives its call by a moment does not take another call's files, under the same numbers, for
its own. It is started like any script, or called in a
fork of a process that has imported what the call needs (``start``); both end the same way.

It needs the standard library only, and whatever the call was pickled with. pathlib takes milliseconds.
"""

# ruff: noqa: PTH115, PTH123

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import struct
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

#: The caller's files in memory, without the token behind their names, and what the kernel puts before them.
CALL, ANSWER, MEMFD = "elasticrun-call-", "elasticrun-answer-", "/memfd:"
#: Of an answer: the word that says it is whole and of which kind, the round, how many bytes follow, and which
#: modules of ``LATER`` it took an import of: bit i stands for the i-th.
HEADER = struct.Struct("=8sqQB")
#: What torch imports with the first optimizer, and what a checkpoint needs: seconds, if each rank does it.
COMPILER, KEEPER = LATER = ("torch._dynamo", "elasticrun.checkpoint.checkpointer")
RETURNED, RAISED = b"returned", b"raised\0\0"
#: The variables of a worker that matter here.
RANK, ROUND, ERROR_FILE = "RANK", "ELASTICRUN_ROUND", "TORCHELASTIC_ERROR_FILE"
LOCAL_RANK, GROUP_RANK = "LOCAL_RANK", "GROUP_RANK"
#: Holds the launcher's pid.
LAUNCHER = "ELASTICRUN_LAUNCHER"
FAILED = 1  # exit status, as of any script that raises
SLOW, JOIN = "Slow", "Join"  # kinds of faults: one that lasts, and one that is of all ranks
#: What a rank rings with: the number of a fault that the caller brings about, or that it has answered; the
#: pids of its launcher and of itself.
BELL = struct.Struct("=qqq")
ANSWERED = -1


class Call:
    """The caller's order: a function with its arguments, and where the answers go."""

    def __init__(self, place: str) -> None:
        """Raises OSError or ValueError if there is no such call."""
        self._caller, number, self._token = place.split(":")
        # Now, as the function may change the environment.
        self._env = dict(os.environ)
        self.rank, self.round = int(self._env[RANK]), int(self._env.get(ROUND, "0"))
        self._pid = os.getpid()
        self._had = imported()
        with self._open(int(number), MEMFD + CALL + self._token, "rb") as file:
            self.terms: dict[str, Any] = json.loads(file.readline())
            self._pickled = file.read()

    def load(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """The function and its arguments; raises whatever their import raises."""
        sys.path[:] = self.terms["path"]
        sys.argv[:] = self.terms["argv"]
        function, args = pickle.loads(self._pickled)
        return function, args

    def answer(self, kind: bytes, value: object) -> None:
        """Leave an answer of this worker, unless this is a child of it. ``kind``: ``RETURNED`` or ``RAISED``.

        Raises TypeError if it cannot be pickled, ValueError if it is too large.
        """
        if os.getpid() != self._pid:
            return
        body = self._pickled_answer(value)
        number = self.terms["answers"][self.rank]
        with self._open(number, MEMFD + ANSWER + self._token, "r+b") as file:
            header = file.read(HEADER.size)
            if len(header) == HEADER.size and HEADER.unpack(header)[1] > self.round:
                return  # the job has gone on without this node, which is cut off
            file.truncate(0)
            file.seek(HEADER.size)
            file.write(body)
            file.seek(0)
            file.write(HEADER.pack(kind, self.round, len(body), imported() & ~self._had))
        self.ring(ANSWERED)

    def ring(self, number: int) -> None:
        """Tell the caller that this rank has answered, or has met the fault of this number.

        A bell that is full already wakes the caller, so an answer needs no word of its own and never waits.
        """
        words = BELL.pack(number, int(self._env.get(LAUNCHER, "0")), self._pid)
        place, name = self.terms["bell"]
        with contextlib.suppress(OSError, ValueError), self._open(place, name, "wb", 0) as bell:
            os.set_blocking(bell.fileno(), number != ANSWERED)
            bell.write(words)  # nobody may listen any more

    def meet(self, fault: Mapping[str, Any]) -> None:
        """Have the caller bring about a fault, and wait until it is there."""
        if fault["kind"] != JOIN or self.rank == 0:
            self.ring(fault["number"])
        place, name = fault["echo"]
        with contextlib.suppress(OSError, ValueError), self._open(place, name, "rb") as echo:
            echo.read(1)

    def is_of(self, fault: Mapping[str, Any]) -> bool:
        """Whether a fault comes with a step of this worker."""
        if fault["round"] != self.round:
            return False
        if fault.get("node") is not None:
            here = self._env.get(GROUP_RANK), self._env.get(LOCAL_RANK)
            return here == (str(fault["node"]), "0")
        return bool(fault["kind"] == JOIN or fault["rank"] == self.rank)

    def _pickled_answer(self, value: object) -> bytes:
        import cloudpickle

        try:
            body: bytes = cloudpickle.dumps(value)
        except Exception as error:  # whatever a class of the user's raises there
            raise TypeError(
                f"the function returned a {type(value).__name__} that cannot be sent back ({error}): return "
                "numbers, tensors, or whatever can be pickled"
            ) from error
        if len(body) > self.terms["most"]:
            raise ValueError(
                f"the function returned {len(body):,} bytes, more than {self.terms['most']:,}: write what is "
                "large to a file, or give max_result_bytes"
            )
        return body

    def _open(self, number: int, name: str, mode: str, buffering: int = -1) -> Any:
        path = f"/proc/{self._caller}/fd/{number}"
        if not os.readlink(path).startswith(name):  # in another PID namespace that may be anybody's
            raise ValueError(f"{path} is not {name}")
        file = open(path, mode, buffering)  # noqa: SIM115 it is the caller's to close
        opened = os.readlink(f"/proc/self/fd/{file.fileno()}")
        if not opened.startswith(name):  # the one of before has just been closed
            file.close()
            raise ValueError(f"{path} is {opened}, not {name}")
        return file


def imported() -> int:
    """Which modules of ``LATER`` this process has, as bits."""
    return sum(1 << number for number, name in enumerate(LATER) if name in sys.modules)


def run(place: str) -> int:
    """Make the call at this place, and leave its answer; returns the exit status."""
    call = Call(place)
    try:
        function, args = call.load()
        arm(call)
        value = function(*args)
        call.answer(RETURNED, value)
    except Exception as error:  # noqa: BLE001 the caller is told, and shows it
        fail(call, error)
        return FAILED
    return int(getattr(value, "exit_status", 0))


def arm(call: Call) -> None:
    """Have the faults of this rank and round come with its steps."""
    mine = [each for each in call.terms["faults"] if call.is_of(each)]
    if not mine:
        return
    reporter: Any = None
    with contextlib.suppress(ImportError):  # the caller's path is ours by now
        from elasticrun.worker.reporter import current

        reporter = current()
    if reporter is None:
        raise RuntimeError("faults come with steps, but no steps are reported in this job")
    for name in ("step", "numbered_step"):
        setattr(reporter, name, with_faults(getattr(reporter, name), mine, reporter, call))


def with_faults(
    report: Callable[..., None], faults: list[Mapping[str, Any]], reporter: Any, call: Call
) -> Callable[..., None]:
    """A report of a step, and the faults that follow it. ``faults``: shared, as most come but once."""
    last = time.monotonic()

    def wrapper(*args: Any, **kwargs: Any) -> None:
        nonlocal last
        report(*args, **kwargs)
        lasted = time.monotonic() - last
        for each in [each for each in faults if reporter._step >= each["at_step"]]:
            if each["kind"] != SLOW:
                faults.remove(each)
            bring(each, lasted, call)
        last = time.monotonic()

    return wrapper


def bring(fault: Mapping[str, Any], lasted: float, call: Call) -> None:
    """Bring about a fault. ``lasted``: seconds of this process's last step."""
    if fault["kind"] == SLOW:
        longer = max(0.0, (fault["factor"] - 1) * lasted)
        threading.Event().wait(min(longer, threading.TIMEOUT_MAX))  # that is the fault
        return
    if "echo" in fault:
        call.meet(fault)
        return
    os.kill(os.getpid(), signal.SIGKILL if fault["kind"] == "Kill" else signal.SIGSTOP)


def fail(call: Call, error: Exception) -> None:
    """Tell what the function raised; the frames of this file are none of its. The caller shows it."""
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    error.__traceback__ = found
    record(error, "".join(traceback.format_exception(error)))
    for told in (error, None):  # an exception of the user's own class may be no pickle
        with contextlib.suppress(Exception):
            call.answer(RAISED, told)
            return


def record(error: Exception, text: str) -> None:
    """Write the error file, as ``torch.distributed.elastic``'s ``record`` does: the launcher reads it."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 a class of the user's own need not be fit to be shown
        words = type(error).__name__
    message = {"message": words, "extraInfo": extra}
    with contextlib.suppress(OSError), open(path, "w") as file:
        json.dump({"message": message}, file)


# -- in a fork


def start(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Be a worker in a fork of a process that has loaded everything; ``argv`` ends with the call's place.

    Returns the exit status. The frames below are the spawner's: leave with it, without unwinding.
    """
    try:
        become(argv, env)
        return run(argv[-1])
    except SystemExit as error:
        return status_of(error)
    except BaseException:  # noqa: BLE001 it is shown, as the interpreter would
        traceback.print_exc()
        return FAILED


def become(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """What an interpreter's start would have made different."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = argv[argv.index(__file__) :] if __file__ in argv else argv[-1:]
    hooks: Any = sys.modules.get("_elasticrun_sitecustomize")
    if hooks is not None:
        hooks.adopt()
    imports: Any = sys.modules.get("elasticrun.worker.warm_imports")
    if imports is not None:
        imports.begin_anew()
        imports.draw_again(sys.modules.get)
        imports.tell_rank(sys.modules.get)
    torch: Any = sys.modules.get("torch")
    threads = env.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal() and int(threads) > 0:
        torch.set_num_threads(int(threads))  # it was read before the fork


def status_of(error: SystemExit) -> int:
    """The exit status that the interpreter makes of it."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
