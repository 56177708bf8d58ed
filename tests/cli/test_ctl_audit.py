"""``elastic-ctl audit`` proves a history, names what is wrong in it, or says why it cannot tell."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elasticrun.cli import ctl_audit as module
from elasticrun.cli.ctl import group
from elasticrun.core.data import history
from elasticrun.core.data.history import Start, saved_line, start_line
from elasticrun.core.data.order import Order, Source
from elasticrun.core.data.position import Position
from elasticrun.core.data.record import to_state
from elasticrun.core.data.shards import Plan
from elasticrun.core.protocol.commits import CommitId
from elasticrun.storage import positions as written

SOURCE = Source(20, 1, True)
HALF = Position(SOURCE).advance(10, 2)


def audit(*args: Any) -> Result:
    return CliRunner().invoke(group, ["audit", *map(str, args)])


def record(run: Path, start: Start, *saved: tuple[int, Position], end: bytes = b"") -> Path:
    folder = run / "data"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round_{start.round}_rank_{start.rank}.jsonl"
    lines = [start_line(start), *(saved_line(step, {"loader": to_state(it)}) for step, it in saved)]
    path.write_bytes("".join(f"{json.dumps(line)}\n" for line in lines).encode() + end)
    return path


def job(run: Path, begun: Position) -> None:
    """Two ranks, then one, which went on from step 2, with its data at this position."""
    for rank in range(2):
        record(run, Start(0, rank, 2), (1, Position(SOURCE).advance(4, 2)), (2, HALF), end=b'{"step": 3, "da')
    rest = begun.resume().advance(20 - begun.at, 1).end()
    record(run, Start(1, 0, 1, CommitId(0, 2)), (3, rest))


def test_an_exact_history_is_proven(tmp_path: Path) -> None:
    job(tmp_path, HALF)
    (tmp_path / "data" / "round_2_rank_0.jsonl").touch()  # a rank that was killed before it had begun
    done = audit(tmp_path)
    assert done.stdout == (
        "the model of step 3 of round 1, trained in rounds 0, 1\n"
        "loader: exact\n  epoch 0: each of 20 samples exactly once\n"
    )
    assert done.exit_code == 0
    earlier = audit(tmp_path, "--step", 2)
    assert earlier.exit_code == 0
    assert "each of 10 samples exactly once, 10 still to come" in earlier.stdout
    (epoch,) = json.loads(audit(tmp_path, "--json", "--step", 2).stdout)["data"]["loader"]["epochs"]
    assert epoch["left"] == 10


def test_a_job_that_went_on_from_another_one_is_checked_from_there_on(tmp_path: Path) -> None:
    record(tmp_path, Start(0, 0, 1, CommitId(3, 8), "run7"), (9, HALF.resume().advance(10, 1).end()))
    done = audit(tmp_path)
    assert done.stdout == (
        "the model of step 9 of round 0, trained in rounds 0\n"
        "went on from step 8 of another job: what it trained on is not checked\n"
        "loader: exact\n  epoch 0: each of 10 samples exactly once\n"
    )
    assert done.exit_code == 0
    assert json.loads(audit(tmp_path, "--json").stdout)["begun"] == {"step": 8}
    job(other := tmp_path / "other", HALF)
    assert json.loads(audit(other, "--json").stdout)["begun"] is None


@pytest.mark.parametrize(("at", "missing", "repeated"), [(8, 0, 2), (12, 2, 0)])
def test_a_planted_duplicate_and_a_planted_gap_are_found(
    at: int, missing: int, repeated: int, tmp_path: Path
) -> None:
    job(tmp_path, Position(SOURCE).advance(at, 2))
    done = audit(tmp_path)
    assert done.exit_code == 1
    assert "loader: NOT exact" in done.stdout
    found = json.loads(audit(tmp_path, "--json").stdout)
    assert (found["exact"], found["final"], found["rounds"]) == (False, {"round": 1, "step": 3}, [0, 1])
    (epoch,) = found["data"]["loader"]["epochs"]
    assert (epoch["missing"]["count"], epoch["repeated"]["count"]) == (missing, repeated)
    places = range(*sorted((at, 10)))
    named = epoch["missing" if missing else "repeated"]["first"]
    assert named == list(Order(SOURCE, 0).indices(places))


def test_a_record_that_is_missing_is_no_proof(tmp_path: Path) -> None:
    job(tmp_path, HALF)
    (tmp_path / "data" / "round_0_rank_1.jsonl").unlink()
    done = audit(tmp_path, "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "these ranks left no record: 1" in done.stderr


@pytest.mark.parametrize("where", ["", "none"])
def test_a_directory_without_records_is_refused(where: str, tmp_path: Path) -> None:
    done = audit(tmp_path / where)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no records of data positions: give the directory" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"nonsense\n", "line 1: it is no JSON"),
        (b"[" * 100_000 + b"\n", "line 1: it is no JSON"),
        (b"{}\n", "line 1: this is no record"),
        (b'{"format":1,"round":7,"rank":0,"world":1,"restored":null}\n', "it is that of rank 0 of round 7"),
        (b'{"format":1,"round":0,"rank":0,"world":1,"restored":null}\n{"step":1}\n', "line 2: it has no"),
        (b" " * 2000, "line 1: it is longer than 1000 bytes"),
    ],
)
def test_a_damaged_record_is_named(
    text: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_LINE", 1000 if text.startswith(b" ") else 1 << 20)
    path = record(tmp_path, Start(0, 0, 1))
    path.write_bytes(text)
    done = audit(tmp_path)
    assert done.exit_code == 1
    assert done.stderr.count(str(path)) == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("over", [0, 1], ids=["the longest line", "a longer one"])
def test_the_writer_writes_no_line_that_is_refused(
    over: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states = {name: to_state(HALF) for name in ("loader", "another")}
    longest = len(json.dumps(saved_line(2, states), separators=(",", ":"))) + 1
    monkeypatch.setattr(history, "MAX_LINE", longest - over)
    writer = written.PositionRecord(tmp_path, 0, 0, 1)
    writer.save(1, {"loader": to_state(HALF)})
    writer.save(2, states)
    writer.close()
    found = json.loads(audit(tmp_path, "--json").stdout)
    assert found["final"]["step"] == 2 - over
    assert found["data"]["loader"]["exact"]
    said = f"a line has {longest} bytes, and {longest - 1} are read"
    assert [said in each for each in caplog.messages] == [True] * over


def test_the_names_of_many_files_and_a_long_trail_are_read(tmp_path: Path) -> None:
    plan = Plan.of_files({f"s3://bucket/train/part-{n:06d}.parquet": 2 for n in range(20_000)}, 2)
    trained = [[0, each.name, 0, 2] for each in plan.extents]
    leases = {"format": 1, "plan": plan.identity, "cursor": [1, 0], "free": [], "failed": []}
    writer = written.PositionRecord(tmp_path, 0, 0, 1)
    writer.save(1, {"data": {"leases": leases}}, {"data": {"trained": trained, "lost": False}})
    writer.close()
    assert next((tmp_path / "data").iterdir()).stat().st_size > 1 << 20
    assert audit(tmp_path).stdout.endswith("epoch 0: each of 40000 samples exactly once\n")


def test_a_pipe_in_place_of_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "round_0_rank_0.jsonl")
    done = audit(tmp_path)
    assert done.exit_code == 2
    assert "is no regular file" in done.stderr


def test_a_record_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "round_0_rank_0.jsonl").symlink_to(tmp_path / "nowhere")
    done = audit(tmp_path)
    assert done.exit_code == 2
    assert "cannot be read: No such file or directory" in done.stderr


def test_the_writer_and_the_reader_mean_the_same_files() -> None:
    assert (module.FOLDER, module.PATTERN) == (written.FOLDER, written.PATTERN)
