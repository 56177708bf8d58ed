"""Kafka as a source, by ``confluent-kafka``.

Partitions are *assigned*, never subscribed to: the broker's consumer groups share partitions by who lives,
and go on at what was committed to them, while here both follow from the saved state. The group is only where
the offsets of durable commits are kept, for tools that show how far a training has come.

The client reconnects by itself, and does not tell a read that its brokers are away. So once it has said that
all are down, an empty read asks one of them a question; no answer within ``timeout`` is a BrokerAwayError.

Offsets are told to the broker by a second consumer that reads nothing, as what bounds its wait for a broker
that is away, its session, would bound other things in the first one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from elasticrun.data.streams.source import Record, Start, gone
from elasticrun.errors import BrokerAwayError, DataError, OffsetGoneError, StreamError, UsageError

#: Settings of the client without which the saved state would not decide what is read.
OURS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": False,
    "auto.offset.reset": "error",
}
#: Parts of the names of settings whose values are never shown.
SECRET = ("password", "secret", "key.pem", "token", "oauthbearer.config")
CALLBACKS = ("error_cb", "on_commit")


class KafkaSource:
    """Reads all partitions of topics.

    ``config`` is that of librdkafka, such as ``{"bootstrap.servers": "kafka:9092", "group.id": "train"}``.
    The group is told how far the training is in a storage. ``timeout``: how many seconds a broker has to
    answer a question. A partition is called ``topic/number``.

    Raises:
        UsageError: confluent-kafka is not installed.
        DataError: a setting is none that can be.
    """

    def __init__(self, config: Mapping[str, Any], topics: str | Sequence[str], timeout: float = 10.0) -> None:
        try:
            import confluent_kafka
        except ImportError:
            raise UsageError("a KafkaSource needs confluent-kafka: pip install 'elasticrun[kafka]'") from None
        self._kafka = confluent_kafka
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._timeout = timeout
        self._secrets = [
            value
            for name, value in config.items()
            if any(part in name for part in SECRET) and isinstance(value, str) and value
        ]
        self._is_down = False
        self._gone: OffsetGoneError | None = None  # to raise after the records that came with it
        if not self._topics:
            raise DataError("a KafkaSource reads one topic or more, got none")
        if not config.get("group.id"):
            raise DataError(
                "config has no 'group.id': name the group that is told how far the training has come"
            )
        for name, value in OURS.items():
            if config.get(name, value) != value:
                raise DataError(
                    f"config has {name}={config[name]!r}, which a KafkaSource sets to {value!r}: leave it out"
                )
        if both := [name for name in CALLBACKS if name in config]:
            raise DataError(f"config has {both[0]}, which a KafkaSource sets itself: leave it out")
        # Its log goes to stderr, line by line for each attempt to connect; what matters is told by errors.
        self._config = {"log_level": 2, **config, **OURS, "error_cb": self._on_error}
        self._consumer = self._made()
        self._teller: Any = None  # made when it is needed first
        self._teller_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"KafkaSource({', '.join(self._topics)})"

    @property
    def name(self) -> str:
        return f"topic {', '.join(self._topics)}"

    def partitions(self) -> Sequence[str]:
        found = list[str]()
        for topic in self._topics:
            known = self._ask(
                "list the partitions", lambda t=topic: self._consumer.list_topics(t, self._timeout)
            )
            answer = known.topics[topic]
            if answer.error is not None:
                raise StreamError(f"topic {topic} cannot be read: {self._safe(answer.error.str())}")
            found += [f"{topic}/{number}" for number in sorted(answer.partitions)]
        return found

    def find(self, partitions: Sequence[str], start: Start) -> Mapping[str, int]:
        if start is Start.COMMITTED:
            places = [self._place(name) for name in partitions]
            told = self._ask("read offsets", lambda: self._consumer.committed(places, self._timeout))
            return {f"{each.topic}/{each.partition}": each.offset for each in told if each.offset >= 0}
        end = 0 if start is Start.OLDEST else 1
        return {name: self._ends(name)[end] for name in partitions}

    def seek(self, offsets: Mapping[str, int]) -> None:
        self._gone = None
        places = [self._place(name, at) for name, at in offsets.items()]
        self._ask("assign partitions", lambda: self._consumer.assign(places))

    def poll(self, timeout: float, most: int) -> Sequence[Record]:
        self._raise_gone()
        first = self._consumer.poll(timeout)
        if first is None:
            if self._is_down:
                self._ask("read", lambda: self._consumer.list_topics(self._topics[0], self._timeout))
                self._is_down = False
            return []
        more = self._consumer.consume(most - 1, 0) if most > 1 else []
        records = [self._record(message) for message in (first, *more) if self._is_record(message)]
        if not records:
            self._raise_gone()
        return records

    def commit(self, offsets: Mapping[str, int]) -> None:
        with self._teller_lock:
            if self._teller is None:
                limit = int(1000 * min(max(1.0, self._timeout), 300.0))
                # A member's session is what a commit waits for the group's coordinator.
                self._teller = self._made(**{"session.timeout.ms": limit, "socket.timeout.ms": limit})
            places = [self._place(name, at) for name, at in offsets.items()]
            done = self._ask(
                "commit offsets", lambda: self._teller.commit(offsets=places, asynchronous=False)
            )
        for place in done:
            if place.error is not None:
                raise self._failure(f"commit the offset of {place.topic}/{place.partition}", place.error)

    def shown(self, offset: int) -> str:
        return str(offset)

    def close(self) -> None:
        for each in (self._consumer, self._teller):
            if each is not None:
                each.close()

    # -- parts

    def _raise_gone(self) -> None:
        if self._gone is not None:
            error, self._gone = self._gone, None
            raise error

    def _made(self, **more: Any) -> Any:
        try:
            return self._kafka.Consumer({**self._config, **more})
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise DataError(f"Kafka's client cannot be made: {self._safe(str(error))}") from None

    def _on_error(self, error: Any) -> None:
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True

    def _is_record(self, message: Any) -> bool:
        """Whether it is no error. One that matters is raised, or kept until the records are taken."""
        if (error := message.error()) is None:
            return True
        if error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
            name, wanted = f"{message.topic()}/{message.partition()}", message.offset()
            oldest, end = self._ends(name)
            if wanted > end:
                raise StreamError(
                    f"{name} was to go on at offset {wanted}, but it ends at {end}: the topic was made anew,"
                    " or its last records were lost; start anew, or from a state that fits"
                )
            self._gone = self._gone or gone(self, name, wanted, oldest)
        elif error.code() in (self._kafka.KafkaError._ALL_BROKERS_DOWN, self._kafka.KafkaError._TRANSPORT):
            self._is_down = True
        elif not error.retriable():
            raise self._failure("read", error)
        return False

    def _record(self, message: Any) -> Record:
        name = f"{message.topic()}/{message.partition()}"
        value, key = message.value(), message.key()
        return Record(name, message.offset(), value, key, len(value or b"") + len(key or b""))

    def _ends(self, name: str) -> tuple[int, int]:
        """The oldest offset of a partition, and the one that comes next."""
        place = self._place(name)
        oldest, end = self._ask(
            f"find the ends of {name}", lambda: self._consumer.get_watermark_offsets(place, self._timeout)
        )
        return oldest, end

    def _place(self, name: str, offset: int = -1) -> Any:
        topic, _, number = name.rpartition("/")
        if offset < 0:
            return self._kafka.TopicPartition(topic, int(number))
        return self._kafka.TopicPartition(topic, int(number), offset)

    def _ask(self, doing: str, question: Any) -> Any:
        try:
            found = question()
        except self._kafka.KafkaException as error:
            raise self._failure(doing, error.args[0]) from None
        if found is None and doing.startswith("find"):
            raise BrokerAwayError(f"cannot {doing}: no answer within {self._timeout:g} s")
        return found

    def _failure(self, doing: str, error: Any) -> StreamError:
        known = self._kafka.KafkaError
        away = (
            known._TRANSPORT,
            known._TIMED_OUT,
            known._ALL_BROKERS_DOWN,
            known._WAIT_COORD,
            known._RESOLVE,
            known._UNKNOWN_PARTITION,  # of which it could ask nobody
        )
        kind = BrokerAwayError if error.retriable() or error.code() in away else StreamError
        return kind(f"cannot {doing} in {self.name}: {self._safe(error.str())}")

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
