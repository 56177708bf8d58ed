"""Where a worker of a round records its positions in the data: see ``storage/positions.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elasticrun.checkpoint.agent_memory import ROUND
from elasticrun.storage.positions import PositionRecord


class DataRecord(PositionRecord):
    """What one rank records in one round."""

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str], environment: Mapping[str, str]) -> DataRecord:
        """The record of the worker with this environment.

        Raises:
            CheckpointError: the file cannot be made, or is there already.
        """
        round_, rank, world = (int(environment.get(name, "0")) for name in (ROUND, "RANK", "WORLD_SIZE"))
        return cls(run_dir, round_, rank, max(1, world))
