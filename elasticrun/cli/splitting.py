"""Split a list of words into the text given for each option and the command that follows.

Spelling is torchrun's: names may be abbreviated as long as they are not ambiguous, may have underscores for
dashes, and take their value after ``=`` or as the next word. Short flags may share one dash. The options end
at ``--``, or at the first word that is no option: from there on everything is the script's, untouched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from elasticrun.cli.option import Option, Origin
from elasticrun.cli.options import OPTIONS
from elasticrun.errors import UsageError

PROGRAM = "elastic-run"
#: Texts by option name ("1" for a flag), and the command.
Split = tuple[dict[str, str], tuple[str, ...]]

_BY_NAME = {option.name: option for option in OPTIONS}
_BY_LETTER = {option.short: option for option in OPTIONS if option.short}


def split(argv: Sequence[str]) -> Split:
    """Split a command line. Raises UsageError for an unknown option, or one without its value."""
    texts: dict[str, str] = {}
    rest = deque(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.popleft()
        if word == "--":
            break
        if word.startswith("--"):
            _take_long(word, rest, texts)
        else:
            _take_short(word, rest, texts)
    return texts, tuple(rest)


def _take_long(word: str, rest: deque[str], texts: dict[str, str]) -> None:
    typed, equals, text = word.partition("=")
    option = _BY_NAME.get(typed[2:]) or _find(typed)
    if option.is_flag and equals:
        raise UsageError(f"{option.flag} was given a value, but it is a flag: give {option.flag} alone")
    texts[option.name] = "1" if option.is_flag else text if equals else _next(option, rest)


def _take_short(word: str, rest: deque[str], texts: dict[str, str]) -> None:
    """``-t3``, ``-t=3``, ``-t 3``, and flags in front of it: ``-mt3``."""
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = _BY_LETTER.get(letter)
        if option is None:
            raise UsageError(_unknown(f"-{letter}"))
        if option.is_flag:
            texts[option.name] = "1"
        else:
            texts[option.name] = letters.removeprefix("=") if letters else _next(option, rest)
            letters = ""


def _next(option: Option[Any], rest: deque[str]) -> str:
    """Take the next word as a value; raises UsageError if there is none, or it is an option."""
    if not rest:
        raise UsageError(_needs_value(option))
    text = rest.popleft()
    if text.startswith("--") or (text[1:] in _BY_LETTER and text[0] == "-"):
        raise UsageError(f"{_needs_value(option)} ({text} follows it)")
    return text


def _needs_value(option: Option[Any]) -> str:
    return f"{option.flag} was given no value: give {option.allowed}"


def _find(typed: str) -> Option[Any]:
    """The option of an abbreviation, or of a name with underscores."""
    found = _candidates(typed[2:])
    if not found:
        raise UsageError(_unknown(typed))
    if len(found) > 1:
        names = ", ".join(f"--{name}" for name in found)
        raise UsageError(f"{typed} is ambiguous: give one of {names}")
    return _BY_NAME[found[0]]


def _candidates(token: str) -> list[str]:
    """Names that a token may stand for; an abbreviation means ours only if it fits none of torchrun's."""
    name = token.replace("_", "-")
    if name in _BY_NAME:
        return [name]
    starting = [option for option in OPTIONS if name and option.name.startswith(name)]
    theirs = [option.name for option in starting if option.origin is Origin.TORCHRUN]
    return theirs or [option.name for option in starting]


def _unknown(typed: str) -> str:
    from difflib import get_close_matches

    names = [option.name for option in OPTIONS if not option.hidden]
    close = get_close_matches(typed.lstrip("-").replace("_", "-"), names, n=1)
    hint = f"; did you mean --{close[0]}?" if close else "; options of the script go after the script;"
    return f"there is no option {typed}{hint} see {PROGRAM} --help"
