"""Convert the text of one option, from the command line or the environment, to a value.

Each function takes the text and returns the value, or raises ``ValueError``. Its message is the part of
the usage error that only the function knows ("no program can catch SIGKILL"); it is empty if there is
nothing to add to what is allowed. The option's table row says what is allowed, so that help, manual and
error never disagree. Functions that take limits return such a function.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from elasticrun.config import MAX_COUNT, Endpoint, Std, StdByRank, TaskRole
from elasticrun.dataclass import dataclass

E = TypeVar("E", bound=Enum)


MAX_PORT = 2**16 - 1
#: Slower transfers between nodes would look like peers that have died.
MIN_RATE = 1_000_000
#: The master's port where none is given.
DEFAULT_PORT = 29400

_BYTES = {"": 1, "MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNIT_LETTERS = "BGKMTbgikmt"
_HOST = re.compile(r"[\w.:%-]+")
_WORD = re.compile(r"[A-Za-z]\w*")
_UNCATCHABLE = ("SIGKILL", "SIGSTOP")


def plain(text: str) -> str:
    """The text itself; an empty one is refused (options that may be empty never get here)."""
    if not text:
        raise ValueError("it is empty")
    return text


def switch(text: str) -> bool:
    """The value of a flag, which is an integer in the environment, as with torchrun; 0 is off."""
    return _integer(text) != 0


@dataclass(frozen=True, slots=True)
class Words:
    """Exactly one of these words."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class Members(Generic[E]):
    """A member of an enumeration, by its value."""

    kind: type[E]

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(str(member.value) for member in self.kind)

    def __call__(self, text: str) -> E:
        return self.kind(Words(self.choices)(text))


def one_of(*choices: str) -> Words:
    """Exactly one of these words."""
    return Words(choices)


