"""Commits in a storage: what is written, and who can read it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load

from elasticrun.checkpoint.distcp import Share, finish, write_part
from elasticrun.checkpoint.loading import Loading
from elasticrun.checkpoint.memory import MemoryReader
from elasticrun.checkpoint.parts import Part, enlist
from elasticrun.checkpoint.random_state import RandomState
from elasticrun.checkpoint.stored import export, reader_of
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError, UsageError
from elasticrun.storage.catalog import commits, newest
from elasticrun.storage.disk import Disk, DiskStore
from elasticrun.storage.errors import DamagedError, IncompleteError
from elasticrun.storage.opening import open_store
from elasticrun.storage.records import MARKER, METADATA, CommitName, Marker, data_file, index_file
from elasticrun.storage.store import Store
from elasticrun.storage.verifying import damages, read_index
from tests.support.saved_parts import kept_part, saved_bytes, saved_part
from tests.support.stock_reader import equal, model_of, stepped

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

ROOT = Path(__file__).parent.parent.parent
NAME = CommitName(CommitId(2, 12))
DEADLINE = 240.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), make=True)


def path_of(store: Store, name: CommitName = NAME) -> Path:
    return Path(store.url) / name.folder


def put(store: Store, state: Mapping[str, Any], name: CommitName = NAME) -> Marker:
    """Write a state as a job of one rank."""
    write_part(store, name, 0, [saved_part(state)])
    return finish(store, name, 1)


def stock(folder: Path | str, state: dict[str, Any]) -> dict[str, Any]:
    """What torch itself loads into a state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(state, checkpoint_id=folder)
    return state


def run_stock(*arguments: str | Path) -> None:
    program = ROOT / "tests/support/stock_reader.py"
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr


# What torch reads without us


def a_training() -> dict[str, Any]:
    torch.manual_seed(1)
    model = model_of()
    optimizer = stepped(model, groups=2)
    for _ in range(2):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "plan": _Plan(),
        "half": torch.randn(5).to(torch.bfloat16),
        "seen": 7,
        "note": {"files": ["a", "b"], "name": "x"},
        "empty": torch.zeros(0, 3),
    }


class _Plan:
    """A scheduler, as far as a checkpoint knows one."""

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": 3, "rates": [0.5, 0.25]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_torch_alone_loads_a_replicated_training(store: Store, tmp_path: Path) -> None:
    """Two nodes with two ranks each, as DDP has them: each writes a share of what all have alike."""
    state = a_training()
    for node in range(2):
        parts = [saved_part(state, 2 * node + local, local, 2) for local in range(2)]
        write_part(store, NAME, node, parts, Share(node, 2))
    marker = finish(store, NAME, 2)
    assert (marker.nodes, marker.world_size) == (2, 4)
    expected = {key: it.state_dict() if hasattr(it, "state_dict") else it for key, it in state.items()}
    torch.save(expected, tmp_path / "expected")
    run_stock("plain", path_of(store), tmp_path / "expected")


def test_what_all_have_alike_is_written_once(store: Store) -> None:
    state = {f"layer {number}": torch.ones(1000) for number in range(10)}
    sizes = [
        write_part(store, NAME, node, [saved_part(state, node)], Share(node, 3)).length for node in range(3)
    ]
    whole = write_part(store, CommitName(CommitId(2, 13)), 0, [saved_part(state)]).length
    assert sum(sizes) == pytest.approx(whole, rel=0.1)
    assert max(sizes) < 0.5 * whole
    finish(store, NAME, 3)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_torch_alone_loads_shards_into_any_world(store: Store, tmp_path: Path, size: int) -> None:
    """Saved by two ranks on two nodes with FSDP2."""
    start(tmp_path, [[ROOT / "tests/support/shard_saver.py", tmp_path, rank, 2] for rank in range(2)])
    for rank in range(2):
        write_part(store, NAME, rank, [kept_part(tmp_path, rank)])
    finish(store, NAME, 2)
    program, files = ROOT / "tests/support/stock_reader.py", (path_of(store), tmp_path / "expected")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        start(tmp_path, [[program, "sharded", *files, meeting, rank, size] for rank in range(size)])


