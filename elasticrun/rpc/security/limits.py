"""What strangers may cost the master, and who is let in.

The Gate reads no clock: times are arguments. It keeps three things for each address.

* *Streams.* A stream is ``pending`` until a Hello was accepted on it, then attached. An attached one has
  proven the token, if there is one, and may have many beside it on its address: agents behind one NAT, or a
  load test that plays a cluster. So that limit is only a safety net.
* *Readers.* Once a stream is read, gRPC's core collects for it a message of the largest size, about two
  megabytes, before anybody has looked at a byte of it. So few of the pending streams are read at a time; the
  others wait for their turn, which costs no more than the window of a stream. Addresses take turns, so a
  crowd from one does not keep another waiting. What strangers can make the master hold is ``readers`` times
  a message plus ``pending`` times a window, whatever they do.
* *Joins.* A bucket that holds ``join_burst`` joins and gets ``joins_per_second`` new ones. A burst is
  legitimate: after a restart of the master a whole cluster comes back at once. A stream that is refused
  for a wrong token, garbage or silence costs ``failure_cost`` joins, on credit if need be. So guesses are
  throttled to about ten per second and address, and successful joins are not. The price of any limit by
  address: an agent that shares its address with an attacker may be refused while the attack lasts. Streams
  that are attached already are never touched.

A refusal changes nothing, so repeated attempts prolong nobody's wait.

The memory of the Gate itself is bounded. An address is remembered while it has an open stream, so there are
no more of these than streams; of the others, only the ``idle_addresses`` that were here last. For IPv6 an
"address" is the network of 64 bits, as one host can use all of it.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field

from elasticrun.dataclass import dataclass
from elasticrun.rpc.codec import MAX_MESSAGE_BYTES
from elasticrun.rpc.security.refusals import Refusals


@dataclass(frozen=True, slots=True)
class Limits:
    """What one agent, one address and all of them may cost the master."""

    hello_timeout: float = 10.0  # seconds a stream may stay open without a Hello
    flush_timeout: float = 5.0  # seconds a closing stream may take to its end
    max_queued_bytes: int = 4 * MAX_MESSAGE_BYTES  # what waits for an agent that does not read
    queued_bytes: int = 48 << 20  # of all agents together
    queued_bytes_each: int = 64 << 10  # as much more for each stream
    message_burst: float = 2000.0  # of one attached agent
    messages_per_second: float = 1000.0  # workers that share data ask before each few batches
    bytes_burst: float = 64.0 * MAX_MESSAGE_BYTES  # 100 tasks that fail at once tell 6 to 30 MiB
    bytes_per_second: float = 1.0 * MAX_MESSAGE_BYTES
    hello_bytes: int = 16 << 10  # a Hello costs one more join for each so many bytes
    streams_per_address: int = 4096
    pending_per_address: int = 2048
    pending: int = 4096  # of all addresses together
    readers_per_address: int = 32  # of the pending ones
    readers: int = 128  # of all addresses together
    join_burst: float = 4096.0
    joins_per_second: float = 200.0
    failure_cost: float = 20.0  # joins, for a stream refused for its token, garbage or silence
    idle_addresses: int = 4096
    complaint_burst: float = 10.0  # log lines about refused streams, of all addresses together
    complaints_per_second: float = 0.1


@dataclass(slots=True)
class Bucket:
    """Holds at most ``room`` and gets ``rate`` per second; full at first. May owe up to ``room``."""

    room: float
    rate: float
    level: float
    since: float

    @classmethod
    def full(cls, room: float, rate: float, now: float) -> Bucket:
        return cls(room, rate, room, now)

    def take(self, now: float, count: float) -> bool:
        """Take ``count`` if it holds so much."""
        self._fill(now)
        if self.level < count:
            return False
        self.level -= count
        return True

    def spill(self, now: float, count: float) -> float:
        """Take ``count``, on credit if need be; the seconds until nothing is owed."""
        self._fill(now)
        self.level = max(-self.room, self.level - count)
        return 0.0 if self.level >= 0.0 else -self.level / self.rate

    def _fill(self, now: float) -> None:
        self.level = min(self.room, self.level + self.rate * max(0.0, now - self.since))
        self.since = max(self.since, now)


class Allowance:
    """What one attached agent may say, in messages and in bytes.

    An agent sends a few messages in a round, and otherwise one in ten seconds; if its workers share data, two
    for each saved step of a worker, and one for each few leases. One that exceeds the bursts
    is read more slowly, and its messages wait in its connection. Others do not wait. If its heartbeats come
    too late for that, it alone is lost.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._messages = Bucket.full(limits.message_burst, limits.messages_per_second, now)
        self._bytes = Bucket.full(limits.bytes_burst, limits.bytes_per_second, now)

    def delay(self, now: float, size: int) -> float:
        """Charge a message of this size; the seconds until the next one may be read."""
        return max(self._messages.spill(now, 1.0), self._bytes.spill(now, size))


