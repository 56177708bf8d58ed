"""Where logs lie, what is never deleted, and what is said about a log directory that is none."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest

from elasticrun.agent.logs import dirs as log_dirs
from elasticrun.agent.logs.dirs import (
    LATEST,
    ROUNDS_KEPT,
    LogDirs,
    WorkerPaths,
    make_run_dir,
    open_worker,
    safe_name,
)
from elasticrun.errors import UsageError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def test_the_tree(tmp_path: Path) -> None:
    dirs = LogDirs(str(tmp_path / "new" / "logs"), "my/job")
    root = Path(dirs.root)
    assert root.parent == tmp_path / "new" / "logs"
    assert root.name.startswith("my_job_")
    opened = dirs.open_round(3, 2)
    assert opened.directory == str(root / "attempt_3")
    assert opened.workers[1] == WorkerPaths(
        str(root / "attempt_3/1/stdout.log"),
        str(root / "attempt_3/1/stderr.log"),
        str(root / "attempt_3/1/error.json"),
    )
    assert opened.filtered_stderr == str(root / "attempt_3/filtered_stderr.log")
    assert all(Path(worker.stdout).parent.is_dir() for worker in opened.workers)


def test_a_worker_that_comes_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dirs = LogDirs(str(tmp_path), "job").open_round(0, 1)
    assert open_worker(dirs, 0, 0) == dirs.workers[0]
    late = open_worker(dirs, 4, 2)
    assert Path(late.error_file) == Path(dirs.directory, "4", "error_2.json")
    assert Path(late.stdout).parent.is_dir()
    assert not caplog.messages
    Path(dirs.directory, "5").touch()
    assert open_worker(dirs, 5, 0) == WorkerPaths()
    (message,) = caplog.messages
    assert "5 cannot be made (File exists)" in message
    assert open_worker(LogDirs("/dev/null", "job").open_round(0, 1), 0, 1) == WorkerPaths()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    path.mkdir()
    return path


def test_the_newest_run_is_found_by_a_link(logs: Path) -> None:
    for _ in range(2):
        dirs = LogDirs(str(logs), "job")
        assert (logs / LATEST).resolve() == Path(dirs.root)
    made = make_run_dir(str(logs), "job")
    assert LogDirs(str(logs), "job", run_dir=made).root == made
    assert (logs / LATEST).readlink() == Path(Path(made).name)
    assert len(list(logs.iterdir())) == 4, "three runs and one link"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_no_link_keeps_its_name(logs: Path, kind: str) -> None:
    theirs = logs / LATEST
    theirs.write_text("mine") if kind == "file" else theirs.mkdir()
    dirs = LogDirs(str(logs), "job")
    assert not theirs.is_symlink()
    assert sorted(path.name for path in logs.iterdir()) == sorted([LATEST, Path(dirs.root).name])


def test_a_link_of_somebody_else_is_replaced_and_not_followed(logs: Path) -> None:
    precious = logs.with_name("precious")
    precious.write_text("keep me")
    (logs / LATEST).symlink_to(precious)
    dirs = LogDirs(str(logs), "job")
    assert ((logs / LATEST).resolve(), precious.read_text()) == (Path(dirs.root), "keep me")


def test_a_link_that_cannot_be_made_costs_nothing(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(1, "no links here")

    monkeypatch.setattr(Path, "replace", fail)
    dirs = LogDirs(str(logs), "job")
    assert [path.name for path in logs.iterdir()] == [Path(dirs.root).name]
    monkeypatch.setattr(Path, "symlink_to", fail)
    assert Path(LogDirs(str(logs), "job").root).is_dir()
    assert not (logs / LATEST).exists()


def test_two_launches_do_not_share(tmp_path: Path) -> None:
    assert LogDirs(str(tmp_path), "job").root != LogDirs(str(tmp_path), "job").root


def test_relative_directories_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(LogDirs("logs", "job").root).parent == tmp_path / "logs"


def test_a_file_as_log_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--log-dir .*/file is a file; give a directory"):
        LogDirs(str(tmp_path / "file"), "job")
    with pytest.raises(UsageError, match=r"--log-dir .*/file/x cannot be used \(Not a directory\)"):
        LogDirs(str(tmp_path / "file" / "x"), "job")


def test_a_log_directory_that_takes_nothing() -> None:
    with pytest.raises(UsageError, match=r"--log-dir /proc/self cannot be used"):
        LogDirs("/proc/self", "job")


def test_a_later_round_falls_back(tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    dirs = LogDirs(str(tmp_path / "logs"), "job")
    (Path(dirs.root) / "attempt_1").touch()  # in the way
    opened = dirs.open_round(1, 1)
    assert Path(opened.directory).is_relative_to(temporary)
    assert "the log directory of round 1 cannot be made" in caplog.text
    assert f"its logs go to {temporary}" in caplog.text


def test_nowhere_to_fall_back_to(tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    dirs = LogDirs(str(tmp_path / "logs"), "job")
    (Path(dirs.root) / "attempt_1").touch()
    temporary.rmdir()
    opened = dirs.open_round(1, 2)
    assert (opened.directory, opened.workers) == ("", (WorkerPaths(), WorkerPaths()))
    assert opened.filtered_stdout == ""
    assert "its output goes to the console" in caplog.text


def test_no_temporary_directory_at_all(temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    temporary.rmdir()
    dirs = LogDirs(None, "job")
    assert dirs.open_round(0, 1).workers == (WorkerPaths(),)
    assert "workers leave no error files" in caplog.text
    assert dirs.close(failed=True) == ""


def test_dev_null_keeps_nothing(temporary: Path) -> None:
    assert LogDirs("/dev/null", "job").open_round(0, 1).workers == (WorkerPaths(),)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "failed", "kept"),
    [
        ("error.json", False, False),
        ("error.json", True, True),
        ("stdout.log", False, True),  # redirected: the only copy
        ("stacks_0.txt", False, True),  # of a hang that the job has outlived
        ("", True, False),
    ],
)
def test_the_temporary_directory_at_the_end(temporary: Path, name: str, failed: bool, kept: bool) -> None:
    dirs = LogDirs(None, "job")
    opened = dirs.open_round(0, 1)
    if name:
        (Path(opened.directory) / "0" / name).write_text("x")
    assert bool(dirs.close(failed)) is kept
    assert bool(list(temporary.iterdir())) is kept


def test_a_temporary_directory_is_told_and_so_is_what_stays_of_it(temporary: Path) -> None:
    told: list[str] = []
    dirs = LogDirs(None, "job", told.append)
    assert list(map(Path, told)) == list(temporary.iterdir())
    (Path(dirs.open_round(0, 1).directory) / "0/stacks_0.txt").write_text("x")
    dirs.close(failed=False)
    assert dirs.kept == dirs.root != ""


def test_nothing_is_told_of_a_users_directory(tmp_path: Path) -> None:
    told: list[str] = []
    dirs = LogDirs(str(tmp_path / "logs"), "job", told.append)
    dirs.open_round(0, 1)
    dirs.close(failed=False)
    assert (told, dirs.kept) == ([], "")


@pytest.mark.parametrize("log_dir", [None, "logs"])
def test_a_job_that_hangs_for_ever_does_not_fill_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_dir: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    dirs = LogDirs(log_dir, "job")
    for number in range(2 * ROUNDS_KEPT + 2):
        directory = Path(dirs.open_round(number, 1).directory)
        dirs.tidy_up()
        if number % 2 == 0:
            (directory / "0/stacks_0.txt").write_text("x")
            (directory / "0/stdout.log").write_text("x")
    dirs.open_round(number + 1, 1)
    dirs.tidy_up()
    hung = sorted(int(path.parts[-3].removeprefix("attempt_")) for path in Path(dirs.root).rglob("stacks_*"))
    assert hung == list(range(2 if log_dir is None else 0, number + 1, 2)), "a user's directory keeps all"
    assert (Path(dirs.root) / "attempt_0/0/stdout.log").exists(), "a log is never deleted"


def test_rounds_that_leave_nothing_take_no_room(temporary: Path) -> None:
    dirs = LogDirs(None, "job")
    for number in range(20):
        opened = dirs.open_round(number, 4)
        dirs.tidy_up()
        assert all(Path(paths.error_file).parent.is_dir() for paths in opened.workers)
        if number == 7:
            Path(opened.workers[1].error_file).write_text("{}")
    left = sorted(str(path.relative_to(dirs.root)) for path in Path(dirs.root).rglob("*") if path.is_dir())
    newest = ["attempt_19", *(f"attempt_19/{rank}" for rank in range(4))]
    assert left == [*newest, "attempt_7", "attempt_7/1"]
    for number in range(20, 20 + 2 * ROUNDS_KEPT):
        Path(dirs.open_round(number, 1).workers[0].error_file).write_text("{}")
        dirs.tidy_up()
    assert len(list(Path(dirs.root).iterdir())) == ROUNDS_KEPT + 1
    dirs.close(failed=False)
    assert list(temporary.iterdir()) == []


def test_what_cannot_be_tidied_up_stays(temporary: Path) -> None:
    dirs = LogDirs(None, "job")
    for number in range(ROUNDS_KEPT + 3):
        (
            Path(dirs.open_round(number, 1).directory) / "0/error_1.json"
        ).mkdir()  # nothing that can be unlinked
        dirs.tidy_up()
    assert (Path(dirs.root) / "attempt_0/0/error_1.json").exists()


def test_the_users_directory_is_always_kept(tmp_path: Path) -> None:
    dirs = LogDirs(str(tmp_path), "job")
    dirs.open_round(0, 1)
    assert dirs.close(failed=False) == dirs.root
    assert Path(dirs.root, "attempt_0").is_dir()


@pytest.mark.parametrize(
    ("job_id", "name"),
    [
        ("none", "none"),
        ("", "none"),
        ("../../etc", ".._.._etc"),
        ("a b\n*", "a_b__"),
        ("Ünï", "Ünï"),
        ("x" * 300, "x" * 64),
        ("é" * 100, "é" * 32),
    ],
)
def test_safe_name(job_id: str, name: str) -> None:
    assert safe_name(job_id) == name


def test_warnings_are_from_here() -> None:
    assert log_dirs.logger is logging.getLogger("elasticrun.agent.logs.dirs")