def start(folder: Path, programs: list[list[Any]]) -> None:
    """Run programs at the same time."""
    logs = [(folder / f"log-{number}").open("w+") for number in range(len(programs))]
    running = [
        subprocess.Popen([sys.executable, *map(str, words)], stdout=log, stderr=log, env={"PYTHONPATH": ROOT})
        for words, log in zip(programs, logs, strict=True)
    ]
    try:
        codes = [each.wait(DEADLINE) for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()
        said = [log.seek(0) or log.read() for log in logs]
        for log in logs:
            log.close()
    assert codes == [0] * len(programs), said


def test_values_with_classes_of_the_script_are_left_as_they_are(store: Store) -> None:
    put(store, {"own": CommitName(CommitId(1, 2)), "set": {1, 2}, "text": "x"})
    state = stock(path_of(store), {"own": None, "set": None, "text": None})
    assert state["own"] == (CommitName(CommitId(1, 2)),)
    assert state["text"] == "x"


def test_a_state_that_was_saved_with_torchs_own_names_is_left_as_it_is(store: Store) -> None:
    """``MemoryWriter`` saves what torch's planner gives it, and knows of no paths."""
    data, digest = saved_bytes({"number": torch.ones(1)})
    part = Part(0, memoryview(data), digest)
    part.facts["mappings"] = {}
    write_part(store, NAME, 0, [part])
    finish(store, NAME, 1)
    assert stock(path_of(store), {"number": torch.zeros(1)})["number"].item() == 1


# A rank gets its own back


def restored(store: Store, rank: int | None, state: dict[str, Any], at_most: int | None = None) -> int:
    """What ``Checkpointer`` does with a reader."""
    marker = newest(store, at_most)
    assert marker is not None
    loading = Loading(cast(MemoryReader, reader_of(store, marker, rank)), state)
    if obstacle := loading.run():
        raise loading.cause if isinstance(loading.cause, CheckpointError) else CheckpointError(obstacle)
    return marker.name.commit.step


@pytest.mark.parametrize("url", ["", "memory://commits/own"])
def test_each_rank_gets_its_own_values_back(store: Store, url: str) -> None:
    place = open_store(url) if url else store
    generators, state = [], dict[str, Any]()
    for rank in range(3):
        torch.manual_seed(rank)
        state = {"weight": torch.ones(4), "rank": rank, "note": {"of": [rank]}, "random": RandomState()}
        generators.append(torch.get_rng_state())
        write_part(place, NAME, rank, [saved_part(state, rank)], Share(rank, 3))
    finish(place, NAME, 3)
    for asked, expected in [(0, 0), (1, 1), (2, 2), (5, 0), (None, 0)]:
        state = {"weight": torch.zeros(4), "rank": -1, "note": {"of": []}, "random": RandomState()}
        assert restored(place, asked, state) == 12
        assert (state["rank"], state["note"]) == (expected, {"of": [expected]})
        assert torch.equal(state["weight"], torch.ones(4))
    assert torch.equal(torch.get_rng_state(), generators[0])


def test_a_training_is_restored_bit_by_bit(store: Store) -> None:
    first = a_training()
    put(store, first)
    model = model_of()
    state: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.AdamW([{"params": list(model.parameters())[n::2]} for n in range(2)]),
        "half": torch.zeros(5, dtype=torch.bfloat16),
        "seen": 0,
    }
    assert restored(store, 0, state) == 12
    for name in ("model", "optimizer"):
        assert equal(state[name].state_dict(), first[name].state_dict()), name
    assert torch.equal(state["half"], first["half"])
    assert state["seen"] == 7


