"""Directories and URLs as stores, and finding and removing commits there."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="needs fsspec: pip install 'elasticrun[storage]'")

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.retention import LEASE
from elasticrun.errors import UsageError
from elasticrun.storage import disk
from elasticrun.storage.catalog import commits, newest, prune
from elasticrun.storage.disk import DiskStore
from elasticrun.storage.errors import DamagedError, StorageError, StorageGoneError, StorageStuckError
from elasticrun.storage.opening import open_store
from elasticrun.storage.priority import lower_priority
from elasticrun.storage.records import MARKER, METADATA, CommitName, Marker, data_file
from elasticrun.storage.store import Entry, Store
from tests.support.bucket import Bucket
from tests.support.crashing import TIMED_OUT, FailingDisk

KINDS = ["directory", "memory", "bucket"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    Bucket.clear()
    urls = {
        "directory": str(tmp_path / "new" / "runs"),
        "memory": f"memory:/{tmp_path}/runs",
        "bucket": "bucket://runs",
    }
    return open_store(urls[request.param], make=True)


def put(store: Store, path: str, data: bytes) -> None:
    with store.writing(path) as sink:
        sink(data)


def test_what_is_written_can_be_read(store: Store) -> None:
    assert store.entries() == []
    assert store.entries("folder") == []
    store.make("folder")
    store.make("folder")
    with store.writing("folder/a") as sink:
        sink(b"one")
        sink(memoryview(b"two"))
        sink(b"")
    put(store, "folder/b", b"")
    assert store.read("folder/a") == b"onetwo"
    assert store.read("folder/b") == b""
    assert store.read("folder/c") is None
    assert store.read("nowhere/c") is None
    with store.open("folder/a") as file:
        file.seek(2)
        assert file.read(2) == b"et"
    assert store.entries("folder") == [Entry("a", 6, False), Entry("b", 0, False)]
    assert store.entries() == [Entry("folder", 0, True)]
    put(store, "folder/a", b"3")
    assert store.read("folder/a") == b"3"
    with pytest.raises(StorageGoneError, match="cannot read folder/c in"):
        store.open("folder/c").read()


def test_what_fails_is_not_there(store: Store) -> None:
    store.make("folder")
    with pytest.raises(ZeroDivisionError), store.writing("folder/a") as sink:
        sink(b"some of it")
        raise ZeroDivisionError
    assert store.read("folder/a") is None
    assert store.entries("folder") == []


@pytest.mark.parametrize("url", ["", "bucket://runs"])
def test_an_older_file_stays_if_it_cannot_be_written_anew(tmp_path: Path, url: str) -> None:
    Bucket.clear()
    store = open_store(url or str(tmp_path))
    store.make("folder")
    put(store, "folder/a", b"old")
    with pytest.raises(ZeroDivisionError), store.writing("folder/a") as sink:
        sink(b"some of the new one")
        raise ZeroDivisionError
    gc.collect()  # an upload that is forgotten must not be completed by that
    assert store.read("folder/a") == b"old"
    assert [entry.name for entry in store.entries("folder")] == ["a"]


def test_an_upload_that_is_given_up_is_never_completed() -> None:
    """By torch's or fsspec's own ``close``, when Python forgets it."""
    uploaded: list[bool] = []

    class Remote(AbstractBufferedFile):  # type: ignore[misc]
        def _upload_chunk(self, final: bool = False) -> bool:
            uploaded.append(final)
            return True

    class Files(AbstractFileSystem):  # type: ignore[misc]
        protocol = "uploads"

        def _open(self, path: str, mode: str = "rb", **_: object) -> Remote:
            return Remote(self, path, mode)

        def info(self, path: str, **_: object) -> dict[str, object]:
            raise FileNotFoundError(path)

    fsspec.register_implementation("uploads", Files, clobber=True)
    with pytest.raises(ZeroDivisionError), open_store("uploads://x").writing("a") as sink:
        sink(b"some")
        raise ZeroDivisionError
    gc.collect()
    assert uploaded == []


def test_a_new_root_is_found_after_a_crash(tmp_path: Path) -> None:
    failing = FailingDisk()
    root = tmp_path / "a" / "b" / "c"
    DiskStore(str(root), failing, make=True)
    assert [path for what, path in failing.journal if what == "sync folder"] == [
        tmp_path,
        tmp_path / "a",
        tmp_path / "a" / "b",
    ]
    failing.journal.clear()
    DiskStore(str(root), failing, make=True)
    assert failing.journal == []


def test_what_is_removed_is_gone(store: Store) -> None:
    store.make("folder")
    for name in "abc":
        put(store, f"folder/{name}", b"x")
    store.remove("folder", ["a", "nothing", "b"])
    assert [entry.name for entry in store.entries("folder")] == ["c"]
    store.remove("folder", ["c"])
    store.remove_folder("folder")
    store.remove_folder("folder")
    assert store.entries() == []


def marked(store: Store, step: int, number: int, finished: float, round_: int = 0, run: str = "") -> None:
    """A finished commit without data."""
    name = CommitName(CommitId(round_, step), run)
    store.make(name.folder)
    put(store, f"{name.folder}/{data_file(0)}", b"data")
    put(store, f"{name.folder}/{METADATA}", b"x")
    marker = Marker(name, number, 1, 1, 4, finished, {METADATA: "x", "part-0.json": "y"})
    put(store, f"{name.folder}/{MARKER}", marker.encode())


def steps(store: Store) -> list[int]:
    return [each.name.commit.step for each in commits(store)]


def test_commits_are_listed_the_newest_last(store: Store) -> None:
    marked(store, 30, 1, 5.0)
    marked(store, 10, 2, 4.0, run="b")
    store.make("step-0000000007-round-0")
    put(store, "step-0000000007-round-0/__0_0.distcp", b"x")
    for other in ("notes", "step-7-round-0", "step-00000000007-round-0"):  # none of ours
        store.make(other)
        put(store, f"{other}/x", b"x")
    put(store, "step-0000000008-round-0", b"a file")
    assert steps(store) == [7, 30, 10]
    assert [each.marker is None for each in commits(store)] == [True, False, False]
    found = newest(store)
    assert found is not None
    assert found.name == CommitName(CommitId(0, 10), "b")


def test_prune_removes_what_no_rule_keeps(store: Store) -> None:
    for number, step in enumerate((10, 20, 30, 40), 1):
        marked(store, step, number, 100.0 * number)
    assert prune(store, now=500.0) == []
    assert prune(store, 500.0, keep_last=1, writing=[CommitName(CommitId(0, 20))])[0].name.startswith(
        "step-0000000010"
    )
    assert steps(store) == [20, 40]
    prune(store, 500.0, keep_for=301.0)
    assert steps(store) == [20, 40]
    prune(store, 500.0, keep_for=10.0)
    assert steps(store) == [40]


def test_prune_leaves_what_is_written_until_nobody_has_changed_it_for_long(store: Store) -> None:
    folder = CommitName(CommitId(0, 5)).folder
    store.make(folder)
    put(store, f"{folder}/{data_file(0)}", b"x")
    changed = store.changed(folder)
    assert changed is not None
    assert prune(store, changed + LEASE - 60) == []
    assert [each.name for each in prune(store, changed + LEASE + 60)] == [folder]
    assert store.entries() == []


def test_a_commit_that_cannot_be_removed_keeps_no_other_one(tmp_path: Path) -> None:
    store = DiskStore(str(tmp_path))
    for number in (1, 2, 3, 4):
        marked(store, number, number, float(number))
    foreign = tmp_path / CommitName(CommitId(0, 2)).folder / "foreign"
    foreign.mkdir()
    with pytest.raises(StorageError, match=r"cannot remove step-0000000002-round-0 in .*not empty"):
        prune(store, 100.0, keep_last=1)
    assert [(each.name.commit.step, each.marker is None) for each in commits(store)] == [
        (2, True),
        (4, False),
    ]


def test_a_storage_that_does_not_answer_is_not_asked_for_each_commit(tmp_path: Path) -> None:
    store = DiskStore(str(tmp_path))
    for number in range(1, 9):
        marked(store, number, number, float(number))
    failing = FailingDisk(1, TIMED_OUT, recovers=False)
    with pytest.raises(StorageStuckError):
        prune(DiskStore(str(tmp_path), failing), 100.0, keep_last=1)
    assert failing.calls == 1


def test_a_commit_whose_marker_is_damaged_is_not_taken_for_one_that_nobody_finished(store: Store) -> None:
    marked(store, 1, 1, 1.0)
    marked(store, 2, 2, 2.0)
    put(store, f"{CommitName(CommitId(0, 2)).folder}/{MARKER}", b"damaged")
    assert prune(store, time.time() + 2 * LEASE, keep_last=1) == []
    assert sorted(steps(store)) == [1, 2]


def test_a_marker_in_another_place_is_no_marker(store: Store) -> None:
    marked(store, 1, 1, 5.0)
    data = store.read(f"{CommitName(CommitId(0, 1)).folder}/{MARKER}")
    assert data is not None
    other = CommitName(CommitId(0, 2)).folder
    store.make(other)
    put(store, f"{other}/{MARKER}", data)
    found = {each.name.commit.step: each for each in commits(store)}
    assert found[2].marker is None
    assert "is the marker of another commit" in found[2].problem


def test_another_format_is_told() -> None:
    marker = Marker(CommitName(CommitId(0, 1)), 1, 1, 1, 4, 5.0, {METADATA: "x", "part-0.json": "y"})
    assert Marker.decode(marker.encode(), "x") == marker
    from elasticrun.storage.records import digest

    text = marker.encode().split(b"\n")[1].replace(b'"format":1', b'"format":7')
    with pytest.raises(DamagedError, match="x has format 7, and this elasticrun reads 1"):
        Marker.decode(digest(text).encode() + b"\n" + text + b"\n", "x")


@pytest.mark.parametrize("run", ["A", "a-b", "a/b", "x" * 33, "\u00e4"])
def test_a_run_has_a_name_that_all_storages_know(run: str) -> None:
    with pytest.raises(ValueError, match="small letters and digits"):
        assert CommitName(CommitId(0, 1), run).folder


def test_names_of_folders_can_be_read() -> None:
    for name in (CommitName(CommitId(3, 12), "a1"), CommitName(CommitId(0, 2**53))):
        assert CommitName.parse(name.folder) == name
    assert CommitName.parse("step-1-round-0") is None


# Directories


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://{tmp_path}"), DiskStore)


def test_a_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageGoneError, match=r"cannot open the storage in .*x: No such file or directory"):
        open_store(str(tmp_path / "x"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        open_store(str(tmp_path / "file"))


def test_of_a_commit_elsewhere_only_the_link_is_removed(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = DiskStore(str(tmp_path / "old")), DiskStore(str(tmp_path / "new"))
    marked(old, 1, 1, 1.0)
    marked(new, 2, 2, 2.0)
    [folder] = [entry.name for entry in old.entries()]
    before = sorted(path.name for path in (tmp_path / "old" / folder).iterdir())
    (tmp_path / "new" / folder).symlink_to(tmp_path / "old" / folder)
    assert steps(new) == [1, 2], "a run may begin with a commit of another one"
    assert [each.name for each in prune(new, 100.0, keep_last=1)] == [folder]
    assert [entry.name for entry in new.entries()] == [CommitName(CommitId(0, 2)).folder]
    assert sorted(path.name for path in (tmp_path / "old" / folder).iterdir()) == before


def test_links_in_a_commit_are_removed_and_what_they_lead_to_is_not(tmp_path: Path) -> None:
    store, elsewhere = DiskStore(str(tmp_path)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("123")
    for number in (1, 2):
        marked(store, number, number, float(number))
    [folder, _] = [entry.name for entry in store.entries() if entry.name.startswith("step")]
    for name, target in {"folder": elsewhere, "file": elsewhere / "x", "nowhere": tmp_path / "none"}.items():
        (tmp_path / folder / name).symlink_to(target)
    sizes = {entry.name: entry.size for entry in store.entries(folder) if not entry.is_folder}
    assert (sizes["file"], sizes["nowhere"]) == (3, 0)
    prune(store, 100.0, keep_last=1)
    assert steps(store) == [2]
    assert (elsewhere / "x").read_text() == "123"


def test_a_long_file_is_synced_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SYNC_EVERY", 10)
    failing = FailingDisk()
    with DiskStore(str(tmp_path), failing).writing("a") as sink:
        for _ in range(10):
            sink(b"12345")
    assert [what for what, *_ in failing.journal].count("sync") == 6
    assert (tmp_path / "a").read_bytes() == b"12345" * 10


def test_short_writes_are_continued(tmp_path: Path) -> None:
    class Slow(disk.Disk):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            return os.write(fd, data[:3])

    with DiskStore(str(tmp_path), Slow()).writing("a") as sink:
        sink(b"1234567890")
    assert (tmp_path / "a").read_bytes() == b"1234567890"


def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    class Deaf(disk.Disk):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            return 0

    store = DiskStore(str(tmp_path), Deaf())
    with pytest.raises(StorageError, match="takes no more bytes"), store.writing("a") as sink:
        sink(b"1")
    assert list(tmp_path.iterdir()) == []


# URLs


@pytest.mark.parametrize("url", ["nothing://x/y", "s3://bucket/run"])
def test_a_url_that_nobody_can_read_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match="there is no storage of that kind"):
        open_store(url)


def test_a_path_needs_no_fsspec(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['fsspec'] = None; from elasticrun.storage.opening import open_store;"
        "print(open_store(sys.argv[1]).entries()); open_store('memory://x')"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    assert done.stdout == "[]\n"
    assert "UsageError: memory://x: URLs are read with the package fsspec" in done.stderr


@pytest.mark.parametrize("call", ["open", "write", "close", "ls", "cat_file", "rm_file"])
def test_an_error_of_an_object_store_is_told(call: str) -> None:
    Bucket.clear()
    store = open_store("bucket://runs")
    put(store, "folder/a", b"x")
    Bucket.fails = call
    with pytest.raises(StorageError, match=rf"cannot .* in bucket://runs: {call} does not work today"):
        put(store, "folder/b", b"x")
        store.entries()
        store.read("folder/a")
        store.remove("folder", ["a"])
    Bucket.fails = ""
    names = [entry.name for entry in store.entries("folder")]
    assert names == (["a"] if call in ("open", "write", "close") else ["a", "b"])


def test_a_kind_of_storage_that_asks_its_server_at_once_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Bucket) -> None:
        raise RuntimeError("no route to host")

    Bucket.clear_instance_cache()
    monkeypatch.setattr(Bucket, "__init__", refuse)
    with pytest.raises(StorageError, match=r"cannot open the storage in bucket://runs: no route to host"):
        open_store("bucket://runs")


# Priority


def test_a_writer_takes_only_what_others_leave() -> None:
    program = (
        "import os; from elasticrun.storage.priority import lower_priority; lower_priority();"
        "print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "19 True\n"


def test_batch_scheduling_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    said: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "nice", said.append)
    lower_priority()
    assert said == [19]
