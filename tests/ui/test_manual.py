"""Pages of the manual as a terminal shows them."""

from __future__ import annotations

import pytest

from elasticrun.ui.manual import render_page, render_topics

PAGE = """\
# Title

What it is about: this. And [more](other.md).

![a picture](picture.svg)

See [there](other.md#part), [a file](../../examples/pi.py) and [below](#below).

<!-- options:start -->
| option | meaning |
|---|---|
| `--a N\\|M` | a number |
<!-- options:end -->

## Below

```sh
elastic-run --standalone examples/pi.py
```
"""


def test_a_page_is_plain_text_without_colours() -> None:
    shown = render_page(PAGE, 80)
    assert "\x1b" not in shown
    assert max(map(len, shown.split("\n"))) <= 80
    assert "See there (elastic-ctl manual other), a file (examples/pi.py) and below." in shown
    assert "--a N|M" in shown
    assert " elastic-run --standalone examples/pi.py\n" in f"{shown}\n"
    assert "<!--" not in shown
    assert "picture" not in shown


def test_colours_are_for_terminals() -> None:
    assert "\x1b[" in render_page(PAGE, 80, colour=True)


@pytest.mark.parametrize("width", [40, 80])
def test_a_page_fits_the_window(width: int) -> None:
    assert max(map(len, render_page(PAGE, width).split("\n"))) <= width


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = render_page(PAGE, 80)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    assert render_page(PAGE, 80) == plain


def test_the_list_has_the_first_sentence_of_each_page() -> None:
    assert render_topics([("one", PAGE), ("three", "# Three\n\nOf [one](one.md)\nand `two`.\n")]) == (
        "  one    What it is about: this.\n  three  Of one and two."
    )