def test_the_newest_commit_up_to_a_step_is_restored(store: Store) -> None:
    for step in (1, 5, 9):
        put(store, {"weight": torch.full((2,), float(step))}, CommitName(CommitId(0, step)))
    write_part(store, CommitName(CommitId(0, 12)), 0, [saved_part({"weight": torch.zeros(2)})])
    for at_most, expected in [(None, 9), (20, 9), (9, 9), (8, 5), (5, 5), (1, 1)]:
        state = {"weight": torch.zeros(2)}
        assert restored(store, 0, state, at_most) == expected
        assert state["weight"].tolist() == [expected] * 2
    assert newest(store, 0) is None


def test_the_newest_is_the_one_that_was_finished_last(store: Store) -> None:
    """A new run of a job counts its rounds from 0, and may go back to an earlier step."""
    for round_, step, run in [(0, 5, "a"), (7, 9, "a"), (0, 6, "b"), (0, 5, "c")]:
        put(store, {"weight": torch.ones(1)}, CommitName(CommitId(round_, step), run))
        found = newest(store)
        assert found is not None
        assert found.name == CommitName(CommitId(round_, step), run)


def test_a_state_of_another_model_names_the_key(store: Store) -> None:
    put(store, {"model": nn.Linear(3, 4)})
    with pytest.raises(CheckpointError, match=r"does not fit this model.*model\.weight"):
        restored(store, 0, {"model": nn.Linear(3, 5)})


# What is not finished does not exist


def test_a_commit_needs_all_its_parts(store: Store) -> None:
    for node in (0, 2):
        write_part(store, NAME, node, [saved_part({"n": node}, node)])
    with pytest.raises(IncompleteError, match="part 1 of 3 is not there"):
        finish(store, NAME, 3)
    assert newest(store) is None
    write_part(store, NAME, 1, [saved_part({"n": 1}, 1)])
    assert finish(store, NAME, 3).world_size == 3


def test_ranks_that_nobody_has_written_are_missed(store: Store) -> None:
    write_part(store, NAME, 0, [saved_part({"n": 1}, 0), saved_part({"n": 1}, 2)])
    with pytest.raises(IncompleteError, match=r"parts of ranks \[0, 2\]"):
        finish(store, NAME, 1)


def test_what_each_node_left_to_the_other_is_missed(store: Store) -> None:
    state = {"first": torch.ones(8), "second": torch.ones(8)}
    for node in range(2):
        write_part(store, NAME, node, [saved_part(state, node)], Share(0, 2))
    with pytest.raises(IncompleteError, match="no node has written second"):
        finish(store, NAME, 2)


def test_a_part_is_written_anew_if_its_share_is_another_one(store: Store) -> None:
    """A third node is lost, so that what all have alike is divided anew."""
    state = {f"layer {number}": torch.ones(8) for number in range(6)}
    parts = [[saved_part(state, node)] for node in range(2)]
    for node, share in ((0, Share(0, 3)), (1, Share(1, 2)), (0, Share(0, 2))):
        write_part(store, NAME, node, parts[node], share)
    assert finish(store, NAME, 2).nodes == 2


def test_a_shard_that_is_missing_is_missed(store: Store) -> None:
    part = saved_part({"weight": torch.ones(4, 3)})
    (item,) = part.items
    item.size, item.is_shard = (8, 3), True  # as if another rank had the other half
    write_part(store, NAME, 0, [part])
    with pytest.raises(IncompleteError, match="of weight, 12 of 24 numbers were saved"):
        finish(store, NAME, 1)


def test_different_tensors_by_one_name_are_told(store: Store) -> None:
    shard = saved_part({"weight": torch.ones(2)}, 1)
    shard.items[0].offset, shard.items[0].size = (4,), (6,)
    write_part(store, NAME, 0, [saved_part({"weight": torch.ones(4)}), shard])
    with pytest.raises(CheckpointError, match="different values as weight"):
        finish(store, NAME, 1)


