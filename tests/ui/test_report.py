"""The report's page: one file, escaped whatever the log says; its plots and words; ends of stderr."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from elasticrun.core.protocol.chronicle import Decision, JobEnded, LogEntry, NodeGone, WorkerFailed
from elasticrun.core.review.build import report
from elasticrun.core.review.document import FailureRow, Report
from elasticrun.core.review.review import Review
from elasticrun.ui.report import tails
from elasticrun.ui.report.html import Html, el, join, text
from elasticrun.ui.report.page import page
from elasticrun.ui.report.scales import Scale, marks, short_time
from elasticrun.ui.report.style import COLOURS, SHEET, slug
from elasticrun.ui.report.tails import tail, with_tails
from elasticrun.ui.report.text import lines
from elasticrun.ui.report.words import difference, hours, money, money_difference, two_digits
from tests.support.long_log import Settings, log

EVIL = "\"'><script>alert(1)</script><img src=http://x.invalid/>&\x1b[2J\u202e\ud800"
VOID = ("meta", "br")


class Reader(HTMLParser):
    """Which elements there are, with what; and whether each is ended."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def reviewed(settings: Settings, change: dict[str, str] | None = None) -> Report:
    review = Review()
    for entry in log(settings):
        review.take(_changed(entry, change or {}))
    return report(review, hourly=2.5, currency="EUR")


def _changed(entry: LogEntry, change: dict[str, str]) -> LogEntry:
    fields = {name: value for name, value in change.items() if hasattr(entry.told, name)}
    return replace(entry, told=replace(entry.told, **fields)) if fields else entry  # type: ignore[arg-type]


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def long() -> Report:
    return reviewed(Settings(rounds=60))


def test_the_page_has_all_its_sections(long: Report) -> None:
    html = page(long, "my job", "1.2.3")
    reader = read(html)
    names = [about["id"] for tag, about in reader.elements if tag == "section"]
    assert names == ["advice", "time", "lost", "rounds", "failures", "recoveries", "nodes", "saved", "if"]
    links = [about["href"] for tag, about in reader.elements if tag == "a"]
    assert links == [f"#{name}" for name in names]
    assert "my job" in html
    assert "elasticrun 1.2.3" in html
    assert "EUR" in html
    assert all(it.text.split(":")[-1].strip()[:20] in html for it in long.failures if "<" not in it.text)


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(long: Report) -> None:
    html = page(long, "job", "1")
    reader = read(html)
    assert {tag for tag, _ in reader.elements} & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "base",
    } == set()
    assert not re.search(r"(?:src|href)=\"(?!#)", html)
    assert "url(" not in SHEET
    assert "@import" not in SHEET
    policy = next(about["content"] for tag, about in reader.elements if "http-equiv" in about)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "field", ["summary", "host", "node", "reason", "cause", "outcome", "phase", "text", "how"]
)
def test_what_a_log_says_stays_text(field: str) -> None:
    found = reviewed(Settings(rounds=12), {field: EVIL})
    found = replace(found, failures=tuple(replace(it, tail=EVIL, tail_from=EVIL) for it in found.failures))
    html = page(found, EVIL, "1")
    read(html)
    assert "<script" not in html
    assert "<img" not in html
    for unsafe in ("\x1b", "\u202e", "\ud800"):
        assert unsafe not in html
        assert all(unsafe not in line for line in lines(found))
    assert all("\n" not in line for line in lines(found))


@pytest.mark.parametrize(
    "settings",
    [
        Settings(rounds=1, nodes=1),
        Settings(rounds=1, ends=False, apart=1.0),
        Settings(rounds=5, nodes=1, every=0, steps=False),
        Settings(rounds=5, stored=0, waits=0.0),
        Settings(rounds=3, nodes=30),
    ],
    ids=str,
)
def test_logs_of_all_kinds_make_a_page(settings: Settings) -> None:
    found = reviewed(settings)
    read(page(found, "job", "1"))
    read(page(replace(found, cost=None, cost_per_node_hour=None), "job", "1"))
    assert list(lines(reviewed(settings)))


def test_nothing_makes_a_page_too() -> None:
    html = page(report(Review()), "job", "1")
    read(html)
    assert "The log is empty." in html
    assert "Nothing is known." in html


def test_every_activity_has_a_colour() -> None:
    from elasticrun.core.accounting.activities import Activity

    assert set(COLOURS) == {each.value for each in Activity}
    assert slug("of a later version") == "a-other"
    assert SHEET.count("prefers-color-scheme:dark") == 1
    assert "@media print" in SHEET


def test_the_terminal_gets_what_matters(long: Report) -> None:
    told = "\n".join(lines(long))
    for words in (
        "goodput",
        "ETTR",
        "EUR",
        "worker failures",
        "advice:",
        "what if:",
        "torchrun's restarts: +",
    ):
        assert words in told


def test_many_hosts_are_cut(long: Report) -> None:
    many = replace(long.failures[0], hosts=tuple(f"h{i}" for i in range(9)))
    assert "h5 and 3 more" in page(replace(long, failures=(many,)), "job", "1")


def test_rounds_that_are_not_shown_are_counted(long: Report) -> None:
    assert "7 earlier rounds not shown" in page(replace(long, rounds_before=7), "job", "1")


