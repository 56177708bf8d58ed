"""A warning if what is saved does not change."""

from __future__ import annotations

from elasticrun.core.state.sameness import SAME, Watch


def warned_at(*digests: str, other: str = "", copies: tuple[str, ...] = ()) -> list[int]:
    """After which of these saves, one at each tenth step, there is a warning.

    ``other``: digests of a second entry.
    """
    watch, found = Watch(), []
    for number, digest in enumerate(digests):
        saved = {"model": digest} if digest else {}
        saved |= {"other": other[number]} if other else {}
        same = watch.after(10 * number, saved)
        if watch.warning(10 * number, same, [name for name in same if name in copies]):
            found.append(number)
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


def test_one_entry_may_stay_the_same() -> None:
    assert warned_at(*"aaaaaaaaaa", other="abcdefghij") == []


def test_one_entry_that_is_a_copy_of_what_is_trained_is_told_once() -> None:
    assert warned_at(*"aaaaaaaaaa", other="abcdefghij", copies=("model",)) == [SAME - 1]
    assert warned_at(*"abcdefghij", other="abcdefghij", copies=("model",)) == []


def test_entries_that_all_stay_the_same_are_told_together() -> None:
    assert warned_at(*"abaaaaaaaa", other="aaaaaaaaaa") == [2 + SAME - 1]


def test_the_warning_names_the_steps() -> None:
    watch = Watch()
    for step in range(100, 100 + SAME):
        same = watch.after(step, {"model": "a"})
    assert "from step 100 to step 104" in watch.warning(104, same, [])
    watch = Watch()
    for step in range(100, 100 + SAME):
        same = watch.after(step, {"model": "a", "other": str(step)})
    assert watch.warning(104, same, same).startswith(
        "no tensor of 'model' has changed from step 100 to step 104"
    )
