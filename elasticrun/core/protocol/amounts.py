"""Counts, shares and lengths of time, as people say them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """``1 worker`` or ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float | None) -> str:
    """``99.3 %`` of 0.993; a dash for what is not known."""
    return "-" if share is None else f"{100 * share:.1f} %"


def time_text(seconds: float) -> str:
    """A length of time as people say it: ``0.06 s``, ``0.4 s``, ``37 s``, ``4 min 5 s``, ``3 h 2 min``."""
    if seconds < 59.5:
        digits = 2 if seconds < 0.095 else 1 if seconds < 9.95 else 0
        return f"{seconds:.{digits}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
