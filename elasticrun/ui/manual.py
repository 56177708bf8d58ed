"""Pages of the manual in a terminal: Markdown becomes text that fits the window."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.markdown import Markdown

from elasticrun.ui.printed import printed

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_PAGE = re.compile(r"\[([^\]]+)\]\((?:\./)?([\w-]+)\.md(?:#[\w-]*)?\)")
_FILE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[\w-]*)?\)")
_PLACE = re.compile(r"\[([^\]]+)\]\(#[\w-]*\)")
_IMAGE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)


def render_page(text: str, width: int, colour: bool = False) -> str:
    """A page, at most ``width`` columns wide unless a word is longer, without a newline at its end."""
    return printed(Markdown(_for_terminals(text), hyperlinks=False), width, colour).rstrip()


def render_topics(pages: Iterable[tuple[str, str]]) -> str:
    """The list of (topic, text of its page): each with the first sentence below its title."""
    rows = [(topic, _summary(text)) for topic, text in pages]
    widest = max(len(topic) for topic, _ in rows)
    return "\n".join(f"  {topic:{widest}}  {summary}" for topic, summary in rows)


def _for_terminals(text: str) -> str:
    """Replaces links by commands or files, and drops what only browsers show."""
    text = _IMAGE.sub("", _COMMENT.sub("", text))
    text = _PAGE.sub(r"\1 (`elastic-ctl manual \2`)", text)
    return _PLACE.sub(r"\1", _FILE.sub(r"\1 (\2)", text))


def _summary(text: str) -> str:
    """The first sentence of the page, which says what it is about."""
    paragraph = text.split("\n\n")[1].replace("\n", " ")
    return re.split(r"(?<=\.)\s", _PLACE.sub(r"\1", _PAGE.sub(r"\1", paragraph)))[0].replace("`", "")
