"""When silent nodes are a hang that is acted upon, by examples; of a whole job in test_job_health.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.hangs import Restarts, Silences, consequence, evidence_text, is_hang
from elasticrun.core.protocol.messages import Evidence, Stall

SILENT = Stall(0, 0, 7, 20.0, 10.0, True, doubt="rank 0 runs")
STILL = replace(SILENT, evidence=Evidence.STILL, lasting=10.0)
ENDLESS = replace(SILENT, silence=1801.0, evidence=Evidence.LAST_BOUND, lasting=1.0)
FIXED = replace(SILENT, evidence=Evidence.TIMEOUT, lasting=20.0)


def heard(*words: tuple[str, Stall | None, float]) -> Silences:
    silences = Silences()
    for word in words:
        silences.hear(*word)
    return silences


def test_nobody_is_silent_at_first() -> None:
    assert (heard().lagging(), heard().doubt, len(heard())) == (None, "", 0)


def test_all_have_to_have_evidence() -> None:
    silences = heard(("a", STILL, 50.0), ("b", SILENT, 50.0))
    assert silences.lagging() is None
    assert silences.doubt == "b is waited for (rank 0 runs)"
    silences.hear("b", STILL, 51.0)
    assert silences.lagging() == "a"
    assert silences.doubt == ""


def test_who_says_no_reason_is_waited_for_all_the_same() -> None:
    assert "no evidence" in heard(("a", replace(SILENT, doubt=""), 0.0)).doubt


def test_evidence_that_is_repeated_is_as_old_as_before() -> None:
    """A status that was sent for another reason says nothing new of the workers."""
    silences = heard(("a", STILL, 50.0), ("b", STILL, 60.0))
    assert silences.lagging() is None
    silences.hear("a", STILL, 60.0)
    assert silences.lagging() is None
    silences.hear("a", replace(STILL, silence=30.0, lasting=20.0), 60.0)
    assert silences.lagging() == "a"


def test_a_node_that_was_released_and_waits_again_is_not_still_with_the_others() -> None:
    """a waited for b up to 50.0 and works; b has waited for a since 51.0; a looks again at 110.0."""
    silences = heard(("a", replace(STILL, allowed=60.0, lasting=60.0), 50.0), ("b", STILL, 61.0))
    assert silences.lagging() is None
    silences.hear("b", replace(STILL, lasting=59.0), 110.0)
    assert silences.lagging() is None
    silences.hear("a", None, 110.0)
    assert len(silences) == 1


def test_a_scan_waits_for_the_oldest_word(monkeypatch: pytest.MonkeyPatch) -> None:
    silences = heard(*((str(node), STILL, 50.0) for node in range(5)), ("late", STILL, 60.0))
    scans: list[Silences] = []
    joint = Silences._joint

    def counted(silences: Silences) -> float:
        scans.append(silences)
        return joint(silences)

    monkeypatch.setattr(Silences, "_joint", counted)
    assert silences.lagging() is None
    for node in range(5):
        assert silences.lagging() is None
        silences.hear(str(node), replace(STILL, lasting=20.0), 60.0)
    assert silences.lagging() is not None
    assert len(scans) == 2


def test_the_one_that_lags_made_fewest_steps_then_is_outside_then_silent_for_longest() -> None:
    near = ("near", replace(FIXED, step=8, in_collective=False), 50.0)
    outside = ("outside", replace(FIXED, in_collective=False), 50.0)
    longest = ("longest", replace(FIXED, silence=21.0), 50.0)
    assert heard(near, ("a", FIXED, 50.0), longest, outside).lagging() == "outside"
    assert heard(near, ("a", FIXED, 50.0), longest).lagging() == "longest"


def test_what_was_said_before_somebody_finished_counts_no_more() -> None:
    silences = heard(("a", STILL, 50.0))
    silences.clear()
    assert (silences.lagging(), len(silences)) == (None, 0)


def test_lies_about_numbers_only_keep_a_hang_from_being_found() -> None:
    assert heard(("a", replace(STILL, lasting=1e308), 50.0), ("b", STILL, 50.0)).lagging() == "a"
    assert heard(("a", replace(STILL, allowed=1e308), 50.0), ("b", STILL, 50.0)).lagging() is None


OBJECTIONS = [
    (FIXED, {Restarts.LEFT, Restarts.SPENT, Restarts.NEVER}),
    (STILL, {Restarts.LEFT, Restarts.SPENT}),
    (ENDLESS, {Restarts.LEFT}),
]


@pytest.mark.parametrize(("stall", "acted"), OBJECTIONS)
def test_what_is_acted_upon_depends_on_the_restarts(stall: Stall, acted: set[Restarts]) -> None:
    silences = heard(("a", stall, 50.0))
    assert {restarts for restarts in Restarts if not silences.objection(restarts)} == acted


def test_a_node_of_itself_waits_for_whoever_may_work() -> None:
    assert not is_hang(None, 3)
    assert not is_hang(SILENT, 3)
    assert is_hang(STILL, 3)
    assert not is_hang(STILL, 0)
    assert is_hang(FIXED, 0)


def test_the_user_reads_what_was_seen_and_what_follows() -> None:
    assert consequence(SILENT, 1800.0, 3) == (
        "rank 0 runs, so it is waited for; it counts as a hang after 30 min of silence "
        "(--hang-timeout sets another bound)"
    )
    assert "after 60 min of silence" in consequence(replace(SILENT, allowed=1800.0), 1800.0, 3)
    assert consequence(replace(SILENT, doubt=""), 1800.0, 3).startswith(
        "it is waited for; it counts as a hang after 30 min"
    )
    assert "no restart is allowed (--max-restarts 0)" in consequence(SILENT, 1800.0, 0)
    assert "once that is so on every node, the round starts again" in consequence(STILL, 1800.0, 3)
    assert consequence(FIXED, 1800.0, 0) == "that is longer than --hang-timeout allows"
    assert evidence_text(ENDLESS) == "nothing has moved for longer than the last bound"
