"""How a command line is split: as ``argparse`` splits torchrun's, or it is refused in a sentence."""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticrun.cli.options import OPTIONS
from elasticrun.cli.splitting import Split, split
from elasticrun.errors import UsageError

SPELLINGS = [option.flag for option in OPTIONS] + [f"-{option.short}" for option in OPTIONS if option.short]
VALUES = st.sampled_from(["2", "", "a=b", "x.py", "-", "=", "1:2"])
WORDS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.builds("{}={}".format, st.sampled_from(SPELLINGS), VALUES),
    st.builds("{}{}".format, st.sampled_from([word for word in SPELLINGS if len(word) == 2]), VALUES),
    VALUES,
    st.sampled_from(["--nproc_per_node", "--redirect", "--nproc", "train.py", "-t3", "-mt", "-mx"]),
)


def by_argparse(argv: list[str]) -> Split | None:
    """What argparse makes of it; None if it refuses."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in OPTIONS:
        names = [option.flag, option.flag.replace("-", "_").replace("__", "--", 1)]
        names += [f"-{option.short}"] if option.short else []
        action = "store_const" if option.is_flag else "store"
        extra: dict[str, Any] = {"const": "1"} if option.is_flag else {}
        parser.add_argument(*dict.fromkeys(names), dest=option.name, action=action, **extra)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = vars(parser.parse_args(argv))
    except SystemExit:
        return None
    command = tuple(found.pop("command"))
    return {name: text for name, text in found.items() if text is not None}, command


@given(st.lists(WORDS, max_size=6))
@example(["-r=3", "x.py"])
@example(["-mt3", "x.py"])
@example(["--nnodes", "1", "--nnodes=2", "x.py", "--nnodes", "3"])
def test_what_argparse_takes_is_taken_as_argparse_does(argv: list[str]) -> None:
    expected = by_argparse([*argv, "end"])
    if expected is not None:
        with contextlib.suppress(UsageError):
            assert split([*argv, "end"]) == expected


@pytest.mark.parametrize(
    ("line", "texts", "command"),
    [
        ("--standalone --max-restarts 3 x.py -x", {"standalone": "1", "max-restarts": "3"}, "x.py -x"),
        ("-m -t 3 package.module", {"module": "1", "tee": "3"}, "package.module"),
        ("--rdzv-conf=a=b x.py", {"rdzv-conf": "a=b"}, "x.py"),
        ("--nproc_per_node 2 x.py", {"nproc-per-node": "2"}, "x.py"),
        ("--redirect 3 -- -x", {"redirects": "3"}, "-x"),
        ("--log-dir -x x.py", {"log-dir": "-x"}, "x.py"),
        ("--tee - x.py", {"tee": "-"}, "x.py"),
        ("- x.py", {}, "- x.py"),
        ("", {}, ""),
    ],
)
def test_a_command_line_is_split(line: str, texts: dict[str, str], command: str) -> None:
    assert split(line.split()) == (texts, tuple(command.split()))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--log-dir", "--log-dir was given no value: give "),
        ("-t", "--tee was given no value: give "),
        ("--log-dir --standalone x.py", r"--log-dir was given no value: .* \(--standalone follows it\)"),
        ("--log-dir -m x.py", r"--log-dir was given no value: .* \(-m follows it\)"),
        ("--tee -- x.py", r"--tee was given no value: .* \(-- follows it\)"),
        ("--standalone=1 x.py", "--standalone was given a value, but it is a flag: give --standalone alone"),
        ("--nnode_ x.py", "there is no option --nnode_; did you mean --nnodes[?] see elastic-run --help"),
        ("--rdzv x.py", "--rdzv is ambiguous: give one of --rdzv-"),
        ("-mx x.py", "there is no option -x; options of the script go after the script; see"),
        ("--=3 x.py", "there is no option --"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^({why})"):
        split(line.split())
