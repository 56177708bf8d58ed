"""A real memory server, and peers that have no business there, or say what makes no sense."""

from __future__ import annotations

import os

import pytest

from elasticrun.agent.memory.server import CONNECTIONS
from elasticrun.core.protocol.commits import CommitId
from elasticrun.rpc.packing import MAX_MESSAGE
from tests.support.memory_client import Client, save
from tests.support.memory_host import MemoryHost

NOBODY = 65534


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token": "0" * 32}, "its token is another one"),
        ({"token": ""}, "its token is another one"),
        ({"token": "töken"}, "its token is another one"),
        ({"round": 0}, "no worker 0 of round 0 runs here"),
        ({"round": 2}, "no worker 0 of round 2 runs here"),
        ({"round": -1}, "round must be from 0 to 2**53"),
        ({"round": True}, "round must be from 0 to 2**53"),
        ({"local_rank": 1}, "no worker 1 of round 1 runs here"),
        ({"local_rank": -1}, "local_rank must be from 0 to 2**53"),
        ({"local_rank": False}, "local_rank must be from 0 to 2**53"),
        ({"local_rank": "0"}, "it must begin with hello"),
        ({"local_rank": None}, "it must begin with hello"),
        ({"round": 1.0}, "it must begin with hello"),
        ({"token": ["x"]}, "it must begin with hello"),
    ],
)
def test_strangers_are_hung_up_on(host: MemoryHost, fields: dict[str, object], why: str) -> None:
    with Client(host) as client:
        assert client.hello(**fields)["refused"] == f"this message makes no sense: {why}"
        assert client.is_hung_up


@pytest.mark.parametrize("what", ["begin", "end", "give up", "restore"])
def test_nobody_is_heard_before_hello(host: MemoryHost, what: str) -> None:
    with Client(host) as client:
        fields = {"step": 1, "whole": 1, "share": 1, "contents": "", "length": 1, "digest": "", "own": False}
        fields["from"] = 0
        assert "it must begin with hello" in client.ask(what, **fields)["refused"]
        assert client.is_hung_up


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello", "Expecting value"),
        (b"\xff\xfe\x00", ""),
        (b"[1, 2]", "it is no JSON object"),
        (b"null", "it is no JSON object"),
        (b"{}", "it asks for nothing that is known"),
        (b'{"ask": "everything"}', "it asks for nothing that is known"),
        (b'{"ask": {"ask": "begin"}}', "it asks for nothing that is known"),
        (b"[" * MAX_MESSAGE, "it is nested too deeply"),
        (b'{"a":' * (MAX_MESSAGE // 5), "it is nested too deeply"),
        (b" " * (MAX_MESSAGE + 1), f"it has more than {MAX_MESSAGE} bytes"),
        (b'{"ask": "restore"}', "it asks for nothing that is known"),
        (b'{"ask": "restore", "from": -1}', "from must be from 0 to 2**53"),
        (b'{"ask": "give up"}' + b" " * MAX_MESSAGE, f"it has more than {MAX_MESSAGE} bytes"),
        (b'{"ask": ' + b"9" * 50_000 + b"}", ""),
    ],
    ids=[
        "text",
        "bytes",
        "list",
        "null",
        "empty",
        "else",
        "dict",
        "lists",
        "dicts",
        "one",
        "all",
        "before",
        "more",
        "digits",
    ],
)
def test_nonsense_ends_a_connection(host: MemoryHost, data: bytes, why: str) -> None:
    with Client(host) as client:
        client.hello()
        assert why in client.say(data)["refused"]
        assert client.is_hung_up
    with Client(host) as client:
        assert client.hello() == {"restore": None}, "others are served"


@pytest.mark.parametrize(
    "fields",
    [
        {"step": -1},
        {"whole": -1},
        {"share": -(2**63)},
        {"whole": 2**53 + 1},
        {"step": 1.5},
        {"step": "1"},
        {"share": None},
        {"contents": 1},
        {"contents": "\ud800"},
        {"whole": [1]},
        {"step": True},
        {"whole": True},
    ],
    ids=str,
)
def test_a_save_of_impossible_numbers_ends_a_connection(host: MemoryHost, fields: dict[str, object]) -> None:
    with Client(host) as client:
        client.hello()
        assert "makes no sense" in client.begin(**fields)["refused"]
        assert client.is_hung_up
    memory = host.connect()
    save(memory, 1, b"state")
    memory.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"length": "9"},
        {"length": 0.5},
        {"length": -1},
        {"length": True},
        {"digest": 7},
        {"digest": "\ud800"},
        {"digest": "a" * 65},
        {"step": None},
        {"step": -1},
        {"own": 1},
    ],
    ids=ascii,
)
def test_a_save_that_ends_with_nonsense_is_given_up(host: MemoryHost, fields: dict[str, object]) -> None:
    with Client(host) as client:
        client.hello()
        assert client.begin()["buffer"] == 0
        assert "makes no sense" in client.end(**fields)["refused"]
        assert client.is_hung_up
    assert host.has_told_all()
    memory = host.connect()
    save(memory, 1, b"state")
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 1)]
    memory.close()


def test_a_worker_has_so_many_connections_and_is_told_if_it_wants_more(pair: MemoryHost) -> None:
    clients = [Client(pair) for _ in range(CONNECTIONS)]
    for client in clients:
        assert client.hello() == {"restore": None}
    with Client(pair) as beyond:
        assert beyond.hello() == {"refused": f"worker 0 has {CONNECTIONS} connections already"}
        assert beyond.is_hung_up
    with Client(pair) as client:
        assert client.hello(local_rank=1) == {"restore": None}, "the other worker has none"
    clients.pop().channel.close()
    pair.settle()
    with Client(pair) as client:
        assert client.hello() == {"restore": None}
    for client in clients:
        client.channel.close()


def test_who_does_not_say_who_it_is_cannot_take_all_descriptors(host: MemoryHost) -> None:
    clients = [Client(host) for _ in range(2 * CONNECTIONS)]
    with Client(host) as beyond:
        assert beyond.is_hung_up
    for client in clients:
        client.channel.close()
    host.settle()
    with Client(host) as client:
        assert client.hello() == {"restore": None}


def test_nobody_becomes_another_worker(pair: MemoryHost) -> None:
    with Client(pair) as client:
        client.hello()
        client.begin()
        told = client.hello(local_rank=1)["refused"]
        assert told == "this message makes no sense: it has said hello before"
        assert client.is_hung_up
    with Client(pair) as client:
        client.hello()
        assert "buffer" in client.begin(step=2)


@pytest.mark.root
def test_other_users_are_hung_up_on(host: MemoryHost) -> None:
    os.seteuid(NOBODY)
    try:
        client = Client(host)
    finally:
        os.seteuid(0)
    with client:
        assert client.is_hung_up
