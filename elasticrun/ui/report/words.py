"""Figures of a report as people read them, on the page and in a terminal."""

from __future__ import annotations

from elasticrun.core.protocol.amounts import time_text


def hours(seconds: float) -> str:
    """Time of nodes: ``75.7 h``."""
    amount = seconds / 3600
    if amount < 1:
        return time_text(seconds)
    return f"{amount:,.0f} h" if amount >= 1000 else f"{amount:.3g} h"


def money(amount: float, currency: str) -> str:
    """``1,203.50 EUR``."""
    said = f"{amount:,.2f}" if abs(amount) < 10000 else f"{amount:,.0f}"
    return f"{said} {currency}".rstrip()


def difference(seconds: float, in_hours: bool = False) -> str:
    """A difference with its sign and two digits: ``+1.9 h``, ``-48 s``; ``in_hours`` for time of nodes."""
    if seconds == 0:
        return "none"
    sign = "+" if seconds > 0 else "-"
    size = abs(seconds)
    if in_hours or size >= 3570:
        return f"{sign}{two_digits(size / 3600)} h"
    return f"{sign}{two_digits(size / 60)} min" if size >= 59.5 else f"{sign}{two_digits(size)} s"


def money_difference(amount: float, currency: str) -> str:
    """The same of money: ``+18 EUR``."""
    if amount == 0:
        return "none"
    return f"{'+' if amount > 0 else '-'}{two_digits(abs(amount))} {currency}".rstrip()


def two_digits(value: float) -> str:
    """A figure that is not better known than that: ``1,800``, ``18``, ``1.8``, ``0.018``."""
    if value >= 99.5:
        size = 10 ** (len(str(round(value))) - 2)
        return f"{round(value / size) * size:,}"
    return f"{value:.0f}" if value >= 9.95 else f"{float(f'{value:.2g}'):g}"
