"""``Checkpointer``: saves the state of a training after a step, and restores it after a restart.

Theory. ``save`` copies the state into memory that the agent owns, and returns: what the loop changes
afterwards never reaches the copy. The digests are computed by a thread, and only then the agent hears that
the part is complete. No rank waits for another one: the master finds out which steps all ranks have saved,
and the next round restores the newest of them on all ranks. So a step that one rank could not save is lost,
and never half of it restored.

``load`` has no rank raise alone, as the others would wait for it: all of them raise the same error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from elasticrun.checkpoint import exchange
from elasticrun.checkpoint.agent_memory import AgentMemory, SaveRefused
from elasticrun.checkpoint.copying import misfit, missing_tensors
from elasticrun.checkpoint.memory import MemoryReader, finish_part, save_part
from elasticrun.checkpoint.parts import Item, Layout
from elasticrun.checkpoint.states import put_back, states_of
from elasticrun.errors import CheckpointError

logger = logging.getLogger("elasticrun")

State = MutableMapping[str, Any]


class Loading:
    """One attempt to restore a state from what a reader can read."""

    def __init__(self, reader: MemoryReader, state: State) -> None:
        self._reader = reader
        self._state = state
        self._planner = DefaultLoadPlanner()
        self.cause: Exception | None = None  # of what is in the way on this rank

    def run(self) -> str:
        """Restore the state. Returns what is in the way on any rank, in a sentence; "": it is restored.

        The ranks that are connected all have to call it, and all get the same sentence.
        """
        return self._agree(self._try(self._plan)) or self._agree(self._try(self._fill))

    def _plan(self) -> None:
        metadata = self._reader.read_metadata()
        self._gathered = states_of(self._state, metadata.state_dict_metadata)
        self._planner.set_up_planner(self._gathered, metadata, is_coordinator=False)
        if found := misfit(self._planner.state_dict, metadata):
            raise ValueError(found)
        self._filled = self._planner.create_local_plan()
        if missing := missing_tensors(self._filled, self._planner.state_dict, metadata):
            raise CheckpointError(f"parts of the saved state are missing, the first of {missing[0]}")

    def _fill(self) -> None:
        self._reader.read_data(self._filled, self._planner)
        put_back(self._state, self._gathered)

    def _try(self, step: Callable[[], None]) -> str:
        try:
            step()
        except CheckpointError as error:
            self.cause = error
            return str(error)
        except Exception as error:  # noqa: BLE001 whatever it is, the other ranks must hear of it
            self.cause = error
            return f"the saved state does not fit this model: {error}"
        return ""

    def _agree(self, obstacle: str) -> str:
        mine = obstacle, self._reader.faults
        told = exchange.tell(mine) if exchange.is_possible() else [mine]
        obstacles = [each for each, _ in told if each]
        faults = [fault for _, them in told for fault in them]
        if not obstacles:
            return ""
        return f"{faults[0]}; without it, {obstacles[0]}" if faults else obstacles[0]


class Checkpointer:
    """Saves and restores the state of one worker.

    ``state`` is a dict of tensors, of objects with ``state_dict`` and ``load_state_dict`` (modules,
    optimizers, schedulers), and of plain values. Every rank has to save the same steps. Outside of
    elastic-run nothing is kept.
    """

    def __init__(self) -> None:
        """Connect to this worker's agent, if there is one.

        Raises:
            CheckpointError: the agent cannot be reached, or is of another version.
        """
        self._memory = AgentMemory.connect(os.environ)
        self._local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._sealing: threading.Thread | None = None
        self._told = False  # that saves are refused

    def load(self, state: State) -> int:
        """Restore ``state`` in place. Returns the step after which it was saved; 0: nothing was restored.

        Raises:
            CheckpointError: the saved state is of another model, damaged or incomplete; the text says which
                key. All ranks raise the same, so they may go on with another state; what is in ``state`` may
                be restored in part.
        """
        self.wait()
        if self._memory is None or self._memory.restore is None:
            return 0
        reader = MemoryReader(self._memory, alone=True)
        if exchange.is_possible() and exchange.is_astray(reader.own):
            reader.widen()  # for the values that are each rank's own
        loading = Loading(reader, state)
        obstacle = loading.run()
        if obstacle and exchange.is_possible() and not reader.is_wide:
            reader.widen()
            loading = Loading(reader, state)
            obstacle = loading.run()
        if obstacle:
            raise CheckpointError(obstacle) from loading.cause
        return self._memory.restore[1]

    def save(self, step: int, state: State) -> bool:
        """Save ``state`` as it is after ``step``, the number of steps done. Blocks for one copy.

        Returns whether it was copied. False: there is no room, another rank lags behind, or the agent does
        not answer; a warning says so, once until a save is copied again. Until all ranks have saved this
        step, a restart restores an earlier one.

        Raises:
            CheckpointError: the agent has gone.
        """
        self.wait()
        if self._memory is None:
            return False
        planner = DefaultSavePlanner()
        planner.set_up_planner(states_of(state), is_coordinator=False)
        plan = planner.create_local_plan()
        layout = Layout(planner, plan.items, self._memory.local_rank, self._local_size)
        facts = {"step": step, "mappings": plan.planner_data or {}}
        try:
            granted = self._memory.begin(
                step, layout.room(False, facts), layout.room(True, facts), layout.contents
            )
        except SaveRefused as refusal:
            if not self._told:
                logger.warning("step %d is not saved: %s", step, refusal)
            self._told = True
            return False
        self._told = False
        copied = save_part(self._memory, granted, layout, facts)
        self._sealing = threading.Thread(target=self._seal, args=(step, copied), name="elasticrun-seal")
        self._sealing.start()
        return True

    def wait(self) -> None:
        """Wait until the last save is complete on this rank."""
        if self._sealing is not None:
            self._sealing.join()
            self._sealing = None

    def close(self) -> None:
        """Complete the last save, and hang up. What was saved stays with the agent."""
        self.wait()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _seal(self, step: int, copied: tuple[torch.Tensor, list[Item], dict[str, Any]]) -> None:
        assert self._memory is not None
        try:
            finish_part(self._memory, step, copied, own=any(item.is_shard for item in copied[1]))
        except CheckpointError as error:  # the training goes on without this save
            logger.warning("step %d is not saved: %s", step, error)
        except Exception:
            logger.exception("step %d is not saved; please report this traceback", step)
            with contextlib.suppress(CheckpointError):
                self._memory.give_up()
