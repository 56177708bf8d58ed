"""A worker restores what its job's storage has."""

from __future__ import annotations

from collections.abc import Callable
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


def test_a_bare_tensor_is_given_memory(tmp_path: Path) -> None:
    stored(tmp_path / "run", 4)
    state = state_of(0)
    state["weight"] = torch.empty_like(state["weight"], device="meta")
    assert load_stored(str(tmp_path / "run"), state, rank=0) is not None
    assert state["weight"].unique().tolist() == [4.0]
    state["weight"] = torch.empty_like(state["weight"], device="meta")
    with pytest.raises(CheckpointError, match="`device` has to be one with memory"):
        load_stored(str(tmp_path / "run"), state, rank=0, device="meta")


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


def damage(folder: Path, name: CommitName) -> None:
    for data in (folder / name.folder).glob("*.distcp"):
        number = torch.full((2,), float(name.commit.step)).numpy().tobytes()
        data.write_bytes(data.read_bytes().replace(number, b"\xff" * 8))


def test_damage_is_named(tmp_path: Path) -> None:
    [name] = stored(tmp_path / "run", 4)
    damage(tmp_path / "run", name)
    with pytest.raises(CheckpointError, match=r"no saved state that is whole is left: .*'weight' is") as it:
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)
    assert str(it.value).count(str(tmp_path / "run")) == 1


def cut(folder: Path, name: CommitName) -> None:
    for data in (folder / name.folder).glob("*.distcp"):
        data.write_bytes(data.read_bytes()[:100])


def lose_data(folder: Path, name: CommitName) -> None:
    for data in (folder / name.folder).glob("*.distcp"):
        data.unlink()


def lose_index(folder: Path, name: CommitName) -> None:
    (folder / name.folder / "part-1.json").unlink()


def change_index(folder: Path, name: CommitName) -> None:
    (folder / name.folder / "part-1.json").write_text("{}")


def change_marker(folder: Path, name: CommitName) -> None:
    (folder / name.folder / "commit.json").write_text("{}")


@pytest.mark.parametrize("harm", [damage, cut, lose_data, lose_index, change_index, change_marker])
def test_of_damaged_commits_the_one_before_is_restored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path, CommitName], None]
) -> None:
    *_, newest = stored(tmp_path / "run", 3, 4, 5)
    harm(tmp_path / "run", newest)
    state = state_of(0)
    assert load_stored(str(tmp_path / "run"), state, rank=1) == CommitName(CommitId(0, 4), "run7")
    assert (state["weight"].unique().tolist(), state["step"]) == ([4.0], 4)
    [told] = caplog.messages
    assert newest.folder in told or str(newest) in told
    assert told.count(str(tmp_path / "run")) == 1


def test_a_storage_in_which_all_markers_are_damaged_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    for name in stored(tmp_path / "run", 3, 4):
        change_marker(tmp_path / "run", name)
    with pytest.raises(CheckpointError, match=r"whole is left: step-0000000004-round-0-run7/commit\.json"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)


def test_what_is_no_damage_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older commit is no remedy for a model that has changed, or for a network that is down."""
    stored(tmp_path / "run", 3)
    stored(tmp_path / "run", 5)
    with pytest.raises(CheckpointError, match=r"^step 5 .* cannot be restored: .*weight is a tensor of"):
        load_stored(str(tmp_path / "run"), state_of(0, size=3), rank=0)
    monkeypatch.setattr(from_storage, "reader_of", fail)
    with pytest.raises(CheckpointError, match=r"^step 5 .* cannot be restored: ValueError: as never before"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)
    monkeypatch.setattr(from_storage, "commits", fail)
    with pytest.raises(CheckpointError, match=r"^ValueError: as never before"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=0)


def fail(*_: object) -> None:
    raise ValueError("as never before")


def test_a_commit_that_only_the_first_rank_sees_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "run", 4)
    monkeypatch.setattr(from_storage, "read_marker", lambda store, name: None)
    with pytest.raises(CheckpointError, match=r"^step 4 .* cannot be restored: .*do all nodes share this"):
        load_stored(str(tmp_path / "run"), state_of(0), rank=1)


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
