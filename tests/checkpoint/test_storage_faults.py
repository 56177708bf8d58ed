"""Whatever happens while a commit is written, finished or removed: no commit that exists is a lie.

Each call to the disk is made to fail, one after the other, and power is lost at each of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from elasticrun.checkpoint.distcp import Share, finish, write_part
from elasticrun.checkpoint.stored import reader_of
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.retrying import Trouble, next_try
from elasticrun.storage.catalog import commits, newest, prune
from elasticrun.storage.disk import Disk, DiskStore
from elasticrun.storage.errors import (
    IncompleteError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StorageGoneError,
    StorageStuckError,
)
from elasticrun.storage.opening import open_store
from elasticrun.storage.records import METADATA, CommitName
from elasticrun.storage.store import Store
from elasticrun.storage.verifying import damages
from tests.support.bucket import Bucket
from tests.support.crashing import (
    BROKEN,
    FULL,
    READ_ONLY,
    TIMED_OUT,
    FailingDisk,
    HastyDisk,
    PowerLossError,
    contents,
    lay_out,
    states_after,
)
from tests.support.processes import DEADLINE
from tests.support.saved_parts import saved_part

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

OLD, NEW = CommitName(CommitId(0, 1)), CommitName(CommitId(0, 2))


def store_at(folder: Path) -> Store:
    return DiskStore(str(folder), HastyDisk())


def state_of(step: int) -> dict[str, Any]:
    return {"first": torch.full((20,), float(step)), "second": torch.ones(3, 2) * step, "step": step}


def write_all(store: Store, name: CommitName) -> None:
    """What two nodes and the master do."""
    for node in range(2):
        write_part(store, name, node, [saved_part(state_of(name.commit.step), node)], Share(node, 2))
    finish(store, name, 2, now=float(name.commit.step))


def write_and_prune(store: Store, name: CommitName) -> None:
    write_all(store, name)
    prune(store, now=100.0, keep_last=1)


def check(folder: Path) -> int:
    """The step of the newest commit, after it was looked at with torch's own eyes and with ours; 0: none."""
    store = store_at(folder)
    for listed in commits(store):
        assert listed.problem == ""
        if listed.marker is not None:
            assert list(damages(store, listed.marker)) == []
        if (folder / listed.name.folder / METADATA).exists():  # all that torch looks for
            state: dict[str, Any] = {"first": torch.zeros(20), "second": torch.zeros(3, 2), "step": 0}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(state, checkpoint_id=folder / listed.name.folder)
            step = listed.name.commit.step
            assert (state["first"].unique().tolist(), state["second"].sum().item()) == ([step], 6 * step)
            assert state["step"] == step
    found = newest(store)
    return 0 if found is None else found.name.commit.step


def boundaries(
    folder: Path, action: Callable[[Store, CommitName], None], **fault: Any
) -> Iterator[tuple[Path, FailingDisk, dict[Path, bytes | None], BaseException]]:
    """Do something again and again, where each time another call is the one that fails, until none does."""
    for last in itertools.count(1):
        root = folder / str(last)
        root.mkdir()
        write_all(store_at(root), OLD)
        before = contents(root)
        disk = FailingDisk(last, **fault)
        try:
            action(DiskStore(str(root), disk), NEW)
        except (StorageError, PowerLossError) as error:
            yield root, disk, before, error
        else:
            assert disk.calls >= last - 1
            if disk.calls < last:
                assert last > 20, "all calls were tried"
                return
        shutil.rmtree(root)


@pytest.mark.parametrize("action", [write_all, write_and_prune])
def test_power_that_is_lost_at_any_call_leaves_the_old_commit_or_the_new_one(
    tmp_path: Path, action: Callable[[Store, CommitName], None]
) -> None:
    seen = set()
    for root, disk, before, _ in boundaries(tmp_path, action):
        for number, names in enumerate(states_after(before, disk.journal)):
            after = root.with_name(f"{root.name}-{number}")
            lay_out(names, root, after)
            seen.add(step := check(after))
            assert step in (1, 2), "one of them is there"
            write_all(store_at(after), NEW)
            assert check(after) == 2, "it can be done again"
            shutil.rmtree(after)
    assert seen == {1, 2}