def test_a_data_file_of_another_length_is_told(store: Store) -> None:
    write_part(store, NAME, 0, [saved_part({"weight": torch.ones(4)})])
    with (path_of(store) / data_file(0)).open("ab") as file:
        file.write(b"x")
    with pytest.raises(IncompleteError, match=r"__0_0\.distcp must have \d+ bytes, and has \d+"):
        finish(store, NAME, 1)


def test_everything_can_be_done_twice(store: Store) -> None:
    part = saved_part({"weight": torch.ones(4)})
    first = write_part(store, NAME, 0, [part])
    assert write_part(store, NAME, 0, [part]) == first
    marker = finish(store, NAME, 1, now=5.0)
    assert finish(store, NAME, 1, now=9.0) == marker
    assert write_part(store, NAME, 0, [part]) == first
    assert list(damages(store, marker)) == []


def test_a_finished_commit_is_never_written_again(store: Store) -> None:
    put(store, {"weight": torch.ones(4)})
    with pytest.raises(DamagedError, match="with another part 0: give each run of the job a name"):
        write_part(store, NAME, 0, [saved_part({"weight": torch.zeros(4)})])
    assert stock(path_of(store), {"weight": torch.zeros(4)})["weight"].tolist() == [1] * 4


def test_leftovers_of_a_writer_that_was_killed_go_with_the_finish(store: Store) -> None:
    write_part(store, NAME, 0, [saved_part({"n": 1})])
    (path_of(store) / ".__0_0.distcp.12345678.tmp").write_bytes(b"x")
    finish(store, NAME, 1)
    names = {path.name for path in path_of(store).iterdir()}
    assert names == {METADATA, MARKER, data_file(0), index_file(0)}


def test_steps_of_the_writer_are_told(store: Store) -> None:
    told: list[int] = []
    index = write_part(store, NAME, 0, [saved_part({"weight": torch.ones(3 << 20)})], told=told.append)
    assert sum(told) == index.length
    assert max(told) <= 4 << 20


# Damage


