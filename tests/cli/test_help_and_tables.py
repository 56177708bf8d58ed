"""Help and manual come from the option table, so all they can be is incomplete or too wide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticrun.cli import table
from elasticrun.cli.help import help_text
from elasticrun.cli.option import Group, Origin
from elasticrun.cli.options import OPTIONS
from elasticrun.config import FailureClass
from elasticrun.errors import EXIT_CODE_MEANING, ExitCode

ROOT = Path(__file__).parents[2]
PAGES = [f"elasticrun/manual/{name}.md" for name in ("options", "exit-codes", "restarts", "operator", "api")]
EMPTY = """\
# Title

<!-- options:start -->
<!-- options:end -->

middle
<!-- exit-codes:start -->old<!-- exit-codes:end -->
end
"""


def test_help_is_plain_and_fits() -> None:
    text = help_text()
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert max(len(line) for line in text.splitlines()) <= 100
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_help_has_every_option_under_its_heading() -> None:
    text = help_text()
    places = [text.index(f"\n{group.value}:\n") for group in Group] + [text.index("\nOptions marked")]
    assert places == sorted(places)
    for place, group, end in zip(places, Group, places[1:], strict=False):
        block = text[place:end]
        for option in OPTIONS:
            shown = re.search(rf"^  (-\w, |    ){option.flag}(?![\w-])", block, re.M)
            assert bool(shown) == (option.group is group and not option.hidden), option.name
            if shown and option.short:
                assert f"  -{option.short}, {option.flag}" in block


def test_help_shows_defaults_and_whose_option_it_is() -> None:
    text = help_text()
    assert "(default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)" in text
    assert "use-env" not in text
    for option in OPTIONS:
        if option.origin is Origin.OURS:
            assert re.search(rf"{option.flag}[^\n]* \*", text), option.name


@pytest.mark.parametrize(
    "words",
    [
        "--standalone",
        "--rdzv-backend c10d",
        "--master-addr",
        "ENTRYPOINT",
        "node0,node1",
        "--health-check-only",
        "--role-counts chief=1,worker=4,ps=2",
    ],
)
def test_help_has_examples(words: str) -> None:
    assert words in help_text().partition("Examples:")[2]


def test_option_table_has_a_row_for_each_option() -> None:
    rows = table.option_table().splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)
    for option in OPTIONS:
        found = [row for row in rows if re.search(rf"`{option.flag}[ `]", row.split(" | ")[0])]
        assert len(found) == (0 if option.hidden else 1), option.name
    assert "| `--nnodes N\\|MIN:MAX` | `1:1` | " in table.option_table()
    assert "| `-r`, `--redirects STREAMS` | `0` | " in table.option_table()
    assert "| `--state-dir DIR` \\* |" in table.option_table()


def test_action_table() -> None:
    rows = table.action_table().splitlines()
    assert len(rows) == len(FailureClass) + 2
    assert "| `hardware` | `leave` |" in rows


def test_exit_code_table() -> None:
    rows = table.exit_code_table().splitlines()
    assert len(rows) == len(EXIT_CODE_MEANING) + 3
    assert f"| 2 | {EXIT_CODE_MEANING[ExitCode.USAGE]} |" in rows


def test_write_fills_between_the_markers_and_again(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(EMPTY)
    assert table.main(["--write", str(page)]) == 0
    text = page.read_text()
    start, middle = "# Title\n\n<!-- options:start -->\n", "\n<!-- options:end -->\n\nmiddle\n"
    codes, end = "<!-- exit-codes:start -->\n", "\n<!-- exit-codes:end -->\nend\n"
    assert text == start + table.option_table() + middle + codes + table.exit_code_table() + end
    assert table.main(["--write", str(page)]) == 0
    assert page.read_text() == text


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([]) == 0
    tables = [make() for make in table.TABLES.values()]
    assert capsys.readouterr().out == "\n\n".join(tables) + "\n"


@pytest.mark.parametrize("marker", ["options:start", "options:end", "exit-codes:start", "exit-codes:end"])
def test_a_missing_marker(marker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text(EMPTY.replace(f"<!-- {marker} -->", ""))
    assert table.main(["--write", str(page)]) == 2
    assert marker in capsys.readouterr().err


def test_a_page_without_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text("# Title\n")
    assert table.main(["--write", str(page)]) == 2
    assert "there are no markers" in capsys.readouterr().err


def test_wrong_use_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(["--wirte", "README.md"]) == 2
    assert "usage: " in capsys.readouterr().err
    assert table.main(["--write", str(tmp_path / "none.md")]) == 2
    assert "none.md" in capsys.readouterr().err


def test_the_manual_has_these_tables() -> None:
    texts = {page: (ROOT / page).read_text() for page in PAGES}
    found = [page for page, text in texts.items() if table.fill(text) != text]
    assert not found, f"run: python -m elasticrun.cli.table --write {' '.join(PAGES)}"
    assert all(sum(f"<!-- {name}:start -->" in text for text in texts.values()) == 1 for name in table.TABLES)
