"""A TensorBoard event file that is written beside training, never in its way.

Theory. An event file is a file of records, each an ``Event`` of tensorflow's own, so no part of TensorBoard
is needed to write one. Values go into a queue that is bounded; a thread takes them out from time to time,
turns them into numbers (which may mean to wait for a device) and writes them. ``tf.summary`` would write in
the thread that trains, and run its operations where the distribution strategy puts them.

Invariants. ``add`` neither waits nor raises. The first error of the file (a full disk, a folder that cannot
be made) ends it with one warning. If the file is slower than training, the oldest values are left out.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections import deque
from typing import Any

logger = logging.getLogger(__name__)

#: Values that may wait for the thread.
MAX_WAITING = 10_000
#: Seconds between two writes, and how long the process waits at its end for the last one.
INTERVAL = 2.0
PATIENCE = 2.0
#: What the first event of each file says.
FILE_VERSION = "brain.Event:2"


class EventFile:
    """One event file in ``folder``, on any file system that tensorflow knows."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._waiting: deque[tuple[float, str, Any, int]] = deque(maxlen=MAX_WAITING)
        self._news = threading.Event()
        self._end = threading.Event()
        self._is_lost = False
        self._has_odd_value = False  # and a warning was given
        self._thread = threading.Thread(target=self._run, name="elasticrun-events", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, tag: str, value: Any, step: int) -> None:
        """Queue a value: a number, or anything that ``float`` makes one, such as a tensor."""
        if self._is_lost:
            return
        self._waiting.append((time.time(), tag, value, step))
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        """Write the rest, but wait no longer than ``PATIENCE`` for that. May be repeated."""
        atexit.unregister(self.close)
        self._end.set()
        self._news.set()
        self._thread.join(PATIENCE)
        self._is_lost = True

    def _run(self) -> None:
        import tensorflow as tf

        try:
            self._write(tf)
        except (tf.errors.OpError, OSError) as error:
            self._is_lost = True
            self._waiting.clear()
            logger.warning(
                "no more TensorBoard events are written to %s, training goes on: %s", self._folder, error
            )

    def _write(self, tf: Any) -> None:
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{id(self)}"
        tf.io.gfile.makedirs(self._folder)
        with tf.io.TFRecordWriter(f"{self._folder}/{name}") as file:
            event = tf.compat.v1.Event(wall_time=time.time(), file_version=FILE_VERSION)
            file.write(event.SerializeToString())
            is_over = False
            while not is_over:
                self._news.wait()
                is_over = self._end.wait(INTERVAL)
                self._news.clear()
                while self._waiting:
                    event = self._event(tf, *self._waiting.popleft())
                    if event is not None:
                        file.write(event.SerializeToString())
                file.flush()

    def _event(self, tf: Any, wall_time: float, tag: str, value: Any, step: int) -> Any:
        try:
            number = float(value)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            if not self._has_odd_value:
                logger.warning("%s of step %d is left out of %s: %s", tag, step, self._folder, error)
            self._has_odd_value = True
            return None
        item = tf.compat.v1.Summary.Value(tag=tag, simple_value=number)
        return tf.compat.v1.Event(wall_time=wall_time, step=step, summary=tf.compat.v1.Summary(value=[item]))
