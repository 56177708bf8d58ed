"""``RedisSource`` with a real server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs pip install 'elasticrun[redis]'")

from elasticrun.data.streams.redis import RedisSource, id_of, number_of
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

LAST = (1 << 64) - 1


@pytest.fixture
def server() -> Iterator[brokers.Redis]:
    with brokers.redis() as made:
        yield made


@pytest.fixture
def made(server: brokers.Redis) -> Iterator[Any]:
    found = list[RedisSource]()

    def make(keys: Any = "a", **options: Any) -> RedisSource:
        found.append(RedisSource(server.url, keys, **{"timeout": DEADLINE, **options}))
        return found[-1]

    yield make
    for each in found:
        each.close()


def read(source: RedisSource, count: int) -> list[Record]:
    found = list[Record]()
    while len(found) < count:
        found += source.poll(DEADLINE, count)
    return found


def ids(records: Sequence[Record]) -> list[str]:
    return [id_of(each.offset) for each in records]


@pytest.mark.parametrize("id", ["0-0", "0-1", "1-0", "1700000000000-3", f"5-{LAST}", f"{LAST}-{LAST}"])
def test_an_id_is_a_number_that_is_ordered_alike(id: str) -> None:
    assert id_of(number_of(id)) == id
    assert number_of(id.encode()) == number_of(id)


def test_the_id_after_one() -> None:
    assert id_of(number_of("5-7") + 1) == "5-8"
    assert id_of(number_of(f"5-{LAST}") + 1) == "6-0"
    assert number_of("6") == number_of("6-0")


def test_entries_come_in_order_from_where_they_are_sought(server: brokers.Redis, made: Any) -> None:
    server.add("a", b"x", b"yy", b"z", ids=["1-0", "1-1", "2-0"])
    server.add("b", b"w", ids=["9-9"])
    source = made(["a", "b"])
    assert source.partitions() == ("a", "b")
    assert {key: id_of(n) for key, n in source.find(["a", "b"], Start.OLDEST).items()} == {
        "a": "1-0",
        "b": "9-9",
    }
    assert {key: id_of(n) for key, n in source.find(["a", "b"], Start.NEWEST).items()} == {
        "a": "2-1",
        "b": "9-10",
    }
    source.seek({"a": number_of("1-1"), "b": 0})
    found = read(source, 3)
    assert Record("a", number_of("1-1"), {b"v": b"yy"}, None, 3) in found
    assert ids([each for each in found if each.partition == "a"]) == ["1-1", "2-0"]
    source.seek({"a": number_of("2-0")})
    assert ids(read(source, 1)) == ["2-0"]
    assert source.poll(0.001, 5) == []
    assert source.shown(number_of("2-0")) == "2-0"
    assert repr(source) == "RedisSource(a, b)"


def test_a_read_waits_for_the_next_entry_also_of_a_stream_that_is_not_there_yet(
    server: brokers.Redis, made: Any
) -> None:
    source = made()
    assert source.find(["a"], Start.OLDEST) == source.find(["a"], Start.NEWEST) == {"a": 0}
    source.seek({"a": 0})
    thread = threading.Thread(target=server.add, args=("a", b"x"))
    thread.start()
    assert read(source, 1)[0].value == {b"v": b"x"}
    thread.join()


def test_only_commit_tells_the_group(server: brokers.Redis, made: Any) -> None:
    server.add("a", *5 * [b"x"], ids=[f"{n}-0" for n in range(1, 6)])
    source = made(["a", "b"], group="training")
    assert source.find(["a", "b"], Start.COMMITTED) == {}
    source.seek({"a": 0})
    read(source, 5)
    assert server.client.xinfo_groups("a") == []
    source.commit({"a": number_of("3-1"), "b": 0})
    assert server.client.xinfo_groups("a")[0]["last-delivered-id"] == b"3-0"
    assert source.find(["a", "b"], Start.COMMITTED) == {"a": number_of("3-1"), "b": 1}
    source.commit({"a": number_of("2-1")})  # after a restore
    assert server.client.xinfo_groups("a")[0]["last-delivered-id"] == b"2-0"
    assert server.client.xlen("a") == 5
    alone = made()
    alone.commit({"a": number_of("5-1")})  # nobody to tell
    assert len(server.client.xinfo_groups("a")) == 1


def test_what_was_committed_may_be_trimmed_and_that_is_no_gap(server: brokers.Redis, made: Any) -> None:
    server.add("a", *5 * [b"x"], ids=[f"{n}-0" for n in range(1, 6)])
    source = made(group="training", trim=True)
    source.commit({"a": number_of("3-1")})
    assert ids(read_from(made(), "1-0", 0)) == []
    assert [id for id, _ in server.client.xrange("a")] == [b"3-0", b"4-0", b"5-0"]
    assert ids(read_from(made(), "3-1", 2)) == ["4-0", "5-0"]


def read_from(source: RedisSource, id: str, count: int) -> list[Record]:
    source.seek({"a": number_of(id)})
    return read(source, count)


# -- entries that were trimmed


def filled(server: brokers.Redis, made: Any, wanted: str) -> RedisSource:
    server.add("a", *10 * [b"x"], ids=[f"{n}-0" for n in range(1, 11)])
    source: RedisSource = made()
    source.seek({"a": number_of(wanted)})
    return source


def trim(server: brokers.Redis, left: int) -> None:
    server.client.xtrim("a", maxlen=left, approximate=False)


def test_entries_that_were_trimmed_before_they_were_read(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "3-1")
    trim(server, 4)
    text = "a of Redis stream a was to go on at offset 3-1, but the oldest that is left is 7-0: "
    for _ in range(2):
        with pytest.raises(OffsetGoneError, match=text) as found:
            source.poll(0.001, 5)
    assert (found.value.partition, found.value.wanted, found.value.oldest) == (
        "a",
        number_of("3-1"),
        number_of("7-0"),
    )
    source.seek({"a": found.value.oldest})
    assert ids(read(source, 4)) == ["7-0", "8-0", "9-0", "10-0"]


def test_all_entries_were_trimmed_before_they_were_read(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "3-1")
    trim(server, 0)
    with pytest.raises(OffsetGoneError) as found:
        source.poll(0.001, 5)
    assert id_of(found.value.oldest) == "10-1"
    server.add("a", b"x", ids=["12-0"])
    source.seek({"a": found.value.oldest})
    assert ids(source.poll(0.001, 5)) == ["12-0"]


def test_entries_that_were_trimmed_between_two_reads(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "1-0")
    assert ids(source.poll(1, 3)) == ["1-0", "2-0", "3-0"]
    trim(server, 7)  # exactly what was read
    assert ids(source.poll(1, 3)) == ["4-0", "5-0", "6-0"]
    trim(server, 3)  # and one more
    with pytest.raises(OffsetGoneError) as found:
        source.poll(1, 3)
    assert (id_of(found.value.wanted), id_of(found.value.oldest)) == ("6-1", "8-0")


def test_a_trim_of_what_was_read_is_no_gap(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "1-0")
    assert len(read(source, 10)) == 10
    trim(server, 0)
    server.add("a", b"x", ids=["20-0"])
    assert ids(source.poll(1, 3)) == ["20-0"]
    server.client.xadd("a", {"v": b"y"}, id="21-0", maxlen=1, approximate=False)
    assert ids(source.poll(1, 3)) == ["21-0"]
    server.client.xadd("a", {"v": b"y"}, id="22-0", maxlen=1, approximate=False)
    server.client.xadd("a", {"v": b"y"}, id="23-0", maxlen=1, approximate=False)
    with pytest.raises(OffsetGoneError):
        source.poll(1, 3)


def test_where_it_is_not_known_after_a_restart_it_is_told_as_a_gap(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "10-1")
    assert source.poll(0.001, 3) == []
    source = made()
    source.seek({"a": number_of("5-1")})
    trim(server, 5)  # all that was read is gone, and nothing else
    with pytest.raises(OffsetGoneError, match="the oldest that is left is 6-0"):
        source.poll(0.001, 3)
    source.seek({"a": number_of("6-0")})
    assert ids(source.poll(1, 1)) == ["6-0"], "it is at the oldest one"


def test_other_streams_are_read_before_a_gap_is_told(server: brokers.Redis, made: Any) -> None:
    filled(server, made, "1-0")
    trim(server, 2)
    server.add("b", b"x", ids=["1-0"])
    source = made(["a", "b"])
    source.seek({"a": number_of("1-0"), "b": 0})
    assert [each.partition for each in source.poll(1, 10)] == ["b"]
    with pytest.raises(OffsetGoneError):
        source.poll(1, 10)


def test_an_entry_that_was_deleted_on_purpose_is_no_gap(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "1-0")
    server.client.xdel("a", "2-0", "4-0")
    assert ids(read(source, 8)) == [f"{n}-0" for n in (1, 3, 5, 6, 7, 8, 9, 10)]


def test_a_stream_that_was_made_anew_is_refused(server: brokers.Redis, made: Any) -> None:
    source = filled(server, made, "10-1")
    server.client.delete("a")
    server.add("a", b"x", ids=["4-0"])
    with pytest.raises(StreamError, match="a was to go on at id 10-1, but its newest is 4-0: it was removed"):
        source.poll(0.001, 3)


# -- servers that fail


def test_a_server_that_is_away_and_comes_back(server: brokers.Redis, made: Any) -> None:
    server.add("a", b"x", ids=["1-0"])
    source = made(group="training")
    source.seek({"a": 0})
    read(source, 1)
    server.stop()
    with pytest.raises(BrokerAwayError, match="cannot read in Redis stream a: "):
        source.poll(1, 3)
    with pytest.raises(BrokerAwayError, match="cannot commit in Redis stream a: "):
        source.commit({"a": 5})
    with pytest.raises(BrokerAwayError, match="cannot look at streams in Redis stream a: "):
        source.partitions()
    server.start()
    server.add("a", b"y", ids=["2-0"])
    assert ids(source.poll(1, 3)) == ["2-0"]


def test_a_key_that_is_no_stream(server: brokers.Redis, made: Any) -> None:
    server.client.set("a", "x")
    source = made(group="training")
    with pytest.raises(StreamError, match="cannot look at a in Redis stream a: WRONGTYPE"):
        source.partitions()
    source.seek({"a": 0})
    with pytest.raises(StreamError, match="WRONGTYPE"):
        source.poll(0.001, 1)
    with pytest.raises(StreamError, match="cannot commit in Redis stream a: WRONGTYPE"):
        source.commit({"a": 5})


def test_a_password_is_in_no_text(server: brokers.Redis) -> None:
    server.client.config_set("requirepass", "richtig")
    url = f"unix://user:geheim@{server.socket}"
    source = RedisSource(url, "a")
    with pytest.raises(StreamError, match="cannot look at streams in Redis stream a: ") as found:
        source.partitions()
    assert not isinstance(found.value, BrokerAwayError), "to try again does not help"
    assert "geheim" not in f"{source!r} {found.value!r} {source.name}"
    source.close()
    server.client.auth("richtig")


def test_an_old_server_is_refused(server: brokers.Redis, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made()
    old = {"last-generated-id": b"1-0", "length": 1, "first-entry": None}
    monkeypatch.setattr(source._client, "response_callbacks", {**source._client.response_callbacks})
    source._client.response_callbacks["XINFO STREAM"] = lambda answer, **_: old
    server.add("a", b"x")
    with pytest.raises(StreamError, match="Redis stream a needs Redis 7 or later"):
        source.partitions()


@pytest.mark.parametrize(
    ("url", "keys", "options", "text"),
    [
        ("unix:///s", [], {}, "reads one stream or more, each once, got \\[\\]"),
        ("unix:///s", ["a", "a"], {}, "each once, got \\['a', 'a'\\]"),
        ("unix:///s", "a", {"trim": True}, "trim removes what the group was told: give a group"),
        ("unix:///s", "a", {"decode_responses": True}, "gives bytes: leave decode_responses out"),
        ("unix:///s?decode_responses=1", "a", {}, "gives bytes: leave decode_responses out"),
        ("http://me:geheim@host", "a", {}, "the url of a RedisSource is none that redis takes"),
        ("redis://me:geheim@host:port", "a", {}, "the url of a RedisSource is none that redis takes"),
    ],
    ids=str,
)
def test_an_argument_that_cannot_be(url: str, keys: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text) as found:
        RedisSource(url, keys, **options)
    assert "geheim" not in f"{found.value!r} {found.value.__cause__!r}"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"needs the package redis: pip install 'elasticrun\[redis\]'"):
        RedisSource("unix:///s", "a")
