"""The summary of a failed job, for stderr, in the shape torchrun's users know.

What is unknown, or did not happen, has no line, and nothing is shown twice: a traceback stands once.

Pure. Text of workers is shown without control characters, so that it can neither move the cursor nor hide
the rest; prose is wrapped to 80 columns, tracebacks and output are not.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from datetime import datetime

from elasticrun.agent.workers.error_file import signal_name
from elasticrun.core.protocol.failure import headline
from elasticrun.core.protocol.messages import Failure
from elasticrun.core.protocol.plain import one_line, plain

WIDTH = 80
TAIL_LINES = 30  # of the failed worker's stderr

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def render_summary(script: str, reason: str, failures: Sequence[Failure], log_dir: str = "") -> str:
    """The block to print. ``failures`` begins with the root cause, the job's first failure."""
    thick, thin = "=" * WIDTH, "-" * WIDTH
    parts = [thick, f"{clean(script)} FAILED"]
    if reason:
        parts.append(_wrap(clean(reason)))
    if failures:
        others = [_render(number, other, with_output=False) for number, other in enumerate(failures[1:], 1)]
        parts += [thin, "Failures:", *others] if others else []
        parts += [thin, "Root Cause (first observed failure):", _render(0, failures[0], with_output=True)]
    if log_dir:
        parts += [thin, f"Logs: {one_line(log_dir)}"]
    return "\n".join([*parts, thick, ""])


def clean(text: str) -> str:
    """Text without escape sequences and control characters, overwritten lines in their last state."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").expandtabs()
    last_states = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(plain(line) for line in last_states)


def _render(number: int, failure: Failure, with_output: bool) -> str:
    tail = failure.stderr_tail if with_output and not failure.traceback else ""
    lines = [
        f"[{number}]:",
        *([f"  time      : {_time(failure.timestamp)}"] if failure.timestamp else []),
        f"  host      : {one_line(clean(failure.host))}",
        f"  rank      : {failure.rank} (local_rank: {failure.local_rank})",
        f"  exitcode  : {failure.exit_code} (pid: {failure.pid}){_signal(failure.exit_code)}",
        *([f"  error_file: {one_line(failure.error_file)}"] if failure.error_file else []),
        *([f"  stacks    : {one_line(clean(failure.stacks))}"] if failure.stacks else []),
        _why(failure, tail),
    ]
    if with_output and not failure.traceback:
        lines += _output(tail)
    return "\n".join(lines)


def _why(failure: Failure, tail: str) -> str:
    """The traceback, or the message; only its headline if ``tail``, which follows, has all of it."""
    if failure.traceback:
        return "  traceback : " + _indent(clean(failure.traceback).rstrip("\n"))
    message = clean(failure.message).strip("\n")
    if "\n" in message and message in _last_lines(tail):
        message = headline(message)
    return _wrap(message, first="  message   : ", rest="              ")


def _last_lines(tail: str) -> str:
    """What is shown of a worker's stderr."""
    return "\n".join(clean(tail).rstrip().split("\n")[-TAIL_LINES:])


def _output(tail: str) -> list[str]:
    lines = clean(tail).rstrip().split("\n")
    if lines == [""]:
        return ["  stderr    : <EMPTY>"]
    cut = ["  ..."] if len(lines) > TAIL_LINES else []
    return ["  stderr    : its last lines", *cut, *(f"  {line}".rstrip() for line in lines[-TAIL_LINES:])]


def _signal(exit_code: int) -> str:
    return f" ({signal_name(-exit_code)})" if exit_code < 0 else ""


def _time(timestamp: float) -> str:
    return datetime.fromtimestamp(int(timestamp)).isoformat(sep="_")


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


def _wrap(text: str, first: str = "", rest: str = "") -> str:
    """Each line of ``text`` wrapped by itself; words that are too long (paths) are not cut."""
    wrapped: list[str] = []
    for line in text.split("\n"):
        start = rest if wrapped else first
        wrapped += textwrap.wrap(
            line,
            WIDTH,
            initial_indent=start,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [start.rstrip()]
    return "\n".join(wrapped)
