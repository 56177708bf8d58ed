"""Most command lines are split without click: both ways must give the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticrun.cli.arguments import split_plain
from elasticrun.cli.options import OPTIONS
from elasticrun.cli.splitting import split

SPELLINGS = [option.flag for option in OPTIONS] + [f"-{option.short}" for option in OPTIONS if option.short]
VALUES = st.sampled_from(["2", "", "a=b", "x.py", "-1", "-", "--", "=", "1:2"])
WORDS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.builds("{}={}".format, st.sampled_from(SPELLINGS), VALUES),
    st.builds("{}{}".format, st.sampled_from(SPELLINGS), VALUES),
    VALUES,
    st.sampled_from(["--nproc_per_node", "--redirect", "-x", "train.py", "---", "-t3", "-mx"]),
    st.text(max_size=5),
)


@given(st.lists(WORDS, max_size=6))
@example(["-r=3", "x.py"])
@example(["--tee", "--", "x.py"])
@example(["--log-dir=--standalone", "--standalone", "x.py"])
@example(["--nnodes", "1", "--nnodes=2", "x.py", "--nnodes", "3"])
def test_a_plain_command_line_means_what_click_makes_of_it(argv: list[str]) -> None:
    plain = split_plain(argv)
    if plain is not None:
        assert plain == split(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["--standalone", "--nproc-per-node=2", "--max-restarts", "3", "x.py", "--standalone", "-x"],
        ["-m", "-t", "3", "package.module"],
        ["--rdzv-conf=a=b", "x.py"],
        [],
    ],
)
def test_the_usual_ones_are_plain(argv: list[str]) -> None:
    assert split_plain(argv) == split(argv)
