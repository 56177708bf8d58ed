"""Completion of a command line in the user's shell, for ``elastic-run`` and ``elastic-ctl``.

Theory. ``click`` knows how bash, zsh and fish ask: the script that a user loads into the shell calls the
program again at each TAB, with a variable that says what is wanted, and the program answers from its own
options. So completion always offers what is accepted. tcsh cannot ask a program in this way; its script is
one ``complete`` command that lists the options.

One rule is ours: words after the script's name belong to the script, so only files are offered there.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stderr

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from elasticrun.cli.option import Group, Option
from elasticrun.cli.options import OPTIONS, PRINT_COMPLETION

SHELLS = PRINT_COMPLETION.choices
_KINDS: Mapping[str, click.Path] = {
    "FILE": click.Path(dir_okay=False),
    "DIR": click.Path(file_okay=False),
}


class Launcher(click.Command):
    """``elastic-run`` as far as completion needs it."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer our options before the script, and none after it."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


def launcher() -> click.Command:
    """``elastic-run`` with the options of the table."""
    params: list[click.Parameter] = [_parameter(option) for option in OPTIONS if not option.hidden]
    # Not required, or click would refuse the unfinished line.
    params.append(click.Argument(["script"], nargs=-1, required=False, type=click.Path()))
    return Launcher("elastic-run", params=params, add_help_option=False, context_settings=_AS_TYPED)


_AS_TYPED = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def _parameter(option: Option[object]) -> click.Option:
    spellings = [option.flag, *([f"-{option.short}"] if option.short else [])]
    kind = click.Choice(option.choices) if option.choices else _KINDS.get(option.metavar, click.UNPROCESSED)
    is_last = option.group is Group.ABOUT
    return click.Option(
        spellings,
        is_flag=option.is_flag,
        type=None if option.is_flag else kind,
        help=option.help,
        is_eager=is_last,
    )


def variable(program: str) -> str:
    """The environment variable by which a completion script asks ``program``."""
    return f"_{program.upper().replace('-', '_')}_COMPLETE"


def script(command: click.Command, program: str, shell: str) -> str:
    """The text that a user loads into ``shell``, which is one of ``SHELLS``."""
    if shell == "tcsh":
        return _tcsh(command, program)
    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"
    with redirect_stderr(io.StringIO()):  # click looks for bash here, but the script may be for elsewhere
        return kind(command, {}, program, variable(program)).source()


def answer(command: click.Command, program: str, instruction: str) -> int:
    """Print what a shell asked for by ``variable``; return the exit status."""
    return shell_complete(command, {}, program, variable(program), instruction)


def _tcsh(command: click.Command, program: str) -> str:
    """The ``complete`` command: options, the words that each takes, and verbs or else files."""
    rules = []
    for name, parameters in _by_verb(command).items():
        words = sorted(spelling for one in parameters for spelling in one.opts if spelling.startswith("--"))
        where = f"'n/{name}/({' '.join(words)})/'" if name else f"'c/--/({' '.join(w[2:] for w in words)})/'"
        rules.append(where)
        for one in parameters:
            if isinstance(one.type, click.Choice):
                rules.append(f"'n/{one.opts[0]}/({' '.join(map(str, one.type.choices))})/'")
    verbs = sorted(command.commands) if isinstance(command, click.Group) else []
    rules.append(f"'p/1/({' '.join(verbs)})/'" if verbs else "'p/*/f/'")
    return f"complete {program} {' '.join(dict.fromkeys(rules))}\n"


def _by_verb(command: click.Command) -> dict[str, list[click.Parameter]]:
    """The options of each verb of a program; under "" if it has no verbs."""
    if not isinstance(command, click.Group):
        return {"": _options(command)}
    return {name: _options(verb) for name, verb in sorted(command.commands.items())}


def _options(command: click.Command) -> list[click.Parameter]:
    parameters = command.get_params(click.Context(command, help_option_names=[]))
    return [one for one in parameters if isinstance(one, click.Option)]