def test_a_part_that_is_written_again_is_never_taken_for_the_one_before(tmp_path: Path) -> None:
    """Two writers of an unfinished commit should not differ; if they do, no index names the other's bytes."""
    root = tmp_path / "store"
    for last in itertools.count(1):
        root.mkdir()
        write_part(store_at(root), NEW, 0, [saved_part({"first": torch.zeros(20)})])
        before, disk = contents(root), FailingDisk(last)
        with contextlib.suppress(PowerLossError):
            write_part(DiskStore(str(root), disk), NEW, 0, [saved_part({"first": torch.ones(20)})])
        for number, names in enumerate(states_after(before, disk.journal)):
            after = tmp_path / f"{last}-{number}"
            lay_out(names, root, after)
            store = store_at(after)
            with contextlib.suppress(IncompleteError):
                assert list(damages(store, finish(store, NEW, 1))) == []
        shutil.rmtree(root)
        if disk.calls < last:
            break
    assert last > 8


@pytest.mark.parametrize("action", [write_all, write_and_prune])
def test_what_was_done_outlives_a_loss_of_power(
    tmp_path: Path, action: Callable[[Store, CommitName], None]
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    write_all(store_at(root), OLD)
    before, disk = contents(root), FailingDisk()
    action(DiskStore(str(root), disk), NEW)
    for number, names in enumerate(states_after(before, disk.journal)):
        lay_out(names, root, tmp_path / str(number))
        assert check(tmp_path / str(number)) == 2
        assert len(commits(store_at(tmp_path / str(number)))) == (2 if action is write_all else 1)


@pytest.mark.parametrize("recovers", [True, False], ids=["once", "from then on"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FULL, StorageFullError),
        (BROKEN, StorageError),
        (READ_ONLY, StorageDeniedError),
        (TIMED_OUT, StorageStuckError),
    ],
    ids=["full", "broken", "read-only", "timed out"],
)
def test_an_error_of_any_call_is_told_and_leaves_the_old_commit_or_the_new_one(
    tmp_path: Path, error: int, kind: type[StorageError], recovers: bool
) -> None:
    for root, _, _, raised in boundaries(tmp_path, write_and_prune, error=error, recovers=recovers):
        assert type(raised) is kind
        assert str(root) in str(raised), "it says where"
        assert os.strerror(error) in str(raised), "and what"
        assert kind.advice in str(raised), "and what to do"
        assert check(root) in (1, 2)
        if recovers:
            assert not [path for path in contents(root) if path.name.endswith(".tmp")]
        write_and_prune(store_at(root), NEW)
        assert check(root) == 2


@pytest.mark.parametrize("fault", [{"error": FULL}, {}], ids=["full", "no power"])
def test_an_error_in_the_middle_of_a_tensor_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, int]
) -> None:
    monkeypatch.setattr("elasticrun.checkpoint.stream.SMALL", 64)
    for root, _, _, raised in boundaries(tmp_path, write_all, **fault):
        assert type(raised) is (StorageFullError if fault else PowerLossError)
        assert check(root) in (1, 2)


@pytest.mark.parametrize("action", [write_all, write_and_prune])
def test_an_object_store_that_goes_away_at_any_call_has_the_old_commit_or_the_new_one(
    action: Callable[[Store, CommitName], None],
) -> None:
    """It knows no rename, and an upload that was cut off may be there in part."""
    for last in itertools.count(1):
        Bucket.clear()
        store = open_store("bucket://runs")
        write_all(store, OLD)
        before, Bucket.last = Bucket.calls, Bucket.calls + last
        try:
            action(store, NEW)
        except StorageError:
            Bucket.last = None
            assert read_newest(store) in (1, 2)
            write_all(store, NEW)
            assert read_newest(store) == 2
        else:
            assert last == Bucket.calls - before + 1 > 15
            break


