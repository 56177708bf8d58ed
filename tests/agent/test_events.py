"""The event log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticrun.agent.events import EventLog, EventSource
from elasticrun.errors import UsageError
from tests.support.processes import TORCH_DEADLINE


def test_console() -> None:
    lines: list[bytes] = []
    log = EventLog("console", lines.append, wall_clock=lambda: 12.3456)
    log.record("round.start", EventSource.AGENT, {"round": 1, "error": None})
    assert json.loads(lines[0]) == {
        "name": "round.start",
        "source": "AGENT",
        "timestamp": 12345,
        "metadata": {"round": 1, "error": None},
    }
    assert lines[0].endswith(b"}\n")


@pytest.mark.parametrize("handler", ["null", "dynamic_rendezvous"])
def test_null(handler: str) -> None:
    lines: list[bytes] = []
    EventLog(handler, lines.append).record("x", EventSource.WORKER, {})
    assert lines == []


def test_unknown() -> None:
    with pytest.raises(UsageError, match="--event-log-handler syslog is not known; choose console or null"):
        EventLog("syslog", print)


@pytest.mark.torch
@pytest.mark.slow
def test_the_fields_are_torchruns(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("")
    command = [sys.executable, "-m", "torch.distributed.run", "--event-log-handler=console", str(script)]
    env = {key: value for key, value in os.environ.items() if key != "LOGLEVEL"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=TORCH_DEADLINE)
    theirs = [json.loads(line) for line in run.stderr.splitlines() if line.startswith('{"name"')]
    assert theirs
    lines: list[bytes] = []
    EventLog("console", lines.append).record("x", EventSource.AGENT, {})
    ours = json.loads(lines[0])
    assert all(list(event) == list(ours) for event in theirs)
    assert {event["source"] for event in theirs} == {source.value for source in EventSource}
