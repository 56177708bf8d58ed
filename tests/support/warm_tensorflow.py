"""A chief that reports what it sees of its process, and ends in another way in each round.

    warm_tensorflow.py FOLDER ARGUMENT...

It writes ``FOLDER/<round>-0.json``: facts as they are at its first line ("start"), and in the first round
also after the import of tensorflow ("imported") and after its first operations ("used"). What has to be
different in each process ("drawn") it reports wherever that costs no second import.
"""

# ruff: noqa: E402 what the first line sees is taken before anything is imported

import sys

FIRST_MODULES = sorted(sys.modules)

import atexit
import gc
import importlib
import json
import os
import signal
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

kernel_report = importlib.import_module("kernel_report")  # it lies beside this one

ROUND = int(os.environ["ELASTICRUN_ROUND"])
SAVED = 42
#: A draw that only comes out the same if the state was shared.
WIDE = 2**31 - 1


def facts() -> dict[str, Any]:
    task = json.loads(os.environ["TF_CONFIG"])
    return {
        **kernel_report.kernel(),
        **kernel_report.environment(),
        "environment": {**os.environ, "TF_CONFIG": [task["task"], sorted(task["cluster"])]},
        "environment in C": [],
        "argv": [sys.argv, sys.orig_argv, sys.path, __name__, __file__],
        "signal handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "python threads": threading.active_count(),
        "stderr": [sys.stderr.line_buffering, sys.stderr.encoding, sys.stderr.isatty()],
    }


def of_import() -> dict[str, Any]:
    return {
        "modules": sorted(sys.modules),
        "warning filters": [str(filter_) for filter_ in warnings.filters],
        "exit handlers": atexit._ncallbacks(),
        "collector": [gc.isenabled(), gc.get_threshold()],
    }


def of_operations() -> dict[str, Any]:
    """Pools, devices, and what seeds make of them."""
    import tensorflow as tf

    tf.random.set_seed(7)
    layer = tf.keras.layers.Dense(3, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=5))
    squares = tf.data.Dataset.range(5).map(lambda x: x * x, num_parallel_calls=2).prefetch(2)
    summed = tf.function(lambda x: tf.reduce_sum(layer(x)))(tf.random.normal([4, 2]))
    return {
        "devices": [device.name for device in tf.config.list_logical_devices()],
        "threads": sorted(pools().items()),
        "function": float(summed),
        "squares": [int(number) for number in squares],
        "failure": failure(),
    }


def pools() -> Counter[str]:
    """Tensorflow's threads, by name."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return Counter(name for name in names if name.startswith("tf_"))


def failure() -> str:
    import tensorflow as tf

    try:
        tf.ones([2, 3]) @ tf.ones([2, 3])
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return "none"


def drawn() -> dict[str, Any]:
    import numpy
    import tensorflow as tf

    device_lib = importlib.import_module("tensorflow.python.client.device_lib")
    return {
        "numpy": numpy.random.random(),
        "eager": float(tf.random.uniform([], dtype=tf.float64)),
        "function": float(tf.function(lambda: tf.random.uniform([], dtype=tf.float64))()),
        "generator": tf.random.Generator.from_non_deterministic_state().state.numpy().tolist(),
        "dataset": next(iter(tf.data.Dataset.random())).numpy().item(),
        "keras": tf.keras.random.randint((2,), 0, WIDE).numpy().tolist(),
        "initializer": tf.keras.initializers.RandomUniform()((3,)).numpy().tolist(),
        "incarnation": [device.incarnation for device in device_lib.list_local_devices()],
    }


def fail(names: dict[str, int]) -> None:
    try:
        names["no such"] += 1
    except KeyError as error:
        raise ValueError("no such\n  layer: é") from error


def main() -> None:
    is_there = "tensorflow._api.v2" in FIRST_MODULES  # what is private is not hidden
    report: dict[str, Any] = {"start": facts(), "tensorflow is there": is_there}
    if ROUND == 0 or is_there:
        importlib.import_module("tensorflow")
        report["imported"] = {**facts(), **of_import()}
        report["drawn"] = drawn()
        report["used"] = of_operations()
    Path(sys.argv[1], f"{ROUND}-0.json").write_text(json.dumps(report, default=str))
    atexit.register(Path(sys.argv[1], f"{ROUND}-0.end").touch)
    print(f"round {ROUND} to stdout")
    if ROUND == 0:
        sys.exit(SAVED)
    if ROUND == 1:
        fail({})


if __name__ == "__main__":
    main()
