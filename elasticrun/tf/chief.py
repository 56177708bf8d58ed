"""The chief's session: the loop of a job with parameter servers, which can stop and resume at any step.

Theory. All state of such a job lies in the parameter servers' variables, and the chief knows when it is
whole: after ``ClusterCoordinator.join`` no worker changes it any more. So that is when a checkpoint is made,
both while training and when this chief is asked to go, by SIGTERM or because its node leaves. It then ends
with ``SAVED_STATUS``, which the launcher takes for "start me again, it was no failure", and the next chief
goes on at the same step, with another number of parameter servers if need be.

The coordinator takes any number of steps at once. But then nobody could say which step is done, a request to
go would wait for all of them, and a failure would surface an hour later. So the session keeps only a few
in flight, and waits for the oldest before it sends another.

Invariants. A step counts as done once its result is there; its number is what a checkpoint holds and what is
reported to the launcher. Nothing is in flight when a checkpoint is made, so positions in data that are saved
with it (``positions.py``) are those that the variables were trained on. A second request to go changes
nothing. All slots and variables that exist are restored, or the session refuses to go on.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elasticrun import checkpointing, drain_requested, report_step
from elasticrun.core.tensorflow.role_recovery import SAVED_STATUS
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.tf.dataset import ElasticDataset
from elasticrun.tf.ending import SavedExit, end_at_once_on_errors
from elasticrun.tf.links import devices_of, wait_for_links
from elasticrun.tf.positions import SavedPositions

if TYPE_CHECKING:
    from elasticrun.tf.backup import PeerBackup
    from elasticrun.tf.telemetry import Telemetry

#: The source of a state that was not read from the checkpoint's files.
COPIES = "copies of the parameter servers"
#: The name of the positions in data, in a checkpoint.
_POSITIONS = "positions"
#: Names in a checkpoint that are the session's.
_OWN = frozenset({"step", _POSITIONS})
#: Steps in flight for each worker: one runs while the next is on its way.
_STEPS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where training goes on."""

    step: int  # the last step that is done; 0 at the very beginning
    source: str  # the path of the checkpoint, or "copies of the parameter servers"; "" if there was none
    details: tuple[str, ...] = ()  # where the state of each parameter server is from, if copies are kept

    def __str__(self) -> str:
        return f"resumed at step {self.step} from {self.source}" if self.source else "started at step 0"


