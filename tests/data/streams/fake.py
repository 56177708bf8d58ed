"""A broker within the test: partitions of numbers, which can be away, lose records, and grow."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from elasticrun.data.streams.source import Record, Start, gone
from elasticrun.errors import BrokerAwayError, StreamError


class Broker:
    """What is in it, for several sources."""

    def __init__(self, **lengths: int) -> None:
        self.changed = threading.Condition()
        self.records = {name: list(range(length)) for name, length in lengths.items()}
        self.oldest = dict.fromkeys(lengths, 0)
        self.told: dict[str, int] = {}
        self.is_away = False
        self.fault: Exception | None = None  # of each poll

    def add(self, name: str, *values: int) -> None:
        with self.changed:
            self.records.setdefault(name, []).extend(values)
            self.oldest.setdefault(name, 0)
            self.changed.notify_all()

    def set(self, *, is_away: bool = False, fault: Exception | None = None) -> None:
        with self.changed:
            self.is_away, self.fault = is_away, fault
            self.changed.notify_all()


class FakeSource:
    """Reads from a ``Broker``."""

    name = "the fake"

    def __init__(self, broker: Broker, size: int = 1) -> None:
        self.broker, self.size = broker, size
        self.at: dict[str, int] = {}
        self.seeks: list[dict[str, int]] = []
        self.polls = 0
        self.is_closed = False

    def partitions(self) -> Sequence[str]:
        self._reach()
        return sorted(self.broker.records)

    def find(self, partitions: Sequence[str], start: Start) -> Mapping[str, int]:
        self._reach()
        match start:
            case Start.OLDEST:
                return {name: self.broker.oldest[name] for name in partitions}
            case Start.NEWEST:
                return {name: len(self.broker.records[name]) for name in partitions}
            case Start.COMMITTED:
                return {name: self.broker.told[name] for name in partitions if name in self.broker.told}

    def seek(self, offsets: Mapping[str, int]) -> None:
        self.at = dict(offsets)
        self.seeks.append(dict(offsets))

    def poll(self, timeout: float, most: int) -> Sequence[Record]:
        self.polls += 1
        with self.broker.changed:
            self.broker.changed.wait_for(self._is_ready, timeout)
            self._reach()
            if self.broker.fault is not None:
                raise self.broker.fault
            found = list[Record]()
            for name, at in self.at.items():
                if at < self.broker.oldest[name]:
                    raise gone(self, name, at, self.broker.oldest[name])
                values = self.broker.records[name][at:][: max(1, most // len(self.at))]
                found += [Record(name, n, value, size=self.size) for n, value in enumerate(values, at)]
                self.at[name] += len(values)
            return found

    def commit(self, offsets: Mapping[str, int]) -> None:
        self._reach()
        if "refused" in offsets:
            raise StreamError("no permission")
        self.broker.told |= offsets

    def shown(self, offset: int) -> str:
        return f"<{offset}>"

    def close(self) -> None:
        self.is_closed = True

    def _is_ready(self) -> bool:
        return (
            self.broker.is_away
            or self.broker.fault is not None
            or any(
                at < max(self.broker.oldest[name], len(self.broker.records[name]))
                for name, at in self.at.items()
            )
        )

    def _reach(self) -> None:
        if self.broker.is_away:
            raise BrokerAwayError("the fake does not answer")
