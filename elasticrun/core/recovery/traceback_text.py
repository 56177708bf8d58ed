"""Python's tracebacks, read back from text.

A worker leaves its traceback in an error file or at the end of its stderr, there mixed with whatever else
was printed, with ``[rank0]: `` in front of each line if torch printed it, and without its beginning if it
was long. What survives all that is the order of three kinds of lines: frames, which are indented and begin
with ``File``; then, not indented, the exception; then the rest of its message. The last such run in a text is
the exception that ended the program, because Python prints its causes before it.

The *signature* of an exception is what stays the same when the same error happens again on another rank, in
another process, at another time: its type, its message without numbers, addresses and paths, and the
innermost frame that belongs to the program and not to a library. A frame of code that was generated as the
program ran (TensorFlow's autograph, a notebook's cell) has another file each time and is no part of it. A
signature is for comparing; users are shown the exception as it was.

TensorFlow prints an exception inside a ``@tf.function`` as a message of many lines: ``in user code:``, an
empty line, then frames and the exception itself, all indented. Indented lines belong to a message even behind
an empty line; frames of a traceback are indented less.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from elasticrun.core.protocol.failure import headline
from elasticrun.dataclass import dataclass

#: Longest part of an exception's message, in characters, that its signature holds.
MAX_SIGNATURE_TEXT = 200
#: The most of an exception that users are shown where it is quoted: lines, and characters.
MAX_SHOWN_LINES = 12
MAX_SHOWN_TEXT = 1000

_PREFIX = r"^\[rank\d+\]: ?"  # how torch marks the lines of a traceback
_GROUP_HEADER = "Exception Group Traceback (most recent call last):"
_GROUP_MARGIN = r"^ +[|+] "
_HEADER = "Traceback (most recent call last):"
_FRAME = r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$'
_EXCEPTION = r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$"

#: Parts of the path of a file that is not the program's own.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen ")

#: Parts of the path of a file that was made, or only named, as the program ran.
_GENERATED = ("__autograph_generated_file", "/ipykernel_", "/torchinductor_", "<")
_DEEP = "    "  # how lines of a message are indented, and frames are not

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

    @property
    def is_generated(self) -> bool:
        return any(part in self.file for part in _GENERATED[:-1]) or self.file.startswith(_GENERATED[-1])

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
        said = normalised(headline(self.message))[:MAX_SIGNATURE_TEXT]
        what = f"{kind}: {said}" if said else kind
        return f"{what} at {self.where}" if self.where else what

    @property
    def shown(self) -> str:
        """The exception as it was, as far as there is room for it, and where it came from."""
        lines = [line for line in self.text.split("\n") if line.strip()]
        cut = ["..."] if len(lines) > MAX_SHOWN_LINES else []
        text = "\n".join([*lines[: MAX_SHOWN_LINES - len(cut)], *cut])
        text = text if len(text) <= MAX_SHOWN_TEXT else text[: MAX_SHOWN_TEXT - 3] + "..."
        joint = "\n" if "\n" in text else " "
        return f"{text}{joint}at {self.where}" if self.where else text

    @property
    def where(self) -> str:
        """The innermost frame of the program itself, else of a library, else of generated code; or ""."""
        lasting = [frame for frame in self.frames if not frame.is_generated]
        own = [frame for frame in lasting if not frame.is_library] or lasting
        if own:
            return str(own[-1])
        return f"generated code, in {self.frames[-1].function}" if self.frames else ""


def last_raised(text: str) -> Raised | None:
    """The exception of the last traceback in ``text``, if there is one."""
    found: Raised | None = None
    frames: list[Frame] = []
    is_open = False  # whether lines still belong to the message of ``found``
    for line in _lines(text):
        if line == _HEADER:
            frames, is_open = [], False
        elif is_open and found is not None and (not line or line.startswith(_DEEP)):
            found = replace(found, message=f"{found.message}\n{line}")
        elif frame := _compiled(_FRAME).match(line):
            frames.append(Frame(frame[1], int(frame[2]), frame[3] or ""))
        elif frames and (raised := raised_by_line(line)):
            found, frames, is_open = replace(raised, frames=tuple(frames)), [], True
        elif is_open and found is not None:
            # What follows an empty line, or is a line of some log, does not belong to it.
            is_open = not (found.message.endswith("\n") or line.startswith("["))
            found = replace(found, message=f"{found.message}\n{line}") if is_open else found
    return found and replace(found, message=found.message.rstrip())


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
