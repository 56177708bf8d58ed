"""A warning if what is saved does not change."""

from __future__ import annotations

from elasticrun.core.state.sameness import SAME, Sameness


def warned_at(*digests: str) -> list[int]:
    """After which of these saves, one at each tenth step, there is a warning."""
    known, found = Sameness(), []
    for step, digest in enumerate(digests):
        known = known.after(10 * step, digest)
        if known.warns:
            found.append(step)
    return found


def test_a_state_that_never_changes_is_told_once() -> None:
    assert warned_at(*"aaaaaaaaaaaaaaaa") == [SAME - 1]
    assert warned_at(*"aaaaaaabcccccccc") == [SAME - 1]


def test_a_few_saves_without_a_change_are_fine() -> None:
    assert warned_at(*"aaaabbbbcaaaab") == []
    assert warned_at(*"abababababab") == []


def test_it_may_stop_changing_later() -> None:
    assert warned_at(*"abcddddddd") == [3 + SAME - 1]


def test_a_rank_without_tensors_has_none_that_could_change() -> None:
    assert warned_at(*[""] * 20) == []


def test_the_warning_names_the_steps() -> None:
    known = Sameness()
    for step in range(100, 100 + SAME):
        known = known.after(step, "a")
    assert "from step 100 to step 104" in known.warning(104)
