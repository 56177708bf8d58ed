"""What a TensorFlow program tells of its steps, without TensorFlow as far as that goes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.agent.monitors.page import VARIABLE, ProgressPage
from elasticrun.tf import telemetry as module
from elasticrun.tf.event_file import FILE_VERSION
from elasticrun.tf.telemetry import GRAPH_TIME_TAG, RATE_TAG, Telemetry
from tests.support.processes import TORCH_DEADLINE


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    page = ProgressPage(1)
    yield page
    page.close()


def run(page: ProgressPage | None, code: str, *arguments: str) -> tuple[str, str]:
    """What a program prints that uses Telemetry, and its standard error."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if page is not None:
        environment |= page.environment(0, environment, auto=False)
    done = subprocess.run(
        [sys.executable, "-c", f"from elasticrun.tf.telemetry import Telemetry\n{code}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TORCH_DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


STEPS = """
telemetry = Telemetry(first_step=100)
with telemetry.step(): pass
for element in telemetry.steps([1, 2, 3]):
    if element == 3: break
with telemetry.step(7): pass
try:
    with telemetry.step(): raise KeyError
except KeyError: pass
telemetry.on_step()
telemetry.on_step(graph_time=500.0, count=10)
telemetry.scalar("loss", 1.0)
telemetry.close()
import sys; print("tensorflow" in sys.modules, telemetry.next_step)
"""


def test_outside_of_a_launch_nothing_happens() -> None:
    assert run(None, STEPS) == ("False 19", "")


def test_steps_reach_the_page_with_their_numbers_and_times(page: ProgressPage) -> None:
    assert run(page, STEPS) == ("False 19", "")
    slot, pace = page.read(0), page.pace(0)
    assert slot is not None
    assert pace is not None
    assert (slot.progress.steps, slot.progress.step) == (6, 18)
    assert (pace.owner, pace.timed) == (slot.owner, 5), "one of the six was not timed"
    assert 50.0 <= pace.seconds < 80.0, "500 seconds for ten steps; the others did nothing"


def test_a_time_that_is_none_costs_nothing_else(page: ProgressPage) -> None:
    run(page, "for time in (-1.0, float('nan'), float('inf')): Telemetry().on_step(5, time)")
    pace = page.pace(0)
    assert pace is not None
    assert (pace.step, pace.timed) == (5, 0)


class Reports:
    """What was reported, in place of the worker library, and of the event file."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float | None]] = []
        self.points: list[tuple[str, Any, int]] = []
        self.now = 0.0

    def report_step(self, step: int, *, seconds: float | None) -> None:
        self.steps.append((step, seconds))

    def add(self, tag: str, value: Any, step: int) -> None:
        self.points.append((tag, value, step))

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    reports = Reports()
    monkeypatch.setattr(module, "elasticrun", reports)
    monkeypatch.setattr(module, "EventFile", lambda folder: reports)
    monkeypatch.setattr(module, "time", reports)
    return reports


def test_a_pass_of_the_loop_is_a_step_and_waiting_for_input_is_none(reports: Reports) -> None:
    def slow_input() -> Iterable[str]:
        for element in "abc":
            reports.now += 5.0
            yield element

    for _ in Telemetry().steps(slow_input()):
        reports.now += 0.25
    assert reports.steps == [(1, 0.25), (2, 0.25), (3, 0.25)]


def test_points_of_a_curve_are_a_second_apart_and_are_averages(reports: Reports) -> None:
    telemetry = Telemetry("folder")
    for _ in range(8):
        with telemetry.step():
            reports.now += 0.125
        reports.now += 0.125
    telemetry.on_step(graph_time=0.5, count=2)
    reports.now += 2.0
    telemetry.on_step()
    assert reports.points == [
        (RATE_TAG, 5 / 1.125, 5),
        (GRAPH_TIME_TAG, 0.125, 5),
        (RATE_TAG, 6 / 2.875, 11),
        (GRAPH_TIME_TAG, (3 * 0.125 + 0.5) / 5, 11),
    ]


def test_a_value_belongs_to_the_step_that_is_computed(reports: Reports) -> None:
    telemetry = Telemetry("folder", first_step=3)
    with telemetry.step():
        telemetry.scalar("loss", "tensor")
    telemetry.scalar("accuracy", 0.5, step=3)
    assert reports.points == [("loss", "tensor", 3), ("accuracy", 0.5, 3)]


def test_batches_of_keras_are_numbered_by_the_optimizer(reports: Reports) -> None:
    keras = SimpleNamespace(callbacks=SimpleNamespace(Callback=type("Callback", (), {})))
    callback = Telemetry().keras_callback(keras)
    assert isinstance(callback, keras.callbacks.Callback)
    callback.model = SimpleNamespace(optimizer=SimpleNamespace(iterations=40))
    callback.on_train_begin()
    for first, last in ((0, 0), (1, 4)):
        callback.on_train_batch_begin(first)
        reports.now += 0.5
        callback.on_train_batch_end(last, {})
    assert reports.steps == [(41, 0.5), (45, 0.125)]


# -- with TensorFlow

REAL = """
import json, os, resource, sys
import tensorflow as tf
folder = sys.argv[1]
telemetry = Telemetry(folder + "/good/chief")

@tf.function
def double(batch): return 2.0 * tf.reduce_sum(batch)

for batch in telemetry.steps(tf.data.Dataset.from_tensor_slices([[1.0, 2.0], [3.0, 4.0]])):
    telemetry.scalar("sum", double(batch))
telemetry.scalar("odd", [1.0, 2.0], 7)
telemetry.scalar("odd", "text", 7)

class Coordinator:  # whose workers are this process
    def schedule(self, function, args):
        from types import SimpleNamespace
        result = function()
        return SimpleNamespace(fetch=lambda: result)
    def join(self): pass

from elasticrun.tf.chief import ChiefSession
session = ChiefSession(
    Coordinator(), folder + "/saved", steps_in_flight=1, telemetry=telemetry, table=tf.Variable(1.0)
)
for number in session.steps(2): session.schedule(lambda: 0.5)
telemetry.scalar("chief", session.newest, session.step)

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=3)
x = tf.ones((12, 2))
model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[telemetry.keras_callback()])
telemetry.scalar("end", 1)
telemetry.close()

