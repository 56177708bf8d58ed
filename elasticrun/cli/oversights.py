"""Warnings of what a user has probably not meant: options after the script, mistyped variables.

Neither is an error. What stands after the script is the script's, which may have an option of the same name,
and a ``PET_`` variable may be another program's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.cli.options import OPTIONS
from elasticrun.cli.rendezvous import Notes

#: Options of ours that many scripts have as well, so that a warning would be wrong more often than right.
_COMMON = (
    *("framework", "help", "log-dir", "master-addr", "master-port", "module"),
    *("policy", "role", "start-method", "version", "warm"),
)
_OURS = {option.name: option.flag for option in OPTIONS if option.name not in _COMMON}
_PREFIX = "PET_"
#: How alike two names have to be, from 0 to 1; ``PET_NODES`` is close enough to ``PET_NNODES``.
_ALIKE = 0.85


def note_misplaced_options(argv: Sequence[str], command: Sequence[str], notes: Notes) -> None:
    """Warn of options of ours among the script's arguments; ``--`` before them says that they are meant."""
    found = _misplaced(argv, command)
    if found:
        is_one = len(found) == 1
        stand = "stands after the script and goes to it" if is_one else "stand after the script and go to it"
        advice = "for elastic-run, give options before the script; if it is meant, put -- before the script"
        notes.append(("warning", f"{', '.join(found)} {stand}: {advice}"))


def _misplaced(argv: Sequence[str], command: Sequence[str]) -> list[str]:
    if argv[: len(argv) - len(command)][-1:] == ["--"]:
        return []
    found = dict[str, None]()  # each once, in this order
    for word in command[1:]:
        if word == "--":
            break
        if word.startswith("--"):
            flag = _OURS.get(word[2:].partition("=")[0].replace("_", "-"))
            if flag is not None:
                found[flag] = None
    return list(found)


def note_mistyped_variables(environ: Mapping[str, str], notes: Notes) -> None:
    """Warn of variables that are spelled almost like one of ours."""
    known = {option.env.removeprefix(_PREFIX) for option in OPTIONS if option.env}
    given = [name for name in environ if name.startswith(_PREFIX)]
    unknown = [name for name in given if name.removeprefix(_PREFIX) not in known]
    if not unknown:
        return
    from difflib import get_close_matches  # hardly ever needed

    for name in sorted(unknown):
        # Without the prefix, which makes any two of them alike.
        for close in get_close_matches(name.removeprefix(_PREFIX), sorted(known), 1, _ALIKE):
            sentence = f"{name} is no variable of elastic-run; did you mean {_PREFIX}{close}?"
            notes.append(("warning", sentence))
