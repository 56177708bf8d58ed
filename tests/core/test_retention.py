"""Which commits in the storage have to go, and when a storage that fails is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.state.retention import LEASE, Found, Removal, Retention, surplus
from elasticrun.core.state.retrying import FIRST_PAUSE, LONGEST_PAUSE, Trouble, next_try

NOW = 1e6


def history(*steps: int) -> list[Found]:
    """Commits that were finished one after the other, an hour apart, the last one just now."""
    last = len(steps) - 1
    return [Found(f"c{n}", step, n, NOW - 3600 * (last - n)) for n, step in enumerate(steps)]


def left(found: list[Found], rule: Retention, *writing: str) -> list[int]:
    gone = {removal.name for removal in surplus(found, rule, NOW, writing)}
    return [commit.step for commit in found if commit.name not in gone]


STEPS = (100, 250, 400, 450, 900, 1000)


@pytest.mark.parametrize(
    ("rule", "stay"),
    [
        (Retention(), STEPS),
        (Retention(last=1), (1000,)),
        (Retention(last=3), (450, 900, 1000)),
        (Retention(last=99), STEPS),
        (Retention(last=0), (1000,)),
        (Retention(every=300), (100, 400, 900, 1000)),
        (Retention(every=1000), (100, 1000)),
        (Retention(every=300, last=2), (100, 400, 900, 1000)),
        (Retention(seconds=0.0), (1000,)),
        (Retention(seconds=7200.0), (900, 1000)),
        (Retention(seconds=7201.0), (450, 900, 1000)),
        (Retention(seconds=7200.0, every=500), (100, 900, 1000)),
    ],
)
def test_what_stays(rule: Retention, stay: tuple[int, ...]) -> None:
    assert tuple(left(history(*STEPS), rule)) == stay


def test_reasons_are_told_the_oldest_commit_first() -> None:
    assert surplus(history(1, 2, 3), Retention(last=1), NOW) == [
        Removal("c0", "no rule keeps it, and 2 newer ones are finished"),
        Removal("c1", "no rule keeps it, and 1 newer one is finished"),
    ]


def test_the_newest_is_the_one_that_was_finished_last() -> None:
    """Not the highest step: a job may have gone back."""
    assert left(history(100, 900, 200), Retention(last=1)) == [200]


def test_an_unfinished_commit_goes_once_nobody_has_changed_it_for_long() -> None:
    found = [
        Found("new", 3, None, NOW - LEASE + 1),
        Found("old", 2, None, NOW - LEASE),
        Found("unknown", 1, None, None),
        Found("of the future", 4, None, NOW + 50),
    ]
    assert surplus(found, Retention(), NOW) == [
        Removal("old", "it is not finished, and nobody has changed it for 6.0 hours")
    ]
    assert surplus(found, Retention(), NOW, ["old"]) == []


def test_a_commit_that_is_written_stays_whatever_its_age() -> None:
    assert left(history(1, 2, 3), Retention(last=1), "c0") == [1, 3]


def test_a_finished_commit_of_unknown_age_counts_as_young() -> None:
    found = [Found("a", 1, 1, None), Found("b", 2, 2, NOW)]
    assert left(found, Retention(seconds=1.0)) == [1, 2]
    assert left(found, Retention(last=1)) == [2]


found_commits = st.lists(
    st.builds(
        Found,
        st.text("abc", min_size=1, max_size=4),
        st.integers(0, 50),
        st.none() | st.integers(1, 99),
        st.none() | st.floats(0, 2 * NOW),
    ),
    unique_by=(lambda each: each.name, lambda each: each.number if each.number is not None else each.name),
)
rules = st.builds(
    Retention,
    st.none() | st.integers(0, 5),
    st.none() | st.integers(1, 20),
    st.none() | st.floats(0, NOW),
)


@given(found_commits, rules, st.data())
def test_the_newest_one_and_those_that_are_written_always_stay(
    found: list[Found], rule: Retention, data: st.DataObject
) -> None:
    writing = data.draw(st.sets(st.sampled_from([each.name for each in found]))) if found else set()
    gone = [removal.name for removal in surplus(found, rule, NOW, writing)]
    assert len(gone) == len(set(gone))
    assert not writing & set(gone)
    finished = [each for each in found if each.number is not None and each.name not in writing]
    kept = [each for each in finished if each.name not in gone]
    if finished:
        assert max(finished, key=lambda each: each.number or 0) in kept
        assert len(kept) >= min(len(finished), rule.last or 1)
    if rule.keeps_all:
        assert kept == finished


# Trying again


def test_pauses_grow_up_to_a_bound_and_end() -> None:
    pauses = [next_try(Trouble.OTHER, failures).pause for failures in range(1, 8)]
    assert pauses == [FIRST_PAUSE * 2**n for n in range(5)] + [None, None]
    assert max(each for each in pauses if each is not None) <= LONGEST_PAUSE


@pytest.mark.parametrize("trouble", Trouble)
def test_each_trouble_is_worth_so_many_tries(trouble: Trouble) -> None:
    tries = next(n for n in range(1, 100) if next_try(trouble, n).pause is None)
    hopeless = {Trouble.DENIED: 1, Trouble.DAMAGED: 1, Trouble.FULL: 3}
    assert tries == trouble.tries == hopeless.get(trouble, 6)


def test_decisions_are_told() -> None:
    assert next_try(Trouble.STUCK, 2).reason == "failed 2 of 6 times (stuck): again in 2 s"
    once = next_try(Trouble.DENIED, 1).reason
    assert once == "failed once (denied): the storage does without this commit"
    assert next_try(Trouble.FULL, 3).reason.startswith("failed 3 times (full)")


def test_no_pause_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticrun.core.state.retrying.FIRST_PAUSE", 50.0)
    assert next_try(Trouble.OTHER, 3).pause == LONGEST_PAUSE
