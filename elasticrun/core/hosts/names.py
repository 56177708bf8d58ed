"""Lines that name hosts: of ``-H``, of a hostfile, and of what a discovery script prints.

A line is ``[USER@]HOST[:SLOTS]``, or ``[USER@]HOST slots=SLOTS [max_slots=N]`` as MPI writes it. HOST is a
name, an IPv4 address, or an IPv6 address in brackets. SLOTS is a number of workers, or ``auto``. There are
never more workers than slots, so ``max_slots`` changes nothing.

Theory. Such a name becomes a word of an ssh command line, and comes from a program that may be wrong. So only
what a name can consist of is taken: nothing that begins with a dash, no spaces, no character that a terminal
or a shell obeys. A list is taken as a whole or not at all: half of one would drain the other half.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from elasticrun.core.protocol.plain import one_line
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: How many hosts a list may have.
MAX_HOSTS = 4096
#: Workers on one host; more is a typing error.
MAX_SLOTS = 4096
AUTO = "auto"
_LONGEST = 500  # characters of a line
_SHOWN = 80
_ALLOWED = "[USER@]HOST[:SLOTS], such as node1, node1:4, node1 slots=4, node1:auto, me@node1 or [fe80::1]:4"
_LINE = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.+-]*)@)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(?:%\w[\w.-]*)?)\]|(?P<name>\w[\w.-]*))"
    r"(?:(?::|\s+slots\s*=\s*)(?P<slots>\w+))?(?:\s+max[_-]slots\s*=\s*\d+)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a list."""

    name: str  # as ssh and sockets take it: without brackets
    slots: str = ""  # a number, or "auto"; "": the line does not say
    user: str = ""

    @property
    def destination(self) -> str:
        """What ssh is given."""
        return f"{self.user}@{self.name}" if self.user else self.name

    def __str__(self) -> str:
        slots = f":{self.slots}" if self.slots else ""
        return f"{f'[{self.destination}]' if ':' in self.name else self.destination}{slots}"


def parse_hosts(lines: Iterable[str], source: str) -> tuple[Host, ...]:
    """The hosts of these lines, in their order; empty lines and ``#`` comments are passed over.

    ``source`` goes before the number of a line in messages: "hosts.txt, line". Raises UsageError for the
    first line that is wrong.
    """
    found: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            host = _host(text)
            if host.name.lower() in found:
                raise ValueError("this host is in the list twice; give each once, with all of its slots")
            if len(found) == MAX_HOSTS:
                raise ValueError(f"there are more than {MAX_HOSTS} hosts")
        except ValueError as error:
            shown = one_line(text[:_SHOWN])
            raise UsageError(f"{source} {number}: {shown!r} is not valid: {error}") from None
        found[host.name.lower()] = host
    return tuple(found.values())


def _host(text: str) -> Host:
    match = _LINE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        hint = "an IPv6 address needs brackets; " if text.count(":") > 1 and "[" not in text else ""
        raise ValueError(f"{hint}give {_ALLOWED}")
    slots = match["slots"] or ""
    is_number = slots.isdigit() and len(slots) <= len(str(MAX_SLOTS)) and 1 <= int(slots) <= MAX_SLOTS
    if slots and slots != AUTO and not is_number:
        raise ValueError(f"slots are a number from 1 to {MAX_SLOTS}, or {AUTO}")
    return Host(match["v6"] or match["name"], slots, match["user"] or "")
