"""Real brokers for tests: the mock cluster of Kafka's client, and a Redis of the test's own."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.processes import DEADLINE


class Kafka:
    """A cluster within this process, that other processes reach as well. It speaks Kafka's protocol."""

    def __init__(self) -> None:
        kafka = pytest.importorskip("confluent_kafka", reason="needs pip install 'elasticrun[kafka]'")
        self._kafka = kafka
        quiet = logging.getLogger("tests.kafka")
        quiet.propagate = False
        self._producer = kafka.Producer(
            {"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 2}, logger=quiet
        )
        brokers = self._producer.list_topics(timeout=DEADLINE).brokers.values()
        self.servers = ",".join(f"{each.host}:{each.port}" for each in brokers)
        self.config = {"bootstrap.servers": self.servers, "group.id": "training"}

    def add(self, topic: str, partition: int, *values: bytes | None, key: bytes | None = None) -> None:
        """Write records. The mock cluster makes a topic of 4 partitions when it is used first."""
        for value in values:
            self._producer.produce(topic, value, key, partition=partition)
        assert self._producer.flush(DEADLINE) == 0

    def told(self, topic: str, partitions: int, group: str = "training") -> list[int]:
        """The offsets that the cluster was told."""
        places = [self._kafka.TopicPartition(topic, n) for n in range(partitions)]
        asking = self._kafka.Consumer({**self.config, "group.id": group, "log_level": 2})
        try:
            return [each.offset for each in asking.committed(places, timeout=DEADLINE)]
        finally:
            asking.close()

    def close(self) -> None:
        """End the cluster: nothing answers any more."""
        self._producer = None


class Redis:
    """A server on a Unix socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("needs redis-server: apt-get install redis-server")
        self._redis = pytest.importorskip("redis", reason="needs pip install 'elasticrun[redis]'")
        self._program, self._folder = program, folder
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.client: Any = self._redis.Redis(unix_socket_path=str(self.socket), protocol=2)
        self.start()

    def start(self, *more: str) -> None:
        options = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder)]
        self._server = subprocess.Popen(
            [self._program, *options, "--save", "", "--appendonly", "yes", "--appendfsync", "always", *more],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        told = next((line for line in self._server.stdout if "ready to accept" in line.lower()), "")
        assert told

    def stop(self) -> None:
        self._server.terminate()
        self._server.communicate(timeout=DEADLINE)

    def add(self, key: str, *values: bytes, ids: Sequence[str] = ()) -> list[str]:
        """Write entries. Returns their ids."""
        return [
            self.client.xadd(key, {b"v": value}, id=id).decode()
            for value, id in zip(values, ids or ["*"] * len(values), strict=True)
        ]

    def close(self) -> None:
        self.client.close()
        self.stop()


@contextmanager
def kafka() -> Iterator[Kafka]:
    made = Kafka()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def redis() -> Iterator[Redis]:
    """The path of a socket has at most 107 bytes, so its folder is none of pytest's."""
    with TemporaryDirectory(prefix="elastic-") as folder:
        made = Redis(Path(folder))
        try:
            yield made
        finally:
            made.close()
