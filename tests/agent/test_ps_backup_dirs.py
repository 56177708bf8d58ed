"""Directories for copies of parameter servers' variables: who has them, and that nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elasticrun.agent.workers.ps_backup_dirs import PsBackupDirs, remove_orphans
from elasticrun.config import TaskRole
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.protocol.tasks import Task
from elasticrun.core.tensorflow.ps_backup import ROOTS_VARIABLE
from tests.support.processes import DEADLINE

CLUSTER = ((TaskRole.CHIEF, ("a:1",)), (TaskRole.PS, ("a:2", "a:3")))
TAG = "9f1c2ab47d63e80512fa76c03be94d58"
SERVED = Assignment(0, 0, 1, 0, 3, 0, 3, "", 0, 0, 0, cluster=CLUSTER, tag=TAG)
MIRRORED = Assignment(0, 0, 1, 0, 3, 0, 3, "", 0, 0, 0, cluster=((TaskRole.CHIEF, ("a:1",)),))
CHIEF = Task(0, TaskRole.CHIEF, 0, port=1)


def ps(index: int) -> Task:
    return Task(1 + index, TaskRole.PS, index, port=2 + index)


def seen(root: str) -> list[str]:
    """The directory of the second ps, as its chief finds it."""
    return [str(path) for path in Path("/").glob(f"{root}/3".lstrip("/"))]


@pytest.fixture
def bases(tmp_path: Path) -> tuple[str, str]:
    made = tmp_path / "shm", tmp_path / "tmp"
    for base in made:
        base.mkdir()
    return str(made[0]), str(made[1])


def test_the_chief_finds_what_another_agent_made(bases: tuple[str, str]) -> None:
    told: list[str] = []
    here, there = PsBackupDirs(bases=bases), PsBackupDirs(told.append, bases)
    assert there.prepare(ps(0), SERVED) == there.prepare(ps(1), SERVED) == {}
    copy = Path(told[0], "3", "of-1")
    copy.write_text("copy")
    assert there.prepare(ps(1), SERVED) == {}  # its next attempt
    assert copy.exists() and len(told) == 1 and Path(told[0]).parent == Path(bases[0])
    assert Path(told[0]).stat().st_mode & 0o77 == 0

    roots = here.prepare(CHIEF, SERVED)[ROOTS_VARIABLE].split(os.pathsep)
    assert [seen(root) for root in roots] == [[f"{told[0]}/3"], []]
    other = replace(SERVED, tag=TAG[::-1])
    roots = PsBackupDirs(bases=bases).prepare(CHIEF, other)[ROOTS_VARIABLE].split(os.pathsep)
    assert not any(map(seen, roots))
    there.prepare(ps(0), other)
    assert not Path(told[0]).exists() and len(told) == 2, "those of a job whose journal is lost"
    there.close()
    here.close()
    assert not any(os.scandir(bases[0]))


@pytest.mark.parametrize("tag", ["", "short", "../" * 8, "*" * 32, "[0-9]" * 8, "\u0660" * 32])
def test_what_is_no_tag_becomes_no_path(tag: str, bases: tuple[str, str]) -> None:
    backup_dirs = PsBackupDirs(bases=bases)
    for task in (ps(0), CHIEF):
        assert backup_dirs.prepare(task, replace(SERVED, tag=tag)) == {}
    assert not any(os.scandir(bases[0]))


def test_they_go_with_the_last_ps_of_a_node(bases: tuple[str, str]) -> None:
    backup_dirs = PsBackupDirs(bases=bases)
    backup_dirs.prepare(ps(0), replace(SERVED, tasks=(CHIEF, ps(0))))
    backup_dirs.prepare(CHIEF, replace(SERVED, tasks=(CHIEF, ps(0))))
    assert len(list(Path(bases[0]).iterdir())) == 1
    backup_dirs.prepare(CHIEF, replace(SERVED, tasks=(CHIEF,)))
    assert not any(os.scandir(bases[0]))


@pytest.mark.parametrize(
    ("task", "assignment"),
    [
        (None, SERVED),
        (CHIEF, MIRRORED),
        (Task(3, TaskRole.WORKER, 0), SERVED),
        (Task(3, TaskRole.EVALUATOR, 0), SERVED),
    ],
)
def test_nobody_else_has_any(task: Task | None, assignment: Assignment, bases: tuple[str, str]) -> None:
    backup_dirs = PsBackupDirs(bases=bases)
    assert backup_dirs.prepare(task, assignment) == {}
    backup_dirs.close()
    assert not any(os.scandir(bases[0]))


def test_the_next_place_is_taken_if_the_first_cannot_be(
    bases: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    backup_dirs = PsBackupDirs(told.append, ("/nowhere", *bases))
    backup_dirs.prepare(ps(0), SERVED)
    backup_dirs.close()
    assert [Path(path).parent for path in told] == [Path(bases[0])]

    room = os.statvfs(bases[0])
    small = os.statvfs_result((room.f_bsize, 1, *list(room)[2:4], 16, *list(room)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda base: small if base == bases[0] else room)
    backup_dirs.prepare(ps(0), SERVED)
    assert Path(told[1]).parent == Path(bases[1])
    backup_dirs.close()


def test_no_place_at_all_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    backup_dirs = PsBackupDirs(bases=("/nowhere",))
    assert backup_dirs.prepare(ps(0), SERVED) == backup_dirs.prepare(ps(1), SERVED) == {}
    backup_dirs.close()
    assert [record.getMessage() for record in caplog.records] == [
        "parameter servers keep no copies of their variables here (/nowhere: No such file or directory)"
    ]


def test_a_full_disk_is_a_warning(bases: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    backup_dirs = PsBackupDirs(told.append, bases)
    backup_dirs.prepare(ps(0), SERVED)
    Path(told[0], "2").rmdir()
    Path(told[0], "lock").unlink()
    Path(told[0]).rmdir()
    backup_dirs.prepare(ps(1), SERVED)
    assert "no directory for copies of a ps can be made" in caplog.text
    backup_dirs.close()


KILLED = """
import os, signal, sys
from elasticrun.agent.workers.ps_backup_dirs import PsBackupDirs
from tests.agent.test_ps_backup_dirs import SERVED, ps

PsBackupDirs(bases=(sys.argv[1],)).prepare(ps(0), SERVED)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_the_dead_left_is_removed_and_nothing_else(bases: tuple[str, str]) -> None:
    told: list[str] = []
    alive = PsBackupDirs(told.append, bases)
    alive.prepare(ps(0), SERVED)
    subprocess.run([sys.executable, "-c", KILLED, bases[0]], timeout=DEADLINE, check=False)
    unlocked = Path(bases[0], "elasticrun_ps_x_new")
    unlocked.mkdir()
    link = Path(bases[0], "elasticrun_ps_x_link")
    link.symlink_to(bases[1])
    (orphan,) = {path.name for path in Path(bases[0]).iterdir()} - {
        Path(told[0]).name,
        unlocked.name,
        link.name,
    }
    remove_orphans(bases[0])
    assert {path.name for path in Path(bases[0]).iterdir()} == {Path(told[0]).name, unlocked.name, link.name}
    assert not Path(bases[0], orphan).exists()
    alive.close()
