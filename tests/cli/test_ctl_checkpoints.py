"""``elastic-ctl checkpoints``: what a storage has, whether it is whole, and as one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elasticrun.cli.ctl import group
from elasticrun.core.protocol.commits import CommitId
from elasticrun.storage.catalog import remove_commit
from elasticrun.storage.records import MARKER, CommitName, Marker, data_file, digest
from elasticrun.storage.store import Store
from elasticrun.ui.checkpoints import Row, render_commits, size_in_words

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(group, ["checkpoints", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 5 and 9 of two ranks are finished, step 12 is not."""
    pytest.importorskip("torch")
    import torch

    from elasticrun.checkpoint.distcp import finish, write_part
    from elasticrun.storage.opening import open_store
    from tests.support.saved_parts import saved_part

    store = open_store(str(tmp_path / "runs"), make=True)
    for step, run_ in ((5, ""), (9, "ab"), (12, "")):
        name = CommitName(CommitId(1, step), run_)
        for node in range(2):
            state = {"weight": torch.full((3,), float(step)), "seen": step}
            write_part(store, name, node, [saved_part(state, node)])
        if step != 12:
            finish(store, name, 2, now=1e9 + step)
    return tmp_path / "runs"


def damage(folder: Path, step: str) -> None:
    path = folder / step / data_file(0)
    data = bytearray(path.read_bytes())
    data[data.index(b"archive/data/0") + 60] ^= 1
    path.write_bytes(data)


def test_commits_are_listed(folder: Path) -> None:
    done = run(folder)
    assert done.exit_code == 0
    assert run(folder, "list").stdout == done.stdout
    size = size_in_words(sum(path.stat().st_size for path in (folder / "step-0000000012-round-1").iterdir()))
    heading, *rows = [line.split() for line in done.stdout.splitlines()]
    assert heading == ["step", "round", "run", "world", "size", "size", "finished", "(UTC)"]
    assert rows[0] == ["12", "1", "-", *size.split(), "not", "finished"]
    assert rows[1][:3] + rows[1][-2:] == ["5", "1", "2", "2001-09-09", "01:46:45"]
    assert rows[2][:4] + rows[2][-2:] == ["9", "1", "ab", "2", "2001-09-09", "01:46:49"]


def test_commits_are_listed_for_programs(folder: Path) -> None:
    found = json.loads(run(folder, "list", "--json").stdout)
    assert [(each["step"], each["run"], each["finished"], each["world_size"]) for each in found] == [
        (12, "", None, None),
        (5, "", 1e9 + 5, 2),
        (9, "ab", 1e9 + 9, 2),
    ]
    assert (folder / found[1]["folder"] / MARKER).exists()
    assert found[1]["nodes"] == 2
    assert found[1]["bytes"] == sum(
        (folder / found[1]["folder"] / data_file(node)).stat().st_size for node in range(2)
    )


def test_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    assert run(tmp_path).stdout == f"there are no saved states in {tmp_path}\n"
    assert run(tmp_path, "list", "--json").stdout == "[]\n"
    assert run(tmp_path, "verify").exit_code == 0


def test_a_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    for verb in ([], ["list"], ["verify"], ["export", "1", tmp_path / "out"]):
        done = run(tmp_path / "x", *verb)
        assert done.exit_code == 2
        assert done.stderr.startswith("elastic-ctl: error: cannot open the storage in ")
        assert "No such file or directory" in done.stderr


def test_what_is_whole_is_verified(folder: Path) -> None:
    done = run(folder, "verify")
    assert done.exit_code == 0
    first, second, third = done.stdout.splitlines()
    assert first == "step 12 of round 1: not finished"
    assert second.startswith("step 5 of round 1: all ")
    assert third.startswith("step 9 of round 1 of run ab: all ")
    assert third.endswith(" are as they were written")
    assert run(folder, "verify", "9").stdout == f"{third}\n"


def test_damage_is_named(folder: Path) -> None:
    damage(folder, "step-0000000005-round-1")
    done = run(folder, "verify")
    assert done.exit_code == 1
    expected = "step 5 of round 1: weight is damaged: the bytes of rank 0 in step-0000000005-round-1/__0_0"
    assert expected in done.stdout
    assert "step 9 of round 1 of run ab: all" in done.stdout
    assert run(folder, "verify", "9").exit_code == 0
    told = run(folder, "verify", "5", "--json")
    assert told.exit_code == 1
    (found,) = json.loads(told.stdout)
    assert (found["step"], [each["key"] for each in found["damaged"]]) == (5, ["weight"])
    refused = run(folder, "export", "5", folder.parent / "out.pt")
    assert refused.exit_code == 1
    assert "'weight' is damaged" in refused.stderr
    assert not (folder.parent / "out.pt").exists()


