"""Splits a command line with ``click``, fed by the option table, and says what is wrong in our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from elasticrun.cli.option import Option, Origin
from elasticrun.cli.options import OPTIONS
from elasticrun.errors import UsageError

PROGRAM = "elastic-run"
_BY_NAME = {option.name: option for option in OPTIONS}
_SHORT = frozenset(f"-{option.short}" for option in OPTIONS if option.short)


def split(argv: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Texts by option name ("1" for a flag), and the rest."""
    try:
        context = _command().make_context(PROGRAM, list(argv))
    except click.NoSuchOption as error:
        raise UsageError(_no_such_option(error.option_name)) from None
    except click.BadOptionUsage as error:
        raise UsageError(_bad_usage(error.option_name)) from None
    rest = tuple(context.args)
    parsed = {
        name: "1" if value is True else str(value)
        for name, value in context.params.items()
        if value is not None and value is not False
    }
    _check_swallowed(parsed, argv[: len(argv) - len(rest)])
    return parsed, rest


def _command() -> click.Command:
    return click.Command(
        PROGRAM,
        params=[_click_option(option) for option in OPTIONS],
        add_help_option=False,
        context_settings={
            "allow_interspersed_args": False,
            "allow_extra_args": True,
            "token_normalize_func": _full_name,
        },
    )


def _click_option(option: Option[Any]) -> click.Option:
    spellings = [option.flag]
    if option.short:
        spellings.append(f"-{option.short}")
    if _candidates(option.name[0]) == [option.name]:
        spellings.append(f"--{option.name[0]}")  # _full_name cannot tell it from a short option
    made = click.Option(
        spellings, is_flag=option.is_flag, type=None if option.is_flag else click.UNPROCESSED, default=None
    )
    made.name = option.name
    return made


def _full_name(token: str) -> str:
    """An option's name in full, from its underscore twin or an abbreviation; dashes in front are off."""
    if len(token) == 1:
        return token
    candidates = _candidates(token)
    if len(candidates) > 1:
        raise UsageError(_ambiguous(token, candidates))
    return candidates[0] if candidates else token


def _candidates(token: str) -> list[str]:
    """Names that a token may stand for; those of torchrun go first, so that ours never make one ambiguous."""
    name = token.replace("_", "-")
    if name in _BY_NAME:
        return [name]
    starting = [option for option in OPTIONS if option.name.startswith(name)]
    theirs = [option.name for option in starting if option.origin is Origin.TORCHRUN]
    return theirs or [option.name for option in starting]


def _ambiguous(token: str, candidates: Sequence[str]) -> str:
    return f"--{token} is ambiguous: give one of {', '.join(f'--{name}' for name in candidates)}"


def _no_such_option(typed: str) -> str:
    token = typed.lstrip("-")
    if typed.startswith("--") and len(candidates := _candidates(token)) > 1:
        return _ambiguous(token, candidates)
    from difflib import get_close_matches

    names = [option.name for option in OPTIONS if not option.hidden]
    close = get_close_matches(token.replace("_", "-"), names, n=1)
    hint = f"; did you mean --{close[0]}?" if close else "; options of the script go after the script;"
    return f"there is no option {typed}{hint} see {PROGRAM} --help"


def _option_typed(typed: str) -> Option[Any]:
    name = typed.lstrip("-")
    for option in OPTIONS:
        if name in (option.name, option.short):
            return option
    return _BY_NAME[_candidates(name)[0]]


def _bad_usage(typed: str) -> str:
    option = _option_typed(typed)
    if option.is_flag:
        return f"{option.flag} was given a value, but it is a flag: give {option.flag} alone"
    return _needs_value(option)


def _needs_value(option: Option[Any]) -> str:
    return f"{option.flag} was given no value: give {option.allowed}"


def _check_swallowed(parsed: Mapping[str, str], head: Sequence[str]) -> None:
    """Refuse ``--log-dir --standalone``: an option taken for the value of the one before it."""
    for name, text in parsed.items():
        if text in head and (text.startswith("--") or text in _SHORT):
            raise UsageError(f"{_needs_value(_BY_NAME[name])} ({text} follows it)")
