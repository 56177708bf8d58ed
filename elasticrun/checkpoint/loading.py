"""Restores a state from a reader, from memory or from a storage, on all ranks or on none.

No rank raises alone, as the others would wait for it: the ranks tell each other what is in the way, and all
of them end with the same sentence. Objects are handed their state only once all ranks have read theirs. So if
one rank has to read again, no object of another one has been restored twice, nor before one that never is.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

from elasticrun.checkpoint import exchange
from elasticrun.checkpoint.bare import Device, bare_of, give_memory, refuse_bare
from elasticrun.checkpoint.copying import misfit, missing_tensors
from elasticrun.checkpoint.states import put_back, states_of
from elasticrun.errors import CheckpointError

State = MutableMapping[str, Any]


class Reader(Protocol):
    """What reads a commit."""

    faults: list[str]  # why some of it cannot be read here, in words

    def read_metadata(self) -> Metadata:
        """What the commit has."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> object:
        """Read what the plan asks for."""


class Loading:
    """One attempt to restore a state from what a reader can read."""

    def __init__(self, reader: Reader, state: State, device: Device = None) -> None:
        """``device``: where tensors get memory that are on the meta device; see ``give_memory``."""
        self._reader = reader
        self._state = state
        self._device = device
        self._planner = DefaultLoadPlanner()
        self.cause: Exception | None = None  # of what is in the way on this rank
        self.is_read = False  # on all ranks: to read again would change nothing

    def run(self) -> str:
        """Restore the state. Returns what is in the way on any rank, in a sentence; "": it is restored.

        The ranks that are connected all have to call it, and all get the same sentence.
        """
        obstacle = self._agree(self._try(self._plan)) or self._agree(self._try(self._read))
        self.is_read = not obstacle
        return obstacle or self._agree(self._try(self._put_back))

    def _plan(self) -> None:
        metadata = self._reader.read_metadata()
        bare = bare_of(self._state)  # looked at before it has memory, with anything in it
        if strange := bare.keys() - metadata.state_dict_metadata.keys():
            raise ValueError(f"{min(strange)} was not saved")
        if found := misfit(bare, metadata):
            raise ValueError(found)
        give_memory(self._state, self._device)
        self._gathered = states_of(self._state, metadata)
        refuse_bare(self._gathered)
        self._planner.set_up_planner(self._gathered, metadata, is_coordinator=False)
        if found := misfit(self._planner.state_dict, metadata):
            raise ValueError(found)
        self._filled = self._planner.create_local_plan()
        if missing := missing_tensors(self._filled, self._planner.state_dict, metadata):
            raise CheckpointError(f"parts of the saved state are missing, the first of {missing[0]}")

    def _read(self) -> None:
        self._reader.read_data(self._filled, self._planner)

    def _put_back(self) -> None:
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