class ChiefSession:
    """Paces, saves and resumes the steps that a chief sends to its workers.

    Make it in the main thread after all variables, as it takes over SIGTERM. ``objects`` are what has to be
    saved, by name, as for ``tf.train.Checkpoint``. If an error ends the program, or it has saved and leaves,
    the process ends without a teardown of tensorflow (``elasticrun/tf/ending.py``).

    ``directory`` has to be on a disk that the parameter servers share, as each of them writes and reads its
    own variables; with ``through_chief`` the chief alone does, and all of them pass through its memory.

    ``peers``: keep copies of each checkpoint in the memory of this many other parameter servers, and restore
    from these first (see ``PeerBackup``); None: none are kept.

    An ``ElasticDataset`` among the objects goes on with the samples that the restored model has not seen: its
    position is in the same checkpoint. ``records``: a directory in which each chief records these positions,
    for ``elastic-ctl audit``.

    Each step that is done is reported to the launcher; by ``telemetry``, if given, which may draw curves too.
    """

    def __init__(
        self,
        coordinator: Any,
        directory: str | Path,
        *,
        max_to_keep: int = 3,
        steps_in_flight: int | None = None,
        through_chief: bool = False,
        peers: int | None = None,
        telemetry: Telemetry | None = None,
        records: str | Path | None = None,
        **objects: Any,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("make a ChiefSession in the main thread, as only that one can handle SIGTERM")
        if steps_in_flight is not None and steps_in_flight < 1:
            raise UsageError(f"steps_in_flight={steps_in_flight}: give 1 or more, or leave it to the session")
        if not _OWN.isdisjoint(objects) or not objects:
            raise UsageError(
                f"name what has to be saved, as in model=model; the names {', '.join(sorted(_OWN))} are taken"
            )
        data = {name: it for name, it in objects.items() if isinstance(it, ElasticDataset)}
        if records is not None and not data:
            raise UsageError(
                "records= has nothing to record: give the session an ElasticDataset, as in data=data"
            )
        self.coordinator = coordinator
        self.newest: Any = None  # the result of the newest step done
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)  # on the chief itself: no scope
        self._done = 0
        self._saved = -1  # the step that the newest checkpoint holds
        self._pending: deque[Any] = deque()
        self._limit = steps_in_flight or _STEPS_AHEAD * _count_workers()
        self._asked = False
        self._report = telemetry.on_step if telemetry is not None else report_step
        device = "/job:chief/task:0/device:CPU:0" if through_chief else None
        self._options = tf.train.CheckpointOptions(experimental_io_device=device)
        self._positions = SavedPositions(data, records) if data else None
        saved = {name: it for name, it in objects.items() if name not in data}
        if self._positions is not None:
            saved[_POSITIONS] = self._positions.variable
        self.checkpoint = tf.train.Checkpoint(step=self._step, **saved)
        self.manager = tf.train.CheckpointManager(self.checkpoint, str(directory), max_to_keep=max_to_keep)
        self._backup = _backup(self.checkpoint, peers)
        tf.get_logger().addFilter(_is_news)
        signal.signal(signal.SIGTERM, self._ask)
        end_at_once_on_errors()

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._done

    def restore_or_start(self) -> Resumed:
        """Go on from the newest checkpoint, if there is one.

        Raises UsageError if it lacks a variable that the program has: it is another program's then.
        """
        wait_for_links()
        path = self.manager.latest_checkpoint
        if path is None:
            if self._backup:
                self._backup.forget()
            if self._positions is not None:
                self._positions.begin_anew()
            return Resumed(0, "")
        step = _step_of(path)
        with checkpointing():
            resumed = self._restore(step, path)
            if self._positions is not None:
                self._positions.restored()
        self._done = self._saved = step
        return resumed

    def steps(self, last: int, save_every: int = 0) -> Iterator[int]:
        """The numbers of the steps that remain; schedule one step for each.

        Between two of them this saves every ``save_every`` steps (0: only at the end), and leaves with
        ``SystemExit(SAVED_STATUS)`` if it was asked to go. All steps are done and saved when it ends.
        """
        first = self._done
        for number in range(first + 1, last + 1):
            if self.should_save():
                self.save_and_leave()
            yield number
            if save_every and number % save_every == 0 and number < last:
                self.save()
        if last > first:
            self.save()

    def schedule(self, function: Callable[..., Any], args: Sequence[Any] = ()) -> None:
        """Have a worker run one step; waits while too many are in flight."""
        while len(self._pending) >= self._limit:
            self._finish_oldest()
        self._pending.append(self.coordinator.schedule(function, args=tuple(args)))

    def join(self) -> None:
        """Wait until every step that was scheduled is done; raises what one of them raised."""
        while self._pending:
            self._finish_oldest()
        self.coordinator.join()

    def should_save(self) -> bool:
        """Whether this chief was asked to save and to go."""
        return self._asked or drain_requested()

    def save(self) -> str:
        """Pause the workers and save; returns the path of the checkpoint."""
        self.join()
        if self._saved == self._done:
            return str(self.manager.latest_checkpoint)  # not to be written over: it may be the only one
        self._step.assign(self._done)
        if self._positions is not None:
            self._positions.save(self._done)
        with checkpointing():
            path = str(self.manager.save(checkpoint_number=self._done, options=self._options))
            if self._backup:
                self._backup.save(self._done, path)
        self._saved = self._done
        return path

    def save_and_leave(self) -> None:
        """Save, and end this process with ``SAVED_STATUS``, by SystemExit."""
        self.save()
        raise SavedExit(SAVED_STATUS)

    def _ask(self, signum: int, frame: object) -> None:
        self._asked = True

    def _restore(self, step: int, path: str) -> Resumed:
        if self._backup is None:
            self._read(path)
            return Resumed(step, path)
        restored = self._backup.restore(step, path, self._read)
        return Resumed(step, path if restored.from_file else COPIES, restored.lines)

    def _read(self, path: str) -> None:
        status = self.checkpoint.restore(path, self._options)
        try:
            status.assert_existing_objects_matched()
        except AssertionError as error:
            raise UsageError(
                f"the checkpoint {path} does not hold all that this program has to restore; give another "
                f"directory, or start the program that wrote it ({str(error).splitlines()[0]})"
            ) from None

    def _finish_oldest(self) -> None:
        self.newest = self._pending[0].fetch()
        self._pending.popleft()
        self._done += 1
        self._report(self._done)


def _backup(checkpoint: Any, peers: int | None) -> PeerBackup | None:
    if peers is None:
        return None
    from elasticrun.tf.backup import PeerBackup

    return PeerBackup(checkpoint, peers)


def _step_of(path: str) -> int:
    """The step that a checkpoint holds, which is its number."""
    return int(path.rpartition("-")[2])


def _is_news(record: logging.LogRecord) -> bool:
    """Drop tensorflow's advice about a function that it traces itself for each checkpoint."""
    return "tf_function_save" not in record.getMessage()


def _count_workers() -> int:
    """The number of workers in the cluster of the strategy, at least 1."""
    return max(1, len(devices_of("worker")))
