"""Restores the newest commit of a job's storage: ``Checkpointer`` does that if nothing is in memory.

The first rank says which commit is the newest, so that all ranks restore the same one. As from memory, no
rank raises alone.
"""

from __future__ import annotations

import logging

from elasticrun.checkpoint import exchange
from elasticrun.checkpoint.loading import Loading, State
from elasticrun.checkpoint.stored import StoredReader, StoredUrlReader, reader_of
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError, ElasticRunError
from elasticrun.storage.catalog import newest, read_marker
from elasticrun.storage.opening import open_store
from elasticrun.storage.records import CommitName

logger = logging.getLogger("elasticrun")


def load_stored(url: str, state: State, rank: int) -> CommitName | None:
    """Restore the newest commit of a storage. Returns which, maybe of an earlier job; None: it has none.

    The first rank says which commit it is. The ranks that are connected all have to call it.

    Raises:
        CheckpointError: the storage fails, or the commit is of another model; all ranks raise the same.
    """
    name, obstacle = _told_by_first(*_newest(url))
    if obstacle:
        raise CheckpointError(obstacle)
    if name is None:
        return None
    reader, obstacle = _reader(url, name, rank)
    told = exchange.tell(obstacle) if exchange.is_possible() else [obstacle]
    obstacle = next(filter(None, told), "")
    if obstacle or reader is None:
        raise CheckpointError(obstacle)
    loading = Loading(reader, state)
    obstacle = loading.run()
    if obstacle:
        raise CheckpointError(f"{name} in {url} cannot be restored: {obstacle}") from loading.cause
    if rank == 0:
        logger.info("%s is restored from %s", name, url)
    return name


def _told_by_first(name: CommitName | None, obstacle: str) -> tuple[CommitName | None, str]:
    if not exchange.is_possible():
        return name, obstacle
    fields = None if name is None else (name.commit.round, name.commit.step, name.run)
    first, obstacle = exchange.tell((fields, obstacle))[0]
    return (None if first is None else CommitName(CommitId(*first[:2]), first[2])), obstacle


def _newest(url: str) -> tuple[CommitName | None, str]:
    try:
        marker = newest(open_store(url, make=True))
    except ElasticRunError as error:
        return None, str(error)
    return (None if marker is None else marker.name), ""


def _reader(url: str, name: CommitName, rank: int) -> tuple[StoredReader | StoredUrlReader | None, str]:
    try:
        store = open_store(url)
        marker = read_marker(store, name)
        if marker is None:
            return None, f"{name} is not in {url} as rank {rank} sees it: do all nodes share this storage?"
        return reader_of(store, marker, rank), ""
    except ElasticRunError as error:
        return None, str(error)
