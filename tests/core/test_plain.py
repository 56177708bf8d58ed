"""What is shown of a stranger's text."""

from __future__ import annotations

import pytest

from elasticrun.core.protocol.plain import one_line, plain
from tests.core.build import Job, described


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("caf\u00e9 \u4f60\u597d \U0001f600\n\tat line 1", "caf\u00e9 \u4f60\u597d \U0001f600\n\tat line 1"),
        ("\x1b[2J\x1b]0;title\x07", "?[2J?]0;title?"),
        ("\x9b2J\x85\x7f\r\x00", "?2J????"),
        ("host\u202e\u2066\u200f0\u2028\u2029", "host???0??"),
    ],
)
def test_nothing_but_letters_is_left(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_node_cannot_forge_a_line_of_the_status() -> None:
    job = Job(min_nodes=1, max_nodes=2)
    job.attach("evil\x1b[2J\n  other: node 0, running")
    assert described(job.machine).count("\n") == 1 and "\x1b" not in described(job.machine)


def test_a_line_stays_one() -> None:
    assert one_line("node\nelastic-run: all is well\t\r") == "node?elastic-run: all is well??"
