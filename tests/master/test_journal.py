"""The journal on a real disk: what goes in comes out, and what broke is dropped or refused, never guessed."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun.config import JobConfig, TaskRole
from elasticrun.core.job.events import (
    Attached,
    Detached,
    Expired,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.orders import (
    MAX_SCALE_WAIT,
    CordonNode,
    DrainNode,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    ScaleRole,
    StopJob,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import MAX_CLUSTER
from elasticrun.errors import ExitCode, UsageError
from elasticrun.master import journal as module
from elasticrun.master import snapshot as snapshot_module
from elasticrun.master.journal import Entry, Journal, create_journal, read_journal, replay, resume_journal
from elasticrun.master.snapshot import WRITER, Snapshot, restore
from elasticrun.rpc.records import RecordError
from tests.master.journals import append
from tests.strategies import counts, hellos, names, numbers, statuses

CONFIG = JobConfig(job_id="job", min_nodes=1, max_nodes=2)
STARTED = Entry(0.0, MasterStarted(1))
LEFT = Entry(2.5, Left(3, "done"))

# Reasons are our own sentences, which may quote a file name with undecodable bytes in it.
reasons = st.text(st.characters(exclude_categories=[]), max_size=50)
node_counts = st.integers(1, 2**31 - 1)
events: st.SearchStrategy[JobEvent] = st.one_of(
    st.builds(MasterStarted, numbers),
    st.builds(Attached, numbers, hellos),
    st.builds(Reported, numbers, statuses),
    st.builds(Left, numbers, reasons),
    st.builds(Detached, numbers, reasons),
    st.builds(Expired, names, names),
    st.builds(DrainNode, names, reasons),
    st.builds(ScaleJob, node_counts, node_counts),
    st.builds(ScaleRole, st.sampled_from(TaskRole), st.integers(1, MAX_CLUSTER)),
    st.builds(ScaleIn, reasons, node_counts),
    st.builds(ScaleOut, node_counts, st.floats(0, MAX_SCALE_WAIT)),
    st.builds(CordonNode, names, reasons),
    st.builds(StopJob, reasons),
)
entries = st.lists(st.builds(Entry, st.floats(0, 1e12), events), max_size=5)
configs = st.builds(
    JobConfig, names, counts, counts, counts, counts, *[st.floats(allow_nan=False) for _ in range(6)]
)


def written(path: Path, *which: Entry, config: JobConfig = CONFIG) -> Path:
    """A journal with these entries."""
    journal = create_journal(path, config)
    append(journal, *which)
    journal.close()
    return path


@settings(deadline=None)
@given(configs, entries)
def test_what_was_written_is_read(config: JobConfig, some: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = written(Path(directory, "journal.jsonl"), *some, config=config)
        assert read_journal(path) == (config, some)


@settings(deadline=None)
@given(entries, entries)
def test_a_journal_goes_on_after_a_restart(before: list[Entry], after: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = written(Path(directory, "journal.jsonl"), *before)
        journal = resume_journal(path)
        append(journal, *after)
        journal.close()
        assert read_journal(path) == (CONFIG, before + after)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.jsonl"


def test_a_line_cut_anywhere_is_dropped_and_then_overwritten(path: Path) -> None:
    whole = written(path, STARTED).read_bytes()
    line = written(path.with_name("other"), STARTED, LEFT).read_bytes().splitlines(keepends=True)[-1]
    for length in range(len(line)):
        path.write_bytes(whole + line[:length])
        assert read_journal(path) == (CONFIG, [STARTED])
        journal = resume_journal(path)
        append(journal, LEFT)
        journal.close()
        assert read_journal(path) == (CONFIG, [STARTED, LEFT])


def test_only_its_owner_can_read_a_journal(path: Path) -> None:
    before = os.umask(0)
    try:
        written(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, b"", b'{"format":1,"conf'])
def test_a_journal_that_never_began_is_none(path: Path, content: bytes | None) -> None:
    path.parent.mkdir()
    if content is not None:
        path.write_bytes(content)
    assert read_journal(path) is None
    assert read_journal(written(path, LEFT)) == (CONFIG, [LEFT])


@pytest.mark.parametrize(
    "damage",
    [
        b"\n",
        b"garbage\n",
        b"\xff\xfe\n",
        b"null\n",
        b"5\n",
        b"[]\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"at":null,"kind":"Left","event":{"session":1,"reason":""}}\n',
        b'{"at":"soon","kind":"Left","event":{"session":1,"reason":""}}\n',
        b'{"at":1,"kind":"Beat","event":{"session":1}}\n',
        b'{"at":1,"kind":["Left"],"event":{"session":1,"reason":""}}\n',
        b'{"at":1,"kind":"Left","event":{"session":"1","reason":""}}\n',
        b'{"at":1,"kind":"Left","event":{"session":true,"reason":""}}\n',
        b'{"at":1,"kind":"Left","event":{"session":1}}\n',
        b'{"at":1,"kind":"Left","event":{"session":1,"reason":"","more":1}}\n',
        b'{"at":1,"kind":"Left","event":null}\n',
    ],
)
def test_damage_in_the_middle_is_refused(path: Path, damage: bytes) -> None:
    header, *rest = written(path, STARTED, LEFT).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([header, rest[0], damage, rest[1]]))
    with pytest.raises(UsageError, match="move it away to start the job anew") as refused:
        read_journal(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("header", [b'{"format":2}', b'{"format":1}', b"[1]", b'{"format":1,"config":{}}'])
def test_another_format_is_refused(path: Path, header: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(header + b"\n")
    with pytest.raises(UsageError, match="not one that this version wrote"):
        read_journal(path)


def test_a_new_journal_keeps_the_old_ones(path: Path) -> None:
    for number in range(3):
        written(path, Entry(float(number), MasterStarted(number)))
    kept = [path.with_name("journal.1.jsonl"), path.with_name("journal.2.jsonl"), path]
    assert [read_journal(each) for each in kept] == [
        (CONFIG, [Entry(float(number), MasterStarted(number))]) for number in range(3)
    ]


def test_a_link_is_moved_aside_and_not_written_through(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path.parent.mkdir()
    path.symlink_to(precious)
    written(path)
    assert precious.read_text() == "mine"
    assert not path.is_symlink()


def test_a_dangling_link_is_refused_in_a_sentence(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="cannot write the master's journal"):
        create_journal(path, CONFIG)


def test_a_directory_in_its_place_is_refused_in_a_sentence(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot read the master's journal"):
        read_journal(path)
    with pytest.raises(UsageError, match="cannot write the master's journal"):
        resume_journal(path)


def test_a_file_as_state_directory_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(UsageError, match="name a writable --state-dir"):
        create_journal(tmp_path / "state" / "journal.jsonl", CONFIG)


def test_a_full_disk_at_the_start_is_refused_in_a_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_write_all", _disk_is_full)
    with pytest.raises(UsageError, match="No space left on device; name a writable --state-dir"):
        create_journal(path, CONFIG)


def _disk_is_full(fd: int, data: bytes) -> None:
    os.write(fd, data[: len(data) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_ends_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = create_journal(path, CONFIG)
    append(journal, STARTED)
    with monkeypatch.context() as full:
        full.setattr(module, "_write_all", _disk_is_full)
        with pytest.raises(OSError, match="No space left"):
            append(journal, LEFT)
    append(journal, LEFT)  # there is room again, but an event is missing before this one
    assert read_journal(path) == (CONFIG, [STARTED])
    journal.close()


def test_closing_twice_is_harmless(path: Path) -> None:
    journal: Journal = create_journal(path, CONFIG)
    journal.close()
    journal.close()


def test_a_record_is_readable(path: Path) -> None:
    line = written(path, LEFT).read_text().splitlines()[1]
    assert json.loads(line) == {"at": 2.5, "kind": "Left", "event": {"session": 3, "reason": "done"}}


def test_many_entries_are_read_in_order(path: Path) -> None:
    many = [Entry(float(number), Left(number, "x" * 1000)) for number in range(5000)]
    assert read_journal(written(path, *many)) == (CONFIG, many)


POISON = [
    (
        {"kind": "MasterStarted", "event": {"epoch": 2**62, "key": "", "host": ""}},
        "4611686018427387904 is not between 0 and",
    ),
    ({"kind": "Left", "event": {"session": -1, "reason": ""}}, "-1 is not between 0 and"),
    ({"at": float("nan"), "kind": "Left", "event": {"session": 1, "reason": ""}}, "time nan is not finite"),
]


@pytest.mark.parametrize(("line", "why"), POISON)
def test_a_poisoned_journal_is_refused_with_file_and_line(path: Path, line: dict[str, Any], why: str) -> None:
    written(path, STARTED, LEFT)
    with path.open("a") as file:
        file.write(json.dumps({"at": 3.0} | line) + "\n")
    with pytest.raises(UsageError, match=f"line 4 of the master's journal .*{why}.*move it away") as refused:
        read_journal(path)
    assert refused.value.exit_code == ExitCode.USAGE
    assert str(path) in str(refused.value)


def test_an_entry_that_cannot_be_replayed_is_refused_with_its_line(path: Path) -> None:
    entries = [STARTED, Entry(2.0, Expired("warming"), 3)]
    with pytest.raises(UsageError, match=r"line 3 of the master's journal .* move it away"):
        replay(path, JobConfig(), entries)


@pytest.mark.parametrize("key", ["no hex", "ab", "AB" * 32, "ab" * 33])
def test_a_key_that_no_master_drew_is_refused_with_its_line(path: Path, key: str) -> None:
    found = read_journal(written(path, LEFT, Entry(1.0, MasterStarted(1, key))))
    assert found is not None
    with pytest.raises(UsageError, match=r"line 3 of the master's journal .* key in it .* move it away"):
        replay(path, *found)


# -- compaction


def state(number: int) -> JobState:
    machine = JobMachine(CONFIG)
    machine.handle(MasterStarted(number), 1.0)
    return machine.state


def test_a_compacted_journal_has_the_state_and_what_came_later(path: Path) -> None:
    journal = create_journal(path, CONFIG)
    append(journal, Entry(0.5, MasterStarted(7)))
    journal.compact(state(7), 1.0)
    append(journal, LEFT)
    journal.close()
    found = read_journal(path)
    assert found is not None
    config, (first, last) = found
    assert (config, first.at, last, last.line) == (CONFIG, 1.0, LEFT, 3)
    assert replay(path, config, found[1]).state.epoch == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    resumed = resume_journal(path)
    append(resumed, LEFT)
    assert resumed.size == path.stat().st_size


def test_a_snapshot_is_cut_into_lines_that_can_be_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 100)
    journal = create_journal(path, CONFIG)
    journal.compact(state(7), 1.0)
    whole = path.read_bytes()
    assert module.snapshot_lines(path) == whole.count(b"\n") > 10
    found = read_journal(path)
    assert found is not None and replay(path, *found).state.epoch == 7
    for damaged in (
        b"".join(whole.splitlines(keepends=True)[:-1]),
        b"".join(line for number, line in enumerate(whole.splitlines(keepends=True)) if number != 3),
        whole + whole.splitlines(keepends=True)[1],
    ):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"line \d+ of the master's journal .*snapshot.* move it away"):
            read_journal(path)


@pytest.mark.parametrize("moment", ["open", "write", "fsync", "replace"])
def test_a_crash_at_any_moment_of_a_compaction_leaves_a_whole_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    journal = create_journal(path, CONFIG)
    append(journal, Entry(0.5, MasterStarted(7)))
    target: Any = {"write": module, "replace": Path}.get(moment, os)
    with monkeypatch.context() as patched:
        patched.setattr(target, {"write": "_write_all"}.get(moment, moment), die)
        with pytest.raises(Killed):
            journal.compact(state(7), 1.0)
    found = read_journal(path)
    assert found is not None and replay(path, *found).state.epoch == 7
    create_journal(path.with_name("other"), CONFIG).close()
    resume_journal(path).compact(state(7), 1.0)
    found = read_journal(path)
    assert found is not None and replay(path, *found).state.epoch == 7


def test_a_snapshot_of_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_journal(path, CONFIG).compact(state(7), 1.0)
    monkeypatch.setattr(snapshot_module, "WRITER", "99.0")
    found = read_journal(path)
    assert found is not None
    with pytest.raises(UsageError, match=r"elasticrun .* wrote it, and this is 99.0\); move it away"):
        replay(path, *found)


DAMAGE = [
    '{"object":["os:path",{},[]]}',
    '{"object":["core.job.machine:Any",{},[]]}',
    '{"record":["core.protocol:World",{"round":1,"epoch":-1,"size":1}]}',
    '{"enum":["core.membership:Node",1]}',
    '{"set":[1]}',
    '{"unknown":[]}',
    "[",
]


@pytest.mark.parametrize("state", DAMAGE)
def test_a_snapshot_that_nobody_took_is_refused(state: str) -> None:
    with pytest.raises(RecordError):
        restore(CONFIG, Snapshot(WRITER, 1, state))


#: Written before the machine was built from parts: a journal of events, and a compacted one.
BEFORE = sorted((Path(__file__).parent / "journals_of_before").glob("*.jsonl"))


@pytest.mark.parametrize("path", BEFORE, ids=[path.stem for path in BEFORE])
def test_a_journal_of_an_earlier_version_is_read_as_it_was_or_refused_in_a_sentence(path: Path) -> None:
    try:
        found = read_journal(path)
        assert found is not None
        after = replay(path, *found).state
    except UsageError as error:
        assert path.stem == "snapshot", "events are read whatever their fields were called"
        assert str(error).endswith("; move it away to start the job anew")
    else:
        assert (after.phase, after.round, after.epoch) == (JobPhase.GATHERING, 2, 2)
        assert (after.limits.max_nodes, after.budget.used, list(after.members.nodes)) == (2, 1, [])
