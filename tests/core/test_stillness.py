"""Whether the processes below a worker did something, and since when nobody can have gone on, by examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.progress.activity import CPU_GRAIN, CPU_IDLE, IO_IDLE, Footprint, activity
from elasticrun.core.progress.stacks import Frame
from elasticrun.core.progress.stillness import Sight, Stillness

QUIET = Footprint(100.0, 5.0, 700, frozenset({(1, 1)}))
WAITS = (Frame("barrier", "torch/distributed/distributed_c10d.py", 1),)


@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_what_threads_that_wait_use_is_no_activity(seconds: float) -> None:
    cpu, io = QUIET.cpu + CPU_GRAIN + CPU_IDLE * seconds, QUIET.io + round(IO_IDLE * seconds)
    idle = replace(QUIET, at=QUIET.at + seconds, cpu=cpu - 0.001, io=io)
    assert activity(QUIET, idle) == ""
    assert activity(QUIET, replace(idle, cpu=cpu + 0.001)) == "uses CPU time"
    assert activity(QUIET, replace(idle, io=io + 1)) == "reads or writes"


def test_one_rank_that_works_is_enough() -> None:
    stillness = Stillness()
    stacks, prints = {0: WAITS, 1: WAITS}, {0: QUIET, 1: QUIET}
    stillness.weigh([0, 1], Sight(stacks, prints, prints), 10.0)
    assert (stillness.since, stillness.doubt(4)) == (10.0, "")
    later = {rank: replace(QUIET, at=110.0) for rank in (0, 1)}
    stillness.weigh([0, 1], Sight(stacks, later, later), 20.0)
    assert stillness.since == 10.0
    busy = {0: replace(QUIET, at=120.0), 1: replace(QUIET, at=120.0, cpu=9.0)}
    stillness.weigh([0, 1], Sight(stacks, busy, busy), 30.0)
    assert (stillness.since, stillness.doubt(4)) == (30.0, "rank 5 uses CPU time")
    stillness.weigh([0, 1], Sight({0: WAITS}, busy, busy), 40.0)
    assert stillness.doubt(4) == "rank 5 shows no stack"


def test_whoever_is_asked_for_a_line_holds_the_node() -> None:
    stillness = Stillness()
    asked = (Frame("interaction", "pdb.py", 3), *WAITS)
    stillness.weigh([0, 1], Sight({0: WAITS, 1: asked}, {0: QUIET, 1: QUIET}), 10.0)
    assert (stillness.is_held, stillness.since, stillness.doubt(0)) == (True, None, "rank 1 waits for input")
    stillness.weigh([0, 1], Sight({0: WAITS, 1: WAITS}, {0: QUIET, 1: QUIET}), 20.0)
    assert (stillness.is_held, stillness.since) == (False, 20.0)


def test_a_rank_that_has_gone_cannot_be_looked_at() -> None:
    stillness = Stillness()
    stillness.weigh([0], Sight(), 10.0)
    assert stillness.doubt(0) == "rank 0 cannot be looked at"
