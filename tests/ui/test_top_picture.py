"""The picture of ``elastic-ctl top``: what is in it at which size, and that none of it steers a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures
from elasticrun.ui.top import columns
from elasticrun.ui.top.board import Board
from elasticrun.ui.top.frame import Frame, NodeRow, frame_of
from elasticrun.ui.top.picture import LIVE_KEYS, View, clock, lines, printed_lines
from tests.ui.top_build import history, plain_lines, status

NAMES = ("node-a/1", "node-b/2")
SIZES = [(80, 24), (120, 40), (120, 10), (80, 5), (40, 12), (80, 1), (5, 3)]
LIVE = View("node-a/1", LIVE_KEYS)


def frame(*names: str, now: float = 150.0) -> Frame:
    return frame_of(history(*(names or NAMES)), now, status(*(names or NAMES)))


def shown(made: Frame, width: int = 80, height: int | None = 30, view: View = LIVE) -> str:
    return "\n".join(plain_lines(lines(made, width, height, view)))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_it_fits_any_window(width: int, height: int, count: int) -> None:
    names = tuple(f"node-{number}.example.com/abc{number}" for number in range(max(1, count)))
    made = frame(*names) if count else frame_of(history(*names).__class__())
    found = lines(made, width, height, replace(LIVE, selected=names[-1]))
    assert len(found) <= height
    assert max(line.cell_len for line in found) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_what_matters_is_there(width: int) -> None:
    text = shown(frame(), width)
    for part in (
        *(
            "job my job  running  round 1  2 of 1:1000 nodes  restarts 1/3  up 2 min 30 s",
            "step 1,234  24.5 steps/s",
        ),
        *(
            "goodput ",
            "ETTR ",
            "1 failure",
            "> node-a/1",
            "  node-b/2",
            "recovered in 2.0 s  worker failed: rank 1",
        ),
        *("failed  rank 1 exited with 3", "WHERE THE TIME OF ALL NODES WENT", "productive", LIVE_KEYS),
    ):
        assert part in text, part


def test_what_is_not_known_is_a_dash_and_what_is_known_a_figure() -> None:
    made = frame()
    row = next(line for line in shown(made, 120).splitlines() if "node-b/2" in line)
    assert row.split()[1:] == ["1", "running", "-", "-", "-", "-", "-", "-"]
    figures = NodeFigures(
        3.25, 8, 12 << 30, 64 << 30, 1.5e6, 0.0, (GpuFigures("x", 0.5, 10**9, 4 * 10**9),) * 2
    )
    made = replace(made, nodes=(replace(made.nodes[0], figures=figures, slowness=1.5), made.nodes[1]))
    row = next(line for line in shown(made, 120).splitlines() if "node-a/1" in line)
    assert row.split()[2:] == [
        *("0", "running", "1.50x", "3.2/8", "12.9G/68.7G", "50", "%", "2.0G/8.0G", "1.5M/0")
    ]


def test_a_thousand_nodes_are_cut_around_the_selected_one_and_counted() -> None:
    names = tuple(f"n{number}" for number in range(1000))
    text = shown(frame(*names), 80, 24, View("n500", LIVE_KEYS))
    assert "> n500 " in text and "> n0 " not in text
    rows = [line for line in text.splitlines() if line[2:].startswith("n5") or line[2:].startswith("n4")]
    assert f"and {1000 - len(rows)} more, " in text
    assert "RECENT FAILURES" in text and "WHERE THE TIME" in text


def test_only_rows_that_are_seen_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = columns.line

    def line(row: NodeRow, *rest: Any) -> Text:
        made.append(row.name)
        return original(row, *rest)

    monkeypatch.setattr(columns, "line", line)
    shown(frame(*(f"n{number}" for number in range(1000))), 80, 24)
    assert 0 < len(made) < 24


def test_nodes_that_the_status_has_no_room_for_are_counted() -> None:
    made = frame_of(history(*NAMES), 150.0, replace(status(*NAMES), unlisted=7))
    assert "9 of 1:1000 nodes" in shown(made) and "and 7 more" in shown(made)


EVIL = "\x1b[2Jno\x07de\n\u202e[red]x[/red]"


def test_nothing_that_others_say_steers_the_terminal() -> None:
    made = frame()
    evil = replace(
        made,
        job_id=EVIL,
        waiting_for=EVIL,
        trouble=EVIL,
        reason=EVIL,
        nodes=tuple(replace(row, name=EVIL, phase=EVIL, doubt=EVIL) for row in made.nodes),
        failures=tuple(replace(it, summary=EVIL) for it in made.failures),
        recoveries=tuple(replace(it, cause=EVIL, reason=EVIL) for it in made.recoveries),
    )
    for view in (
        replace(LIVE, selected=EVIL, moment=EVIL),
        replace(LIVE, message=EVIL),
        replace(LIVE, question=EVIL),
    ):
        text = printed_lines(lines(evil, 200, 40, view), 200, colour=False)
        assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
        assert "[red]x[/red]" in text, "markup is text"
        assert len(text.splitlines()) <= 40


def test_a_job_whose_clock_is_absurd_is_shown_all_the_same() -> None:
    """As in a log whose wall clock was set back by years while the job ran."""
    odd = [replace(it, time=-1e11) for it in frame().failures]
    text = shown(replace(frame(), time=1e300, failures=tuple(odd)))
    assert len(odd) > 0 and text.count(clock(0.0)) >= len(odd)


def test_without_colours_the_bar_is_of_letters() -> None:
    text = printed_lines(lines(frame(), 80, None, View(is_plain=True)), 80, colour=False)
    assert text.isascii() and "# productive" in text
    assert "\x1b" in printed_lines(lines(frame(), 80, None, View()), 80, colour=True)


def test_a_job_that_waits_says_for_what() -> None:
    made = frame_of(
        history(*NAMES), 150.0, status(*NAMES, waiting_for="1 of 2 nodes: b is missing"), "no answer"
    )
    assert "1 of 2 nodes: b is missing" in shown(made) and "no answer" in shown(made)


def test_a_job_that_is_over_stays_as_it_was() -> None:
    made = frame_of(history(*NAMES, is_over=True), None, status(*NAMES, waiting_for="x"))
    assert (made.phase, made.reason, made.waiting_for) == ("succeeded", "all is done", "")
    assert "all is done" in shown(made)


def test_the_past_needs_no_status() -> None:
    made = frame_of(history(*NAMES))
    assert (made.job_id, made.min_nodes, made.restarts_used, made.phase) == (None, None, 1, "running")
    assert [row.rank for row in made.nodes] == [0, 1]
    assert sum(part.share for part in made.spent) == pytest.approx(1.0)


def test_the_question_help_and_message_come_instead_of_the_keys() -> None:
    assert shown(frame(), view=replace(LIVE, question="drain it?")).splitlines()[-1] == "drain it?"
    assert shown(frame(), view=replace(LIVE, message="done")).splitlines()[-1] == "done"
    text = shown(frame(), view=replace(LIVE, is_help=True))
    assert "drain the selected node" in text and "node-b/2" not in text


@pytest.mark.parametrize(
    ("name", "width", "wanted"),
    [
        ("a/1", 12, "a/1"),
        ("gpu-1.example.com/abc", 12, "gpu-1/abc"),
        ("a-very-long-name/123456", 12, "a-ver~123456"),
        ("\u65e5\u672c\u8a9e" * 5, 7, None),
    ],
)
def test_a_name_is_cut_where_names_are_alike(name: str, width: int, wanted: str | None) -> None:
    found = columns.short(name, width)
    assert wanted in (None, found) and cell_len(found) <= width + 2


@pytest.mark.parametrize(
    ("value", "wanted"), [(0, "0"), (980, "980"), (999.7, "1.0k"), (1.25e9, "1.2G"), (2e13, "20.0T")]
)
def test_amounts(value: float, wanted: str) -> None:
    assert columns.amount(value) == wanted


def test_keys_select_and_leave() -> None:
    made, board = frame("a", "b", "c"), Board(LIVE_KEYS)
    assert board.view(made, False).selected == "a"
    for key, wanted in (
        ("j", "b"),
        ("down", "c"),
        ("j", "c"),
        ("k", "b"),
        ("page up", "a"),
        ("page down", "c"),
    ):
        assert board.key(key, made.nodes)
        assert board.selected == wanted
    board.message = "x"
    assert not board.key("d", made.nodes) and board.message == ""
    assert board.key("?", ()) and board.view(made, False).is_help
    board.key("escape", ())
    assert (board.is_help, board.is_left) == (False, False)
    board.key("q", ())
    assert board.is_left
    board.selected = "gone"
    assert board.view(made, False).selected == "a"
