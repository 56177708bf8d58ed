"""Keys as terminals send them."""

from __future__ import annotations

import pytest

from elasticrun.ui.top.screen import keys_of


@pytest.mark.parametrize(
    ("text", "keys", "left"),
    [
        ("jk", ["j", "k"], ""),
        ("\x1b[A\x1bOB", ["up", "down"], ""),
        ("\x1b[5~x\x1b[1~", ["page up", "x", "home"], ""),
        ("\x1b", [], "\x1b"),
        ("\x1b[", [], "\x1b["),
        ("\x1b[1;5", [], "\x1b[1;5"),
        ("\x1b[1;5Cq", ["q"], ""),
        ("\x1bq", ["q"], ""),
        ("\u00e9", ["\u00e9"], ""),
        ("", [], ""),
    ],
)
def test_keys(text: str, keys: list[str], left: str) -> None:
    assert keys_of(text) == (keys, left)
