"""The library for TensorFlow jobs; the only part of the package that imports tensorflow.

* ``python -m elasticrun.tf.server`` is what workers and parameter servers run.
* ``ChiefSession`` is for the chief of a job with parameter servers: it paces the steps, saves, and goes on
  from what was saved, whatever the number of parameter servers is now.
* ``ElasticDataset`` gives the chief batches, and goes on with the samples that the restored model has not
  seen.
* ``ShardedAdagrad`` and ``ShardedAdam`` keep their slots as sharded variables, so that these are restored
  with the rest.
* ``PeerBackup`` keeps copies of the variables in the memory of several parameter servers, and restores them
  from there if one of these is lost.
* ``Telemetry`` tells the launcher, and TensorBoard if you like, how fast the steps are.

Importing this module imports no tensorflow: a name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticrun.tf.backup import PeerBackup, Restored, Saved
    from elasticrun.tf.chief import ChiefSession, Resumed
    from elasticrun.tf.dataset import ElasticDataset
    from elasticrun.tf.optimizers import ShardedAdagrad, ShardedAdam
    from elasticrun.tf.telemetry import Telemetry

__all__ = [
    "ChiefSession",
    "ElasticDataset",
    "PeerBackup",
    "Restored",
    "Resumed",
    "Saved",
    "ShardedAdagrad",
    "ShardedAdam",
    "Telemetry",
]

_HOMES = {
    "ChiefSession": "elasticrun.tf.chief",
    "ElasticDataset": "elasticrun.tf.dataset",
    "PeerBackup": "elasticrun.tf.backup",
    "Restored": "elasticrun.tf.backup",
    "Resumed": "elasticrun.tf.chief",
    "Saved": "elasticrun.tf.backup",
    "ShardedAdagrad": "elasticrun.tf.optimizers",
    "ShardedAdam": "elasticrun.tf.optimizers",
    "Telemetry": "elasticrun.tf.telemetry",
}


def __getattr__(name: str) -> object:
    """The library's classes, imported when one is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'elasticrun.tf' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
