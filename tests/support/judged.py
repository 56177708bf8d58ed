"""Lets a worker of a test wait until a step that it has saved is committed."""

from __future__ import annotations

import os

from elasticrun.checkpoint.agent_memory import AgentMemory, SaveRefused


def until_judged(step: int) -> None:
    """Return once the master has told this node that all nodes have saved a step.

    The next save may not begin before that; this one is begun and given up.
    """
    memory = AgentMemory.connect(os.environ)
    assert memory is not None
    while True:
        try:
            memory.begin(step + 1, 1, 1, "")
        except SaveRefused:  # it has taken longer than a training would wait
            continue
        memory.give_up()
        memory.close()
        return
