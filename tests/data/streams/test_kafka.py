"""``KafkaSource`` with the real client, which talks to a cluster by Kafka's protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs pip install 'elasticrun[kafka]'")

from elasticrun.data.streams.kafka import KafkaSource
from elasticrun.data.streams.source import Record, Start
from elasticrun.errors import (
    BrokerAwayError,
    DataError,
    OffsetGoneError,
    StreamError,
    UsageError,
)
from tests.data.streams import brokers
from tests.support.processes import DEADLINE

NAMES = [f"t/{n}" for n in range(4)]


@pytest.fixture
def kafka() -> Iterator[brokers.Kafka]:
    with brokers.kafka() as made:
        yield made


@pytest.fixture
def made(kafka: brokers.Kafka) -> Iterator[Any]:
    found = list[KafkaSource]()

    def make(topics: Any = "t", timeout: float = 20.0, **config: Any) -> KafkaSource:
        found.append(KafkaSource({**kafka.config, **config}, topics, timeout))
        return found[-1]

    yield make
    for each in found:
        each.close()


def read(source: KafkaSource, count: int) -> list[Record]:
    found = list[Record]()
    while len(found) < count:
        found += source.poll(DEADLINE, count)
    return found


def of(records: Sequence[Record], partition: str) -> list[int]:
    return [each.offset for each in records if each.partition == partition]


def test_records_come_in_the_order_of_their_partition_from_where_they_are_sought(
    kafka: brokers.Kafka, made: Any
) -> None:
    kafka.add("t", 0, b"zero", b"one", None, key=b"k")
    kafka.add("t", 3, b"a", b"b")
    source = made()
    assert source.partitions() == NAMES
    assert source.find(NAMES, Start.OLDEST) == dict.fromkeys(NAMES, 0)
    assert source.find(NAMES, Start.NEWEST) == {"t/0": 3, "t/1": 0, "t/2": 0, "t/3": 2}
    source.seek({"t/0": 1, "t/3": 0})
    found = read(source, 4)
    assert [each for each in found if each.partition == "t/0"] == [
        Record("t/0", 1, b"one", b"k", 4),
        Record("t/0", 2, None, b"k", 1),
    ]
    assert of(found, "t/3") == [0, 1]
    source.seek({"t/3": 1})
    assert read(source, 1)[0].value == b"b"
    assert source.poll(0.01, 5) == []
    assert source.shown(7) == "7"
    assert repr(source) == "KafkaSource(t)"


def test_offsets_are_told_only_by_commit(kafka: brokers.Kafka, made: Any) -> None:
    kafka.add("t", 0, *5 * [b"x"])
    source = made()
    assert source.find(NAMES, Start.COMMITTED) == {}
    source.seek({"t/0": 0})
    read(source, 5)
    source.close()
    assert kafka.told("t", 2) == [-1001, -1001]
    source = made()
    source.commit({"t/0": 3})
    source.commit({"t/0": 4, "t/1": 0})
    assert kafka.told("t", 2) == [4, 0]
    assert source.find(NAMES, Start.COMMITTED) == {"t/0": 4, "t/1": 0}
    source.commit({"t/0": 2})  # after a restore
    assert kafka.told("t", 1) == [2]


def test_several_topics(kafka: brokers.Kafka, made: Any) -> None:
    kafka.add("t", 0, b"x")
    kafka.add("u", 0, b"y")
    source = made(["t", "u"])
    assert source.partitions() == [*NAMES, *[f"u/{n}" for n in range(4)]]
    assert source.name == "topic t, u"
    source.seek({"t/0": 0, "u/0": 0})
    assert {each.value for each in read(source, 2)} == {b"x", b"y"}


def test_records_that_retention_removed(kafka: brokers.Kafka, made: Any) -> None:
    for _ in range(10):  # the mock cluster keeps 5 MiB of a partition
        kafka.add("t", 0, bytes(900_000))
    kafka.add("t", 1, b"x")
    source = made()
    oldest = source.find(["t/0"], Start.OLDEST)["t/0"]
    assert oldest > 1
    source.seek({"t/0": 1, "t/1": 0})
    with pytest.raises(
        OffsetGoneError, match=f"t/0 of topic t was to go on at offset 1, .* is {oldest}: "
    ) as found:
        read(source, 2)
    assert (found.value.partition, found.value.wanted, found.value.oldest) == ("t/0", 1, oldest)
    source.seek({"t/0": oldest})
    assert read(source, 1)[0].offset == oldest


def test_a_topic_that_was_made_anew_is_refused(kafka: brokers.Kafka, made: Any) -> None:
    kafka.add("t", 0, b"x", b"y")
    source = made()
    source.seek({"t/0": 500})
    with pytest.raises(
        StreamError, match="t/0 was to go on at offset 500, but it ends at 2: the topic was made anew"
    ):
        read(source, 1)


def test_a_topic_that_does_not_exist(made: Any) -> None:
    with pytest.raises(StreamError, match=r"topic none cannot be read: .*Unknown topic"):
        made("none").partitions()


def test_a_cluster_that_is_away(kafka: brokers.Kafka, made: Any) -> None:
    kafka.add("t", 0, b"x")
    source = made(timeout=1.0)
    source.seek({"t/0": 0})
    read(source, 1)
    kafka.close()
    with pytest.raises(BrokerAwayError, match="cannot read in topic t: "):
        while True:
            source.poll(1.0, 10)
    with pytest.raises(BrokerAwayError, match="cannot commit offsets in topic t: "):
        source.commit({"t/0": 1})
    with pytest.raises(BrokerAwayError, match="cannot list the partitions in topic t"):
        source.partitions()
    with pytest.raises(BrokerAwayError, match="cannot find the ends of t/0 in topic t"):
        source.find(["t/0"], Start.OLDEST)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"enable.auto.commit": True},
            "config has enable.auto.commit=True, which a KafkaSource sets to False",
        ),
        ({"auto.offset.reset": "earliest"}, "config has auto.offset.reset='earliest'"),
        ({"error_cb": print}, "config has error_cb, which a KafkaSource sets itself: leave it out"),
        ({"group.id": ""}, "config has no 'group.id': name the group"),
        ({"no.such": 1}, 'cannot be made: .*No such configuration property: "no.such"'),
        ({"sasl.password": "geheim", "security.protocol": "geheim"}, r'Invalid value "\*\*\*"'),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be(made: Any, config: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text) as found:
        made(**config)
    assert "geheim" not in f"{found.value!r} {found.value.__cause__!r}"


def test_no_topic_is_refused(made: Any) -> None:
    with pytest.raises(DataError, match="a KafkaSource reads one topic or more, got none"):
        made([])


def test_a_password_is_in_no_text(made: Any) -> None:
    assert "geheim" not in repr(made(**{"sasl.password": "geheim"}))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UsageError, match=r"needs confluent-kafka: pip install 'elasticrun\[kafka\]'"):
        KafkaSource({"group.id": "g"}, "t")
