"""A short chaos; ``scripts/soak --scenario chaos`` goes on for long, and measures."""

from __future__ import annotations

import pytest

from tests.faults.chaos import Plan, Reference, disturb

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

#: Undisturbed, this many epochs end with 1.0, and last long enough for the faults to strike in between.
EPOCHS = 300
KINDS = ("worker", "master", "node", "preempt")


def test_a_training_with_faults_of_several_kinds_ends_as_an_undisturbed_one() -> None:
    plan = Plan(
        200,
        1,
        seed=5,
        faults=KINDS,
        options=("--health-check=off",),
        most=len(KINDS),
        replaced=0,
        log_dirs=False,
    )
    outcome = disturb(plan, Reference(EPOCHS, accuracy=0.995, seconds=0, pace={1: 0.1, 2: 0.1}))
    assert outcome.good, f"{outcome.failure} {outcome.leftovers}\n{outcome.story}"
    struck = {strike.kind for strike in outcome.strikes}
    assert len(struck) == len(outcome.strikes) >= 2, "a very fast machine may be done before the last of them"
    assert outcome.kept.total() > 0
