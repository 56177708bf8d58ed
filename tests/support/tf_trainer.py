"""The chief of a job with parameter servers under remote control: it trains as many steps as it is told to.

It says hello like any remote-controlled worker, then where it goes on and what all its variables and slots
hold. Commands: ``steps N`` (answered by the number of the last one), ``save``, ``leave`` (as after SIGTERM)
and ``end``. Asked to go by SIGTERM, it saves before the step after next, as ``ChiefSession`` does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from elasticrun.tf import ChiefSession, ShardedAdagrad
from tests.support.worker import Remote

IDS, WIDTH, BATCH = 96, 4, 16
FOREVER = 10**9


class Model(tf.Module):  # type: ignore[misc]
    """An embedding that is cut over the parameter servers, and a dense layer that is on one of them."""

    def __init__(self) -> None:
        super().__init__()
        start = tf.random.stateless_normal([IDS, WIDTH], seed=[1, 2])
        self.table = tf.Variable(start, name="table")
        self.dense = tf.Variable(tf.ones([WIDTH, 1]), name="dense")
        self.optimizer = ShardedAdagrad([self.table, self.dense])

    def train(self, ids: Any) -> Any:
        """One step towards a value that is known for each id."""
        parts = self.optimizer.parts
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parts)
            rows = tf.nn.embedding_lookup(self.table, ids)
            guess = tf.squeeze(rows @ self.dense, 1)
            loss = tf.reduce_mean(tf.square(guess - tf.cast(ids % 7, tf.float32)))
        self.optimizer.apply(tape.gradient(loss, parts))
        return loss

    def digest(self) -> str:
        """Of every variable and slot as a whole, however they are cut."""
        slots = [slot for slots in self.optimizer.slots.values() for slot in slots]
        values = [tf.convert_to_tensor(it).numpy() for it in (self.table, self.dense, *slots)]
        return hashlib.sha256(b"".join(np.ascontiguousarray(it).tobytes() for it in values)).hexdigest()


def main() -> None:
    directory = sys.argv[1]
    remote = Remote()
    remote.hello()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    servers = len(resolver.cluster_spec().as_dict()["ps"])
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()
    session = ChiefSession(coordinator, directory, peers=1, model=model)
    step = tf.function(model.train)
    resumed = session.restore_or_start()
    told = {"resumed": resumed.step, "from": resumed.details, "digest": model.digest(), "servers": servers}
    remote.say(told)
    wanted = 0
    for number in session.steps(FOREVER):
        while wanted < number:
            wanted = number - 1 + obey(remote, session, model)
        session.schedule(step, (tf.constant(ids_of(number)),))
        if number == wanted:
            session.join()
            remote.say({"step": session.step})


def obey(remote: Remote, session: ChiefSession, model: Model) -> int:
    """The next command; how many steps it asks for."""
    match remote.lines.readline().split():
        case ["steps", count]:
            return int(count)
        case ["save"]:
            session.save()
            remote.say({"saved": session.step, "digest": model.digest()})
        case ["leave"]:
            session.save_and_leave()
        case ["end"]:
            sys.exit(0)
        case []:
            os._exit(1)  # the test is gone
    return 0


def ids_of(number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The same ids for the same step, whoever takes it."""
    return np.random.default_rng(number).integers(0, IDS, BATCH)


if __name__ == "__main__":
    main()
