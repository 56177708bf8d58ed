"""What two nodes say while one sends a part to the other, and what a stranger can do there."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from elasticrun.agent.memory import transfer
from elasticrun.agent.memory.transfer import CHALLENGE, MAX_LINE, Pace, Reception, TransferError, send
from elasticrun.core.protocol.commits import CommitId, Part
from elasticrun.core.state.events import Offer, Piece
from elasticrun.rpc.records import to_json
from tests.support.copy_peer import Taker, heard
from tests.support.processes import DEADLINE

KEY = b"k" * 32
OFFER = Offer(
    CommitId(3, 7),
    4,
    Part(1, "digest", True, "alike"),
    (Piece(2, 5, "d2"), Piece(3, 0, "d3"), Piece(4, 3, "d4")),
)
DATA = [memoryview(b"first"), memoryview(b""), memoryview(b"end")]
FREE = Pace(0.0, threading.Event())


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


def sending(pool: ThreadPoolExecutor, channel: socket.socket, key: bytes = KEY) -> Future[None]:
    return pool.submit(send, channel, key, OFFER, DATA, FREE)


def test_a_part_arrives_as_it_was_offered(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    sent, reception = sending(pool, pair[0]), Taker(pair[1], KEY)
    assert heard(reception, pair[1]) == OFFER
    targets = [bytearray(5), bytearray(0), bytearray(3)]
    reception.take([memoryview(each) for each in targets])
    reception.confirm()
    sent.result(DEADLINE)
    assert targets == DATA


def test_who_makes_room_keeps_the_sender_waiting(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    sent, reception = sending(pool, pair[0]), Taker(pair[1], KEY)
    heard(reception, pair[1])
    for _ in range(3):
        reception.hold()
    reception.take([memoryview(bytearray(len(each))) for each in DATA])
    reception.confirm()
    sent.result(DEADLINE)


@pytest.mark.parametrize("is_here", [False, True])
def test_an_offer_may_be_refused(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor, is_here: bool
) -> None:
    sent, reception = sending(pool, pair[0]), Taker(pair[1], KEY)
    heard(reception, pair[1])
    reception.refuse("no room", is_here)
    if is_here:
        sent.result(DEADLINE)
    else:
        with pytest.raises(TransferError, match="it refuses: no room"):
            sent.result(DEADLINE)


def test_a_stranger_offers_nothing(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    sent, reception = sending(pool, pair[0], b"x" * 32), Taker(pair[1], KEY)
    with pytest.raises(TransferError, match="does not belong to this job"):
        heard(reception, pair[1])
    pair[1].close()
    with pytest.raises(TransferError, match="the connection was closed"):
        sent.result(DEADLINE)


def test_nobody_sends_to_a_stranger(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    sent = sending(pool, pair[0])
    pair[1].sendall(bytes(CHALLENGE))
    line = json.dumps({"taken": True}).encode()
    pair[1].sendall(struct.pack("!I", len(line)) + line + bytes(32))
    with pytest.raises(TransferError, match="does not belong to this job"):
        sent.result(DEADLINE)


def test_what_was_said_before_cannot_be_said_again(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    sent = sending(pool, pair[0])
    pair[1].sendall(bytes(CHALLENGE))
    (length,) = struct.unpack("!I", pair[1].recv(4, socket.MSG_WAITALL))
    said = pair[1].recv(length + 32, socket.MSG_WAITALL)
    pair[1].close()
    with pytest.raises(TransferError):
        sent.result(DEADLINE)
    left, right = socket.socketpair()
    with left, right:
        left.sendall(struct.pack("!I", length) + said)
        with pytest.raises(TransferError, match="does not belong to this job"):
            heard(Reception(right, KEY), right)


def test_what_a_receiver_said_before_cannot_be_said_again(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    """Else a stranger makes a node believe that others have what it sent."""
    sent, reception = sending(pool, pair[0]), Taker(pair[1], KEY)
    heard(reception, pair[1])
    reception.take([memoryview(bytearray(len(each))) for each in DATA])
    reception.confirm()
    sent.result(DEADLINE)
    left, right = socket.socketpair()
    with left, right:
        again = sending(pool, left)
        right.sendall(reception.challenge + reception.taken + reception.stored)
        with pytest.raises(TransferError, match="does not belong to this job"):
            again.result(DEADLINE)


def test_a_changed_byte_is_found(pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor) -> None:
    left, right = socket.socketpair()
    with left, right:
        sent, reception = sending(pool, pair[0]), Taker(right, KEY)

        def relay(source: socket.socket, target: socket.socket, length: int, flip: bool = False) -> None:
            data = bytearray(source.recv(length, socket.MSG_WAITALL))
            data[0] ^= flip
            target.sendall(data)

        def meddle() -> None:
            relay(left, pair[1], CHALLENGE)
            (length,) = struct.unpack("!I", pair[1].recv(4, socket.MSG_WAITALL))
            left.sendall(struct.pack("!I", length))
            relay(pair[1], left, length + 32)
            (length,) = struct.unpack("!I", left.recv(4, socket.MSG_WAITALL))
            pair[1].sendall(struct.pack("!I", length))
            relay(left, pair[1], length + 32)
            relay(pair[1], left, 8, flip=True)
            relay(pair[1], left, 32)

        between = threading.Thread(target=meddle)
        between.start()
        assert heard(reception, right) == OFFER
        with pytest.raises(TransferError, match="what came is not what was sent"):
            reception.take([memoryview(bytearray(5)), memoryview(bytearray(0)), memoryview(bytearray(3))])
        between.join(DEADLINE)
        pair[1].close()
        with pytest.raises(TransferError):
            sent.result(DEADLINE)


def test_a_peer_that_says_nothing_is_left(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PATIENCE", 0.01)
    with pytest.raises(TransferError, match="nothing has moved for"):
        send(pair[1], KEY, OFFER, DATA, FREE)
    with pytest.raises(TransferError, match="nothing has moved for"):
        Reception(pair[1], KEY).take([memoryview(bytearray(1))])


def test_a_peer_that_says_too_much_is_left(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(struct.pack("!I", MAX_LINE + 1))
    with pytest.raises(TransferError, match="another protocol"):
        heard(Reception(pair[1], KEY), pair[1])


GOOD = to_json(OFFER)
PIECE = {"rank": 2, "length": 5, "digest": "d2"}
PART = GOOD["part"]


@pytest.mark.parametrize(
    "change",
    [
        {"commit": {"round": 3}},
        {"commit": {"round": 3, "step": -1}},
        {"commit": {"round": True, "step": 7}},
        {"commit": {"round": 2**53 + 1, "step": 7}},
        {"size": "4"},
        {"size": 1},
        {"size": 2**21},
        {"part": {**PART, "shared": None}},
        {"part": {**PART, "digest": "d" * 65}},
        {"part": {**PART, "shared": "\ud800"}},
        {"pieces": []},
        {"pieces": [PIECE, PIECE]},
        {"pieces": [{**PIECE, "length": 2**54}]},
        {"pieces": [{**PIECE, "digest": "d" * 65}]},
        {"pieces": [{**PIECE, "rank": rank} for rank in range(transfer.MAX_PIECES + 1)]},
        {"pieces": None},
    ],
)
def test_an_offer_that_makes_no_sense_is_none(change: dict[str, object]) -> None:
    assert transfer._understood(GOOD) == OFFER
    with pytest.raises(TransferError, match="makes no sense"):
        transfer._understood({**GOOD, **change})


@pytest.mark.parametrize("line", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_no_message_makes_no_sense_although_it_is_proved(
    pair: tuple[socket.socket, socket.socket], line: bytes
) -> None:
    reception = Reception(pair[1], KEY)
    proof = transfer._proof(KEY, b"sender", reception.challenge, line)
    with pytest.raises(TransferError, match="makes no sense"):
        reception.understand(line + proof)


def test_what_a_peer_writes_is_printed_without_what_a_terminal_obeys(
    pair: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor
) -> None:
    sent, reception = sending(pool, pair[0]), Taker(pair[1], KEY)
    heard(reception, pair[1])
    reception.refuse("\x1b[2Jgone" + 1000 * "!", False)
    with pytest.raises(TransferError, match=r"it refuses: \?\[2Jgone!+$") as raised:
        sent.result(DEADLINE)
    assert len(str(raised.value)) < 500


def test_the_pace_is_that_of_all_transfers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    pace = Pace(1000.0, Stop())
    for _ in range(3):
        pace.spend(500)
    assert waits == [0.0, 0.5, 1.0]


def test_a_closing_agent_sends_no_more() -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(TransferError, match="this agent is closing"):
        Pace(0.0, stopping).spend(1)
