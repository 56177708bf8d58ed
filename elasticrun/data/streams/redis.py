"""Redis Streams as a source, by ``redis``. Each stream, which is a key, is a partition.

Why XREAD with offsets of our own, and not XREADGROUP. A group remembers for each consumer what was fetched
and not acknowledged; a saved state may lie before that as well as behind it, and one group cannot go back for
one of its consumers. So the state alone says where reading goes on. A group is only told how far the training
is in a storage (XGROUP SETID), where XINFO GROUPS shows it; what lies before it may be trimmed (``trim``).

An id, ``milliseconds-sequence``, is kept as the number ``milliseconds * 2**64 + sequence``. Ids are ordered
as these numbers are, and the one after it is the smallest id that Redis may give next.

Redis does not say that an entry was trimmed before it was read: XREAD goes on with what is left. What tells
it is the number of all entries that were ever added, and of those that are left. Both are read in one
transaction with the entries, so nothing can be trimmed in between. If what was read last, or anything older,
is still there, nothing was lost, as trimming begins with the oldest. If it is not, the entries that were
added are counted against those that were read; where that number is not known, as after a restart, it is told
as a gap. Entries that somebody deletes one by one (XDEL) are taken for deleted on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from elasticrun.data.streams.source import Record, Start, gone
from elasticrun.errors import BrokerAwayError, DataError, StreamError, UsageError

T = TypeVar("T")
_SEQUENCES = 1 << 64


def number_of(id: bytes | str) -> int:
    """An entry's id as a number."""
    text = id.decode() if isinstance(id, bytes) else id
    time, _, sequence = text.partition("-")
    return int(time) * _SEQUENCES + int(sequence or 0)


def id_of(number: int) -> str:
    """The id of such a number."""
    time, sequence = divmod(number, _SEQUENCES)
    return f"{time}-{sequence}"


class Facts(NamedTuple):
    """What Redis says of a stream."""

    last: int = 0  # the newest id that it ever had
    added: int = 0  # entries that it ever had
    length: int = 0  # entries that it has
    first: int | None = None  # the id of the oldest one
    is_there: bool = False

    @property
    def end(self) -> int:
        """The smallest id that may come."""
        return self.last + 1 if self.last else 0

    @property
    def removed(self) -> int:
        """How many entries it has no more."""
        return self.added - self.length

    @property
    def oldest(self) -> int:
        """Where one begins who wants all that is left."""
        return self.end if self.first is None else self.first


