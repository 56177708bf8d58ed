"""The table of the health check, as it is shown."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from elasticrun.core.protocol.messages import NodeCheck
from elasticrun.ui.checkup import render_checkup

ROWS = (
    NodeCheck("gpu3/1", 0.0, 0.0, 0.0, "faulty", "it reached neither gpu0/0 nor gpu1/0"),
    NodeCheck(
        "gpu2/0", 31.4e12, 6.25e9, 0.0021, "straggler", "its matmul is 2.4 times slower", "torch/gpu nccl"
    ),
    NodeCheck("cpu0/0", 75.4e6, 825e6, 85e-6, "good", engine="python3.11 tcp"),
)
WIDE = 1000


def test_plain() -> None:
    assert render_checkup(ROWS, WIDE).split("\n") == [
        "node          matmul  all-gather  latency  engine          verdict    detail",
        "gpu3/1             -           -        -  -               faulty     "
        "it reached neither gpu0/0 nor gpu1/0",
        "gpu2/0  31.4 TFLOP/s   6.25 GB/s  2.10 ms  torch/gpu nccl  straggler  "
        "its matmul is 2.4 times slower",
        "cpu0/0  75.4 MFLOP/s    825 MB/s  85.0 us  python3.11 tcp  good",
    ]


def test_when_all_is_well_there_is_no_detail() -> None:
    assert render_checkup(ROWS[2:], WIDE).split("\n")[0].endswith("verdict")


def test_no_rows() -> None:
    assert render_checkup((), WIDE) == ""


def test_colour_is_for_terminals() -> None:
    text = render_checkup(ROWS, WIDE, colour=True)
    assert re.search(r"\x1b\[1;31mfaulty *\x1b\[0m", text)
    assert re.search(r"\x1b\[33mstraggler *\x1b\[0m", text)
    assert re.search(r"\x1b\[32mgood *\x1b\[0m", text)
    assert "\x1b[1mnode" in text
    assert render_checkup(ROWS, WIDE).isascii()
    assert render_checkup(ROWS, WIDE).replace("\n", "").isprintable()


@pytest.mark.parametrize("variable", ["NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "JUPYTER_COLUMNS"])
def test_variables_have_no_say(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = render_checkup(ROWS, 60), render_checkup(ROWS, 60, colour=True)
    monkeypatch.setenv(variable, "30" if variable.endswith("COLUMNS") else "dumb")
    assert (render_checkup(ROWS, 60), render_checkup(ROWS, 60, colour=True)) == before


@pytest.mark.parametrize("width", [10, 80, 90, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_a_narrow_terminal_folds_words_and_loses_none(width: int, colour: bool) -> None:
    row = NodeCheck("n" * 55, 999e12, 1e9, 0.25, "straggler", "some words " * 20, "python3.11 gloo")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", render_checkup([row], width, colour))
    assert max(map(len, shown.split("\n"))) <= max(width, 80)
    letters = re.sub(r"\s", "", shown)
    expected = {"n": 55 + 5, "w": 20, "d": 20 + 3, "some": 20}  # with those of the headings
    assert {word: letters.count(word) for word in expected} == expected
    for whole in (" 999 TFLOP/s ", " 1.00 GB/s ", " 250 ms ", " python3.11 ", " straggler "):
        assert whole in shown


@pytest.mark.parametrize(
    ("flops", "shown"),
    [
        (1979.4e12, "1979 TFLOP/s"),
        (312.3e12, "312 TFLOP/s"),
        (12.34e9, "12.3 GFLOP/s"),
        (1.234e6, "1.23 MFLOP/s"),
        (12345, "0.012 MFLOP/s"),
        (1, "0.000 MFLOP/s"),
    ],
)
def test_numbers(flops: float, shown: str) -> None:
    row = render_checkup([NodeCheck("n", flops, 0.0, 0.0, "good")], WIDE).split("\n")[1]
    assert row.split() == ["n", *shown.split(), "-", "-", "-", "good"]


@pytest.mark.parametrize(
    ("bytes_per_second", "shown"), [(25e9, "25.0 GB/s"), (1e6, "1.00 MB/s"), (5e4, "50.0 kB/s")]
)
def test_bandwidths(bytes_per_second: float, shown: str) -> None:
    assert f" {shown} " in render_checkup([NodeCheck("n", 0.0, bytes_per_second, 0.0, "good")], WIDE)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(2.5, "2.50 s"), (0.25, "250 ms"), (3e-5, "30.0 us"), (4e-8, "0.040 us")]
)
def test_latencies(seconds: float, shown: str) -> None:
    assert f" {shown} " in render_checkup([NodeCheck("n", 0.0, 0.0, seconds, "good")], WIDE)


def test_what_others_say_is_text() -> None:
    row = NodeCheck("[red]n[/]", 0.0, 0.0, 0.0, "[bold]", "\x1b[31m\r\nred :boom:", "\x1b[1m")
    assert render_checkup([row], WIDE, colour=True).split("\n")[-1].split() == [
        "[red]n[/]", "-", "-", "-", "?[1m", "[bold]", "?[31m??red", ":boom:",
    ]  # fmt: skip


def test_nothing_else_imports_rich() -> None:
    program = "import sys, elasticrun.cli.main, elasticrun.cli.parse; sys.exit('rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
