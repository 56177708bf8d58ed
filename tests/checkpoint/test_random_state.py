"""After a restart a rank draws the same numbers, and no two ranks draw the same."""

from __future__ import annotations

import io
import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from elasticrun.checkpoint.random_state import RandomState  # noqa: E402

pytestmark = pytest.mark.torch


def draw() -> tuple[float, float, float]:
    return random.random(), float(torch.rand(())), float(numpy.random.random())


def test_a_rank_draws_the_same_again() -> None:
    saved = RandomState().state_dict()
    first = draw()
    assert draw() != first
    RandomState().load_state_dict(saved)
    assert draw() == first


def test_torch_loads_it_without_trust() -> None:
    """So that an export with it needs no ``weights_only=False``."""
    file = io.BytesIO()
    torch.save(RandomState().state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    first = draw()
    RandomState().load_state_dict(saved)
    assert draw() == first


def test_a_rank_that_is_new_draws_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    saved, found = RandomState().state_dict(), set()
    for rank in ("0", "1", "2", "1"):
        monkeypatch.setenv("RANK", rank)
        RandomState().load_state_dict(saved)
        found.add(draw())
    assert len(found) == 3


def test_the_package_offers_it_under_its_own_name() -> None:
    import elasticrun
    from elasticrun.checkpoint.checkpointer import Checkpointer

    assert (elasticrun.RandomState, elasticrun.Checkpointer) == (RandomState, Checkpointer)
