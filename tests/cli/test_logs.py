"""The launcher's own lines."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from elasticrun.cli.logs import configure_logging
from elasticrun.config import LaunchConfig
from elasticrun.core.protocol.messages import NodeInfo
from tests.cli.conftest import Parse

NODE = NodeInfo("box/0", "i", "box", "address", 1)


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Give the package's logger back as it was."""
    root = logging.getLogger("elasticrun")
    before = root.level, root.propagate, list(root.handlers)
    root.handlers.clear()
    yield
    root.level, root.propagate = before[:2]
    root.handlers[:] = before[2]


def said(config: LaunchConfig) -> list[bytes]:
    """What a launch of ``config`` logs: its notes, a warning and a line about nothing much."""
    lines: list[bytes] = []
    configure_logging(config, NODE, lines.append)
    logging.getLogger("elasticrun.agent.link").warning("lost the %s", "master \udc80")
    logging.getLogger("elasticrun.agent.link").info("nothing much")
    return lines


def with_notes(config: LaunchConfig, *notes: tuple[str, str], level: str = "WARNING") -> LaunchConfig:
    return dataclasses.replace(config, notes=notes, log_level=level)


def test_one_node_needs_no_name(parse: Parse) -> None:
    assert said(with_notes(parse())) == [b"elastic-run: lost the master ?\n"]


def test_one_of_several_nodes_says_which(parse: Parse) -> None:
    config = parse("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1")
    assert said(with_notes(config)) == [b"elastic-run[box/0]: lost the master ?\n"]


def test_what_is_quoted_does_not_steer_the_terminal(parse: Parse) -> None:
    config = with_notes(parse(), ("warning", "\x1b[2Jnode\r\x9b1m\x7f\0 caf\u00e9\n\tat\u202e line 1"))
    assert said(config)[0].decode() == "elastic-run: ?[2Jnode??1m?? caf\u00e9\n    \tat? line 1\n"


def test_notes_are_said_by_their_level(parse: Parse) -> None:
    notes = (("debug", "deep"), ("info", "so so"), ("warning", "mind"))
    assert said(with_notes(parse(), *notes))[:-1] == [b"elastic-run: mind\n"]
    logging.getLogger("elasticrun").handlers.clear()
    lines = said(with_notes(parse(), *notes, level="DEBUG"))
    assert lines[:3] == [b"elastic-run: deep\n", b"elastic-run: so so\n", b"elastic-run: mind\n"]
    assert lines[-1] == b"elastic-run: nothing much\n"


def test_nobody_else_says_it_again(parse: Parse, caplog: pytest.LogCaptureFixture) -> None:
    said(with_notes(parse()))
    assert caplog.records == []