# -- markup


def test_markup_is_made_of_escaped_parts() -> None:
    assert el("p", "<&>", el("b", "x"), None, class_='a"b', data_x=1.50, y=None) == (
        '<p class="a&quot;b" data-x="1.5">&lt;&amp;&gt;<b>x</b></p>'
    )
    assert el("br") == "<br>"
    assert isinstance(text(text("<")), Html)
    assert join("a", Html("<b>")) == "a<b>"


# -- figures


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (59, "59 s"),
        (75, "1 min 15"),
        (300, "5 min"),
        (3600, "1 h"),
        (5400, "1 h 30"),
        (7260, "2 h 01"),
    ],
)
def test_short_times(seconds: float, words: str) -> None:
    assert short_time(seconds) == words
    assert short_time(50 * 3600) == "2 d 2 h"
    assert short_time(48 * 3600) == "2 d"


@pytest.mark.parametrize("seconds", [0.3, 7, 100, 5000, 86400, 3e6, 1e9])
def test_axes_have_a_few_round_marks(seconds: float) -> None:
    found = list(marks(seconds))
    assert found[0] == 0
    assert found[-1] <= seconds
    assert 3 <= len(found) <= 11


def test_a_scale_stays_on_its_plot() -> None:
    scale = Scale(10.0, 20.0, 100.0, 200.0)
    assert [scale.at(value) for value in (0, 10, 15, 20, 99)] == [100.0, 100.0, 150.0, 200.0, 200.0]
    assert Scale(5.0, 5.0, 1.0, 2.0).at(5.0) == 1.0


@pytest.mark.parametrize(
    ("seconds", "words", "of_nodes"),
    [
        (0, "none", "none"),
        (6700, "+1.9 h", "+1.9 h"),
        (-290, "-4.8 min", "-0.081 h"),
        (48.3, "+48 s", "+0.013 h"),
        (1_234_567, "+340 h", "+340 h"),
    ],
)
def test_differences_have_two_digits(seconds: float, words: str, of_nodes: str) -> None:
    assert difference(seconds) == words
    assert difference(seconds, in_hours=True) == of_nodes


def test_amounts() -> None:
    assert [two_digits(it) for it in (0.0123, 1.84, 18.4, 184.0, 1849.0)] == [
        "0.012",
        "1.8",
        "18",
        "180",
        "1,800",
    ]
    assert [hours(it * 3600) for it in (0.5, 1.5, 75.23, 1203.4)] == [
        "30 min 0 s",
        "1.5 h",
        "75.2 h",
        "1,203 h",
    ]
    assert [money(12.5, "EUR"), money(123456.7, "")] == ["12.50 EUR", "123,457"]
    assert [money_difference(it, "EUR") for it in (0, 18.3, -0.8)] == ["none", "+18 EUR", "-0.8 EUR"]


# -- ends of stderr

ROW = FailureRow("exit", 1, "rank 1", 3, ("h",), 1.0, 2.0, 7, "a", 1, 1, 99)


def worker(run: Path, wrote: str, name: str = "stderr.log") -> Path:
    folder = run / "attempt_7" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(wrote)
    return folder


@pytest.mark.parametrize("inside", ["", "job_x1"])
@pytest.mark.parametrize("name", ["stderr.log", "filtered_stderr.log"])
def test_the_end_of_stderr_is_found(tmp_path: Path, inside: str, name: str) -> None:
    worker(tmp_path / inside, "first\n\x1b[31mlast \x07words\x1b[0m\n", name)
    (found,) = with_tails([ROW], [tmp_path])
    assert found.tail == "first\nlast ?words"
    assert found.tail_from.endswith(f"attempt_7/1/{name}")


def test_of_several_candidates_the_one_with_an_error_file_is_meant(tmp_path: Path) -> None:
    worker(tmp_path / "a", "of a")
    other = worker(tmp_path / "b", "of b")
    assert with_tails([ROW], [tmp_path]) == (ROW,)
    (other / "error.json").write_text("{}")
    assert with_tails([ROW], [tmp_path])[0].tail == "of b"


def test_without_logs_there_is_no_end(tmp_path: Path) -> None:
    assert with_tails([ROW], [tmp_path, tmp_path / "none"]) == (ROW,)
    worker(tmp_path, "")
    assert with_tails([ROW], [tmp_path]) == (ROW,)


def test_only_the_end_of_a_regular_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "stderr.log"
    file.write_text("".join(f"line {i}\n" for i in range(100_000)))
    assert tail(file).splitlines() == [f"line {i}" for i in range(100_000 - tails.TAIL_LINES, 100_000)]
    file.write_text("x" * 1_000_000)
    assert len(tail(file)) == tails.TAIL_BYTES
    link = tmp_path / "link"
    link.symlink_to(file)
    assert tail(link) == ""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert tail(fifo) == ""  # and nobody waits for a writer
    assert tail(tmp_path / "none") == ""


def test_the_kinds_that_hold_text_are_all_tried() -> None:
    def names() -> Iterator[str]:
        for kind in (WorkerFailed, NodeGone, Decision, JobEnded):
            yield from kind.__dataclass_fields__

    assert {"summary", "host", "node", "reason", "outcome", "phase", "text", "how"} <= set(names())
