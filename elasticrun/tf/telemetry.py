"""Reports the steps of a TensorFlow program: to its agent, and to TensorBoard if asked for.

Theory. To report a step is to write to a page of memory that the agent shares (``elasticrun.report_step``);
the agent looks at the page when it has a heartbeat to send anyway. So a report costs microseconds, waits for
nobody, and outside ``elastic-run`` it does nothing. Event files are written by a thread (``event_file.py``).

A step's *graph time* is what its computation took: the body of ``with telemetry.step()``, of a pass of
``for batch in telemetry.steps(dataset)``, or of a batch of ``fit``. Waiting for input is not part of it. Only
the time of this program is measured: steps that a ``ClusterCoordinator`` has scheduled count only if the body
also waits for them, and values that an accelerator still computes do not count.

Steps are numbered as they are done, from 1 in a new program, so a step has the number of the checkpoint that
is made after it. Use one of the three for each step, in one thread::

    telemetry = Telemetry(log_dir="/logs/chief")
    for batch in telemetry.steps(dataset):  # or: with telemetry.step(): train_step(next(iterator))
        loss = train_step(batch)  # or: model.fit(..., callbacks=[telemetry.keras_callback()])
        telemetry.scalar("loss", loss)

A ``ChiefSession`` reports its steps itself: hand the Telemetry to it, and use ``scalar`` alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import elasticrun
from elasticrun.tf.event_file import EventFile

T = TypeVar("T")

#: Seconds between two points of our own curves in TensorBoard.
POINT_INTERVAL = 1.0
RATE_TAG = "elasticrun/steps_per_second"
GRAPH_TIME_TAG = "elasticrun/graph_seconds"


class Telemetry:
    """Counts and reports the steps of this process, and never waits."""

    def __init__(self, log_dir: str | None = None, first_step: int = 1) -> None:
        """``log_dir``: a folder for TensorBoard's event files, one for each task; None: none are written.

        ``first_step`` is the number of the next step, if the program does not number its steps itself: one
        more than that of a checkpoint that it restored.
        """
        self.next_step = first_step
        self._events = EventFile(log_dir) if log_dir else None
        self._pointed_at = time.monotonic()
        self._pending = (0, 0, 0.0)  # steps since then, those of them that were timed, seconds of these

    def on_step(self, step: int | None = None, graph_time: float | None = None, count: int = 1) -> None:
        """Report that step number ``step`` (None: the next one) is done, in ``graph_time`` seconds.

        ``count`` steps may have run as one: ``step`` is the last, and ``graph_time`` the time of all.
        """
        number = self.next_step + count - 1 if step is None else int(step)
        self.next_step = number + 1
        elasticrun.report_step(number, seconds=None if graph_time is None else graph_time / count)
        if self._events is not None:
            self._point(self._events, number, graph_time, count)

    def step(self, number: int | None = None) -> AbstractContextManager[None]:
        """A context in which one step is computed; it counts unless it raises."""
        return _Step(self, number)

    def steps(self, dataset: Iterable[T]) -> Iterator[T]:
        """The elements of ``dataset``; each pass of the loop is a step.

        For any iterable, distributed data sets included, in a loop outside of ``tf.function``. A pass that
        leaves the loop early does not count. Nothing is added to the pipeline, so it prefetches as before.
        """
        for element in dataset:
            begun = time.monotonic()
            yield element
            self.on_step(graph_time=time.monotonic() - begun)

    def scalar(self, name: str, value: Any, step: int | None = None) -> None:
        """Add a point to a curve in TensorBoard, at ``step`` or the step that is computed now.

        ``value``: a number, or a tensor of one; only the writing thread waits for the tensor.
        """
        if self._events is not None:
            self._events.add(name, value, self.next_step if step is None else int(step))

    def keras_callback(self, keras: Any = None) -> Any:
        """A callback for ``fit`` that makes each batch a step, numbered by the optimizer's count.

        ``keras`` is the package whose ``fit`` is used; None: ``tf.keras``.
        """
        if keras is None:
            import tensorflow as tf

            keras = tf.keras
        return type("TelemetryCallback", (_BatchHooks, keras.callbacks.Callback), {})(self)

    def close(self) -> None:
        """Write the last points; the end of the process does that as well."""
        if self._events is not None:
            self._events.close()

    def _point(self, events: EventFile, step: int, graph_time: float | None, count: int) -> None:
        steps, timed, seconds = self._pending
        steps += count
        if graph_time is not None:
            timed, seconds = timed + count, seconds + graph_time
        now = time.monotonic()
        if now - self._pointed_at < POINT_INTERVAL:
            self._pending = (steps, timed, seconds)
            return
        events.add(RATE_TAG, steps / (now - self._pointed_at), step)
        if timed:
            events.add(GRAPH_TIME_TAG, seconds / timed, step)
        self._pointed_at, self._pending = now, (0, 0, 0.0)


class _Step(AbstractContextManager[None]):
    """Times one step."""

    def __init__(self, telemetry: Telemetry, number: int | None) -> None:
        self._telemetry = telemetry
        self._number = number
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._telemetry.on_step(self._number, time.monotonic() - self._begun)


class _BatchHooks:
    """The hooks of a Keras callback; Keras's own base class is added once Keras is imported."""

    model: Any
    _supports_tf_logs = True  # else tf_keras waits for the losses of each batch

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self._telemetry = telemetry
        self._first = 0  # number in its epoch of the batch that is computed
        self._begun = 0.0

    def on_train_begin(self, logs: object = None) -> None:
        """Count on from the optimizer's count, which a checkpoint may have restored."""
        self._telemetry.next_step = int(self.model.optimizer.iterations) + 1

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Note the start of a batch, or of several that run as one."""
        self._first = batch
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Report the steps; ``batch`` is the last of several."""
        seconds = time.monotonic() - self._begun
        self._telemetry.on_step(graph_time=seconds, count=max(1, batch - self._first + 1))
