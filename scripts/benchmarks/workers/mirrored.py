"""A worker of MultiWorkerMirroredStrategy that trains as little as possible, until it is killed.

Reports ``line`` (the script's first line), ``imported`` (tensorflow is there), ``group`` (the strategy is
ready and what was saved is restored), ``reduced`` (its first step) and then each ``step``, by its number in
training. Its arguments are a directory, and after how many steps it saves there.
"""

import time

BEGUN = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402

CONFIG = json.loads(os.environ["TF_CONFIG"])
RANK = CONFIG["task"]["index"]
EVENTS = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)
ABOUT = {"pid": os.getpid(), "rank": RANK, "world": len(CONFIG["cluster"]["worker"])}
STEP = 0.02  # seconds of a step beside the all-reduce
NEVER = threading.Event()


def report(what: str, at: float | None = None, **more: int) -> None:
    event = {"what": what, "at": time.monotonic() if at is None else at, **ABOUT, **more}
    os.write(EVENTS, json.dumps(event).encode() + b"\n")


report("line", BEGUN)

import tensorflow as tf  # noqa: E402

report("imported")


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([64, 10]), aggregation=tf.VariableAggregation.MEAN)
    step = tf.Variable(0, dtype=tf.int64)

    def learn(number: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([number, tf.constant(RANK, tf.int64)])
        points = tf.random.stateless_normal([32, 64], seed=seed)
        labels = tf.argmax(points[:, :10], axis=1)
        with tf.GradientTape() as tape:
            logits = points @ weights
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train(number: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(learn, (number,)), axis=None)

    # Every worker saves, as the strategy's guide wants it; only what worker 0 saves is restored.
    folder, save_every = Path(sys.argv[1]), int(sys.argv[2])
    checkpoint = tf.train.Checkpoint(weights=weights, step=step)
    mine = str(folder if RANK == 0 else folder / f"of-worker-{RANK}")
    manager = tf.train.CheckpointManager(checkpoint, mine, max_to_keep=2)
    if newest := tf.train.latest_checkpoint(str(folder)):
        checkpoint.restore(newest)
    report("group")
    first = int(step.numpy()) + 1
    number = first
    while True:
        float(train(tf.constant(number, tf.int64)))
        report("reduced" if number == first else "step", step=number)
        step.assign(number)
        if number % save_every == 0:
            manager.save(number)
        number += 1
        NEVER.wait(STEP)


if __name__ == "__main__":
    main()