def read_newest(store: Store) -> int:
    """The step of the newest commit, as our reader has it."""
    found = newest(store)
    assert found is not None
    assert list(damages(store, found)) == []
    state: dict[str, Any] = {"first": torch.zeros(20), "second": torch.zeros(3, 2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(state, storage_reader=reader_of(store, found))
    assert state["first"].unique().tolist() == [found.name.commit.step]
    return found.name.commit.step


def test_a_storage_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    """As its caller does it, but for the pauses."""
    store = DiskStore(str(tmp_path), FailingDisk(8, error=BROKEN))
    pauses = []
    for failures in itertools.count(1):
        try:
            write_all(store, NEW)
            break
        except StorageError as error:
            then = next_try(error.trouble, failures)
            assert then.pause is not None
            pauses.append(then.pause)
    assert pauses == [1.0]
    assert check(tmp_path) == 2


def test_a_storage_that_is_stuck_holds_up_its_writer_only(tmp_path: Path) -> None:
    """Whoever watches hears of no more bytes; the commit does not exist meanwhile, and does afterwards."""
    reached, goes_on = threading.Event(), threading.Event()

    class Stuck(Disk):
        def sync(self, fd: int, first: int, length: int) -> None:
            reached.set()
            assert goes_on.wait(DEADLINE)
            super().sync(fd, first, length)

    told: list[int] = []
    part = saved_part(state_of(2))
    store = DiskStore(str(tmp_path), Stuck())
    writer = threading.Thread(target=write_part, args=(store, NEW, 0, [part]), kwargs={"told": told.append})
    writer.start()
    assert reached.wait(DEADLINE)
    assert sum(told) > 0
    (listed,) = commits(DiskStore(str(tmp_path)))
    assert listed.marker is None
    goes_on.set()
    writer.join(DEADLINE)
    finish(DiskStore(str(tmp_path)), NEW, 1)
    assert newest(DiskStore(str(tmp_path))) is not None


def test_a_storage_that_vanishes_is_told(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    store = store_at(root)
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageGoneError, match=r"store: No such file or directory; is it mounted"):
        write_part(store, NEW, 0, [saved_part(state_of(2))])
    with pytest.raises(StorageGoneError, match="cannot list commits in"):
        newest(store)
    with pytest.raises(StorageGoneError, match="cannot open the storage in"):
        store_at(root)
    assert not root.exists()


def test_a_folder_that_vanishes_is_told(tmp_path: Path) -> None:
    store = DiskStore(str(tmp_path))
    write_part(store, NEW, 0, [saved_part(state_of(2))])
    shutil.rmtree(tmp_path / NEW.folder)
    with pytest.raises(StorageError, match="part 0 of 1 is not there"):
        finish(store, NEW, 1)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=512k"):
        store = DiskStore(str(tmp_path))
        write_all(store, OLD)
        large = saved_part({"weight": torch.ones(1 << 18)})
        with pytest.raises(StorageFullError, match=r"No space left on device; make room there") as raised:
            write_part(store, NEW, 0, [large])
        assert raised.value.trouble is Trouble.FULL
        assert list((tmp_path / NEW.folder).iterdir()) == [], "what was written has made room again"
        assert check(tmp_path) == 1


@pytest.mark.root
def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=512k"):
        store = DiskStore(str(tmp_path))
        write_all(store, OLD)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        with pytest.raises(StorageDeniedError, match=r"Read-only file system; let this user write there"):
            write_part(store, NEW, 0, [saved_part(state_of(2))])
        assert check(tmp_path) == 1


@pytest.mark.root
def test_a_disk_that_is_unmounted_is_not_replaced_by_what_is_below_it(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=512k"):
        store = DiskStore(str(tmp_path))
    with pytest.raises(StorageGoneError, match="another file system is there than before"):
        write_part(store, NEW, 0, [saved_part(state_of(2))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    store = DiskStore(str(tmp_path))
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageDeniedError, match="Permission denied"):
            write_part(store, NEW, 0, [saved_part(state_of(2))])
    finally:
        tmp_path.chmod(0o700)
