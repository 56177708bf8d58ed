"""The failure summary, as it is read."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from elasticrun.agent.summary import TAIL_LINES, clean, render_summary
from elasticrun.core.protocol.messages import Failure, FailureKind

WHEN = datetime(2024, 5, 6, 7, 8, 9).timestamp()
ROOT = Failure(
    "n0",
    "host0",
    3,
    1,
    "default",
    77,
    FailureKind.EXIT,
    1,
    "ValueError: bad",
    timestamp=WHEN,
    error_file="/e.json",
)


def test_a_traceback() -> None:
    other = replace(
        ROOT, rank=5, host="host1", exit_code=-9, kind=FailureKind.SIGNAL, message="killed", pid=78
    )
    root = replace(
        ROOT, traceback="Traceback (most recent call last):\n  x\nValueError: bad\n", stderr_tail="no"
    )
    text = render_summary("train.py", "no restart is left (3 of 3 used)", [root, other], "/logs/none_x")
    assert (
        text
        == f"""\
{"=" * 80}
train.py FAILED
no restart is left (3 of 3 used)
{"-" * 80}
Failures:
[1]:
  time      : 2024-05-06_07:08:09
  host      : host1
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 78) (SIGKILL)
  error_file: /e.json
  message   : killed
{"-" * 80}
Root Cause (first observed failure):
[0]:
  time      : 2024-05-06_07:08:09
  host      : host0
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 77)
  error_file: /e.json
  traceback : Traceback (most recent call last):
    x
  ValueError: bad
{"-" * 80}
Logs: /logs/none_x
{"=" * 80}
"""
    )


def test_without_a_traceback_the_tail_is_shown() -> None:
    text = render_summary("t", "", [replace(ROOT, stderr_tail="a\nb\n", error_file="")])
    assert "(pid: 77)\n  message   : ValueError: bad\n  stderr    : its last lines\n  a\n  b\n" in text
    assert "Logs" not in text


def test_what_did_not_happen_has_no_section() -> None:
    text = render_summary("t", "", [ROOT])
    assert "\nFailures:\n" not in text and "<" not in text.replace("<EMPTY>", "")
    assert text.startswith(f"{'=' * 80}\nt FAILED\n{'-' * 80}\nRoot Cause (first observed failure):\n[0]:\n")


STACK = "Traceback (most recent call last):\n  File x\nValueError: bad"


def test_a_traceback_stands_once() -> None:
    text = render_summary("t", "", [replace(ROOT, message=STACK, stderr_tail=f"begin\n{STACK}\n")])
    assert "  message   : Traceback (most recent call last): ValueError: bad\n" in text
    assert text.count("File x") == 1
    text = render_summary("t", "", [replace(ROOT, message=STACK, traceback=STACK, stderr_tail=STACK)])
    assert text.count("File x") == 1


def test_a_traceback_that_the_tail_does_not_show_stays_in_the_message() -> None:
    cut = f"{STACK}\n" + "later\n" * TAIL_LINES
    for tail in ("", "other\n", cut):
        assert render_summary("t", "", [replace(ROOT, message=STACK, stderr_tail=tail)]).count("File x") == 1


def test_a_long_tail_is_cut() -> None:
    tail = "".join(f"line {n}\n" for n in range(100))
    text = render_summary("t", "", [replace(ROOT, stderr_tail=tail)])
    assert f"  ...\n  line {100 - TAIL_LINES}\n" in text
    assert "line 99\n" in text
    assert f"line {99 - TAIL_LINES}\n" not in text


def test_an_empty_tail() -> None:
    assert "  stderr    : <EMPTY>\n" in render_summary("t", "", [ROOT])


def test_no_failure_at_all() -> None:
    text = render_summary("t", "node n1 was lost and 1 of at least 2 nodes are there", [])
    assert "Root Cause" not in text
    assert "node n1 was lost" in text


def test_prose_is_wrapped_and_paths_are_not() -> None:
    path = "/very" * 30
    text = render_summary("t", "word " * 50, [replace(ROOT, message=f"see {path} " + "word " * 30)])
    assert path in text
    assert all(len(line) <= 80 for line in text.splitlines() if path not in line)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        (" 1%\r 2%\r 3%\nnext", " 3%\nnext"),
        ("dos\r\nline\r", "dos\nline"),
        ("bell\x07 \x9b2J", "bell? ?2J"),
        ("\ttab", "        tab"),
        ("to\u202eeno\u2069", "to?eno?"),
    ],
)
def test_clean(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_no_text_of_a_worker_reaches_the_terminal_raw() -> None:
    evil = "\x1b[2J\x1b[H\x08\x00"
    evil += "\nRoot Cause"
    failure = replace(
        ROOT, host=evil, message=evil, stderr_tail=evil, traceback="", error_file=evil, stacks=evil
    )
    text = render_summary(evil, evil, [failure, replace(failure, traceback=evil)], evil)
    assert not set(text) & set("\x1b\x08\x00")
    assert text.count("\nRoot Cause") <= 3, "that of the script's name, of the reason, and ours"


def test_an_unknown_time_has_no_line() -> None:
    assert "[0]:\n  host      : host0\n" in render_summary("t", "", [replace(ROOT, timestamp=0.0)])


def test_a_hang_says_where_its_stacks_are() -> None:
    hang = replace(
        ROOT, kind=FailureKind.HANG, message="made no step", error_file="", stacks="/logs/\x1b[1mx"
    )
    text = render_summary("t", "", [hang])
    assert "(pid: 77)\n  stacks    : /logs/x\n  message   : made no step\n" in text
    assert "stacks" not in render_summary("t", "", [ROOT])