class Guest:
    """One stream that was let in; its end is counted exactly once."""

    def __init__(self, gate: Gate, key: bytes) -> None:
        self._gate = gate
        self._key = key
        self._pending = True
        self._inside = True
        self._on_turn: Callable[[], None] | None = None
        self.reading = False  # its turn has come

    def when_reading(self, callback: Callable[[], None]) -> None:
        """Calls back when its turn comes, which may be now."""
        if self.reading:
            callback()
        else:
            self._on_turn = callback

    def take_turn(self) -> None:
        """For the Gate: its turn has come."""
        self.reading = True
        if self._on_turn is not None:
            self._on_turn()

    def attached(self) -> None:
        """Count it as attached: its Hello was accepted."""
        if self._pending:
            self._pending = False
            self._gate.settle(self._key, self)

    def weigh(self, now: float, size: int) -> None:
        """Charge its address for a Hello of this size."""
        self._gate.weigh(self._key, now, size)

    def fail(self, now: float) -> bool:
        """Charge its address for a refused stream; True if a log line about it may be written."""
        return self._gate.charge(self._key, now)

    def is_news(self, reason: str, tell_more: Callable[[int], None]) -> bool:
        """Whether its address was not refused for this lately; ``tell_more`` hears how many more were."""
        return self._gate.refusals.hear(self._key, reason, tell_more)

    def leave(self) -> None:
        """Release its place: the stream has ended."""
        if self._inside:
            self._inside = False
            self.attached()
            self._gate.release(self._key)


@dataclass(slots=True)
class _Address:
    joins: Bucket
    streams: int = 0
    pending: int = 0
    readers: int = 0
    waiting: OrderedDict[Guest, None] = field(default_factory=OrderedDict)


class Gate:
    """Lets streams in, or says in a sentence why not."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.refusals = Refusals()
        self._pending = 0
        self._readers = 0
        self._busy: dict[bytes, _Address] = {}
        self._idle: OrderedDict[bytes, _Address] = OrderedDict()
        # Addresses with a waiting stream that may have one more reader, in the order of their turns.
        self._turns: OrderedDict[bytes, None] = OrderedDict()
        self._complaints: Bucket | None = None

    @property
    def addresses(self) -> int:
        """How many addresses are remembered."""
        return len(self._busy) + len(self._idle)

    def enter(self, host: str, now: float) -> Guest | str:
        """A guest, or the refusal of one more stream from ``host``, a numeric address."""
        key = key_of(host)
        entry = self._find(key, now)
        refusal = self._refusal(entry)
        if not refusal and not entry.joins.take(now, 1.0):
            refusal = f"streams come too fast from {host}: wait some seconds and try again"
        if refusal:
            if not entry.streams:
                self._put_idle(key, entry)
            return refusal
        entry.streams += 1
        entry.pending += 1
        self._pending += 1
        self._busy[key] = entry
        guest = Guest(self, key)
        entry.waiting[guest] = None
        self._next_turns(key)
        return guest

    def settle(self, key: bytes, guest: Guest) -> None:
        """For Guest: a stream is no longer pending."""
        entry = self._busy[key]
        self._pending -= 1
        entry.pending -= 1
        if guest.reading:
            self._readers -= 1
            entry.readers -= 1
        else:
            del entry.waiting[guest]
        self._next_turns(key)

    def charge(self, key: bytes, now: float) -> bool:
        """For Guest: charge a failed stream; True if it may be logged."""
        limits = self._limits
        self._busy[key].joins.spill(now, limits.failure_cost)
        if self._complaints is None:
            self._complaints = Bucket.full(limits.complaint_burst, limits.complaints_per_second, now)
        return self._complaints.take(now, 1.0)

    def weigh(self, key: bytes, now: float, size: int) -> None:
        """For Guest: a stream said a Hello of this size."""
        if weight := size // self._limits.hello_bytes:  # most weigh nothing
            self._busy[key].joins.spill(now, weight)

    def release(self, key: bytes) -> None:
        """For Guest: a stream is gone."""
        entry = self._busy[key]
        entry.streams -= 1
        if not entry.streams:
            self._put_idle(key, self._busy.pop(key))

    def _next_turns(self, changed: bytes) -> None:
        """Gives turns to waiting streams while there is room, after a change at one address."""
        self._line_up(changed)
        while self._turns and self._readers < self._limits.readers:
            key, _ = self._turns.popitem(last=False)
            entry = self._busy[key]
            guest, _ = entry.waiting.popitem(last=False)
            entry.readers += 1
            self._readers += 1
            self._line_up(key)
            guest.take_turn()

    def _line_up(self, key: bytes) -> None:
        entry = self._busy[key]
        if entry.waiting and entry.readers < self._limits.readers_per_address:
            self._turns.setdefault(key)
        else:
            self._turns.pop(key, None)

    def _find(self, key: bytes, now: float) -> _Address:
        entry = self._busy.get(key) or self._idle.pop(key, None)
        if entry is None:
            limits = self._limits
            entry = _Address(Bucket.full(limits.join_burst, limits.joins_per_second, now))
        return entry

    def _refusal(self, entry: _Address) -> str:
        limits = self._limits
        if entry.streams >= limits.streams_per_address:
            return f"this address has {entry.streams} streams open, which is the most it may have"
        if entry.pending >= limits.pending_per_address:
            return (
                f"this address has {entry.pending} connections open that have not joined yet, "
                "which is the limit; try again"
            )
        if self._pending >= limits.pending:
            return (
                f"{self._pending} connections are open that have not joined yet, which is the "
                "limit; try again"
            )
        return ""

    def _put_idle(self, key: bytes, entry: _Address) -> None:
        self._idle[key] = entry
        if len(self._idle) > self._limits.idle_addresses:
            self._idle.popitem(last=False)


def key_of(host: str) -> bytes:
    """The key of an address; addresses that are treated as one have the same."""
    try:
        return socket.inet_pton(socket.AF_INET, host)
    except OSError:
        pass
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host.encode()[:64]  # no internet address at all: a name of its own
    mapped = packed[:12] == bytes(10) + b"\xff\xff"  # IPv4 that came to an IPv6 socket
    return packed[12:] if mapped else packed[:8]
