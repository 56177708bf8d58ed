"""What the machine of ``machine.py`` is told, and what it wants done."""

from __future__ import annotations

from elasticrun.core.hosts.names import Host
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Listed:
    """A good answer came to the question which hosts there are."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True)
class Unlisted:
    """No good answer came."""

    reason: str


@dataclass(frozen=True, slots=True)
class Up:
    """The program on a host says that it has started the launcher there."""

    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The process that stands for a host here has ended."""

    name: str
    code: int  # its exit status
    said: str = ""  # the last that it said before its launcher was up


@dataclass(frozen=True, slots=True)
class NotDrained:
    """The master could not be asked to let a host go."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """This launch got a signal to stop."""

    signum: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened, but time has passed."""


Event = Listed | Unlisted | Up | Ended | NotDrained | Interrupted | Tick


@dataclass(frozen=True, slots=True)
class Start:
    """Start the launcher on a host."""

    host: Host
    rank: int  # the node rank: each host keeps its own


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the master to let a host leave."""

    name: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Pass a signal on to the launcher of a host."""

    name: str
    signum: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the launcher of a host, and the process that stands for it here."""

    name: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the user what is done, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing runs any more: end with this status. ``reason`` is empty if the job itself has said all."""

    status: int
    reason: str = ""


Effect = Start | Drain | Stop | Kill | Tell | Finish
