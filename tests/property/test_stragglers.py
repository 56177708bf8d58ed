"""Stragglers among nodes whose times are noisy, late, absent, or lies."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.health.stragglers import MOST, STREAK, Judged, Stragglers
from elasticrun.core.protocol.round_progress import StepTimes

#: By how much a measurement may be off, as a share.
NOISE = 0.28
#: What a node needs for itself, and what a step takes beyond that, in seconds.
USUAL, REST = 0.02, 0.03
LIES = st.sampled_from((0.0, -1.0, 1e-300, 1e300, math.inf, math.nan)) | st.floats(0, 1)


class Job:
    def __init__(self, nodes: Iterable[str]) -> None:
        self.judge = Stragglers(2.0)
        self.nodes = list(nodes)
        self.steps = 0

    def beat(self, data: st.DataObject, owns: dict[str, float], noise: float, step: float) -> list[Judged]:
        """Each node tells of new steps, in any order, or is late."""
        told = []
        self.steps += 6
        for node in data.draw(st.permutations(self.nodes)):
            off = 1 + noise * data.draw(st.floats(-1, 1))
            judged = self.judge.take(node, 0, StepTimes(0, self.steps, owns[node] * off, step))
            told += [] if judged is None else [judged]
        return told


@given(st.integers(1, 6), st.integers(1, 8), st.data())
def test_noise_is_no_straggler(nodes: int, beats: int, data: st.DataObject) -> None:
    job = Job(f"n{each}" for each in range(nodes))
    owns = dict.fromkeys(job.nodes, USUAL)
    for _ in range(beats):
        assert job.beat(data, owns, NOISE, USUAL * (1 + NOISE) + REST) == []


@given(st.integers(2, 6), st.floats(2.0, 5.0), st.integers(0, 4), st.data())
def test_a_straggler_is_found_and_nobody_else(
    nodes: int, slower: float, before: int, data: st.DataObject
) -> None:
    """Within one more heartbeat than a streak has, as the first one may come before those of the others."""
    job = Job(f"n{each}" for each in range(nodes))
    owns = dict.fromkeys(job.nodes, USUAL)
    for _ in range(before):
        assert job.beat(data, owns, 0.04, USUAL + REST) == []
    own = owns["n0"] = slower * USUAL
    told = [each for _ in range(STREAK + 1) for each in job.beat(data, owns, 0.04, own + REST)]
    assert [each.found.node for each in told] == ["n0"]
    true = (own + REST) / (USUAL + REST)
    assert 0.8 * true < told[0].found.factor < 1.25 * true
    owns["n0"] = USUAL
    told = [each for _ in range(STREAK + 1) for each in job.beat(data, owns, 0.04, USUAL + REST)]
    assert [(each.found.node, each.found.factor) for each in told] == [("n0", 1.0)]


@given(st.integers(3, 6), st.integers(1, 8), st.data())
def test_one_that_lies_accuses_nobody_but_itself(nodes: int, beats: int, data: st.DataObject) -> None:
    job = Job(f"n{each}" for each in range(nodes))
    owns = dict.fromkeys(job.nodes, USUAL)
    for beat in range(beats):
        lie = StepTimes(0, beat, data.draw(LIES), data.draw(LIES))
        for judged in (job.judge.take("liar", 0, lie), *job.beat(data, owns, 0.1, USUAL + REST)):
            assert judged is None or judged.found.node == "liar"
            # No more than if all but what the others need were waiting for it.
            assert judged is None or 1.0 <= judged.found.factor <= (USUAL + REST) / (USUAL * 0.9)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), LIES, LIES, st.integers(0, 5))))
def test_whatever_is_said_the_factor_is_one_or_worth_telling(
    said: list[tuple[str, int, float, float, int]],
) -> None:
    judge = Stragglers(2.0)
    for node, round_, own, whole, steps in said:
        judged = judge.take(node, round_, StepTimes(0, steps, own, whole))
        if judged is not None:
            assert (judged.found.node, judged.found.round) == (node, round_)
            assert judged.found.factor == 1.0 or 1.1 <= judged.found.factor <= MOST
