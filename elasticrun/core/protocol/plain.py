"""Make text from strangers safe to print.

Names of nodes, refusals, error files and exceptions come from other hosts and from training programs.
Such text goes through here before it is printed, so that no character moves the cursor, sets a title, makes
the terminal reply or reverses the order of the letters. A text for one line cannot begin another one, which
could pass for a line of ours.
"""

from __future__ import annotations

import re

#: Control characters except newline and tab, line separators, and marks that reverse the text after them.
#: And halves of characters, which no terminal takes.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Replace each unsafe character with a question mark."""
    return _UNSAFE.sub("?", text)


def one_line(text: str) -> str:
    """The same, and replace newlines and tabs too."""
    return plain(text).replace("\n", "?").replace("\t", "?")
