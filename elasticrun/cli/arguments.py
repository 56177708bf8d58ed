"""Collect the text given for each option, from the arguments and the environment.

Precedence: the command line, then ``PET_<NAME>``, then the row's fallback variable, then its default.
An empty variable is the same as an unset one. ``splitting.py`` splits the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from elasticrun.cli import options
from elasticrun.cli.option import Option
from elasticrun.cli.options import OPTIONS
from elasticrun.cli.splitting import PROGRAM, split
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

T = TypeVar("T")


class ShowText(Exception):
    """The user asked for a text (``--help``, ``--version``), not for a launch: print it and exit 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class GivenText:
    """The text given for an option, and its source."""

    text: str
    source: str  # "--nnodes" or "PET_NNODES"

    def __str__(self) -> str:
        space = " " if self.source.startswith("-") else "="
        return f"{self.source}{space}{self.text!r}"


@dataclass(frozen=True, slots=True)
class Given:
    """The texts given, and the command that follows the options: the script and its arguments."""

    texts: Mapping[str, GivenText]
    command: tuple[str, ...]

    def has(self, option: Option[Any]) -> bool:
        """Whether the user gave it, by the command line or the environment."""
        return option.name in self.texts

    def find(self, option: Option[T]) -> T | None:
        """The value given, else the default, else None."""
        given = self.texts.get(option.name)
        if given is None:
            return option.fallback
        try:
            return option.convert(given.text)
        except ValueError as error:
            raise UsageError(_refusal(option, given, str(error))) from None

    def get(self, option: Option[T]) -> T:
        """The value of an option that has a default."""
        value = self.find(option)
        assert value is not None, f"{option.flag} has no default"
        return value

    def on(self, flag: Option[bool]) -> bool:
        """Whether a flag is set."""
        return bool(self.find(flag))

    def fields(self, kind: type) -> dict[str, Any]:
        """Values by field that options set in a class of config.py; other fields keep their defaults."""
        rows = [option for option in OPTIONS if option.sets is kind]
        return {row.field_name: self.find(row) for row in rows if self.has(row) or row.default is not None}

    def refuse(self, option: Option[Any], reason: str) -> NoReturn:
        """Raise the usage error for an option that was given but turned out wrong later."""
        raise UsageError(f"{self.texts[option.name]} is not valid: {reason}")


def _refusal(option: Option[Any], given: GivenText, reason: str) -> str:
    detail = f"{reason}; " if reason else ""
    return f"{given} is not valid: {detail}give {option.allowed}"


def read_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> Given:
    """Split the command line and look up the environment.

    Raises UsageError, or ShowText for ``--help``, ``--version`` and ``--print-completion``.
    """
    parsed, command = split(argv)
    if parsed.get(options.HELP.name):
        from elasticrun.cli.help import help_text

        raise ShowText(help_text())
    if parsed.get(options.VERSION.name):
        from elasticrun import __version__

        raise ShowText(f"{PROGRAM} {__version__}")
    if (shell := parsed.get(options.PRINT_COMPLETION.name)) is not None:
        raise ShowText(_completion(shell))
    texts: dict[str, GivenText] = {}
    for option in OPTIONS:
        given = _text_given(option, parsed.get(option.name), environ)
        if given is not None:
            texts[option.name] = given
    return Given(texts, command)


def _completion(shell: str) -> str:
    option = options.PRINT_COMPLETION
    Given({option.name: GivenText(shell, option.flag)}, ()).find(option)  # refuses an unknown shell
    from elasticrun.cli.completion import launcher, script

    return script(launcher(), PROGRAM, shell)


def _text_given(option: Option[Any], typed: str | None, environ: Mapping[str, str]) -> GivenText | None:
    if typed or (typed is not None and not option.blank):
        return GivenText(typed, option.flag)
    for variable in (option.env, option.fallback_env):
        if typed is None and environ.get(variable):
            return GivenText(environ[variable], variable)
    return None