def test_a_damaged_marker_is_named(folder: Path) -> None:
    marker = folder / "step-0000000005-round-1" / MARKER
    marker.write_bytes(marker.read_bytes()[:-5])
    assert "commit.json" in run(folder).stdout
    done = run(folder, "verify")
    assert done.exit_code == 1
    assert "step 5 of round 1: commit.json is damaged: " in done.stdout


def test_what_retention_removes_meanwhile_is_not_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from elasticrun.storage import verifying

    def slow(store: Store, marker: Marker, *more: Any) -> Iterator[verifying.Damage]:
        if marker.name.commit.step == 5:
            remove_commit(store, marker.name.folder)
        return damages(store, marker, *more)

    damages = verifying.damages
    monkeypatch.setattr(verifying, "damages", slow)
    done = run(folder, "verify")
    assert done.exit_code == 0, done.stdout
    assert "step 5 of round 1: removed meanwhile\n" in done.stdout
    monkeypatch.undo()
    assert "step 5" not in run(folder, "verify").stdout


def test_a_marker_with_odd_fields_is_damaged(folder: Path) -> None:
    marker = folder / "step-0000000005-round-1" / MARKER
    body = json.loads(marker.read_bytes().partition(b"\n")[2]) | {"finished": 1e30}
    text = json.dumps(body).encode()
    marker.write_bytes(digest(text).encode() + b"\n" + text + b"\n")
    for verb in ("list", "verify"):
        done = run(folder, verb)
        assert "is damaged: no date is 1e+30" in " ".join(done.stdout.split())
    assert done.exit_code == 1


def test_a_step_is_exported(folder: Path, tmp_path: Path) -> None:
    import torch

    done = run(folder, "export", "9", tmp_path / "out.pt")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"step 9 of round 1 of run ab is in {tmp_path / 'out.pt'}\n"
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert (found["weight"].tolist(), found["seen"]) == ([9.0] * 3, 9)


@pytest.mark.parametrize("verb", [["verify", "12"], ["export", "12", "x"], ["export", "7", "x"]])
def test_a_step_that_is_not_there_is_told(folder: Path, verb: list[str]) -> None:
    done = run(folder, *verb)
    assert done.exit_code == 2
    assert done.stderr == (
        f"elastic-ctl: error: step {verb[1]} is not in {folder}, or not finished: the newest ones are 5, 9\n"
    )


def test_an_export_replaces_no_device(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = run(folder, "export", "9", pipe)
    assert (done.exit_code, pipe.is_fifo()) == (2, True)
    assert f"{pipe} is no regular file" in done.stderr


def test_an_export_to_nowhere_is_told(folder: Path) -> None:
    done = run(folder, "export", "9", folder / "nowhere" / "out.pt")
    assert done.exit_code == 1
    assert "cannot write in" in done.stderr


@pytest.mark.parametrize("words", [["list"], ["verify"], ["verify", "9", "--json"]])
def test_looking_needs_no_torch(folder: Path, words: list[str]) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from elasticrun.cli.ctl import group;"
        "group(['checkpoints', *sys.argv[1:]])"
    )
    subprocess.run([sys.executable, "-c", program, folder, *words], check=True, capture_output=True)


def test_an_export_without_torch_is_told(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from elasticrun.cli.ctl import group;"
        "group(['checkpoints', sys.argv[1], 'export', '9', sys.argv[2]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder, tmp_path / "out"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'elasticrun[torch]'" in done.stderr


def test_a_url_without_its_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    done = run("s3://bucket/run")
    assert done.exit_code == 2
    assert "there is no storage of that kind: Install s3fs to access S3" in done.stderr


# The table


def test_names_from_elsewhere_cannot_disturb_a_terminal() -> None:
    text = render_commits([Row(1, 0, "a\x1b[2J", 1, 5, None, "damaged:\n\x07")], 100)
    assert text.replace("\n", "").isprintable()


def test_a_table_is_coloured_for_terminals_only() -> None:
    rows = [Row(1, 0, "", 1, 5, None), Row(2, 0, "", None, 5, None, "damaged")]
    assert "\x1b[" in render_commits(rows, 100, colour=True)
    assert "\x1b[" not in render_commits(rows, 100)


def test_a_long_reason_is_folded() -> None:
    text = render_commits([Row(1, 0, "", None, 5, None, "it is damaged " * 10)], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("damaged") == 10


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (9_996_000, "10.0 MB"),
        (123_456_789, "123 MB"),
        (5 * 10**9, "5.00 GB"),
        (7 * 10**12, "7.00 TB"),
    ],
)
def test_sizes_have_three_digits(size: int, text: str) -> None:
    assert size_in_words(size) == text


def test_nothing_is_written_where_it_is_only_looked_at(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for words in ([], ["list", "--json"], ["verify"], ["export", "9", os.devnull + "x/y"]):
        run(folder, *words)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
