"""A worker restores what its job's storage has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.checkpoint import from_storage
from elasticrun.checkpoint.distcp import Share, finish, write_part
from elasticrun.checkpoint.from_storage import load_stored
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from elasticrun.storage.catalog import read_marker
from elasticrun.storage.disk import DiskStore
from elasticrun.storage.records import CommitName
from tests.support.saved_parts import saved_part

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


def state_of(step: int, size: int = 20) -> dict[str, Any]:
    return {"weight": torch.full((size,), float(step)), "step": step}


def stored(folder: Path, *steps: int) -> list[CommitName]:
    """Commits of these steps, finished in this order."""
    store, names = (
        DiskStore(str(folder), make=True),
        [CommitName(CommitId(0, step), "run7") for step in steps],
    )
    for name in names:
        for node in range(2):
            write_part(store, name, node, [saved_part(state_of(name.commit.step), node)], Share(node, 2))
        finish(store, name, 2)
    return names


def test_the_commit_that_was_finished_last_is_restored(tmp_path: Path) -> None:
    stored(tmp_path / "run", 9, 4)  # a later run went on from an earlier step
    state = state_of(0)
    assert load_stored(str(tmp_path / "run"), state, rank=1) == CommitName(CommitId(0, 4), "run7")
    assert (state["weight"].unique().tolist(), state["step"]) == ([4.0], 4)


def test_a_new_storage_is_made_and_has_nothing(tmp_path: Path) -> None:
    state = state_of(0)
    assert load_stored(str(tmp_path / "run"), state, rank=0) is None
    assert (tmp_path / "run").is_dir()
    assert state["step"] == 0


def test_a_storage_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no directory")
    with pytest.raises(CheckpointError, match="cannot open the storage in"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)


def test_the_state_of_another_model_is_named(tmp_path: Path) -> None:
    stored(tmp_path / "run", 4)
    with pytest.raises(CheckpointError, match=r"step 4 .* weight is a tensor of float32 of shape \[3\] here"):
        load_stored(str(tmp_path / "run"), state_of(0, size=3), rank=0)


def test_damage_is_named(tmp_path: Path) -> None:
    [name] = stored(tmp_path / "run", 4)
    for data in (tmp_path / "run" / name.folder).glob("*.distcp"):
        data.write_bytes(data.read_bytes().replace(torch.full((2,), 4.0).numpy().tobytes(), b"\xff" * 8))
    with pytest.raises(CheckpointError, match="weight is damaged"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)


def test_a_commit_that_only_the_first_rank_sees_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = stored(tmp_path / "run", 4)
    here = DiskStore(str(tmp_path / "run"))
    marker = read_marker(here, name)
    monkeypatch.setattr(from_storage, "newest", lambda store: marker)
    monkeypatch.setattr(from_storage, "read_marker", lambda store, name: None)
    with pytest.raises(CheckpointError, match="do all nodes share this storage"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=1)


def test_an_index_that_has_changed_is_an_error(tmp_path: Path) -> None:
    [name] = stored(tmp_path / "run", 4)
    (tmp_path / "run" / name.folder / "part-1.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"part-1\.json"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)


# -- what was written before


def test_a_part_that_was_written_before_is_not_written_again(tmp_path: Path) -> None:
    store, name = DiskStore(str(tmp_path / "run"), make=True), CommitName(CommitId(0, 4))
    parts, told = [saved_part(state_of(4))], list[int]()
    first = write_part(store, name, 0, parts, told=told.append)
    assert told
    told.clear()
    assert write_part(store, name, 0, parts, told=told.append) == first
    assert not told


def test_another_index_is_replaced_with_its_bytes(tmp_path: Path) -> None:
    store, name = DiskStore(str(tmp_path / "run"), make=True), CommitName(CommitId(0, 4))
    write_part(store, name, 0, [saved_part(state_of(3))])
    again = write_part(store, name, 0, [saved_part(state_of(4))])
    (tmp_path / "run" / name.folder / "part-0.json").write_text("damaged")
    assert write_part(store, name, 0, [saved_part(state_of(4))]) == again
    assert finish(store, name, 1).world_size == 1


def test_ranks_that_are_lost_and_not_needed_may_be_missing(tmp_path: Path) -> None:
    store, name = DiskStore(str(tmp_path / "run"), make=True), CommitName(CommitId(0, 4))
    write_part(store, name, 0, [saved_part(state_of(4), rank=1)])
    with pytest.raises(CheckpointError, match=r"it has parts of ranks \[1\]"):
        finish(store, name, 1)
    assert finish(store, name, 1, partial=True).world_size == 1
    state = state_of(0)
    assert load_stored(str(tmp_path / "run"), state, rank=0) == name
    assert state["step"] == 4
