"""The call that workers make, and their answers, in memory files of this process.

Theory. A worker opens them through /proc/PID/fd (``worker/target.py`` is the other side), so they need no
directory, no other user can reach them, and they are gone with this process, whatever ends it. There is one
answer for each rank; a rank that was restarted overwrites its own.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.launching.faults import Fault, described, is_brought_by_caller
from elasticrun.launching.sharing import Home
from elasticrun.worker import target

#: The program that workers run.
PROGRAM = target.__file__
_RINGS = 256  # taken at once

Target = Callable[..., object]
Dumps = Callable[[object], bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank has left: what its function returned, or raised."""

    round: int
    raised: bool
    value: Any  # of a raised exception: itself, or None if it is no pickle
    imports: tuple[str, ...] = ()  # what it had to import, and others need not


@dataclass(frozen=True, slots=True)
class Ring:
    """A rank has met a fault that its caller brings about."""

    fault: int  # its place in the list of all
    launcher: int  # its pid, as the rank says
    worker: int  # the rank's


class Call:
    """A function with its arguments, pickled, and room for the ranks' answers. To be closed."""

    def __init__(
        self,
        function: Target,
        args: Sequence[object],
        ranks: int,
        most: int,
        faults: Sequence[Fault] = (),
    ) -> None:
        """``ranks``: how many answers there may be; ``most``: bytes of one.

        Raises UsageError if the function, or an argument, cannot be pickled.
        """
        self._home = Home()
        self._token = os.urandom(8).hex()  # no other call has it
        self._files: list[int] = []
        self._left: list[bytes] = []  # what answers were in the files, if these are closed
        self._pipes: list[int] = []
        self._echoes: dict[int, int] = {}  # what ranks wait for that have met a fault, by the fault
        #: A pipe that can be read once another rank has answered, or has met a fault.
        self.bell = -1
        try:
            pickled = _pickled(self._home.dumps, function, tuple(args))
            self._files.append(os.memfd_create(target.CALL + self._token, os.MFD_CLOEXEC))
            self._files += [
                os.memfd_create(target.ANSWER + self._token, os.MFD_CLOEXEC) for _ in range(ranks)
            ]
            answers = self._files[1:]
            self.bell, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._pipes = [self.bell, ring]
            terms = {
                "path": import_path(),
                "argv": [*map(str, sys.argv)],
                "answers": answers,
                "most": most,
                "bell": _named(ring),
                "faults": [self._told(number, each) for number, each in enumerate(faults)],
            }
            with open(self._files[0], "wb", closefd=False) as file:
                file.write(json.dumps(terms).encode() + b"\n" + pickled)
        except BaseException:
            self.close()
            raise

    def _told(self, number: int, fault: Fault) -> dict[str, Any]:
        """A fault as workers are told of it."""
        told = {**described(fault), "number": number}
        if not is_brought_by_caller(fault):
            return told
        echo, self._echoes[number] = os.pipe2(os.O_CLOEXEC)
        self._pipes += [echo, self._echoes[number]]
        return {**told, "echo": _named(echo)}

    @property
    def place(self) -> str:
        """The argument of the workers' program."""
        return f"{os.getpid()}:{self._files[0]}:{self._token}"

    def answers(self) -> dict[int, Answer]:
        """The answers by rank, of ranks that have left one.

        Raises what the pickles of returned values raise, as for a class that is not here.
        """
        data = self._left or [read_all(fd) for fd in self._files[1:]]
        found = ((rank, _read(each)) for rank, each in enumerate(data))
        return {rank: answer for rank, answer in found if answer is not None}

    def rings(self) -> list[Ring]:
        """Empty the bell: the faults that ranks have met since then, as they say."""
        size = target.BELL.size
        try:
            words = os.read(self.bell, size * _RINGS)
        except BlockingIOError:  # a handler of a signal has read it
            return []
        found = (Ring(*each) for each in target.BELL.iter_unpack(words[: len(words) // size * size]))
        return [ring for ring in found if ring.fault != target.ANSWERED]

    def echo(self, fault: int) -> None:
        """Let the rank go on that has met this fault."""
        if self._pipes:
            os.write(self._echoes[fault], b"!")

    def close(self, keeps: bool = False) -> None:
        """Let go of the files. ``keeps``: of these, not of the answers."""
        self._home.close()
        if keeps:
            self._left = self._left or [read_all(fd) for fd in self._files[1:]]
        for files in (self._files, self._pipes):
            while files:
                os.close(files.pop())


def _named(pipe: int) -> tuple[int, str]:
    """A descriptor, and what the kernel calls its file."""
    return pipe, f"pipe:[{os.fstat(pipe).st_ino}]"


def import_path() -> list[str]:
    """What imports look at of ``sys.path``: programs put paths there that are no text."""
    entries: list[object] = [*sys.path]
    return [each for each in entries if isinstance(each, str)]


def _read(data: bytes) -> Answer | None:
    """An answer; None if there is none, or it is not whole."""
    if len(data) < target.HEADER.size:
        return None
    kind, round_, size, bits = target.HEADER.unpack_from(data)
    if kind not in (target.RETURNED, target.RAISED) or len(data) != target.HEADER.size + size:
        return None
    pickled = memoryview(data)[target.HEADER.size :]
    imports = tuple(name for number, name in enumerate(target.LATER) if bits >> number & 1)
    if kind == target.RETURNED:
        return Answer(round_, False, pickle.loads(pickled), imports)
    try:
        return Answer(round_, True, pickle.loads(pickled), imports)
    except Exception:  # noqa: BLE001 many exceptions cannot be made from their ``args``; the failure is told
        return Answer(round_, True, None, imports)


def read_all(fd: int) -> bytes:
    """All of a file in memory, whichever process has written to it."""
    size, data = os.fstat(fd).st_size, b""
    while piece := os.pread(fd, size - len(data), len(data)):
        data += piece
    return data


def _pickled(dumps: Dumps, function: Target, args: tuple[object, ...]) -> bytes:
    try:
        return dumps((function, args))
    except Exception as error:
        raise UsageError(
            f"{_culprit(dumps, function, args)} cannot be sent to the workers ({error}): have the function "
            "make or open it itself"
        ) from error


def _culprit(dumps: Dumps, function: Target, args: Sequence[object]) -> str:
    """Which part of a call is no pickle, in words."""
    for number, argument in enumerate(args, 1):
        if not _is_pickle(dumps, argument):
            return f"argument {number}, {_described(argument)},"
    name = getattr(function, "__qualname__", type(function).__name__)
    for variable, value in _captured(function).items():
        if not _is_pickle(dumps, value):
            return f"{variable!r}, {_described(value)} that {name} uses,"
    return name


def _described(value: object) -> str:
    """What kind of object it is, as ``a socket.socket``."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def _is_pickle(dumps: Dumps, value: object) -> bool:
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 whatever it is, this is what the error speaks of
        return False
    return True


def _captured(function: Target) -> Mapping[str, object]:
    """What a function takes from around it."""
    import inspect

    try:
        found = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # no function of Python's
        return {}
    return {**found.globals, **found.nonlocals}
