"""Whether the workers reach the parameter servers, before a chief sends them steps.

A worker outlives the chiefs and parameter servers that it works with, and so do its connections. One to a
parameter server that came back a moment ago is still down: gRPC tries again every second only (TensorFlow's
setting), and until then says at once that it cannot connect. A step that hits upon this ends the chief,
which is told so as the loss of a parameter server. So a chief has each worker ask each parameter server for
something small first, and again until it has an answer.

A worker that cannot be reached itself, or never gets one, is left to the coordinator, as it may be lost as
well: this waits for a bounded time and raises nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import tensorflow as tf

#: Seconds to wait for all connections, several times what gRPC needs for one.
PATIENCE = 5.0
_PAUSE = 0.1


def devices_of(role: str) -> list[str]:
    """The CPUs of a role's tasks in the cluster that the strategy has connected to."""
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return [name for name in names if f"/job:{role}/" in name]


def wait_for_links(patience: float = PATIENCE) -> list[str]:
    """Return once each worker has reached each parameter server; those that have not within ``patience``."""
    servers = devices_of("ps")

    @tf.function  # type: ignore[untyped-decorator]
    def ask_all() -> Any:
        answers = []
        for server in servers:
            with tf.device(server):
                answers.append(tf.random.uniform([]))  # nothing that is known before it runs
        return tf.add_n(answers)

    deadline = time.monotonic() + patience
    return [worker for worker in devices_of("worker") if servers and not _gets(ask_all, worker, deadline)]


def _gets(ask: Any, worker: str, deadline: float) -> bool:
    """Whether a worker has its answers before the deadline of the monotonic clock."""
    pause = threading.Event()
    while True:
        try:
            with tf.device(worker):
                ask()
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            if time.monotonic() >= deadline:
                return False
            pause.wait(_PAUSE)  # nobody tells when gRPC has tried again
        else:
            return True
