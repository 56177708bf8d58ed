"""What the chiefs do in ``test_backup.py``, each in a process of its own."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf

from elasticrun.core.tensorflow import ps_room
from elasticrun.tf.backup import PeerBackup

PART_BYTES = 64  # an embedding's row has 16: its pieces are cut
PS = 3


class Job:
    """A model on three ps: an embedding and its slots in three pieces each, small ones, a Keras layer."""

    def __init__(self, folder: str, **options: Any) -> None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(PS)
        self.strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
        with self.strategy.scope():
            embedding = tf.Variable(tf.zeros((20, 4)))
            slots = tf.Variable(tf.zeros((20, 4)))
            layer = tf.keras.layers.Dense(2, use_bias=False)
            layer.build((None, 1))  # Keras cannot save what is sharded
            small = [tf.Variable(0.0), tf.Variable("", trainable=False)]
        small.append(tf.Variable(tf.zeros((0, 3))))
        self.step = tf.Variable(0, dtype=tf.int64)  # on the chief, as the one before
        self.checkpoint = tf.train.Checkpoint(
            embedding=embedding, slots=slots, layer=layer, small=small, step=self.step
        )
        self.variables = [*embedding.variables, *slots.variables, *layer.variables, *small, self.step]
        self.folder = folder
        self.backup = PeerBackup(self.checkpoint, part_bytes=PART_BYTES, **options)

    def path(self, step: int) -> str:
        return f"{self.folder}/ckpt-{step}"

    def set(self, seed: int) -> None:
        """Give every variable values of its own."""
        for number, variable in enumerate(self.variables):
            if variable.dtype == tf.string:
                variable.assign(f"seed {seed}")
            else:
                count = tf.reshape(tf.range(tf.size(variable)), variable.shape)
                variable.assign(tf.cast(count + seed * 1000 + number * 100, variable.dtype))

    def values(self) -> list[str]:
        return [str(variable.numpy()) for variable in self.variables]

    def expected(self, seed: int) -> list[str]:
        self.set(seed)
        return self.values()

    def checkpointed(self, step: int) -> None:
        """As a chief that trains: a checkpoint, and copies of it."""
        self.set(step)
        self.checkpoint.write(self.path(step))
        self.saved = asdict(self.backup.save(step, self.path(step)))

    def restored(self, step: int) -> dict[str, Any]:
        """What ``restore`` says, and whether all variables are as they were at that step."""
        expected = self.expected(step)
        self.set(0)
        told = asdict(self.backup.restore(step, self.path(step)))
        return {"lines": told["lines"], "from_file": told["from_file"], "equal": self.values() == expected}


def train(folder: str) -> dict[str, Any]:
    """The first chief: saves step 400, then trains on."""
    job = Job(folder)
    job.checkpointed(400)
    job.set(401)
    return job.saved


def restore(folder: str, step: int) -> dict[str, Any]:
    """The next chief: goes on from a step, in new variables."""
    job = Job(folder)
    job.backup.restore(step, job.path(step))
    return {"equal": job.values() == job.expected(step), **job.restored(step)}


def many_ways(folder: str, copies: str) -> dict[str, Any]:
    """One chief, to whose copies everything happens that can."""
    job = Job(folder)
    told: dict[str, Any] = {}

    def own(index: int) -> Path:
        port = job.backup._ports[index]
        return Path(copies, f"agent_{index}", port, f"of-{index}")

    job.checkpointed(500)
    again = asdict(job.backup.save(500, job.path(500)))
    told["again"] = (again["copies"], again["problems"])
    flip(own(0) / "1.data-00000-of-00001")
    told["damaged"] = job.restored(500)
    flip(own(1) / "0.index")
    told["index"] = job.restored(500)

    job.set(600)
    job.checkpoint.write(job.path(600))
    told["stale"] = job.restored(600)
    told["emptied"] = sum(path.stat().st_size for path in Path(copies).rglob("*") if path.is_file())

    job.checkpointed(700)
    for path in Path(copies).glob("*/*/of-2/0.data*"):
        flip(path)
    told["all damaged"] = job.restored(700)
    told["other variables"] = other_variables(job)
    job.backup.forget()
    told["forgotten"] = job.restored(700)

    told["alone"] = asdict(Job(folder, peers=0).backup.save(700, job.path(700)))["copies"]
    told["nowhere"] = Job(folder, roots=[]).restored(700)
    told["no state"] = no_state(job)
    told["failing"] = failing(job, own(1))
    told["no room"] = no_room(job)
    return told


def other_variables(job: Job) -> dict[str, Any]:
    """The same checkpoint, in a program that has one more variable."""
    job.checkpoint.more = tf.Variable(1.0)
    try:
        return job.restored(700)
    finally:
        del job.checkpoint.more


def no_state(job: Job) -> list[str]:
    """A state that is in no variable."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    checkpoint = tf.train.Checkpoint(table=table, step=job.step)
    return list(PeerBackup(checkpoint).save(1, "x").problems)


def failing(job: Job, folder: Path) -> dict[str, Any]:
    """A save that fails half way, for one copy: its second part cannot be written."""
    index = folder / "1.index"
    index.unlink()
    index.mkdir()
    logging.getLogger("elasticrun").setLevel(logging.ERROR)
    saved = asdict(job.backup.save(700, job.path(700)))
    return {"copies": saved["copies"], "problems": saved["problems"], **job.restored(700)}


def no_room(job: Job) -> dict[str, Any]:
    """On hosts whose memory is all but full, if that is where the copies lie."""
    job.backup.forget()
    ps_room.in_memory = lambda mounts, path: "tmpfs" in mounts
    ps_room.left_on_host = lambda meminfo: 100 if "MemAvailable" in meminfo else None
    saved = asdict(job.backup.save(700, job.path(700)))
    return {"copies": saved["copies"], "problems": saved["problems"], **job.restored(700)}


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
