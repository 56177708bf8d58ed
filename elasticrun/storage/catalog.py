"""Which commits a store has: finding, choosing and removing them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from elasticrun.core.state.retention import Found, Removal, Retention, surplus
from elasticrun.storage.errors import DamagedError, StorageError, StorageStuckError
from elasticrun.storage.records import MARKER, METADATA, CommitName, Marker
from elasticrun.storage.store import Store


class Listed(NamedTuple):
    """One commit of a store."""

    name: CommitName
    marker: Marker | None  # None: it is not finished
    problem: str = ""  # why its marker cannot be read

    @property
    def place(self) -> tuple[int, int, int, str]:
        """Sorts commits: those that are not finished, then the others in the order of their numbers."""
        number = -1 if self.marker is None else self.marker.number
        return number, self.name.commit.step, self.name.commit.round, self.name.run


def read_marker(store: Store, name: CommitName) -> Marker | None:
    """The marker of a commit; None if it is not finished. DamagedError if it cannot be read."""
    data = store.read(f"{name.folder}/{MARKER}")
    if data is None:
        return None
    marker = Marker.decode(data, f"{name.folder}/{MARKER} in {store.url}")
    if marker.name != name:
        raise DamagedError(f"{name.folder}/{MARKER} in {store.url} is the marker of another commit")
    return marker


def is_removed(store: Store, name: CommitName) -> bool:
    """Whether a commit that was finished is so no more: its marker is the first to be removed."""
    return store.read(f"{name.folder}/{MARKER}") is None


def commits(store: Store) -> list[Listed]:
    """All commits of a store, the newest last."""
    found = []
    for entry in store.entries():
        name = CommitName.parse(entry.name) if entry.is_folder else None
        if name is not None and name.folder == entry.name:
            try:
                found.append(Listed(name, read_marker(store, name)))
            except DamagedError as error:
                found.append(Listed(name, None, str(error)))
    return sorted(found, key=lambda each: each.place)


def newest(store: Store, at_most: int | None = None) -> Marker | None:
    """The commit that was finished last, of those up to a step; None if there is none."""
    found = [
        each.marker
        for each in commits(store)
        if each.marker is not None and (at_most is None or each.name.commit.step <= at_most)
    ]
    return found[-1] if found else None


def prune(
    store: Store,
    now: float,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep_for: float | None = None,
    writing: Collection[CommitName] = (),
) -> list[Removal]:
    """Remove the commits that nobody needs, and return which, with the reasons.

    A finished commit stays if it is among the newest ``keep_last``, if it is the first of ``keep_every``
    steps, or if it was finished less than ``keep_for`` seconds before ``now``. Without any of these all
    stay, and the newest one always does. An unfinished commit goes if it is not one of ``writing`` and
    nobody has changed it for hours (``core/state/retention.py``). One whose marker cannot be read was
    finished, and stays.

    Raises:
        StorageError: one of them cannot be removed; all the others are by then.
    """
    rule = Retention(keep_last, keep_every, keep_for)
    found, faults, removed = [], list[StorageError](), []
    for each in commits(store):
        if not each.problem:
            with _noting(faults):
                found.append(_found(store, each))
    for removal in surplus(found, rule, now, {name.folder for name in writing}):
        with _noting(faults):
            remove_commit(store, removal.name)
            removed.append(removal)
    if faults:
        raise faults[0]
    return removed


def _found(store: Store, listed: Listed) -> Found:
    folder, marker = listed.name.folder, listed.marker
    number, since = (None, store.changed(folder)) if marker is None else (marker.number, marker.finished)
    return Found(folder, listed.name.commit.step, number, since)


@contextlib.contextmanager
def _noting(faults: list[StorageError]) -> Iterator[None]:
    """Go on with the next commit if one fails; but not if the whole storage does not answer.

    One that somebody else has removed meanwhile is no fault.
    """
    try:
        yield
    except StorageStuckError:
        raise
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            faults.append(error)


def remove_commit(store: Store, folder: str) -> None:
    """Remove a commit: its marker first, so that a commit of which a part is missing does not exist.

    Of one that is a link to a folder elsewhere, as of another run, only the link is removed.
    """
    if store.unlink(folder):
        return
    store.remove(folder, [MARKER])
    store.remove(folder, [METADATA])
    store.remove(folder, [entry.name for entry in store.entries(folder) if not entry.is_folder])
    store.remove_folder(folder)
