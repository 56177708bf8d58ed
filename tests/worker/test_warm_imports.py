"""What a warm parent does around its imports; what they leave is compared with cold workers in tests/e2e."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from elasticrun.worker.warm_imports import RARELY, rare_collections


@pytest.fixture(autouse=True)
def collector() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_imports_are_not_interrupted_by_collections(collector: tuple[int, int, int]) -> None:
    collections = gc.get_stats()[0]["collections"]
    with rare_collections():
        assert gc.get_threshold() == RARELY
        objects = [[number] for number in range(10 * collector[0])]
        assert gc.get_stats()[0]["collections"] == collections
    assert len(objects) == 10 * collector[0]
    assert gc.get_threshold() == collector


def test_an_import_that_fails_leaves_the_collector_as_it_was(collector: tuple[int, int, int]) -> None:
    with pytest.raises(ImportError), rare_collections():
        raise ImportError
    assert gc.get_threshold() == collector


def test_what_an_import_asks_of_the_collector_stays() -> None:
    with rare_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
