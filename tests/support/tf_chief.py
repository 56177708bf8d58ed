"""A chief for tests: ``python tf_chief.py`` with one line of JSON on stdin for each attempt.

tensorflow is imported once, which takes seconds; every attempt is a process forked after that, and ends as
any program ends. What an attempt has to tell, and at last its exit status, are lines of JSON on stdout.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elasticrun.errors import DataError, ElasticRunError, UsageError
from elasticrun.tf import ChiefSession, ElasticDataset, ShardedAdagrad, ShardedAdam
from elasticrun.tf.optimizers import all_parts, parts_of
from elasticrun.tf.positions import SavedPositions

ROWS, WIDTH = 11, 3  # the rows divide evenly into neither 2 nor 3 shards


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


class Model(tf.Module):  # type: ignore[misc]
    """Two tables, each with an optimizer of its own, and something that is too small to be cut."""

    def __init__(self) -> None:
        super().__init__()
        first = tf.random.stateless_uniform((2, ROWS, WIDTH), seed=(1, 2))
        self.tables = [tf.Variable(first[0]), tf.Variable(first[1])]
        self.bias = tf.Variable(0.5)
        self.optimizers = [
            ShardedAdagrad([self.bias, self.tables[0]], learning_rate=0.1),
            ShardedAdam([self.tables[1]], learning_rate=0.1),
        ]

    def train(self, number: Any) -> Any:
        """One step; the ids of a batch have doubles, and others that never come."""
        ids = tf.random.stateless_uniform((6,), seed=(3, number), maxval=ROWS - 2, dtype=tf.int32)
        with tf.GradientTape(persistent=True) as tape:
            found = [tf.nn.embedding_lookup(parts_of(table), ids) for table in self.tables]
            loss = tf.reduce_mean((found[0] * found[1] + self.bias - 1.0) ** 2)
        for optimizer in self.optimizers:
            optimizer.apply(tape.gradient(loss, optimizer.parts))
        return loss

    def digests(self) -> dict[str, str]:
        """A fingerprint of each variable and slot."""
        named = {"bias": self.bias, "iterations": self.optimizers[1].iterations}
        named.update({f"table{number}": table for number, table in enumerate(self.tables)})
        for optimizer in self.optimizers:
            for slot, variables in optimizer.slots.items():
                named.update({f"{slot}{number}": variable for number, variable in enumerate(variables)})
        return {
            name: hashlib.sha256(variable.numpy().tobytes()).hexdigest() for name, variable in named.items()
        }


class Runtime:
    """Tells that it is torn down, as the interpreter does to what its modules hold."""

    def __del__(self, write: Callable[[int, bytes], int] = os.write) -> None:
        write(1, b'{"torn": "down"}\n')


def live(directory: str, last: int, ask_at: int = 0, through_chief: bool = False) -> None:
    """Train to step ``last``, or be asked to go at step ``ask_at``."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioners = tf.distribute.experimental.partitioners
    servers = resolver.cluster_spec().num_tasks("ps")
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=partitioners.FixedShardsPartitioner(servers)
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()
    session = ChiefSession(coordinator, directory, through_chief=through_chief, model=model)
    resumed = session.restore_or_start()
    placed = [
        (part.device, slot.device)
        for optimizer in model.optimizers
        for variables in optimizer.slots.values()
        for part, slot in zip(optimizer.parts, all_parts(variables), strict=True)
    ]
    tell(
        resumed=resumed.step,
        source=resumed.source,
        digests=model.digests(),
        parts=len(parts_of(model.tables[0])),
        placed=placed,
    )
    step = tf.function(model.train)
    try:
        for number in session.steps(last, save_every=8):
            session.schedule(step, args=(tf.constant(number),))
            if number == ask_at:
                vars(sys)["runtime"] = Runtime()
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        tell(done=session.step, digests=model.digests(), newest=float(session.newest))


def refuse(directory: str) -> None:
    """Restore what another program has saved, and end by what that raises."""
    session = ChiefSession(None, directory, steps_in_flight=1, other=tf.Variable(1.0))
    try:
        session.restore_or_start()
    except UsageError as error:
        tell(refusal=str(error))
        vars(sys)["runtime"] = Runtime()
        raise


