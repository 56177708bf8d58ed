"""Parts as workers leave them in memory, made in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from elasticrun.checkpoint.parts import Layout, Part, place, seal, write
from elasticrun.checkpoint.states import states_of


def saved_bytes(
    state: Mapping[str, Any],
    local_rank: int = 0,
    local_size: int = 1,
    step: int = 1,
    finish: Callable[..., tuple[int, str]] = seal,
) -> tuple[bytearray, str]:
    """What ``Checkpointer`` saves of a state, and its digest; with several local ranks only a share.

    ``finish``: what adds the index.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner(states_of(state), is_coordinator=False)
    plan = planner.create_local_plan()
    layout = Layout(planner, plan.items, local_rank, local_size)
    facts = {"step": step, "mappings": plan.planner_data or {}}
    memory = torch.zeros(layout.room(False, facts), dtype=torch.uint8)
    items = layout.items(local_size > 1)
    placed = place(items)
    write(memory, items)
    length, digest = finish(memory, placed, facts)
    return bytearray(memory[:length].tolist()), digest


def saved_part(state: Mapping[str, Any], rank: int = 0, local_rank: int = 0, local_size: int = 1) -> Part:
    """The part of a rank."""
    data, digest = saved_bytes(state, local_rank, local_size)
    return Part(rank, memoryview(data), digest)


def keep_bytes(folder: Path, rank: int, state: Mapping[str, Any]) -> None:
    """Put the bytes of a part, and its digest, into a folder."""
    data, digest = saved_bytes(state)
    (folder / f"rank-{rank}.part").write_bytes(data)
    (folder / f"rank-{rank}.digest").write_text(digest)


def kept_part(folder: Path, rank: int) -> Part:
    """The part whose bytes were put there."""
    data = bytearray((folder / f"rank-{rank}.part").read_bytes())
    return Part(rank, memoryview(data), (folder / f"rank-{rank}.digest").read_text())
