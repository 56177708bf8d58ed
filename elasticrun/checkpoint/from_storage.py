"""Restores the newest commit of a job's storage: ``Checkpointer`` does that if nothing is in memory.

The first rank says which commits there are, so that all ranks restore the same one. If the newest one is
damaged they all go on with the next older one: the ranks tell each other what is in the way, and whether it
is damage. Anything else ends the search: an older commit would not fit the model either, and of a storage
that does not answer nobody knows what it has. As from memory, no rank raises alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from elasticrun.checkpoint import exchange
from elasticrun.checkpoint.bare import Device
from elasticrun.checkpoint.loading import Loading, State
from elasticrun.checkpoint.stored import StoredReader, StoredUrlReader, reader_of
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError, ElasticRunError
from elasticrun.storage.catalog import commits, read_marker
from elasticrun.storage.errors import DamagedError, IncompleteError, StorageError, StorageGoneError
from elasticrun.storage.opening import open_store
from elasticrun.storage.records import CommitName

logger = logging.getLogger("elasticrun")

T = TypeVar("T")


class _Obstacle(NamedTuple):
    """What keeps this rank, or any, from restoring a commit."""

    text: str
    is_damage: bool  # of this commit alone


class _Found(NamedTuple):
    """What a storage has, in plain values."""

    finished: list[tuple[int, int, str]]  # round, step and run of each commit, the newest first
    problems: list[str]  # why markers cannot be read


def load_stored(url: str, state: State, rank: int, device: Device = None) -> CommitName | None:
    """Restore the newest whole commit of a storage. Returns which, maybe of another job; None: there is none.

    The ranks that are connected all have to call it. Tensors on the meta device get memory on ``device``.

    Raises:
        CheckpointError: the storage fails, all commits are damaged, or they are of another model; all ranks
            raise the same.
    """
    found, failure = _attempt(lambda: _look(url))
    found, failure = _told_by_first((found, failure))
    if found is None:
        raise CheckpointError(failure.text if failure is not None else "")
    for problem in found.problems:
        logger.warning("a saved state is passed over: %s", problem)
    first = ""
    for round_, step, run in found.finished:
        name = CommitName(CommitId(round_, step), run)
        obstacle = _restore(url, name, state, rank, device)
        if obstacle is None:
            if rank == 0:
                logger.info("%s is restored from %s", name, url)
            return name
        place = "" if url in obstacle.text else f" in {url}"
        text = f"{name}{place} cannot be restored: {obstacle.text}"
        if not obstacle.is_damage:
            raise CheckpointError(text)
        logger.warning("%s; the one before is taken if there is one", text)
        first = first or text
    if first or found.problems:
        raise CheckpointError(f"no saved state that is whole is left: {first or found.problems[-1]}")
    return None


def _look(url: str) -> _Found:
    listed = commits(open_store(url, make=True))
    names = [each.name for each in reversed(listed) if each.marker is not None]
    fields = [(name.commit.round, name.commit.step, name.run) for name in names]
    return _Found(fields, [each.problem for each in listed if each.problem])


def _restore(url: str, name: CommitName, state: State, rank: int, device: Device) -> _Obstacle | None:
    """Restore one commit. Returns what is in the way, the same on all ranks; None: it is restored."""
    reader, obstacle = _attempt(lambda: _reader(url, name, rank))
    if (agreed := _agreed(obstacle)) is not None or reader is None:
        return agreed
    loading = Loading(reader, state, device)
    text = loading.run()
    if not text:
        return None
    mine = None if loading.cause is None else _Obstacle(text, _is_damage(loading.cause))
    agreed = _agreed(mine)
    assert agreed is not None, "a rank has told of it"
    return agreed._replace(text=text)


def _reader(url: str, name: CommitName, rank: int) -> StoredReader | StoredUrlReader:
    try:
        store = open_store(url)
    except StorageError as error:
        raise CheckpointError(str(error)) from None  # of no commit alone, whatever it is
    marker = read_marker(store, name)
    if marker is None:
        raise CheckpointError(f"it is not in {url} as rank {rank} sees it: do all nodes share this storage?")
    return reader_of(store, marker, rank)


def _is_damage(error: Exception) -> bool:
    """Whether something is wrong with one commit alone: it has changed, or some of it is gone."""
    is_missing = isinstance(error, StorageGoneError) and isinstance(error.__cause__, FileNotFoundError)
    return is_missing or isinstance(error, DamagedError | IncompleteError)


def _attempt(step: Callable[[], T]) -> tuple[T | None, _Obstacle | None]:
    """What a step returns, or what is in the way; whatever it is, the other ranks must hear of it."""
    try:
        return step(), None
    except ElasticRunError as error:
        return None, _Obstacle(str(error), _is_damage(error))
    except Exception as error:  # noqa: BLE001
        return None, _Obstacle(f"{type(error).__name__}: {error}", is_damage=False)


def _told_by_first(mine: T) -> T:
    """What the first rank tells."""
    told: T = exchange.tell(mine)[0] if exchange.is_possible() else mine
    return told


def _agreed(mine: _Obstacle | None) -> _Obstacle | None:
    """The obstacle of all ranks together: damage if nothing else is in the way of any."""
    told = exchange.tell(mine) if exchange.is_possible() else [mine]
    obstacles = [each for each in told if each is not None]
    return min(obstacles, key=lambda each: each.is_damage, default=None)
