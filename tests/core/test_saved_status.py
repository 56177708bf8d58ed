"""What an operator is shown of the saved states, and what each of them survives."""

from __future__ import annotations

from elasticrun.core.job.events import Detached
from tests.core.build import described, running
from tests.core.test_job_copies import FIRST, SECOND, tell


def test_where_the_newest_saved_states_are() -> None:
    job = running("ab")
    assert "saved" not in described(job.machine)
    tell(job, "a", FIRST)
    tell(job, "b", FIRST)
    assert "\n  saved: step 5 of round 0 in memory\n" in described(job.machine)
    tell(job, "a", FIRST, also={FIRST: (1,)})
    tell(job, "b", FIRST, also={FIRST: (0,)})
    tell(job, "a", FIRST, SECOND, also={FIRST: (1,)})
    tell(job, "b", FIRST, SECOND, also={FIRST: (0,)})
    job.machine.state.storing.durable = FIRST
    places = (
        "step 6 of round 0 in memory, step 5 of round 0 on several hosts, step 5 of round 0 in the storage"
    )
    assert f"\n  saved: {places}\n" in described(job.machine)
    tell(job, "b", SECOND)
    assert "on several hosts" not in described(job.machine), "one of them has dropped it"


def test_what_only_one_host_has_left_is_not_safe() -> None:
    job = running("ab")
    for node, other in (("a", 1), ("b", 0)):
        tell(job, node, FIRST)
        tell(job, node, FIRST, also={FIRST: (other,)})
    job.do(Detached(job.sessions["b"], "gone"))
    assert "on several hosts" not in described(job.machine)
