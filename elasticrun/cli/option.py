"""The fields of a row of the option table; the rows are in ``options.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from elasticrun.cli import values
from elasticrun.dataclass import dataclass

T_co = TypeVar("T_co", covariant=True)

#: What a flag's environment variable may hold.
SWITCH = "an integer, 0 for no and 1 for yes"


class Group(Enum):
    """The headings of the help text, in its order."""

    SIZE = "Size of the job"
    RENDEZVOUS = "How the nodes find one another"
    RESTART = "Restarts, waiting and stopping"
    STATE = "Saved state"
    HEALTH = "Health and failures"
    SECURITY = "Security"
    PROGRAM = "How the training program is started"
    TENSORFLOW = "TensorFlow"
    LOGS = "Output and logs"
    WATCH = "Watching the job"
    ABOUT = "About elastic-run"


class Origin(Enum):
    """Where an option comes from. An abbreviation means an option of torchrun if one fits."""

    TORCHRUN = "torchrun"
    OURS = "elasticrun"
    LEGACY = "torch.distributed.launch"  # accepted so that old command lines work; not in the help


@dataclass(frozen=True, slots=True)
class Option(Generic[T_co]):
    """One row: how an option is written, what it means and how its text becomes a value."""

    name: str  # without the dashes in front
    group: Group
    convert: Callable[[str], T_co]
    metavar: str  # "" for a flag
    help: str
    allowed: str = ""  # completes "give ..." in a usage error
    default: str | None = None  # text, as a user would give it; None: the default of its field, if any
    short: str = ""
    origin: Origin = Origin.TORCHRUN
    blank: bool = False  # an empty value on the command line means the default
    fallback_env: str = ""  # a variable that is read after PET_<NAME>
    sets: type | None = None  # the class of config.py with a field that takes the value unchanged
    field: str = ""  # the field's name, if it differs from the option's

    @property
    def field_name(self) -> str:
        """The name of the field that it sets."""
        return self.field or self.name.replace("-", "_")

    @property
    def fallback(self) -> T_co | None:
        """The value if none is given; None if there is no default."""
        if self.default is not None:
            return self.convert(self.default)
        return None if self.sets is None else cast("T_co | None", _default_of(self.sets, self.field_name))

    @property
    def default_text(self) -> str:
        """The default as a user would give it; "" if there is nothing to show."""
        if self.default is not None or self.is_flag:
            return self.default or ""
        return _as_given(self.fallback)

    @property
    def is_flag(self) -> bool:
        return not self.metavar

    @property
    def flag(self) -> str:
        """The option as a user types it."""
        return f"--{self.name}"

    @property
    def env(self) -> str:
        """The environment variable that sets it; "" for those that only print, such as ``--help``."""
        return "" if self.group is Group.ABOUT else "PET_" + self.name.upper().replace("-", "_")

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it takes; () if it takes others as well."""
        return tuple(getattr(self.convert, "choices", ()))

    @property
    def hidden(self) -> bool:
        return self.origin is Origin.LEGACY


def flag(
    name: str,
    group: Group,
    help: str,
    short: str = "",
    origin: Origin = Origin.TORCHRUN,
    sets: type | None = None,
    field: str = "",
) -> Option[bool]:
    """The row of an option that takes no value on the command line."""
    return Option(name, group, values.switch, "", help, SWITCH, None, short, origin, sets=sets, field=field)


def _default_of(kind: Any, name: str) -> object:
    (default,) = (field.default for field in fields(kind) if field.name == name)
    return None if default is MISSING else default


def _as_given(value: object) -> str:
    match value:
        case None | ():
            return ""
        case Enum():
            return str(value.value)
        case float():
            return f"{value:g}"
    return str(value)
