"""A job with parameter servers whose model counts how often it was trained on each sample.

Arguments: a directory for checkpoints, one for records, and the last step. The chief prints its cluster, each
step that it sends, and at last the counts.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tensorflow as tf

from elasticrun.tf import ChiefSession, ElasticDataset

LENGTH, BATCH = 101, 4
SAVE_EVERY = 5


def tell(**facts: Any) -> None:
    sys.stdout.write(f"chief: {json.dumps(facts)}\n")
    sys.stdout.flush()


def main(directory: str, records: str, last: int) -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    servers = resolver.cluster_spec().num_tasks("ps")
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counts = tf.Variable(tf.zeros([LENGTH, 1]))  # in a part on each parameter server
    data = ElasticDataset(LENGTH, BATCH, seed=7)
    session = ChiefSession(coordinator, directory, peers=1, records=records, counts=counts, data=data)
    resumed = session.restore_or_start()
    half = -(-LENGTH // servers)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(indices: Any) -> Any:
        for number, part in enumerate(counts.variables):
            mine = tf.boolean_mask(indices, indices // half == number)
            part.scatter_add(tf.IndexedSlices(tf.ones([tf.size(mine), 1]), mine - number * half))
        return tf.size(indices)

    attempt = int(os.environ["ELASTICRUN_ATTEMPT"])
    tell(attempt=attempt, cluster=json.loads(os.environ["TF_CONFIG"])["cluster"], resumed=resumed.step)
    batches = iter(data)
    for number in session.steps(last, save_every=SAVE_EVERY):
        session.schedule(step, args=(next(batches),))
        tell(attempt=attempt, step=number)
    tell(counts=tf.convert_to_tensor(counts).numpy()[:, 0].tolist(), samples=data.samples)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
