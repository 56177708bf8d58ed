"""``elastic-ctl events``: what happened, and why, from a log; and the schema of its lines."""

from __future__ import annotations

import json
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli import event_schema
from elasticrun.cli.ctl import group
from elasticrun.core.protocol.chronicle import (
    Decision,
    EntriesLost,
    Happening,
    JobEnded,
    MasterStarted,
    NodeChanged,
    NodeDetached,
    NodeGone,
    NodeJoined,
    OrderAnswered,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    StateSaved,
    WorkerFailed,
)
from elasticrun.master.event_log import EventLog
from elasticrun.rpc.event_lines import kind_of
from elasticrun.ui.events import lines

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "elasticrun/manual/schemas/events.json"

STORY: tuple[tuple[int, Happening], ...] = (
    (1, MasterStarted(1, is_first=True)),
    (2, NodeJoined("a", "host", 2, returns=False)),
    (3, RoundStarted(0, 1, 2, ("a",), 0, None, "1 node of 1:1 ready")),
    (4, NodeChanged("a", "running", 0)),
    (5, StateSaved(Place.HOSTS, 0, 12)),
    (6, WorkerFailed(0, "a", "host", 1, 1, 77, "exit", 3, 12, "rank 1 exited with 3")),
    (6, RoundStopping(0, "worker failed", "rank 1 exited with 3")),
    (6, Decision("stopping", 0, "round 0 stops: rank 1 exited with 3")),
    (7, RoundStopped(0)),
    (7, RoundStarted(1, 1, 2, ("a",), 1, 12, "1 node of 1:1 ready")),
    (7, Decision("running", 1, "round 1 starts with a")),
    (8, OrderAnswered("DrainNode", True, "a leaves\x1b[2J")),
    (9, NodeDetached("a", "the stream broke")),
    (10, NodeGone("a", "it did not come back in time")),
    (11, EntriesLost(3)),
    (12, JobEnded("failed", "nobody is left")),
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with the log of the story."""
    log = EventLog(tmp_path / "events.jsonl", lambda: 1_000_000.0)
    for event, told in STORY:
        log.add(event, float(event), [told])
    log.close()
    return tmp_path


def run(*arguments: object, status: int = 0) -> list[str]:
    result = CliRunner().invoke(group, ["events", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output.splitlines()


def said(*arguments: object) -> list[str]:
    """The lines without their times."""
    return [line.split("  ", 1)[1] for line in run(*arguments)]


def test_a_story_in_the_words_of_its_decisions(state: Path) -> None:
    assert said(state) == [
        "#6     rank 1 exited with 3",
        "#6     round 0 stops: rank 1 exited with 3",
        "#7     round 1 starts with a",
        "#8     DrainNode: a leaves?[2J",
        "#9     a is away: the stream broke",
        "#10    a is gone: it did not come back in time",
        "#11    3 entries are missing here",
        "#12    the job has failed: nobody is left",
    ]
    assert len(said(state, "--all")) == len(STORY)
    assert run(state)[0].startswith("1970-01-12 ")


def test_why_a_round_started(state: Path) -> None:
    assert said(state, "--why", 1) == [
        "#6     rank 1 exited with 3",
        "#6     round 0 stops: rank 1 exited with 3",
        "#7     round 1 starts with a",
    ]
    assert said(state, "--why", 0, "--all") == [
        "#1     the master of epoch 1 starts",
        "#2     a joins, with 2 workers",
        "#3     round 0 starts with 1 nodes, 2 workers: 1 node of 1:1 ready",
    ]


def test_a_round_that_is_not_there(state: Path) -> None:
    (line,) = run(state, "--why", 7, status=2)
    assert line.endswith("--why 7: the log has no such round; there are rounds 0 to 1")


def test_no_round_has_started(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.add(1, 0.0, [MasterStarted(1, is_first=True)])
    log.close()
    (line,) = run(tmp_path, "--why", 0, status=2)
    assert line.endswith("no round has started")


def test_only_what_is_new(state: Path) -> None:
    assert said(state, "--since", 11) == [
        "#11    3 entries are missing here",
        "#12    the job has failed: nobody is left",
    ]


def test_no_number_is_refused(state: Path) -> None:
    (line,) = run(state, "--since", "nan", status=2)
    assert "--since 'nan' is not valid" in line


def test_a_file_can_be_named_itself_and_none_is_refused(state: Path) -> None:
    assert said(state / "events.jsonl") == said(state)
    (line,) = run(state / "nowhere.jsonl", status=2)
    assert "there is no event log" in line


def test_an_entry_of_another_version_is_shown_as_it_is() -> None:
    head = {"event": 1, "at": 0.0, "time": 0.0}
    shown = [
        line.split("  ", 1)[1]
        for line in lines([{**head, "kind": "new", "a": 1}, {**head, "kind": "node_gone"}])
    ]
    assert shown == ["#1     new {'a': 1}", "#1     node_gone {}"]
    (odd,) = lines([{**head, "kind": "save_stalled", "round": 1, "seconds": ["long"]}])
    assert odd.endswith("save_stalled {'round': 1, 'seconds': ['long']}")


def test_lines_that_make_no_sense_are_passed_over_while_a_log_grows(state: Path) -> None:
    log, told = state / "events.jsonl", said(state)
    odd = [f'{{"v":1,"event":1,"at":0,"time":{it},"kind":"decision"}}\n' for it in ("NaN", "1e300")]
    log.write_text("".join(["no json\n", *odd, log.read_text()]))
    assert said(state, "--follow") == told


# The schema


def test_lines_are_as_the_schema_says(state: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    entries = [json.loads(line) for line in run(state, "--json")]
    assert [it["kind"] for it in entries] == [kind_of(type(told)) for _, told in STORY]
    by_kind = {each["properties"]["kind"]["const"]: each for each in schema["oneOf"]}
    for entry in entries:
        described = by_kind[entry["kind"]]
        assert set(described["required"]) == set(entry) == set(described["properties"])
        for name, value in entry.items():
            assert fits(value, described["properties"][name]), (entry["kind"], name)


def fits(value: Any, described: dict[str, Any]) -> bool:
    """Whether a value is as a part of the schema says."""
    types: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    types["null"] = type(None)
    match described:
        case {"const": wanted}:
            return bool(value == wanted)
        case {"enum": wanted}:
            return value in wanted
        case {"anyOf": parts}:
            return any(fits(value, part) for part in parts)
        case {"type": "array", "items": part}:
            return isinstance(value, list) and all(fits(each, part) for each in value)
        case {"type": name}:
            return isinstance(value, types[name]) and (name == "boolean" or not isinstance(value, bool))
    return False


def test_the_schema_in_the_manual_is_that_of_the_types() -> None:
    wanted = f"run: python -m elasticrun.cli.event_schema --write {SCHEMA.relative_to(ROOT)}"
    assert SCHEMA.read_text() == event_schema.text(), wanted


def test_the_schema_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert event_schema.main([]) == 0
    assert capsys.readouterr().out == event_schema.text()
    assert event_schema.main(["--write", str(tmp_path / "schema.json")]) == 0
    assert (tmp_path / "schema.json").read_text() == event_schema.text()
    assert event_schema.main(["--other"]) == 2


def test_no_field_has_the_name_of_one_that_every_line_has() -> None:
    for kind in typing.get_args(Happening):
        assert not {field.name for field in fields(kind)} & {"v", "event", "at", "time", "kind"}
