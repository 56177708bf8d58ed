"""Slurm's way to write many hosts in few letters: ``n[01-03,7],gpu-[1-2]-[a]``.

A list comes from the environment, so it may be anything. How many hosts it names is counted before one of
them is written out: ``n[0-999999999]`` costs nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

#: More hosts than Slurm itself can have, and than a job here ever had.
MOST_HOSTS = 65_536
_MOST_LETTERS = 1 << 20
_MOST_BRACKETS = 8  # in one name; Slurm has fewer
_LONGEST_NAME = 255  # as for a host name anywhere
#: What stands between two brackets, or around them.
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]*")
_SPAN = re.compile(r"(\d{1,18})-(\d{1,18})")
_ITEM = re.compile(r"[A-Za-z0-9._]+")

_Range = tuple[int, int, int]  # first, last, and the least number of digits
#: A part of a name: what may stand there.
_Choices = tuple[_Range | str, ...]


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list in their order. Raises ValueError that says in words what is wrong with it."""
    if len(text) > _MOST_LETTERS:
        raise ValueError(f"it has more than {_MOST_LETTERS} letters")
    names: list[str] = []
    for item in _items(text):
        parts = list(_parts(item))
        if len(names) + _count(parts) > MOST_HOSTS:
            raise ValueError(f"it names more than {MOST_HOSTS} hosts")
        if sum(max(map(_length, choices)) for choices in parts) > _LONGEST_NAME:
            raise ValueError(f"a name has more than {_LONGEST_NAME} letters")
        names += ["".join(words) for words in itertools.product(*map(_texts, parts))]
    return tuple(names)


def _items(text: str) -> Iterator[str]:
    """The list's items: it is split at commas that are in no bracket."""
    start = depth = 0
    for place, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError("its brackets do not match")
        if letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if depth:
        raise ValueError("its brackets do not match")
    yield text[start:]


def _parts(item: str) -> Iterator[_Choices]:
    if not item:
        raise ValueError("a name is missing")
    if item.count("[") > _MOST_BRACKETS:
        raise ValueError(f"a name has more than {_MOST_BRACKETS} brackets")
    for number, piece in enumerate(re.split(r"[][]", item)):
        if number % 2:  # it stood in brackets
            yield tuple(_choice(each) for each in piece.split(","))
        elif _PLAIN.fullmatch(piece):
            yield (piece,)
        else:
            raise ValueError(f"{piece[:40]!r} is no part of a host's name")


def _choice(text: str) -> _Range | str:
    if span := _SPAN.fullmatch(text):
        first, last = int(span[1]), int(span[2])
        if first > last:
            raise ValueError(f"the range {text} runs backwards")
        return first, last, len(span[1])
    if not _ITEM.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no number and no range")
    return text


def _count(parts: list[_Choices]) -> int:
    """How many names these parts make."""
    total = 1
    for choices in parts:
        total *= sum(1 if isinstance(each, str) else each[1] - each[0] + 1 for each in choices)
    return total


def _length(choice: _Range | str) -> int:
    return len(choice) if isinstance(choice, str) else max(len(str(choice[1])), choice[2])


def _texts(choices: _Choices) -> Iterator[str]:
    for each in choices:
        if isinstance(each, str):
            yield each
        else:
            first, last, width = each
            yield from (f"{number:0{width}}" for number in range(first, last + 1))
