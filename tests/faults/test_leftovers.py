"""The soak sees what is left over, and what is nobody's."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tests.faults.leftovers import (
    SHARED_MEMORY,
    Descriptors,
    files_left,
    left_by_killed,
    shared_memory,
    shared_memory_left,
)


def test_descriptors_that_a_process_gathers_are_a_leak(tmp_path: Path) -> None:
    seen = Descriptors()
    seen.look("agent", os.getpid())
    held = [(tmp_path / f"{number}").open("w") for number in range(4)]
    seen.look("agent", os.getpid())
    for file in held:
        file.close()
    (leak,) = seen.leaks(slack=3)
    assert str(tmp_path / "0") in leak
    assert seen.leaks(slack=4) == []
    assert len(seen.longest()["agent"]) == 2


def test_files_are_left_unless_they_are_excused(tmp_path: Path) -> None:
    for name in ("of_a_killed_agent", "forgotten", "torchinductor_root"):
        (tmp_path / name).mkdir()
    assert files_left(tmp_path, {tmp_path / "of_a_killed_agent"}) == ["forgotten"]


def test_each_killed_node_may_leave_one_directory(tmp_path: Path) -> None:
    for name in ("elasticrun_a", "elasticrun_b", "elasticrun_master_0"):
        (tmp_path / name).mkdir()
    assert left_by_killed(tmp_path, 2) == {tmp_path / "elasticrun_a", tmp_path / "elasticrun_b"}
    assert left_by_killed(tmp_path, 1) == set()


def test_new_shared_memory_is_left() -> None:
    before = shared_memory()
    new = SHARED_MEMORY / f"elasticrun-test-{uuid.uuid4().hex}"
    new.touch()
    try:
        assert new.name in shared_memory_left(before)
    finally:
        new.unlink()
    assert new.name not in shared_memory_left(before)
