"""Entries of ``state`` that are no modules or optimizers come back as they were saved, or are refused."""

from __future__ import annotations

import re
from collections import OrderedDict, UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata as Chunk
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata
from torch.optim import SGD

from elasticrun.checkpoint.distcp import finish, write_part
from elasticrun.checkpoint.forms import FORM, Builder
from elasticrun.checkpoint.states import plain_values, put_back, states_of
from elasticrun.checkpoint.stored import export
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from elasticrun.storage.disk import DiskStore
from elasticrun.storage.records import CommitName
from tests.checkpoint.nodes import picture
from tests.support.saved_parts import saved_part

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

Keep = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Saves one state, and restores it into another one."""

    def keep(old: dict[str, Any], new: dict[str, Any]) -> None:
        state_dict_saver.save(states_of(old), checkpoint_id=tmp_path, no_dist=True)
        gathered = states_of(new, FileSystemReader(tmp_path).read_metadata())
        state_dict_loader.load(gathered, checkpoint_id=tmp_path, no_dist=True)
        put_back(new, gathered)

    return keep


class Notes:
    """An object with any state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def ones(size: int = 2) -> torch.Tensor:
    return torch.ones(size)


# What is refused


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"nets": [nn.Linear(1, 1), nn.Linear(1, 1)]}, "nets[0], a Linear,"),
        ({"trainer": {"deep": ({"net": nn.Linear(1, 1)},)}}, "trainer['deep'][0]['net'], a Linear,"),
        ({"them": {"tensor": ones(), "optimizer": SGD([ones()])}}, "them['optimizer'], a SGD,"),
        ({"set": {nn.Linear(1, 1)}}, "set[0], a Linear,"),
        ({"other": [Notes(1)]}, "other[0], a Notes,"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_object_inside_of_another_value_is_refused(keep: Keep, entry: dict[str, Any], path: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(f"give {path} as an entry of its own in `state`")):
        states_of(entry)
    (name,) = entry
    with pytest.raises(CheckpointError, match=re.escape(f"give {path}")):
        keep({name: [1]}, entry)


@pytest.mark.parametrize(
    "value",
    [{1: ones(), "1": ones()}, {"a.b": ones(), "a": {"b": ones()}}, {1: [ones()], "1": {"x": ones()}}],
)
def test_keys_that_are_the_same_as_text_are_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"two tensors would be saved as value.*differ as text"):
        states_of({"value": value})


def test_the_name_of_a_form_is_no_name() -> None:
    with pytest.raises(CheckpointError, match="ends with ' \\(form\\)'"):
        states_of({f"seen{FORM}": 1})


# What comes back