points = []
for name in tf.io.gfile.glob(folder + "/good/chief/events.out.tfevents.*"):
    for record in tf.data.TFRecordDataset(name):
        event = tf.compat.v1.Event.FromString(record.numpy())
        points += [(value.tag, value.simple_value, event.step) for value in event.summary.value]
        points += [(event.file_version, 0, 0)] if event.file_version else []
print(json.dumps(points))

open(folder + "/file", "w").close()
Telemetry(folder + "/file/below").close()  # cannot be made
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
full = Telemetry(folder + "/full")
for step in range(1000):
    full.scalar("x", 1.0, step)
full.close()
full.scalar("x", 1.0, 5)
"""


@pytest.mark.tensorflow
def test_steps_of_real_programs_and_their_event_files(page: ProgressPage, tmp_path: Path) -> None:
    """The checks of one process, as each that imports TensorFlow takes seconds."""
    out, err = run(page, REAL, str(tmp_path))
    points: list[tuple[str, float, int]] = [tuple(point) for point in json.loads(out)]
    assert points[0][0] == FILE_VERSION
    found = [point for point in points if not point[0].startswith(("elasticrun/", "brain."))]
    assert found == [("sum", 6.0, 1), ("sum", 14.0, 2), ("chief", 0.5, 2), ("end", 1.0, 13)]
    slot, pace = page.read(0), page.pace(0)
    assert slot is not None
    assert pace is not None
    assert (slot.progress.steps, slot.progress.step) == (2 + 2 + 4, 12), (
        "12 batches, three of which run as one"
    )
    assert pace.timed == 6
    ours = [line for line in err.splitlines() if "is left out" in line or "no more TensorBoard" in line]
    assert [re.sub(r"^WARNING:\S*:(?=\w)|: .*", "", line) for line in ours] == [
        f"odd of step 7 is left out of {tmp_path}/good/chief",
        f"no more TensorBoard events are written to {tmp_path}/file/below, training goes on",
        f"no more TensorBoard events are written to {tmp_path}/full, training goes on",
    ], err
