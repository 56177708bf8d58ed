"""The options of ``elasticrun.launch`` as the command line has them: each row of the table by its name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from elasticrun.cli import options
from elasticrun.cli.option import Group, Option
from elasticrun.cli.platform_options import PLATFORM, PLATFORM_CONF
from elasticrun.errors import UsageError

#: What ``launch`` settles itself, and the argument that says it; "" if none does.
_OWN: dict[Option[Any], str] = {
    options.NNODES: "nodes",
    options.NPROC_PER_NODE: "nproc",
    options.STANDALONE: "",
    options.RDZV_BACKEND: "",
    options.RDZV_ENDPOINT: "",
    options.RDZV_ID: "",
    options.NODE_RANK: "",
    options.MASTER_ADDR: "",
    options.MASTER_PORT: "",
    PLATFORM: "",
    PLATFORM_CONF: "",
}
#: What ``launch`` and ``start`` take besides, for hints; a test compares.
ARGUMENTS = (
    *("nproc", "nodes", "min_nodes", "max_restarts", "env", "preload"),
    *("oversubscribe", "max_result_bytes", "faults", "stream", "server"),
)
#: What people look for under these names.
_ELSEWHERE = {"timeout": "start the job, and give it to wait()", "args": "give them after the function"}


def command_line(given: Mapping[str, object]) -> list[str]:
    """The arguments that stand for these options; None, and False for a flag, stand for nothing.

    Raises UsageError if there is no such option, or ``launch`` settles it.
    """
    known = {
        option.name.replace("-", "_"): option for option in options.OPTIONS if option.group is not Group.ABOUT
    }
    arguments = []
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            raise UsageError(f"launch has no option {name}{_advice(name, [*known, *ARGUMENTS])}")
        if option in _OWN:
            raise UsageError(f"{name} was given: launch settles it itself{_instead(option)}")
        arguments += _arguments(option, name, value)
    return arguments


def _arguments(option: Option[Any], name: str, value: object) -> list[str]:
    if value is None:
        return []
    if not option.is_flag:
        return [f"{option.flag}={value}"]
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} was given: give True or False")
    return [option.flag] if value else []


def _advice(name: str, known: list[str]) -> str:
    if name in _ELSEWHERE:
        return f": {_ELSEWHERE[name]}"
    close = get_close_matches(name, known, n=1)
    return f": did you mean {close[0]}?" if close else ": elastic-run --help lists all"


def _instead(option: Option[Any]) -> str:
    instead = _OWN[option]
    return f", give {instead}" if instead else ""