class RedisSource:
    """Reads streams of one Redis, version 7 or later.

    ``url`` is that of the package redis, as ``redis://user:password@host:6379/0`` or ``unix:///run/redis.sock``.
    ``group``: of each stream, is told how far the training is in a storage; ``trim`` then removes the entries
    before that. ``timeout``: how many seconds Redis has to answer. ``options`` are those of ``redis.Redis``.

    Raises:
        UsageError: the package redis is not installed.
        DataError: an argument is none that can be.
    """

    def __init__(
        self,
        url: str,
        keys: str | Sequence[str],
        group: str = "",
        trim: bool = False,
        timeout: float = 10.0,
        **options: Any,
    ) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise UsageError(
                "a RedisSource needs the package redis: pip install 'elasticrun[redis]'"
            ) from None
        self._redis = redis
        self._keys = (keys,) if isinstance(keys, str) else tuple(keys)
        if not self._keys or len({*self._keys}) < len(self._keys):
            raise DataError(f"a RedisSource reads one stream or more, each once, got {list(self._keys)}")
        if trim and not group:
            raise DataError("trim removes what the group was told: give a group")
        self._group, self._trim, self._timeout = group, trim, timeout
        if "decode_responses" in options or "decode_responses" in url:
            raise DataError(
                "a RedisSource gives bytes: leave decode_responses out, and decode them in decode="
            )
        ours = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2}
        try:
            # One more attempt, as a connection may have become stale. Those after it are the dataset's.
            self._client: Any = redis.Redis.from_url(url, **ours, retry=Retry(NoBackoff(), 1), **options)
        except (ValueError, TypeError, redis.RedisError):
            raise DataError(  # what the package says may have the URL, with its password
                "the url of a RedisSource is none that redis takes: redis://, rediss:// or unix://"
            ) from None
        self._password = str(self._client.connection_pool.connection_kwargs.get("password") or "")
        self._next: dict[str, int] = {}  # where each stream goes on
        self._counts: dict[str, int] = {}  # how many of its entries were added before that, where known
        self._known: dict[str, tuple[int, int]] = {}  # the same of another place, that may be sought

    def __repr__(self) -> str:
        return f"RedisSource({', '.join(self._keys)})"

    @property
    def name(self) -> str:
        return f"Redis stream {', '.join(self._keys)}"

    def partitions(self) -> Sequence[str]:
        self._facts(self._keys)  # so that a Redis that is away, or too old, is told at once
        return self._keys

    def find(self, partitions: Sequence[str], start: Start) -> Mapping[str, int]:
        facts = self._facts(partitions)
        if start is Start.COMMITTED:
            told = {key: self._told(key) for key, each in facts.items() if each.is_there}
            return {key: at for key, at in told.items() if at is not None}
        for key, each in facts.items():
            is_oldest = start is Start.OLDEST
            self._known[key] = (each.oldest, each.removed) if is_oldest else (each.end, each.added)
        return {key: self._known[key][0] for key in facts}

    def seek(self, offsets: Mapping[str, int]) -> None:
        known = [self._known]
        known.append({key: (self._next[key], count) for key, count in self._counts.items()})
        self._next = dict(offsets)
        self._counts = {
            key: count
            for places in known
            for key, (offset, count) in places.items()
            if offsets.get(key) == offset
        }

    def poll(self, timeout: float, most: int) -> Sequence[Record]:
        if found := self._read(most):
            return found
        block = max(1, int(1000 * min(timeout, self._timeout / 2)))
        self._ask("wait", lambda: self._client.xread(_after(self._next), count=1, block=block))
        return self._read(most)

    def commit(self, offsets: Mapping[str, int]) -> None:
        for key, offset in offsets.items() if self._group else ():
            last = id_of(max(0, offset - 1))
            self._ask("commit", partial(self._commit, key, last))

    def shown(self, offset: int) -> str:
        return id_of(offset)

    def close(self) -> None:
        self._client.close()

    # -- parts

    def _read(self, most: int) -> list[Record]:
        """What is there, without waiting. Streams of which something was lost stay where they are."""
        keys = [*self._next]
        with self._client.pipeline(transaction=True) as pipe:
            for key in keys:
                pipe.xinfo_stream(key)
            pipe.xread(_after(self._next), count=max(1, most // len(keys)))
            *infos, found = self._ask("read", lambda: pipe.execute(raise_on_error=False))
        entries = {_text(key): them for key, them in self._checked("read", found) or ()}
        records, lost = list[Record](), None
        for key, info in zip(keys, infos, strict=True):
            facts = self._facts_of(key, info)
            if self._has_lost(key, facts):
                self._known[key] = facts.oldest, facts.removed
                lost = lost or gone(self, key, self._next[key], facts.oldest)
            else:
                records += self._taken(key, facts, entries.get(key, []))
        if lost is not None and not records:
            raise lost
        return records

    def _taken(self, key: str, facts: Facts, entries: Sequence[Any]) -> list[Record]:
        """The records of a stream's entries, which begin where it goes on."""
        if facts.end == self._next[key]:
            self._counts[key] = facts.added
        elif facts.first is not None and facts.first >= self._next[key]:
            self._counts[key] = facts.removed
        records = [
            Record(key, number_of(id), fields, None, sum(len(k) + len(v) for k, v in fields.items()))
            for id, fields in entries
        ]
        if records:
            self._next[key] = records[-1].offset + 1
            if key in self._counts:
                self._counts[key] += len(records)
        return records

    def _has_lost(self, key: str, facts: Facts) -> bool:
        """Whether entries that are still wanted were trimmed, or may have been.

        Raises:
            StreamError: it has no such ids at all.
        """
        wanted, removed = self._next[key], facts.removed
        if facts.end < wanted:
            raise StreamError(
                f"{key} was to go on at id {id_of(wanted)}, but its newest is {id_of(facts.last)}: it was"
                " removed and made anew, or lost its last entries; start anew, or from a state that fits"
            )
        if facts.end == wanted or facts.oldest <= wanted or not removed:
            return False
        return key not in self._counts or removed > self._counts[key]

    def _facts(self, keys: Sequence[str]) -> dict[str, Facts]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.xinfo_stream(key)
            found = self._ask("look at streams", lambda: pipe.execute(raise_on_error=False))
        return {key: self._facts_of(key, each) for key, each in zip(keys, found, strict=True)}

    def _facts_of(self, key: str, info: Any) -> Facts:
        if isinstance(info, self._redis.ResponseError) and "no such key" in str(info):
            return Facts()
        info = self._checked(f"look at {key}", info)
        if "entries-added" not in info:
            raise StreamError(f"{self.name} needs Redis 7 or later, which counts the entries of a stream")
        first = info["first-entry"]
        return Facts(
            number_of(info["last-generated-id"]),
            info["entries-added"],
            info["length"],
            number_of(first[0]) if first else None,
            True,
        )

    def _told(self, key: str) -> int | None:
        """Where the group stands in a stream."""
        groups = self._ask("look at groups", lambda: self._client.xinfo_groups(key))
        ids = [each["last-delivered-id"] for each in groups if _text(each["name"]) == self._group]
        return number_of(ids[0]) + 1 if ids else None

    def _commit(self, key: str, last: str) -> None:
        try:
            self._client.xgroup_setid(key, self._group, last)
        except self._redis.ResponseError as error:
            if not str(error).startswith("NOGROUP") and "requires the key to exist" not in str(error):
                raise
            self._client.xgroup_create(key, self._group, last, mkstream=True)
        if self._trim:  # the last one is kept: as long as it is there, nothing after it was trimmed
            self._client.xtrim(key, minid=last, approximate=False)

    def _ask(self, doing: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except self._redis.RedisError as error:
            raise self._failure(doing, error) from None

    def _checked(self, doing: str, answer: Any) -> Any:
        """An answer that may be an error."""
        if isinstance(answer, Exception):
            raise self._failure(doing, answer)
        return answer

    def _failure(self, doing: str, error: Exception) -> StreamError:
        known = self._redis.exceptions
        refused = isinstance(error, known.AuthenticationError | known.AuthorizationError)
        away = isinstance(error, known.ConnectionError | known.TimeoutError | known.MasterDownError)
        kind = BrokerAwayError if away and not refused else StreamError
        text = str(error).replace(self._password, "***") if self._password else str(error)
        return kind(f"cannot {doing} in {self.name}: {text}")


def _after(offsets: Mapping[str, int]) -> dict[str, str]:
    """The newest id of each stream that is not wanted any more."""
    return {key: id_of(max(0, offset - 1)) for key, offset in offsets.items()}


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
