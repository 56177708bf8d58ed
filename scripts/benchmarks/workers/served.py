"""A job with parameter servers that trains as little as possible, until it is killed; for all roles.

The chief reports ``line`` (the script's first line, with the addresses that it was given), ``imported``
(tensorflow is there), ``group`` (all variables are restored; it says from where) and each ``step`` that is
done, by its number in training. ``fresh`` is the first step of a worker: each worker counts its own steps,
and starts again from 0 when it restarts. Workers and parameter servers that are started with this file serve
as the strategy's guide has it. The arguments are a directory, and after how many steps the chief saves there;
a copy of each checkpoint is kept with another ps, where the launcher has room for that.
"""

import time

BEGUN = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from typing import Any  # noqa: E402

CONFIG = json.loads(os.environ["TF_CONFIG"])
CLUSTER, ROLE = CONFIG["cluster"], CONFIG["task"]["type"]
EVENTS = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)
STEP = 0.02  # seconds between two steps that are sent
IDS, WIDTH, BATCH = 20_000, 16, 64
NEVER = threading.Event()


def report(what: str, at: float | None = None, **more: object) -> None:
    event = {
        "what": what,
        "at": time.monotonic() if at is None else at,
        "pid": os.getpid(),
        "rank": 0,
        **more,
    }
    os.write(EVENTS, json.dumps(event).encode() + b"\n")


if ROLE == "chief":
    report("line", BEGUN, cluster=CLUSTER, copies=os.environ.get("ELASTICRUN_BACKUP_ROOTS", ""))

import tensorflow as tf  # noqa: E402

if ROLE == "chief":
    report("imported")


def serve() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def lead(directory: str, save_every: int) -> None:
    from elasticrun.tf import ChiefSession, ShardedAdagrad

    class Session(ChiefSession):
        """Reports each step as soon as it is done."""

        def _finish_oldest(self) -> None:
            super()._finish_oldest()
            report("step", step=self.step)
            if int(self.newest) == 0:
                report("fresh", step=self.step)

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(len(CLUSTER["ps"]))
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([IDS, WIDTH], seed=[1, 2]))
        dense = tf.Variable(tf.ones([WIDTH, 1]))
        optimizer = ShardedAdagrad([table, dense])

    @tf.function  # type: ignore[untyped-decorator]
    def step(numbers: Any) -> Any:
        number = next(numbers)
        ids = tf.random.stateless_uniform([BATCH], seed=tf.stack([number, 3]), maxval=IDS, dtype=tf.int64)
        parts = optimizer.parts
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parts)
            guess = tf.squeeze(tf.nn.embedding_lookup(table, ids) @ dense, 1)
            loss = tf.reduce_mean(tf.square(guess - tf.cast(ids % 7, tf.float32)))
        optimizer.apply(tape.gradient(loss, parts))
        return number

    session = Session(coordinator, directory, peers=1, table=table, dense=dense, optimizer=optimizer)
    resumed = session.restore_or_start()
    numbers = iter(coordinator.create_per_worker_dataset(tf.data.Dataset.counter))
    report("group", sources=resumed.details)
    for _ in session.steps(10**9, save_every=save_every):
        session.schedule(step, (numbers,))
        NEVER.wait(STEP)


if __name__ == "__main__":
    if ROLE == "chief":
        lead(sys.argv[1], int(sys.argv[2]))
    else:
        serve()