def compare() -> None:
    """Both optimizers with a table in two shards, and the same arithmetic on one array."""
    for kind in (ShardedAdagrad, ShardedAdam):
        table = tf.random.stateless_uniform((ROWS, WIDTH), seed=(1, 2))
        whole = tf.Variable(table)
        shards = [tf.Variable(table[:6]), tf.Variable(table[6:])]
        sharded = tf.__internal__.distribute.ShardedVariable(shards)
        optimizers = kind([whole], 0.1), kind([sharded], 0.1)
        for number in range(5):
            ids = tf.random.stateless_uniform((6,), seed=(3, number), maxval=ROWS, dtype=tf.int32)
            rows_seen = tf.reduce_max(tf.one_hot(ids, ROWS), axis=0)[:, None]
            with tf.GradientTape(persistent=True) as tape:
                losses = [
                    tf.reduce_sum(tf.square(tf.nn.embedding_lookup(params, ids)) - 1)
                    for params in ([whole], shards)
                ]
            sparse = tape.gradient(losses[1], optimizers[1].parts)
            dense = tf.convert_to_tensor(tape.gradient(losses[0], whole))
            optimizers[1].apply(sparse)
            before = whole.numpy()
            optimizers[0].apply([dense])
            if kind is ShardedAdam:  # which leaves rows alone that were not seen; the dense form does not
                whole.assign(rows_seen * whole + (1 - rows_seen) * before)
                for name, (slot,) in optimizers[0].slots.items():
                    old = optimizers[1].slots[name][0]
                    slot.assign(rows_seen * slot + (1 - rows_seen) * tf.convert_to_tensor(old))
        difference = tf.reduce_max(tf.abs(whole - tf.convert_to_tensor(sharded)))
        tell(optimizer=kind.__name__, difference=float(difference))


def learn(directory: str, last: int, length: int = 21, records: str | None = None, **options: Any) -> None:
    """Add up the samples of an elastic data set in a variable of a parameter server, to step ``last``.

    What the variable holds is what it was trained on, whatever the position says. Ends without a save if it
    is killed at step ``die``; tells the batches that were taken and how often each sample counted.
    """
    die, prefetch = options.pop("die", 0), options.pop("prefetch", 8)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counts = tf.Variable(tf.zeros([length], tf.int64))
    table = [[float(number), 1.0] for number in range(length)]
    signature = tf.TensorSpec([None, 2], tf.float32)
    data = ElasticDataset(
        length, 4, lambda indices: [table[index] for index in indices], signature, seed=3, prefetch=prefetch
    )
    session = ChiefSession(coordinator, directory, counts=counts, data=data, records=records, **options)
    resumed = session.restore_or_start()
    tell(resumed=resumed.step, source=resumed.source, counts=counts.numpy().tolist(), samples=data.samples)

    @tf.function  # type: ignore[untyped-decorator]
    def step(rows: Any) -> Any:
        ids = tf.cast(rows[:, :1], tf.int32)
        counts.scatter_nd_add(ids, tf.ones(tf.shape(ids)[0], tf.int64))
        return tf.shape(ids)[0]

    batches = iter(data)
    for number in session.steps(last, save_every=3):
        session.schedule(step, args=(next(batches),))
        if number == die:
            session.join()
            os._exit(9)
    tell(done=session.step, counts=counts.numpy().tolist(), samples=data.samples, epoch=data.epoch)


def refuse_data() -> None:
    """What an elastic data set and a session say of what cannot be, and what a position may say."""
    attempts: dict[str, Any] = {
        "empty": lambda: ElasticDataset(0, 4),
        "batch": lambda: ElasticDataset(4, 0),
        "small": lambda: ElasticDataset(3, 4, drop_last=True),
        "half": lambda: ElasticDataset(3, 1, read=len),
        "prefetch": lambda: ElasticDataset(3, 1, prefetch=-1),
        "records": lambda: ChiefSession(None, "d", steps_in_flight=1, v=tf.Variable(1), records="r"),
        "name": lambda: ChiefSession(None, "d", steps_in_flight=1, positions=tf.Variable(1)),
    }
    for text in (b"", b"{", b"[" * 100_000, b'{"format":1,"commit":[1],"data":{}}', b" " * (2 << 20)):
        attempts[f"text {text[:3]!r} {len(text)}"] = lambda text=text: restored(text)
    attempts["absurd"] = lambda: restored(b'{"format":1,"commit":[-1,1],"data":{}}')
    attempts["other"] = lambda: restored(b'{"format":1,"commit":null,"data":{"b":{}}}')
    attempts["none"] = lambda: restored(b'{"format":1,"commit":[1,2],"data":{"a":{}}}')
    for name, attempt in attempts.items():
        try:
            attempt()
        except ElasticRunError as error:
            tell(what=name, kind=type(error).__name__, text=str(error))
    data = ElasticDataset(5, 2)
    old = iter(data)
    found = [next(old).numpy().tolist() for _ in range(2)]
    new = iter(data)
    found.append(next(new).numpy().tolist())
    try:
        next(old)
    except DataError as error:
        tell(what="old", found=found, kind="DataError", text=str(error))


def restored(text: bytes) -> None:
    """A checkpoint has these positions."""
    positions = SavedPositions({"a": ElasticDataset(5, 2)}, None)
    positions.variable.assign(text)
    positions.restored()


def main() -> None:
    """Run each attempt that stdin tells of, one after another."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ["TF_CONFIG"] = json.dumps(order.pop("config", None))
            match order.pop("what"):
                case "live":
                    live(**order)
                case "refuse":
                    refuse(**order)
                case "compare":
                    compare()
                case "learn":
                    learn(**order)
                case "refuse_data":
                    refuse_data()
            sys.exit(0)
        tell(status=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
