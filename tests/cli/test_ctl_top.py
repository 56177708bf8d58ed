"""``elastic-ctl top`` and ``events`` from logs: wrong use, moments, and a log that grows."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from elasticrun import control
from elasticrun.cli.ctl import group
from elasticrun.cli.documents import FOLDER
from elasticrun.core.protocol.chronicle import JobEnded, LogEntry, NodeChanged
from elasticrun.core.protocol.orders import Watched
from elasticrun.master.event_log import EventLog
from elasticrun.rpc.event_lines import to_line
from tests.support.schema import misfits
from tests.ui.top_build import BEGAN, story

END = JobEnded("succeeded", "all is done")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    wall = [0.0]
    log = EventLog(tmp_path / "events.jsonl", lambda: wall[0])
    for event, (at, told) in enumerate(story("a", "b\x1b[2J"), 1):
        wall[0] = BEGAN + at
        log.add(event, at, [told])
    log.close()
    return tmp_path


def ctl(*arguments: object, status: int = 0) -> str:
    done = CliRunner().invoke(group, [*map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.stderr if status else done.stdout


def test_the_past_of_a_log(state: Path) -> None:
    text = ctl("top", "--log", state, "--once")
    assert "round 1" in text and "recovered in 2.0 s" in text and "step 1,234" in text
    assert "b?[2J" in text and "\x1b" not in text
    text = ctl("top", "--log", state / "events.jsonl", "--at", "100.2", "--once")
    assert "round 0" in text and "stopping" in text and "rank 1 exited with 3" in text


def test_its_data_fit_the_schema(state: Path) -> None:
    found = json.loads(ctl("top", "--log", state, "--at", "95", "--once", "--json"))
    assert misfits(found, json.loads((FOLDER / "top.json").read_text())) == []
    assert (found["at"], found["job_id"], found["step"]) == (95, None, 9)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("top", "--at", "5"), "--at '5' needs the event log"),
        (("top", "--json"), "give --once as well"),
        (("top", "--log", "STATE", "--at", "soon", "--once"), "--at 'soon' is not valid"),
        (("top", "--log", "STATE"), "no terminal"),
        (("top", "--log", "nowhere", "--once"), "there is no event log"),
        (("events", "STATE", "--why", "0", "--follow"), "--why and --follow exclude each other"),
        (("events", "STATE", "--pid", "1"), "--pid is for a job that is asked"),
        (("top", "--log", "STATE", "--endpoint", "h:1", "--once"), "--endpoint is for a job that is asked"),
        (("events", "nowhere/events.jsonl", "--follow"), "cannot follow"),
    ],
)
def test_wrong_use_is_refused_in_one_sentence(state: Path, words: tuple[str, ...], part: str) -> None:
    said = ctl(*(str(state) if word == "STATE" else word for word in words), status=2)
    assert part in said and len(said.splitlines()) == 1


def test_a_dumb_terminal_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "'dumb' cannot show this" in ctl("top", "--log", state, status=2)


def test_events_since_a_wall_clock(state: Path) -> None:
    moment = datetime.fromtimestamp(BEGAN + 101.5).isoformat()
    found = [json.loads(line) for line in ctl("events", state, "--since", moment, "--json").splitlines()]
    assert [entry["kind"] for entry in found] == ["steps_done", "steps_done"]


def test_a_job_is_followed_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its agents tell after that is no part of it, though it comes with the same answer."""
    told = (END, NodeChanged("a", "finished", 0))

    class Job:
        def close(self) -> None:
            pass

        async def watch(self, *_: object) -> Watched:
            return Watched("1:2", tuple(to_line(LogEntry(it, 1.0, BEGAN, told[it])) for it in (0, 1)))

        @property
        def following(self) -> Job:
            return self

        follow = watch

    async def found(*_: object) -> Job:
        return Job()

    monkeypatch.setattr(control.JobControl, "on_this_host", found)
    monkeypatch.delenv("ELASTICRUN_ENDPOINT", raising=False)
    kinds = [json.loads(line)["kind"] for line in ctl("events", "--follow", "--json").splitlines()]
    assert kinds == ["job_ended"]


def test_a_log_is_followed_until_the_job_ends(state: Path) -> None:
    """It is renamed meanwhile, as one that is full."""
    command = [sys.executable, "-m", "elasticrun.cli.ctl", "events", str(state), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        for event, _ in enumerate(story("a", "b"), 1):
            assert json.loads(reader.stdout.readline())["event"] == event
        (state / "events.jsonl").replace(state / "events.1.jsonl")
        with (state / "events.jsonl").open("a") as file:
            file.write("no entry\n")
        log = EventLog(state / "events.jsonl", lambda: BEGAN + 200)
        log.add(99, 200.0, [END])
        log.close()
        rest, _ = reader.communicate(timeout=120)
        assert [json.loads(line)["kind"] for line in rest.splitlines()] == ["job_ended"]
    assert reader.returncode == 0
