"""Train a small convolutional net on real handwritten digits with MultiWorkerMirroredStrategy.

The 1,797 images of 8 x 8 pixels are the UCI digits that scikit-learn ships, so nothing is downloaded.

    elastic-run --framework tensorflow --nproc-per-node 3 --max-restarts 3 examples/tensorflow/digits_mwms.py

It is a custom loop, because `fit` of Keras 3 does not work with this strategy. The launcher writes TF_CONFIG.
A world of this strategy is fixed, so if a worker is lost all of them start anew. What makes it fit for that:

* The batch is that of the whole world and a function of (seed, step). So no random state needs saving, and a
  resumed run computes what an undisturbed run computes, but for the rounding of sums.
* The first worker saves after every epoch. All hosts have to see its folder.
* If a node is about to leave, the launcher says so. The word rides with the loss, which is summed over all
  workers anyway: so all of them stop after the same step, with exit status 42 for "saved", which costs none
  of the restarts.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from elasticrun import checkpointing, drain_requested, report_step

#: The held-out images are the same whatever --seed is, or accuracies could not be compared.
SPLIT_SEED = 0
TEST_FRACTION = 0.2
SAVED = 42


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images (default 20)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, all workers together")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (default 0.003)")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of images")
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        help="go on from the checkpoint in this folder, if there is one, and save there (default: a folder "
        "of this launch, so that a restarted worker goes on and a new launch starts anew)",
    )
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line in one write, so that lines of several workers on one terminal stay whole."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def launch_dir() -> Path:
    """A folder that lives as long as this launch: the one that the launcher made for its logs."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(error_file).parents[2] if error_file else Path(tempfile.mkdtemp(prefix="digits-"))


def load_data() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """(train, test), each (images of shape 8 x 8 x 1 with pixels in 0..1, the digits they show)."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_FRACTION, random_state=SPLIT_SEED, stratify=labels
    )
    return (images[train], labels[train]), (images[test], labels[test])


def make_model() -> Any:
    """Two convolutions and two dense layers; 75,000 weights."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def chosen(seed: int, count: int, size: int, first: int, last: int) -> Any:
    """The images of each batch from step ``first`` to ``last``: every epoch has an order of its own."""
    per_epoch = count // size
    epochs = range(first // per_epoch, math.ceil(last / per_epoch))
    orders = [np.random.default_rng((seed, epoch)).permutation(count) for epoch in epochs]
    rows = [order[: per_epoch * size].reshape(per_epoch, size) for order in orders]
    begin = first % per_epoch
    return np.concatenate([np.empty((0, size), np.int64), *rows])[begin : begin + last - first]


class Trainer:
    """A model, what trains it, and the checkpoint that all of it goes on from."""

    def __init__(self, args: argparse.Namespace, resolver: Any) -> None:
        self.args = args
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        self.is_first = resolver.task_type == "chief" or (
            resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs
        )
        (self.images, self.labels), self.test = load_data()
        self.per_epoch = len(self.images) // args.batch_size
        self.last = args.epochs * self.per_epoch
        tf.keras.utils.set_random_seed(args.seed)
        with self.strategy.scope():
            self.model = make_model()
            # A function of the step, which is saved with the optimizer.
            rate = tf.keras.optimizers.schedules.CosineDecay(args.lr, max(1, self.last))
            self.optimizer = tf.keras.optimizers.Adam(rate)
            self.optimizer.build(self.model.trainable_variables)  # so that there are slots to restore
        checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        folder = args.checkpoint_dir or launch_dir()
        self.manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
        if self.manager.latest_checkpoint:
            checkpoint.restore(self.manager.latest_checkpoint).assert_existing_objects_matched()

    @property
    def step(self) -> int:
        """How many steps are done; the optimizer counts them."""
        return int(self.optimizer.iterations.numpy())

    def batches(self, first: int) -> Any:
        """This worker's share of each batch from step ``first`` on."""
        rows = chosen(self.args.seed, len(self.images), self.args.batch_size, first, self.last)

        def mine(context: Any) -> Any:
            share = rows[:, context.input_pipeline_id :: context.num_input_pipelines]
            data = tf.data.Dataset.from_tensor_slices(share)
            data = data.map(lambda row: (tf.gather(self.images, row), tf.gather(self.labels, row)))
            return data.repeat()  # without an end, workers need not agree at each step whether it is there

        return self.strategy.distribute_datasets_from_function(mine)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(self, batch: Any, leaves: Any) -> Any:
        """One step of all workers: (mean loss, how many of them are asked to leave)."""

        def local(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = self.model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(losses) / self.args.batch_size
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return tf.stack([loss, leaves])

        return self.strategy.reduce("SUM", self.strategy.run(local, args=batch), axis=None)

    def save(self) -> None:
        """Save; the first worker alone, as all have the same."""
        if self.is_first:
            with checkpointing():
                self.manager.save(checkpoint_number=self.step)

    def train(self) -> None:
        """Train from the newest checkpoint to the last epoch."""
        first = self.step
        if first == self.last:
            return
        data, losses = iter(self.batches(first)), []
        for number in range(first + 1, self.last + 1):
            loss, leaving = self.train_step(next(data), tf.constant(float(drain_requested()))).numpy()
            report_step(number)
            losses.append(loss)
            if leaving:
                self.save()
                sys.exit(SAVED)
            if number % self.per_epoch == 0:
                self.save()
                if self.is_first:
                    say(f"epoch {number // self.per_epoch} loss {np.mean(losses):.4f}")
                losses.clear()

    def accuracy(self) -> float:
        """The fraction of held-out images whose digit is recognised."""
        images, labels = self.test
        return float(np.mean(np.argmax(self.model(images, training=False), axis=1) == labels))


def main() -> None:
    """Join the world, train, test."""
    args = parse_args()
    if not os.environ.get("TF_CONFIG"):
        sys.exit(f"start me with: elastic-run --framework tensorflow --nproc-per-node 2 {sys.argv[0]}")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    trainer = Trainer(args, resolver)
    replicas = trainer.strategy.num_replicas_in_sync
    say(
        f"{resolver.task_type} {resolver.task_id}: pid {os.getpid()}, one of {replicas} replicas, "
        f"{trainer.step} of {trainer.last} steps done before"
    )
    trainer.train()
    if trainer.is_first:
        say(f"test accuracy {trainer.accuracy():.4f}")


if __name__ == "__main__":
    main()
