"""What a warm parent does around its imports; what they leave is compared with cold workers in tests/e2e."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticrun.worker import warm_imports
from elasticrun.worker.warm_imports import RARELY, rare_collections


@pytest.fixture(autouse=True)
def collector() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_imports_are_not_interrupted_by_collections(collector: tuple[int, int, int]) -> None:
    collections = gc.get_stats()[0]["collections"]
    with rare_collections():
        assert gc.get_threshold()[0] == RARELY[0]
        objects = [[number] for number in range(10 * collector[0])]
        assert gc.get_stats()[0]["collections"] == collections
    assert len(objects) == 10 * collector[0]
    assert gc.get_threshold() == collector


def test_a_collector_that_forgets_a_threshold_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of Python 3.14, whose third one is always 0."""
    thresholds = [(2000, 10, 0)]

    def set_threshold(young: int, old: int, oldest: int) -> None:
        thresholds.append((young, old, 0))

    collector = types.SimpleNamespace(get_threshold=lambda: thresholds[-1], set_threshold=set_threshold)
    monkeypatch.setattr(warm_imports, "gc", collector)
    with rare_collections():
        assert thresholds[-1] == (RARELY[0], RARELY[1], 0)
    assert thresholds[-1] == (2000, 10, 0)


def test_an_import_that_fails_leaves_the_collector_as_it_was(collector: tuple[int, int, int]) -> None:
    with pytest.raises(ImportError), rare_collections():
        raise ImportError
    assert gc.get_threshold() == collector


def test_what_an_import_asks_of_the_collector_stays() -> None:
    with rare_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_modules_below_the_prefix_may_be_edited_but_for_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    own, library = tmp_path / "src" / "app" / "own.py", tmp_path / "lib" / "python3" / "library.py"
    for number, path in enumerate((own, library)):
        path.parent.mkdir(parents=True)
        path.touch()
        module = types.ModuleType("module")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, f"tests.of_warm_imports_{number}", module)
    known = warm_imports.files()
    assert str(own) in known
    assert str(library) not in known
    assert warm_imports.are_as(known)
    own.write_text("it was edited")
    assert not warm_imports.are_as(known)


def test_a_device_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb"):
        assert warm_imports.open_device() == ""
        monkeypatch.setattr(warm_imports, "ORDINARY", {136})
        assert warm_imports.traces().startswith("the imports opened /dev/")


def test_who_is_on_the_way_out_is_not_alive() -> None:
    """As threads of BLAS are that it has waited for: the kernel may take a moment more."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = f"/proc/{child.pid}/stat"
    assert Path(stat).exists()
    assert not warm_imports.is_needed(stat)
    child.wait()
    assert not warm_imports.is_needed(stat)
    assert warm_imports.is_needed("/proc/self/stat")


def test_lightning_knows_the_rank_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the script's own process of before has set another one."""
    modules = {
        "lightning_utilities.core.rank_zero": types.SimpleNamespace(rank_zero_only=types.SimpleNamespace()),
        "torchmetrics.utilities.prints": types.SimpleNamespace(rank_zero_only=types.SimpleNamespace(rank=0)),
    }
    for rank, local_rank in ((3, 1), (4, 0)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        warm_imports.tell_rank(modules.get)
        assert [it.rank_zero_only.rank for it in modules.values()] == [rank, local_rank]


def test_who_has_no_lightning_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_imports.tell_rank(lambda name: None)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "none")
    module = types.SimpleNamespace(rank_zero_only=types.SimpleNamespace(rank=7))
    warm_imports.tell_rank(lambda name: module)
    assert module.rank_zero_only.rank == 7


@pytest.mark.parametrize("by_the_parent", [True, False])
def test_a_folder_that_came_after_it_was_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_the_parent: bool
) -> None:
    folder = str(tmp_path / "later")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.path_importer_cache, folder, None)
    if by_the_parent:
        warm_imports.forget_missing_folders()
    else:
        warm_imports.begin_anew()
    assert folder not in sys.path_importer_cache
