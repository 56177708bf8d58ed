"""Whether the workers reach the parameter servers, before a chief sends them steps.

A worker outlives the chiefs and parameter servers that it works with, and so do its connections. Its
connection to a parameter server that has just come back is still down: gRPC tries again after 0.1 seconds or
more (the launcher's setting; TensorFlow's is a second), and until then fails at once. A step that meets this
ends the chief, which takes it for the loss of a parameter server. So a chief first has each worker ask each
parameter server for something small, again and again until there is an answer.

A worker that cannot be reached, or gets no answer, is left to the coordinator, as it may be lost as well: the
wait is bounded, and a failed connection raises nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import tensorflow as tf

#: Seconds to wait for all connections, several times what gRPC needs for one.
PATIENCE = 5.0
_PAUSE = 0.02


def devices_of(role: str) -> list[str]:
    """The CPUs of a role's tasks in the cluster that the strategy has connected to."""
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return [name for name in names if f"/job:{role}/" in name]


def wait_for_links(patience: float = PATIENCE) -> list[str]:
    """Wait until each worker has reached each parameter server; returns those that have not in time."""
    servers = devices_of("ps")

    @tf.function  # type: ignore[untyped-decorator]
    def ask_all() -> Any:
        answers = []
        for server in servers:
            with tf.device(server):
                answers.append(tf.random.uniform([]))  # no constant: it has to run there
        return tf.add_n(answers)

    missing = devices_of("worker") if servers else []
    deadline, pause = time.monotonic() + patience, threading.Event()
    while missing := [worker for worker in missing if not _gets(ask_all, worker)]:
        if time.monotonic() >= deadline:
            break
        pause.wait(_PAUSE)  # nothing signals that gRPC has tried again
    return missing


def _gets(ask: Any, worker: str) -> bool:
    """Whether a worker gets its answers."""
    try:
        with tf.device(worker):
            ask()
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        return False
    return True
