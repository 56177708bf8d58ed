"""``Checkpointer``: saves the state of a training after a step, and restores it after a restart.

Theory. ``save`` copies the state into memory that the agent owns, and returns: what the loop changes
afterwards never reaches the copy. A thread computes the digests, after it has copied what ``save`` left to
it (``checkpoint/overlap.py``), and only then the agent hears that the part is complete. If the worker is
killed between the copy and the digests, the agent takes the part as it is.

No rank waits for another one: the master finds out which steps all ranks have saved, and the next round
restores the newest of them on all ranks. So a step that one rank could not save is lost, and never half of it
restored.

``load`` has no rank raise alone, as the others would wait for it: all of them raise the same error. What is
in memory is newer than what is in the job's storage, else the master names nothing to restore.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

from elasticrun.checkpoint import exchange, telling
from elasticrun.checkpoint.agent_memory import ROUND, AgentMemory, Granted, SaveRefused
from elasticrun.checkpoint.bare import Device, give_memory, off_meta, warn_of_bare
from elasticrun.checkpoint.gpu import Pins
from elasticrun.checkpoint.loading import Loading, State
from elasticrun.checkpoint.memory import MemoryReader, Writing
from elasticrun.checkpoint.overlap import Later, Overlap, is_steady, steady_tensors
from elasticrun.checkpoint.parallel import threads_for
from elasticrun.checkpoint.parts import Layout, refuse_unplain
from elasticrun.checkpoint.planning import Made, Planner
from elasticrun.checkpoint.records import DataRecord
from elasticrun.checkpoint.rhythm import timing_of
from elasticrun.checkpoint.states import fixed_names, plain_values, states_of
from elasticrun.checkpoint.watching import Watcher
from elasticrun.core.data.shard_audit import is_shards
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.interval import History, oldest
from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")

#: How many of this rank's buffers are mapped beforehand: one is written while another one can be restored.
BUFFERS = 2
#: Saves in a row that other ranks did not make before somebody is warned.
IN_VAIN = 5

Said = tuple[Mapping[str, Any], Mapping[str, Any]]  # for the record: plain values, and trails


class Checkpointer:
    """Saves and restores the state of one worker.

    ``state`` is a dict of tensors, of objects with ``state_dict`` and ``load_state_dict`` (modules,
    optimizers, schedulers), and of plain values. Every rank has to save the same steps. Outside of
    elastic-run nothing is kept.
    """

    def __init__(
        self,
        every: int | Literal["auto"] = 1,
        records: str | os.PathLike[str] | None = None,
        overlap: bool = False,
    ) -> None:
        """Connect to this worker's agent, if there is one.

        ``every``: how many steps lie between two that ``save`` saves. "auto": as many as lose the least time,
        by what a save and a step take and how often the job fails (``core/state/interval.py``). With it all
        ranks have to be connected by ``torch.distributed``, and to call ``save`` after the same steps.

        ``records``: a directory in which each rank records the positions in the data that it saves, for
        ``elastic-ctl audit``; one for each job. It may be shared by nodes.

        ``overlap``: what the optimizers in ``state`` have is copied while the next step computes, and the
        next ``step`` of an optimizer waits for it. Nothing else may change these tensors before that.

        Raises:
            CheckpointError: the agent cannot be reached, or is of another version; or ``records`` cannot be
                written, or is that of another job.
        """
        self._round = int(os.environ.get(ROUND, "0"))
        self._history = History().failed(self._round)
        self._began = time.monotonic()
        self._timing = timing_of(every, self._history_now, os.environ, time.monotonic)
        self._watcher = Watcher()
        self._memory = AgentMemory.connect(os.environ)
        self._pins = Pins()
        if self._memory is not None:
            self._memory.before_unmap = self._pins.release
        self._record: DataRecord | None = None
        if self._memory is not None and records is not None:
            try:
                self._record = DataRecord.open(records, os.environ)
            except CheckpointError:
                self._memory.close()
                raise
        self._overlap = Overlap(self._held_up) if overlap and self._memory is not None else None
        self._local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._lock = threading.RLock()  # one save at a time, whichever thread asks; reentrant for signals
        self._is_saving = False
        self._sealing: threading.Thread | None = None
        self._has_saved = False  # in this round, or was refused
        self._read: MemoryReader | None = None  # what was restored, until it is unmapped
        self._made: Made = {}  # values as bytes, by the last save
        self._told = False  # that saves are refused
        self._told_lost = False  # that saves are in vain

    def load(self, state: State, init: Callable[[], object] | None = None, device: Device = None) -> int:
        """Restore ``state`` in place. Returns the step after which it was saved; 0: nothing was restored.

        It restores what an earlier round has saved, so it belongs before the first ``save`` of a round.

        ``init``: called if nothing was restored. ``device``: tensors on the meta device get memory there,
        once they are restored or before ``init`` is called; by default on torch's default device, and a
        DTensor on the devices of its mesh.

        Raises:
            CheckpointError: the saved state is of another model, damaged or incomplete; the text says which
                key. All ranks raise the same, so they may go on with another state; what is in ``state`` may
                be restored in part. Or this round has saved something already.
        """
        with off_meta():
            step = self._load(state, device)
            if step is not None:
                warn_of_bare(state)
            elif init is not None:
                give_memory(state, device, also_unsaved=True)
                init()
        return step or 0

    def _load(self, state: State, device: Device) -> int | None:
        self.wait()
        if self._memory is None:
            return None
        if self._has_saved:
            raise CheckpointError(
                "`load` comes before the first `save` of a round, as it restores what an earlier round has"
                " saved; to go back to a step of this round, end the worker with an error"
            )
        if self._memory.restore is None:
            return self._load_stored(self._memory.storage, state, device)
        reader = MemoryReader(self._memory, alone=True)
        if exchange.is_possible() and exchange.is_astray(reader.own):
            reader.widen()  # for the values that are each rank's own
        loading = Loading(reader, state, device)
        obstacle = loading.run()
        if obstacle and not loading.is_read and exchange.is_possible() and not reader.is_wide:
            reader.widen()
            loading = Loading(reader, state, device)
            obstacle = loading.run()
        if obstacle:
            raise CheckpointError(obstacle) from loading.cause
        commit = CommitId(*self._memory.restore)
        rounds = max(1, self._round - commit.round)
        self._history = oldest(map(History.of, reader.facts)).failed(rounds)
        self._timing.restored(commit.step, rounds, reader.facts)
        self._restored(commit)
        self._read = reader  # to unmap it would take time now
        mapping = threading.Thread(target=self._map_ahead, args=(1,), name="elasticrun-map", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are too many threads: the next save maps it
            mapping.start()
            self._sealing = mapping
        return commit.step

    def _load_stored(self, storage: str | None, state: State, device: Device) -> int | None:
        """Restore what the storage has, if there is one: nothing is in memory, or only what is older."""
        found = None
        if storage is not None:
            from elasticrun.checkpoint.from_storage import load_stored  # and what reads files and URLs

            found = load_stored(storage, state, int(os.environ.get("RANK", "0")), device)
        if found is None:
            self._restored(None)
            return None
        self._restored(found.commit, found.run)
        return found.commit.step

    def is_due(self, step: int) -> bool:
        """Whether ``save`` would save ``step``: by ``every``, and only as a worker of elastic-run.

        With ``every="auto"``, all ranks have to ask about the same steps.
        """
        return self._memory is not None and self._timing.is_due(step)

    def save(self, step: int, state: State, always: bool = False) -> bool:
        """Save ``state`` as it is after ``step``, the number of steps done. Blocks for one copy.

        ``always``: also if this step is not due. Then all ranks have to say so.

        Returns whether it was copied. False: it is not due, there is no room, another rank lags behind, or
        the agent does not answer; a warning says so unless it is not due, once until a save is copied again.
        Until all ranks have saved this step, a restart restores an earlier one. Threads take turns.

        Raises:
            CheckpointError: the agent has gone; ranks that are not connected cannot agree on the steps; or
                something in ``state`` cannot be saved, which the text names.
        """
        with self._lock:
            if self._is_saving:
                logger.warning("step %d is not saved: a signal's handler asks during another save", step)
                return False
            if not self.is_due(step) and not always:
                return False
            began, self._is_saving = time.monotonic(), True
            try:
                return self._save(step, state)
            finally:
                self._is_saving = False
                lasted = time.monotonic() - began
                self._timing.stalled(lasted)
                telling.saved(step, lasted)

    def _save(self, step: int, state: State) -> bool:
        self.wait()
        if self._memory is None:
            return False
        memory, self._has_saved = self._memory, True
        planner = Planner(self._made)
        gathered = states_of(state)
        planner.set_up_planner(gathered, is_coordinator=False)
        refuse_unplain(planner.state_dict)
        plan = planner.create_local_plan()
        layout = Layout(planner, plan.items, memory.local_rank, self._local_size)
        self._made = planner.made
        paths, fixed = plan.planner_data or {}, fixed_names(state)
        facts = {"step": step, "mappings": paths, **self._history_now().facts, **self._timing.facts}
        said = ({}, {}) if self._record is None else _positions(state, gathered)
        work = SimpleQueue[Callable[[], None] | None]()
        sealing = threading.Thread(target=_do_once, args=(work,), name="elasticrun-seal")
        rest: Callable[[], None] | None = None
        try:
            room = layout.room(False, facts), layout.room(True, facts)
            granted = memory.begin(step, *room, layout.contents, meanwhile=sealing.start)
            self._told = False
            self._note_lost(granted.lost)
            writing = Writing(memory, granted, layout, facts)
            watched = dict(state), planner.state_dict, writing.items, paths, fixed
            watch = partial(self._watcher.after, step, *watched)
            later = self._copy(state, writing, granted)
            rest = partial(self._seal, step, writing, later, watch, said)
        except SaveRefused as refusal:
            if not self._told:
                logger.warning("step %d is not saved: %s", step, refusal)
            self._told = True
            self._note_unsaved(step, said)
            return False
        except BaseException:
            if rest is None:
                self._give_up()
            raise
        finally:
            work.put(rest)  # before anybody can wait for it, as a handler may that is called here
            self._sealing = sealing if rest is not None else self._sealing
        return True

    def _copy(self, state: State, writing: Writing, granted: Granted) -> Later | None:
        """Copy what has to be copied at once. Returns what is copied while the next step computes."""
        if any(tensor.is_cuda for _, tensor in writing.placed):
            self._pins.pin(granted.memory)
        steady = steady_tensors(state) if self._overlap is not None else frozenset[int]()
        at_once = (each for each in writing.placed if not is_steady(each[1], steady))
        writing.copy(at_once, threads=threads_for(os.environ))
        if self._overlap is None:
            return None
        return self._overlap.begin(each for each in writing.placed if is_steady(each[1], steady))

    def _give_up(self) -> None:
        """Nobody completes the save that was begun."""
        if self._overlap is not None:
            self._overlap.give_up()
        if self._memory is not None:
            with contextlib.suppress(CheckpointError):
                self._memory.give_up()  # else the agent would refuse each later save of this round

    def wait(self) -> None:
        """Wait until the last save is complete on this rank."""
        sealing = self._sealing
        if sealing is not None:
            sealing.join()
            if self._sealing is sealing:
                self._sealing = None

    def close(self) -> None:
        """Complete the last save, and hang up. What was saved stays with the agent."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self.wait()
        self._read = None
        if self._overlap is not None:
            self._overlap.close()
            self._overlap = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._record is not None:
            self._record.close()

    def _note_unsaved(self, step: int, said: Said) -> None:
        """What was trained on counts all the same, once a later step is saved."""
        if self._record is not None:
            self._record.save(step, *said, was_kept=False)

    def _note_lost(self, lost: int) -> None:
        """Tell, once until a step is committed, of ranks that do not save the same steps."""
        if lost >= IN_VAIN and not self._told_lost:
            logger.warning(
                "none of the last %d steps that this node has saved can be restored, as other ranks have not"
                " saved them: all ranks have to save the same steps",
                lost,
            )
        self._told_lost = lost >= IN_VAIN

    def _history_now(self) -> History:
        return self._history.after(time.monotonic() - self._began)

    def _settle(self) -> None:
        """Do what the first step after a restart need not wait for, in a thread for which ``wait`` waits."""
        if self._read is not None:
            self._read.empty()
            self._read = None
        self._map_ahead(BUFFERS)

    def _map_ahead(self, how_many: int) -> None:
        """Have the next saves find their memory mapped, in a thread for which ``wait`` waits."""
        assert self._memory is not None
        try:
            self._memory.map_ahead(how_many)
        except (CheckpointError, OSError) as error:
            logger.debug("the memory for the next save is not mapped beforehand: %s", error)

    def _held_up(self, seconds: float) -> None:
        self._timing.held_up(seconds)
        telling.held_up(seconds)

    def _restored(self, commit: CommitId | None, run: str | None = None) -> None:
        telling.restored(0 if commit is None else commit.step)
        if self._record is not None:
            self._record.begin(commit, run)

    def _seal(
        self,
        step: int,
        writing: Writing,
        later: Later | None,
        watch: Callable[[], str],
        said: Said,
    ) -> None:
        if self._memory is None:
            logger.warning("step %d is not saved: all is closed, by a signal's handler or a thread", step)
            return
        try:
            if later is not None:
                try:
                    later.copy(writing.copy)
                except BaseException:
                    self._note_unsaved(step, said)
                    raise
            if self._record is not None:  # before the part is complete: what is restored was recorded
                self._record.save(step, *said)
            writing.finish(step, own=any(item.is_shard for item in writing.items))
            if warning := watch():
                logger.warning("%s", warning)
        except CheckpointError as error:  # the training goes on without this save
            logger.warning("step %d is not saved: %s", step, error)
            self._give_up()
        except Exception:
            logger.exception("step %d is not saved; please report this traceback", step)
            self._give_up()
        self._settle()


def _positions(state: State, gathered: Mapping[str, Any]) -> Said:
    """What is recorded with a step: plain values, and what was trained on since the last one.

    An object in the state tells the latter if it has a method ``audit_trail``, as ``ShardedDataset``.
    """
    plain = plain_values(gathered)
    told = {name: value for name, value in state.items() if is_shards(plain.get(name))}
    return plain, {name: value.audit_trail() for name, value in told.items() if hasattr(value, "audit_trail")}


def _do_once(work: SimpleQueue[Callable[[], None] | None]) -> None:
    """Do what comes, in a thread that was started before there was anything to do; None: nothing is."""
    if (given := work.get()) is not None:
        given()
