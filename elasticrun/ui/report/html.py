"""HTML and SVG as values.

Theory. Text and markup are two types. ``el`` makes markup, and escapes all children and attributes that are
not markup already; nothing else in this folder makes any. So what a log says stays text, whatever it says.
"""

from __future__ import annotations

from html import escape

from elasticrun.core.protocol.plain import plain

#: Elements without an end.
_VOID = frozenset({"meta", "br"})


class Html(str):
    """Markup, made by ``el`` or ``join``."""

    __slots__ = ()


Child = str | None  # Html stays as it is, other text is escaped, None is left out


def text(value: str) -> Html:
    """Text as markup. Control characters, and those that turn the order of letters, are replaced."""
    return value if isinstance(value, Html) else Html(escape(plain(value)))


def join(*children: Child) -> Html:
    """Markup of several parts."""
    return Html("".join(text(child) for child in children if child is not None))


def el(name: str, /, *children: Child, **attributes: str | float | None) -> Html:
    """An element. ``class_`` stands for class, and ``_`` in names for a dash; None leaves one out."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            said = value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(plain(said))}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def raw(markup: str) -> Html:
    """Markup that is ours, as the style sheet; never anything of a log."""
    return Html(markup)
