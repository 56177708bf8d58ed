"""Python's tracebacks, read back from text.

A worker leaves its traceback in an error file or at the end of its stderr, there mixed with whatever else
was printed, with ``[rank0]: `` in front of each line if torch printed it, and without its beginning if it
was long. What survives all that is the order of three kinds of lines: frames, which are indented and begin
with ``File``; then, not indented, the exception; then the rest of its message. The last such run in a text is
the exception that ended the program, because Python prints what caused it before it.

The *signature* of an exception is what stays the same when the same error happens again on another rank, in
another process, at another time: its type, its message without numbers, addresses and paths, and the
innermost frame that belongs to the program and not to a library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

#: Longest part of an exception's message, in characters, that its signature holds.
MAX_SIGNATURE_TEXT = 200

_PREFIX = r"^\[rank\d+\]: ?"  # how torch marks the lines of a traceback
_GROUP_HEADER = "Exception Group Traceback (most recent call last):"
_GROUP_MARGIN = r"^ +[|+] "
_HEADER = "Traceback (most recent call last):"
_FRAME = r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$'
_EXCEPTION = r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$"

#: Parts of the path of a file that is not the program's own.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen ")

#: What differs between two occurrences of one error, the longest forms first.
_VARYING = (
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "#"),
    (r"\b0x[0-9a-fA-F]+\b", "#"),
    (r"(?<![\w/<])(?:~|\.{1,2})?/[\w.+~@%/-]+", "<path>"),
    (r"(?<!\.)\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\b", "#"),  # a digest
    (r"[-+]?\d+(?:[.:,]\d+)*(?:[eE][-+]?\d+)?", "#"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the program was; ``function`` is empty for an error of syntax."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        return any(part in self.file for part in _LIBRARIES)

    def __str__(self) -> str:
        place = f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"{place} in {self.function}" if self.function else place


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as Python prints it."""

    kind: str  # its type, with the module in front if Python named it
    message: str  # may have several lines
    frames: tuple[Frame, ...] = ()  # the innermost last

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def signature(self) -> str:
        """What two occurrences of the same error have in common."""
        kind = self.kind.rpartition(".")[2]
        said = normalised(self.message.partition("\n")[0])[:MAX_SIGNATURE_TEXT]
        own = [frame for frame in self.frames if not frame.is_library] or self.frames
        what = f"{kind}: {said}" if said else kind
        return f"{what} at {own[-1]}" if own else what


def last_raised(text: str) -> Raised | None:
    """The exception of the last traceback in ``text``, if there is one."""
    found: Raised | None = None
    frames: list[Frame] = []
    is_open = False  # whether lines still belong to the message of ``found``
    for line in _lines(text):
        if line == _HEADER:
            frames, is_open = [], False
        elif frame := _compiled(_FRAME).match(line):
            frames.append(Frame(frame[1], int(frame[2]), frame[3] or ""))
        elif frames and (raised := raised_by_line(line)):
            found, frames, is_open = replace(raised, frames=tuple(frames)), [], True
        elif is_open and found is not None:
            is_open = bool(line) and not line.startswith("[")  # an empty line, or a line of some log
            found = replace(found, message=f"{found.message}\n{line}") if is_open else found
    return found


def raised_by_line(line: str) -> Raised | None:
    """An exception told in one line, as ``ValueError: too large``; None if it is none."""
    match = _compiled(_EXCEPTION).match(line)
    return Raised(match[1], match[2] or "") if match else None


def normalised(text: str) -> str:
    """``text`` without what differs each time: numbers, addresses, digests and paths."""
    for pattern, replacement in _VARYING:
        text = _compiled(pattern).sub(replacement, text)
    return text


def _lines(text: str) -> list[str]:
    lines = [_compiled(_PREFIX).sub("", line).rstrip() for line in text.split("\n")]
    if any(line.endswith(_GROUP_HEADER) for line in lines):
        return [_compiled(_GROUP_MARGIN).sub("", line) for line in lines]
    return lines


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled at the first failure, not at the start of every launch."""
    return re.compile(pattern)