def module_names(text: str) -> tuple[str, ...]:
    """Full names of modules, in the order given."""
    names = tuple(text.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the full name of a module")
    return names


def whole(low: int, high: int = MAX_COUNT) -> Callable[[str], int]:
    """An integer within limits, both allowed."""

    def convert(text: str) -> int:
        number = _integer(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return convert


def seconds(text: str) -> float:
    """A finite number of seconds, 0 allowed."""
    number = _number(text)
    if number < 0:
        raise ValueError
    return number


def some_seconds(text: str) -> float:
    """A finite number of seconds above 0."""
    number = _number(text)
    if number <= 0:
        raise ValueError
    return number


def seconds_or_off(text: str) -> float:
    """A finite number of seconds above 0; ``off`` is 0."""
    return 0.0 if text == "off" else some_seconds(text)


def duration(text: str) -> float:
    """A finite time above 0 in seconds: a number, alone or with s, m, h or d."""
    factor = _SECONDS.get(text[-1:])
    number = _number(text if factor is None else text[:-1]) * (factor or 1)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def duration_or_off(text: str) -> float:
    """A finite time above 0 in seconds; ``off`` is 0."""
    return 0.0 if text == "off" else duration(text)


def byte_rate(text: str) -> float:
    """Bytes a second, ``MIN_RATE`` or more; ``off`` is 0. What could mean bits is refused."""
    if text == "off":
        return 0.0
    number = text.rstrip(_UNIT_LETTERS)
    unit = text[len(number) :]
    if unit not in _BYTES:
        raise ValueError(f"{unit!r} is no unit of bytes")
    rate = _number(number) * _BYTES[unit]
    if not MIN_RATE <= rate < math.inf:
        raise ValueError
    return rate


def ratio(text: str) -> float:
    """A finite factor above 1."""
    number = _number(text)
    if number <= 1:
        raise ValueError
    return number


def node_range(text: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX`` to (min, max) with 0 < min <= max."""
    numbers = [_integer(part) for part in text.split(":")]
    if len(numbers) > 2:
        raise ValueError("it has more than one colon")
    low, high = numbers[0], numbers[-1]
    if low < 1 or high > MAX_COUNT:
        raise ValueError
    if low > high:
        raise ValueError(f"{low} is more than {high}")
    return low, high


def worker_count(text: str) -> int | str:
    """A number of workers above 0, or the word that says what to count."""
    if _WORD.fullmatch(text):
        return text
    return whole(1)(text)


def std_by_rank(text: str) -> StdByRank:
    """``0``..``3`` for every local rank, or ``RANK:0..3,...`` for those named; others get none."""
    if ":" not in text:
        return StdByRank(default=_streams(text))
    by_rank = dict(_rank_and_streams(item) for item in text.split(","))
    return StdByRank(by_rank=tuple(sorted(by_rank.items())))


def _rank_and_streams(item: str) -> tuple[int, Std]:
    rank, colon, streams = item.partition(":")
    if not colon or not rank.isdecimal():
        raise ValueError(f"{item!r} is not RANK:STREAMS")
    return int(rank), _streams(streams)


def _streams(text: str) -> Std:
    if text not in ("0", "1", "2", "3"):
        raise ValueError(f"{text!r} names no streams")
    return Std(int(text))


def rank_set(text: str) -> frozenset[int]:
    """A comma list of local ranks."""
    return frozenset(whole(0)(item) for item in text.split(","))


def filters(text: str) -> tuple[str, ...]:
    """A comma list in which ``,,`` is a literal comma.

    Empty items are dropped: an empty filter would match every line.
    """
    items = text.replace(",,", "\0").split(",")
    return tuple(item.replace("\0", ",") for item in items if item)


def signal_numbers(text: str) -> tuple[int, ...]:
    """A comma list of names of signals that a program can catch; each once, in the order given."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("it names no signal")
    if "SIGCHLD" in names:
        raise ValueError("the launcher needs SIGCHLD for itself")
    return tuple(dict.fromkeys(signal_number(name) for name in names))


def signal_number(name: str) -> int:
    """The number of a signal, given by its name, that a program can catch."""
    if name in _UNCATCHABLE:
        raise ValueError(f"no program can catch {name}")
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise ValueError(f"this system has no signal {name!r}{_better_signal(name)}") from None


def _better_signal(name: str) -> str:
    better = f"SIG{name.upper().removeprefix('SIG')}"
    return f" (did you mean {better}?)" if better in signal.Signals.__members__ else ""


def host(text: str) -> str:
    """A host name or an address; the brackets around an IPv6 address are dropped."""
    name = text.strip()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not _HOST.fullmatch(name):
        raise ValueError("that is no host name and no address" if name else "the host is missing")
    return name


def endpoints(text: str) -> tuple[Endpoint, ...]:
    """A comma list of ``HOST[:PORT]``, each once; port 0, which no other node can find, only alone."""
    found = [_endpoint(item) for item in text.split(",")]
    seen: set[tuple[str, int]] = set()
    for endpoint in found:
        if endpoint.port == 0 and len(found) > 1:
            raise ValueError(f"no other node can find port 0 of {endpoint}")
        place = (endpoint.host.casefold(), endpoint.port)
        if place in seen:
            raise ValueError(f"{endpoint} is in it twice")
        seen.add(place)
    return tuple(found)


def _endpoint(text: str) -> Endpoint:
    name, port = host_and_port(text)
    return Endpoint(name, DEFAULT_PORT if port is None else port)


def web_address(text: str) -> Endpoint:
    """``HOST:PORT``, or ``:PORT`` and ``PORT`` for this host only."""
    text = text.strip()
    if text.isdecimal() or text.startswith(":"):
        return Endpoint("127.0.0.1", _port(text.removeprefix(":")))
    name, port = host_and_port(text)
    if port is None:
        raise ValueError("it has no port")
    return Endpoint(name.strip("[]"), port)


def host_and_port(text: str) -> tuple[str, int | None]:
    """``host``, ``host:port``, ``[v6]`` or ``[v6]:port``; the port is None if none is given.

    An IPv6 address without brackets is read as torchrun reads it: its last part is the port if the rest is
    an address. The rest of ``::1`` is none, so ``::1`` is a host.
    """
    text = text.strip()
    if text.endswith("]") or ":" not in text:
        return host(text), None
    name, _, port = text.rpartition(":")
    if ":" in name and not name.startswith("[") and not _is_ipv6(name) and _is_ipv6(text):
        return text, None
    return host(name), _port(port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_PORT):
        raise ValueError(f"{text!r} is no port")
    return int(text)


def _is_ipv6(text: str) -> bool:
    import socket  # not needed for the usual command line

    try:
        socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except OSError:
        return False
    return True


def settings(text: str) -> tuple[tuple[str, str], ...]:
    """``key=value,...``; the last one of a repeated key counts.

    Quotes around the whole are dropped: a caller without a shell may pass them on.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if not text.strip():
        return ()
    return tuple(dict(_setting(item) for item in text.split(",")).items())


def _setting(item: str) -> tuple[str, str]:
    key, _, value = (part.strip() for part in item.partition("="))
    if not key:
        raise ValueError(f"{item!r} has no key")
    if not value:
        raise ValueError(f"the key {key!r} has no value")
    return key, value


def role_counts(text: str) -> dict[TaskRole, int]:
    """``ROLE=N,...`` with each role once and N above 0."""
    counts: dict[TaskRole, int] = {}
    for item in text.split(","):
        role, number = _role_count(item)
        if role in counts:
            raise ValueError(f"{role.value} is in it twice")
        counts[role] = number
    return counts


def _role_count(item: str) -> tuple[TaskRole, int]:
    name, equals, number = (part.strip() for part in item.partition("="))
    try:
        role = Members(TaskRole)(name)
    except ValueError:
        raise ValueError(f"{name!r} is no role") from None
    if not equals:
        raise ValueError(f"{name} has no number")
    if _integer(number) < 1:
        raise ValueError(f"{name} counts {number}")
    return role, whole(1)(number)


def truth(text: str) -> bool:
    """A yes or a no in the words that torchrun takes inside ``--rdzv-conf``."""
    word = text.lower()
    if word in ("1", "true", "t", "yes", "y"):
        return True
    if word in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number" if text.strip() else "") from None


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("it is not a number") from None
    if not math.isfinite(number):
        raise ValueError("it is not finite")
    return number
