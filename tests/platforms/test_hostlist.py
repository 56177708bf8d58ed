"""Slurm's list of hosts: what it names, what is refused, and that no list costs more than it may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.platforms.hostlist import MOST_HOSTS, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[001,7]", "n001 n7"),
        ("n[01-03,7],gpu-[1-2]-[a]", "n01 n02 n03 n7 gpu-1-a gpu-2-a"),
        ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
        ("n[1-2].rack,login", "n1.rack n2.rack login"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
        ("n[5-5]", "n5"),
    ],
)
def test_what_a_list_names(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is missing"),
        ("n1,", "a name is missing"),
        ("n[1-", "its brackets do not match"),
        ("n1]", "its brackets do not match"),
        ("n[[1]]", "its brackets do not match"),
        ("n[]", "'' is no number and no range"),
        ("n[1,]", "'' is no number and no range"),
        ("n[a-b]", "'a-b' is no number and no range"),
        ("n[3-1]", "the range 3-1 runs backwards"),
        ("n 1", "'n 1' is no part of a host's name"),
        ("n\n", "'n\\n' is no part of a host's name"),
        ("(null)", "'(null)' is no part of a host's name"),
        ("n[0-999999999999999999]", f"it names more than {MOST_HOSTS} hosts"),
        (",".join(["n[1-60000]"] * 2), f"it names more than {MOST_HOSTS} hosts"),
        ("[1-99]" * 8, f"it names more than {MOST_HOSTS} hosts"),
        ("[1]" * 9, "a name has more than 8 brackets"),
        ("n" * 300 + "[1-60000]", "a name has more than 255 letters"),
        (f"n[{'1' * 30}]" * 8 + "n" * 40, "a name has more than 255 letters"),
        ("n" * (1 << 21), "it has more than 1048576 letters"),
    ],
)
def test_lists_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        expand(text)
    assert str(caught.value) == why


@given(st.text(alphabet="n0123456789[],-. ", max_size=40))
def test_any_text_has_an_answer_or_a_reason(text: str) -> None:
    try:
        names = expand(text)
    except ValueError as error:
        assert str(error)
    else:
        assert 0 < len(names) <= MOST_HOSTS


@given(st.integers(0, 500), st.integers(0, 100), st.integers(1, 5))
def test_a_range_has_each_number_once(first: int, more: int, width: int) -> None:
    names = expand(f"n[{first:0{width}}-{first + more}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert {len(name) >= 1 + width for name in names} == {True}
