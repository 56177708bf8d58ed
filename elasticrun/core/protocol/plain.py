"""Text of strangers as it may be shown: it says what it says, and does nothing.

Names of nodes, refusals, error files and exceptions come from other hosts and from training programs.
Before such text is printed, it goes through here: no character of it moves the cursor, sets a title,
answers a question of the terminal or turns the order of the letters around. Where a text has to be one line
it cannot begin another one, which could pass for a line of ours.
"""

from __future__ import annotations

import re

#: Controls but for the end of a line and the tab, separators of lines, and marks that reverse what follows.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text with a question mark for each character that does more than to be read."""
    return _UNSAFE.sub("?", text)


def one_line(text: str) -> str:
    """The same, for what has no second line and no columns."""
    return plain(text).replace("\n", "?").replace("\t", "?")
