"""``elastic-ctl replay`` explains a journal, or says in a sentence why it cannot."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from click.testing import CliRunner, Result

from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_replay import SECRET
from elasticrun.config import JobConfig
from elasticrun.core.job.events import Attached, MasterStarted
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol import messages as protocol
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus, Hello, NodeInfo
from elasticrun.errors import ExitCode
from elasticrun.master.journal import Entry, create_journal
from tests.master.journals import append

KEY = "9e" * 32


def replay(path: Path) -> Result:
    return CliRunner().invoke(group, ["replay", str(path)])


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    written = create_journal(path, JobConfig())
    info = NodeInfo("a", "a.1", "a", "a.net", 1)
    append(written, Entry(0.0, MasterStarted(1, KEY)))
    append(written, Entry(0.5, Attached(1, Hello("none", "1", info, AgentStatus(1, AgentPhase.READY)))))
    written.close()
    return path


def test_each_event_stands_above_what_it_led_to(journal: Path) -> None:
    done = replay(journal)
    assert done.exit_code == 0
    events = [line for line in done.stdout.splitlines() if not line.startswith(" " * 12)]
    assert [line.split()[1] for line in events] == ["#1", "#2"]
    assert [line.split()[2].partition("(")[0] for line in events] == ["MasterStarted", "Attached"]
    assert "=> round 0 starts with a: 1 node of 1:1 ready\n" in done.stdout
    assert "key=..." in done.stdout
    assert KEY not in done.stdout
    assert replay(journal.parent).stdout == done.stdout


def test_a_compacted_journal_begins_with_a_state(tmp_path: Path) -> None:
    machine = JobMachine(config := JobConfig())
    machine.handle(MasterStarted(1), 0.0)
    written = create_journal(tmp_path / "journal.jsonl", config)
    written.compact(machine.state, 3.0)
    written.close()
    done = replay(tmp_path)
    assert (done.exit_code, done.stdout) == (
        0,
        "       3.000 the state in round -1, gathering; older events are gone\n",
    )


@pytest.mark.parametrize("what", ["nothing", "an empty directory"])
def test_there_is_no_journal(what: str, tmp_path: Path) -> None:
    done = replay(tmp_path if what == "an empty directory" else tmp_path / "none")
    assert (done.exit_code, done.stdout) == (ExitCode.USAGE, "")
    assert "there is no journal" in done.stderr


def test_a_line_that_is_not_ours_is_named(journal: Path) -> None:
    lines = journal.read_text().splitlines()
    changed = json.loads(lines[2]) | {"kind": "Nonsense"}
    journal.write_text("\n".join([*lines[:2], json.dumps(changed), ""]))
    done = replay(journal)
    assert (done.exit_code, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.startswith("elastic-ctl: error: line 3 of the master's journal")


def test_no_field_of_bytes_is_shown() -> None:
    """They are what somebody proves himself with."""
    kinds = [kind for kind in vars(protocol).values() if isinstance(kind, type) and is_dataclass(kind)]
    found = {name for kind in kinds for name, hint in get_type_hints(kind).items() if hint is bytes}
    assert "secret" in found
    assert found <= SECRET
