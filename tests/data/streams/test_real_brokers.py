"""``StreamDataset`` over real clients: a broker that is restarted, and offsets that survive a new process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import islice

import pytest

pytest.importorskip("torch")

from elasticrun.data import KafkaSource, RedisSource, StreamDataset
from elasticrun.data.streams.redis import id_of
from tests.data.streams import brokers

pytestmark = pytest.mark.torch


@pytest.fixture
def server() -> Iterator[brokers.Redis]:
    with brokers.redis() as made:
        yield made


def test_a_training_waits_for_a_redis_that_is_restarted(server: brokers.Redis) -> None:
    server.add("a", b"x", ids=["1-0"])

    class Restart(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waits for it" in record.getMessage():
                server.start()
                server.add("a", b"y", ids=["2-0"])

    data, handler = StreamDataset(RedisSource(server.url, "a"), linger=0.0), Restart()
    logging.getLogger("elasticrun").addHandler(handler)
    try:
        loop = iter(data)
        assert [id_of(at) for _, at in next(loop).places] == ["1-0"]
        server.stop()
        assert [id_of(at) for _, at in next(loop).places] == ["2-0"]
    finally:
        logging.getLogger("elasticrun").removeHandler(handler)
        data.close()


def test_another_process_goes_on_in_redis_by_the_state_alone(server: brokers.Redis) -> None:
    ids = server.add("a", *6 * [b"x"])
    first = StreamDataset(RedisSource(server.url, "a", group="g"), prefetch=5, linger=0.0)
    taken = [id_of(at) for batch in islice(first, 2) for _, at in batch.places]
    state = json.loads(json.dumps(first.state_dict()))
    first.saved(1)
    first.durable(1)
    first.close()
    server.client.xgroup_setid("a", "g", ids[-1])  # somebody moves the group: nobody asks it
    second = StreamDataset(RedisSource(server.url, "a", group="g"), linger=0.0)
    second.load_state_dict(state)
    taken += [id_of(at) for batch in islice(second, 4) for _, at in batch.places]
    second.close()
    assert taken == ids


def test_a_training_begins_where_kafka_was_told_that_the_last_one_stood() -> None:
    pytest.importorskip("confluent_kafka")
    with brokers.kafka() as kafka:
        kafka.add("t", 0, *[str(n).encode() for n in range(6)])
        first = StreamDataset(KafkaSource(kafka.config, "t"), prefetch=5, linger=0.0)
        assert [batch.places for batch in islice(first, 2)] == [(("t/0", 0),), (("t/0", 1),)]
        first.state_dict()
        first.saved(1)
        assert first.durable(1)
        next(iter(first))  # in no state that a storage has
        first.close()
        second = StreamDataset(KafkaSource(kafka.config, "t"), start="committed", linger=0.0)
        assert next(iter(second)).places == (("t/0", 2),)
        second.close()
