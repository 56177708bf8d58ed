"""The contract of preemption, row by row: what is decided of a replica that is taken away."""

from __future__ import annotations

import pytest

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.notices import CONTRACT, Next, Notice, Terms, cause_of, default_grace
from elasticrun.core.fleet.places import OVERDUE
from elasticrun.core.fleet.replicas import Cause, Live, Phase, Record, Seen, Shape, Start, Wish

NOW = 1000.0
WISH = Wish(Shape(2, 3), 3)
RECORD = Record(3, WISH.shape, tuple(Live(index, seen=True) for index in range(3)))
OTHERS = Seen(0, Phase.RUNNING), Seen(1, Phase.RUNNING)
SINGLE = [terms for terms in CONTRACT if terms.cause is not None]


def taken(terms: Terms, phase: Phase, leaves_by: float | None = None) -> Seen:
    code = None if phase is Phase.RUNNING else terms.code or 143
    return Seen(2, phase, exit_code=code, cause=terms.cause or Cause.EXITED, leaves_by=leaves_by)


def test_each_notice_has_one_row() -> None:
    assert [terms.notice for terms in CONTRACT] == list(Notice)


@pytest.mark.parametrize("terms", SINGLE, ids=lambda terms: terms.notice.name)
def test_what_is_taken_away_is_replaced_at_no_cost_and_nobody_else_is_touched(terms: Terms) -> None:
    first = decide(WISH, (*OTHERS, taken(terms, Phase.ENDED)), RECORD, NOW)
    later = decide(WISH, (*OTHERS, taken(terms, Phase.ENDED)), first.record, NOW + WISH.grace)
    for decision in (first, later):
        assert (decision.record.failures, decision.record.avoided, decision.record.verdict) == (0, (), None)
        assert [it for it in decision.actions if not isinstance(it, Start)] == []
        assert {0, 1} <= {live.index for live in decision.record.live}
    waits = terms.next is Next.GRACE
    assert [it.index for it in first.actions if isinstance(it, Start)] == ([] if waits else [3])
    assert [it.index for it in later.actions if isinstance(it, Start)] == [3]


@pytest.mark.parametrize("terms", SINGLE, ids=lambda terms: terms.notice.name)
def test_while_it_still_ends_no_other_one_takes_its_place(terms: Terms) -> None:
    leaving = (*OTHERS, taken(terms, Phase.RUNNING, NOW + 45))
    decision = decide(WISH, leaving, RECORD, NOW)
    if terms.cause is Cause.HOST_LOST:  # it cannot run any more
        assert decision.actions
        return
    assert decision.actions == ()
    assert decision.look_at == NOW + 45 + OVERDUE
    assert decide(WISH, leaving, decision.record, NOW + 45 + OVERDUE).actions


def test_reasons_and_what_they_are_taken_for() -> None:
    found = {reason: terms.cause for terms in CONTRACT for reason in terms.reasons}
    assert len(found) == sum(len(terms.reasons) for terms in CONTRACT), "a reason is in two rows"
    assert {reason: cause_of(reason) for reason in found} == found
    assert [cause_of(other) for other in ("OOMKilled", "", None, 7)] == [None] * 4


def test_a_storage_needs_more_grace() -> None:
    assert (default_grace(has_storage=False), default_grace(has_storage=True)) == (45, 105)