VALUES: dict[str, tuple[Any, Any]] = {
    "numbers as keys": ({0: 5 * ones(), 1: 3}, {0: ones(), 1: 0}),
    "numbers as keys that are new": ({0: 5 * ones(), 7: {(1, 2): ones()}}, {}),
    "a list that had grown": ([ones(), 2 * ones(3), 3 * ones(), 4 * ones()], [ones()]),
    "a list that was shorter": ([5 * ones()], [ones(), ones(7), ones()]),
    "a list of both": ([ones(), 3, {"x": [ones(), "y"]}, None], []),
    "a dict that had grown": ({"a": ones(), "b": {"c": ones()}, "empty": {}, "none": []}, {"a": 0 * ones()}),
    "other kinds": ({"a": {"b": ones()}, "c": [1, 2]}, {"a": 3, "c": {}}),
    "nothing here": ({"a": ones()}, None),
    "a tuple": ({"a": ones(), "pair": (1, ones())}, {}),
    "an optimizer's state": (
        {"state": {0: {"step": ones(1), "sum": 3 * ones()}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        {"state": {}, "param_groups": [{"lr": 0.5, "params": [0]}]},
    ),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kind", ["a value", "an object"])
def test_a_value_comes_back_as_it_was_saved(keep: Keep, name: str, kind: str) -> None:
    old, new = VALUES[name]
    if kind == "an object":
        notes = Notes(new)
        keep({"value": Notes(old)}, {"value": notes})
        restored = notes.state
    else:
        state = {"value": new}
        keep({"value": old}, state)
        restored = state["value"]
    assert picture(restored) == picture(old)
    assert type(restored) is type(old)


def test_containers_and_tensors_of_the_script_stay_the_same_objects(keep: Keep) -> None:
    weight, inner, outer = torch.zeros(2), {"weight": torch.zeros(2)}, [torch.zeros(2)]
    state: dict[str, Any] = {
        "value": {"w": weight, "inner": inner, "outer": outer, "mine": UserDict(x=torch.zeros(2))}
    }
    mine, value = state["value"]["mine"], state["value"]
    saved = {"w": ones(), "inner": {"weight": ones(), 3: 4}, "outer": [ones(), ones()], "mine": {"x": ones()}}
    keep({"value": saved}, state)
    assert state["value"] is value
    assert value["w"] is weight
    assert value["inner"] is inner
    assert value["outer"] is outer
    assert value["mine"] is mine
    assert weight.tolist() == [1, 1]
    assert picture(value) == picture({**saved, "mine": mine})
    assert mine["x"].tolist() == [1, 1]


def test_an_object_that_shows_what_it_has_is_restored(keep: Keep) -> None:
    """It may clear what it has before it takes up what it is given."""

    class Showing(Notes):
        def load_state_dict(self, state: Any) -> None:
            self.state.clear()
            self.state.update(state)

    notes = Showing({"a": torch.zeros(2)})
    keep({"notes": Notes({"a": ones(), 1: 2})}, {"notes": notes})
    assert picture(notes.state) == picture({"a": ones(), 1: 2})


def test_the_state_of_a_module_inside_of_another_stays_one(keep: Keep) -> None:
    old, notes = nn.Sequential(nn.BatchNorm1d(2)), Notes({})
    keep({"notes": Notes({"net": old.state_dict()})}, {"notes": notes})
    assert type(notes.state["net"]) is OrderedDict
    assert notes.state["net"]._metadata == old.state_dict()._metadata  # type: ignore[attr-defined]


def test_the_states_of_modules_and_dicts_have_the_same_names(keep: Keep, tmp_path: Path) -> None:
    old, new = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    keep({"net": old.state_dict()}, {"net": new})
    assert picture(old.state_dict()) == picture(new.state_dict())
    other = nn.Sequential(nn.Linear(2, 2))
    keep({"net": old}, {"net": other.state_dict()})
    assert picture(old.state_dict()) == picture(other.state_dict())


def test_a_tensor_that_was_not_saved_is_told(keep: Keep) -> None:
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: net\.head"):
        keep({"net": {"body": ones()}}, {"net": {"body": ones(), "head": ones()}})


def test_shards_that_have_no_place_are_refused() -> None:
    """Each rank would take memory for all of them."""
    halves = [Chunk(torch.Size([at]), torch.Size([2])) for at in (0, 2)]
    kind = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([4]), halves)
    saved = Metadata({f"value{FORM}": None, "value.w": kind}, {"value.w": ("value", "w")})  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match=r"value\.w was saved as shards, .*make it before `load`"):
        states_of({"value": {}}, saved)
    with pytest.raises(CheckpointError, match=r"value\.w was saved as a shard"):
        Builder("value", {"w": ones()}).build(("tensor", "w", "cpu", True))
    with pytest.raises(CheckpointError, match=r"value\.w is missing"):
        Builder("value", {}).build(("tensor", "w", "cpu", False))


def test_positions_are_no_forms() -> None:
    assert plain_values(states_of({"seen": {"t": ones(), "n": 1}, "step": 3})) == {"step": 3}


# Torch alone


def test_torch_alone_reads_tensors_and_plain_values(tmp_path: Path) -> None:
    state = {"seen": {"note": "x", 4: 5, "list": [ones(), 3], "both": [ones(), ones()], "deep": {"n": [1]}}}
    store, name = DiskStore(str(tmp_path)), CommitName(CommitId(0, 1))
    write_part(store, name, 0, [saved_part(state)])
    marker = finish(store, name, 1)
    blank = {"note": "", "4": 0, "list": [torch.zeros(2), 0], "both": [torch.zeros(2), torch.zeros(2)]}
    here: dict[str, Any] = {"seen": blank}
    state_dict_loader.load(here, checkpoint_id=tmp_path / name.folder, no_dist=True)
    assert (here["seen"]["note"], here["seen"]["4"], here["seen"]["list"][1]) == ("x", 5, 3)
    export(store, marker, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt")
    assert found["seen"]["list"]["0"].tolist() == [1, 1]
    assert picture(found["seen"]["both"]) == picture([ones(), ones()])
    assert (found["seen"]["note"], found["seen"]["deep"]["n"], found["seen"]["list"]["1"]) == ("x", [1], 3)
    assert list(found) == ["seen"]
