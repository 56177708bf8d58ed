"""Each record of a stream is in the final model's history once, whoever was killed."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from tests.data.streams import brokers
from tests.e2e.test_elastic_data import UNHURRIED, Diary
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT

pytestmark = pytest.mark.torch

READER = ROOT / "tests" / "support" / "stream_reader.py"
PARTITIONS, EACH = 4, 30
RECORDS = PARTITIONS * EACH
SUM = sum(range(RECORDS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "diary"
    path.mkdir()
    return path


def values(partition: int) -> list[bytes]:
    return [str(EACH * partition + n).encode() for n in range(EACH)]


def check(diary: Diary, expected: list[tuple[str, int]]) -> None:
    """What the steps of the final model took is each record once, and the model has seen it."""
    taken = [(name, at) for lines in diary.history for line in lines for name, at in line["taken"]]
    assert Counter(taken) == Counter(expected)
    assert [line["model"] for line in diary.history[-1]] == [[RECORDS, SUM]] * len(diary.history[-1])


@pytest.mark.skipif(importlib.util.find_spec("confluent_kafka") is None, reason="needs confluent-kafka")
def test_workers_that_read_from_kafka_are_killed(cluster: Cluster, folder: Path) -> None:
    with brokers.kafka() as kafka:
        for partition in range(PARTITIONS):
            kafka.add("numbers", partition, *values(partition))
        launcher = cluster.launch(
            *("--standalone", "--nproc-per-node=2", "--max-restarts=3"),
            *(READER, folder, "kafka", kafka.servers, str(RECORDS), "kill=0:1:5", "kill=1:0:9"),
        )
        assert launcher.wait() == 0
        diary = Diary.read(folder)
        assert len(diary.starts) == 3
        assert diary.least(0) <= diary.starts[1] < 5, "the step that was not saved is trained on again"
        assert diary.least(1) <= diary.starts[2] < 9
        check(diary, [(f"numbers/{n}", at) for n in range(PARTITIONS) for at in range(EACH)])
        assert kafka.told("numbers", PARTITIONS) == [EACH] * PARTITIONS


@pytest.mark.skipif(importlib.util.find_spec("redis") is None, reason="needs redis")
def test_a_smaller_world_goes_on_with_the_partitions_of_a_lost_node(cluster: Cluster, folder: Path) -> None:
    with brokers.redis() as redis:
        ids = [redis.add(f"numbers:{n}", *values(n)) for n in range(PARTITIONS)]
        options = (UNHURRIED, READER, folder, "redis", redis.url, str(RECORDS), "wait=0:6")
        first, second = (cluster.node("1:2", *options) for _ in range(2))
        second.wait_line("waits after step 6")
        first.wait_line("waits after step 6")
        second.kill_node()
        assert first.wait() == 0
        diary = Diary.read(folder)
        assert len(diary.starts) == 2
        assert diary.least(0) <= diary.starts[1] <= 6
        assert {len(lines) for lines in diary.history[diary.starts[1] :]} == {1}
        expected = [
            (f"numbers:{n}", (time << 64) + sequence)
            for n, them in enumerate(ids)
            for time, sequence in (map(int, each.split("-")) for each in them)
        ]
        check(diary, expected)
        told = [redis.client.xinfo_groups(f"numbers:{n}")[0] for n in range(PARTITIONS)]
        assert [each["last-delivered-id"].decode() for each in told] == [them[-1] for them in ids]
