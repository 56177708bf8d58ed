"""Plain values are made into bytes anew whenever they have changed, and only then."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.checkpoint.planning import MOST, Planner

pytestmark = pytest.mark.torch


class Saves:
    """The saves of one entry, each by a planner that goes on from the one before."""

    def __init__(self) -> None:
        self.planner = Planner({})

    def save(self, value: Any) -> bytes:
        """The bytes of a value."""
        self.planner = Planner(self.planner.made)
        self.planner.set_up_planner({"value": (value,)}, is_coordinator=False)
        (item,) = self.planner.create_local_plan().items
        data = self.planner.resolve_data(item)
        assert isinstance(data, io.BytesIO)
        return data.getvalue()

    def again(self, value: Any) -> Any:
        """What is restored of a value."""
        return torch.load(io.BytesIO(self.save(value)), weights_only=False)[0]


def exactly(value: Any) -> Any:
    """A value with the types of all that is in it."""
    if isinstance(value, dict):
        return type(value), [(exactly(key), exactly(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exactly(each) for each in value]
    return type(value), repr(value)


ATOMS = st.sampled_from([None, False, True, 0, 1, 0.0, -0.0, 1.0, float("nan"), "a", b"a"])
PLAIN = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", 1]), inner),
)


@given(st.lists(PLAIN, min_size=2, max_size=4))
def test_what_is_restored_is_what_was_saved_last(values: list[Any]) -> None:
    saves = Saves()
    for value in values:
        assert exactly(saves.again(value)) == exactly(value)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The values of which torch has made bytes."""
    save: Callable[..., None] = torch.save
    found: list[Any] = []

    def note(value: Any, file: Any) -> None:
        found.append(value)
        save(value, file)

    monkeypatch.setattr(torch, "save", note)
    return found


def test_bytes_are_made_only_of_what_has_changed(made: list[Any]) -> None:
    saves = Saves()
    first = saves.save({"rate": 0.1, "betas": (0.9, 0.99)})
    assert saves.save({"rate": 0.1, "betas": (0.9, 0.99)}) == first
    assert len(made) == 1
    saves.save({"rate": 0.2, "betas": (0.9, 0.99)})
    assert len(made) == 2


@pytest.mark.parametrize(
    "value",
    [
        [torch.ones(2)],
        OrderedDict(a=1),
        torch.Size([1]),
        pytest.param("x" * MOST, id="large"),
    ],
)
def test_what_may_hide_a_change_or_is_large_is_made_anew(value: Any, made: list[Any]) -> None:
    saves = Saves()
    saves.save(value)
    saves.save(value)
    assert len(made) == 2
    assert saves.planner.made == {}


def test_a_tensor_that_was_changed_in_place_is_saved_as_it_is_now() -> None:
    saves, rate = Saves(), torch.tensor(0.5)
    assert saves.again({"lr": rate})["lr"] == 0.5
    rate.fill_(0.25)
    assert saves.again({"lr": rate})["lr"] == 0.25


def test_what_changes_while_it_is_saved_is_not_mistaken_for_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread or a signal's handler changes it, and changes it back later."""
    saves, value, save = Saves(), {"paused": False}, torch.save

    def interrupted(given: Any, file: Any) -> None:
        value["paused"] = True
        save(given, file)

    with monkeypatch.context() as busy:
        busy.setattr(torch, "save", interrupted)
        assert saves.again(value) == {"paused": False}
    assert saves.again(value) == {"paused": True}
    value["paused"] = False
    assert saves.again(value) == {"paused": False}


def test_a_value_that_nests_deeper_than_pickle_can_look_is_refused_as_torch_refuses_it() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        Saves().save(deep)


def test_an_entry_that_is_saved_no_more_is_forgotten() -> None:
    saves = Saves()
    saves.save(1)
    assert saves.planner.made
    after = Planner(saves.planner.made)
    after.set_up_planner({"other": torch.ones(1)}, is_coordinator=False)
    for item in after.create_local_plan().items:
        after.resolve_data(item)
    assert after.made == {}