def test_a_byte_that_changed_in_memory_is_found_and_nothing_is_written(store: Store) -> None:
    data, digest = saved_bytes({"first": torch.ones(100), "second": torch.ones(100), "n": 3})
    part = Part(0, memoryview(data), digest)
    for item in part.items:
        data[item.at + item.length // 2] ^= 1
        with pytest.raises(CheckpointError, match=f"^{item.name} is damaged in the part of rank 0"):
            write_part(store, NAME, 0, [part])
        data[item.at + item.length // 2] ^= 1
        assert list(path_of(store).iterdir()) == []
    write_part(store, NAME, 0, [part])


def test_memory_that_is_overwritten_while_it_is_written_is_found(tmp_path: Path) -> None:
    data, digest = saved_bytes({"weight": torch.ones(2 << 20)})
    store = DiskStore(str(tmp_path), Meddling(lambda: data.__setitem__(5, data[5] ^ 1)))
    with pytest.raises(CheckpointError, match=r"^weight is damaged"):
        write_part(store, NAME, 0, [Part(0, memoryview(data), digest)])


def test_an_item_without_digest_that_is_overwritten_while_it_is_written_is_found(store: Store) -> None:
    data, digest = saved_bytes({"weight": torch.ones(3 << 20)}, finish=enlist)
    told: list[int] = []

    def meddle(length: int) -> None:
        told.append(length)
        data[-(1 << 20)] ^= len(told) == 1

    with pytest.raises(CheckpointError, match=r"^weight is damaged"):
        write_part(store, NAME, 0, [Part(0, memoryview(data), digest)], told=meddle)


def test_of_two_copies_the_one_with_digests_is_written(store: Store) -> None:
    state = {"weight": torch.ones(8)}
    bare, bare_digest = saved_bytes(state, finish=enlist)
    bare[0] ^= 1  # nothing can tell
    data, digest = saved_bytes(state)
    parts = [Part(0, memoryview(bare), bare_digest), Part(1, memoryview(data), digest)]
    index = write_part(store, NAME, 0, parts)
    assert [item.rank for item in index.items if item.dtype] == [1]


class Meddling(Disk):
    """Changes something whenever a file is made."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle = meddle

    def create(self, path: Path) -> int:
        self._meddle()
        return super().create(path)


def test_a_flipped_bit_anywhere_in_the_storage_is_found_and_named(store: Store) -> None:
    marker = put(store, {"first": torch.arange(5), "second": torch.ones(7), "n": 3})
    folder = path_of(store)
    for path in sorted(folder.iterdir()):
        right = path.read_bytes()
        for at in range(0, len(right), 1 if len(right) < 2000 else 37):
            path.write_bytes(right[:at] + bytes([right[at] ^ 1 << at % 8]) + right[at + 1 :])
            if path.name == MARKER:
                (listed,) = commits(store)
                assert listed.marker is None
                assert "commit.json" in listed.problem
                assert "is damaged" in listed.problem
            else:
                named = [damage.key for damage in damages(store, marker)]
                assert len(named) == 1, (path, at)
                assert named[0] in (path.name, "first", "second", "n")
        path.write_bytes(right)
    assert list(damages(store, marker)) == []


def test_an_index_that_was_written_after_the_marker_is_found(store: Store) -> None:
    marker = put(store, {"weight": torch.ones(7)})
    index = read_index(store, NAME, 0)
    assert index is not None
    with store.writing(f"{NAME.folder}/{index_file(0)}") as sink:
        sink(index._replace(ranks={0: "another"}).encode())
    (damage,) = damages(store, marker)
    assert (damage.key, "was written again" in damage.reason) == (index_file(0), True)


@pytest.mark.parametrize("name", [data_file(0), index_file(0), METADATA])
def test_a_missing_file_is_found_and_named(store: Store, name: str) -> None:
    marker = put(store, {"weight": torch.ones(7)})
    (path_of(store) / name).unlink()
    (damage,) = damages(store, marker)
    assert damage.key == name
    assert "is missing" in damage.reason


def test_a_file_that_was_cut_is_found(store: Store) -> None:
    marker = put(store, {"weight": torch.ones(7)})
    path = path_of(store) / data_file(0)
    path.write_bytes(path.read_bytes()[:-1])
    assert [damage.key for damage in damages(store, marker)] == [data_file(0), "weight"]


def test_a_damaged_tensor_is_not_restored(store: Store, tmp_path: Path) -> None:
    marker = put(store, {"first": torch.ones(50), "second": torch.ones(50)})
    path = path_of(store) / data_file(0)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"\x00\x00\x80\x3f")] ^= 1
    path.write_bytes(data)
    assert restored(store, 0, {"first": torch.zeros(50)}) == 12
    with pytest.raises(DamagedError, match=r"'second' is damaged: .*__0_0\.distcp have changed"):
        restored(store, 0, {"second": torch.zeros(50)})
    with pytest.raises(DamagedError, match="'second' is damaged in"):
        export(store, marker, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Export


@pytest.mark.parametrize("url", ["", "memory://commits/export"])
def test_an_export_is_a_dict_for_torch_load(store: Store, tmp_path: Path, url: str) -> None:
    state = a_training()
    marker = put(open_store(url) if url else store, state)
    out = tmp_path / "out.pt"
    out.write_text("what was there")
    export(open_store(url) if url else store, marker, out)
    found = torch.load(out, weights_only=False)
    assert found["seen"] == 7
    assert found["note"] == {"files": ["a", "b"], "name": "x"}
    assert equal(found["model"], dict(state["model"].state_dict()))
    assert equal(found["optimizer"]["param_groups"], state["optimizer"].state_dict()["param_groups"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.pt", "store"]


def test_an_export_that_fails_leaves_the_old_file(store: Store, tmp_path: Path) -> None:
    marker = put(store, {"weight": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"cannot write in .*nowhere/out"):
        export(store, marker, tmp_path / "nowhere" / "out")
    with pytest.raises(UsageError, match="is no regular file"):
        export(store, marker, tmp_path)
