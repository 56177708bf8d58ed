"""Elastic data: a sampler and a loader that go on after the last batch, in a world of any size.

* ``ElasticDistributedSampler`` takes the place of torch's ``DistributedSampler``.
* ``ElasticDataLoader`` is torch's ``DataLoader`` with a state: the batches that were handed to the loop.
* ``GlobalBatch`` makes steps of the same samples for any number of ranks.
* ``ShardedDataset`` reads shards of files or streams, by a ``Plan``.
* ``StreamDataset`` reads the partitions of a ``KafkaSource``, a ``RedisSource`` or of another source.

Importing this module imports no torch: a name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticrun.core.data.shards import Plan, Shard
    from elasticrun.data.global_batch import GlobalBatch
    from elasticrun.data.loader import ElasticDataLoader
    from elasticrun.data.sampler import ElasticDistributedSampler
    from elasticrun.data.sharded import ShardedDataset
    from elasticrun.data.streams.dataset import StreamDataset
    from elasticrun.data.streams.kafka import KafkaSource
    from elasticrun.data.streams.redis import RedisSource

__all__ = [
    "ElasticDataLoader",
    "ElasticDistributedSampler",
    "GlobalBatch",
    "KafkaSource",
    "Plan",
    "RedisSource",
    "Shard",
    "ShardedDataset",
    "StreamDataset",
]

_HOMES = {
    "ElasticDataLoader": "elasticrun.data.loader",
    "ElasticDistributedSampler": "elasticrun.data.sampler",
    "GlobalBatch": "elasticrun.data.global_batch",
    "KafkaSource": "elasticrun.data.streams.kafka",
    "Plan": "elasticrun.core.data.shards",
    "RedisSource": "elasticrun.data.streams.redis",
    "Shard": "elasticrun.core.data.shards",
    "ShardedDataset": "elasticrun.data.sharded",
    "StreamDataset": "elasticrun.data.streams.dataset",
}


def __getattr__(name: str) -> object:
    """The library's classes, imported when one is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'elasticrun.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
