"""Sends one part to another node, and takes one in: what is said, and how it is proved.

    receiver: challenge                                 (16 random bytes)
    sender:   offer + proof                             (JSON: which part, how long its pieces are, a nonce)
    receiver: answers + proofs                          (JSON: wait; then taken, refused and why, or here)
    sender:   the bytes of all pieces, then their proof
    receiver: answer + proof                            (JSON: stored)

A proof is an HMAC-SHA256 with the receiver's key, over the role of the speaker, a seal and what is said. The
seal of the offer is the challenge. The seal of all that follows is the proof of the offer, with a nonce of
the sender. So neither side takes what was said in another transfer. The key comes from the master, over its
own connections, so whoever knows it belongs to the job. A stranger can neither send, nor repeat, nor change
anything; it sees what is sent. A line has at most ``MAX_LINE`` bytes, and is read as JSON only once it is
proved.

``send`` and ``Reception.take`` block: they run in threads. All else of a reception is heard and said in the
loop, so it waits for no thread: a stranger that connects and says nothing costs none. Memory for a part may
take longer than ``PATIENCE`` to make, so who waits for an answer is told so meanwhile.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from elasticrun.core.protocol.bounds import MAX_SENTENCE
from elasticrun.core.state.events import Offer
from elasticrun.rpc.records import RecordError, from_json, to_json

#: Seconds without a byte after which a transfer has failed.
PATIENCE = 30.0
MAX_LINE = 256 << 10
#: The most pieces of a part, one for each rank of a node.
MAX_PIECES = 2048
CHALLENGE = NONCE = 16  # random bytes
_PROOF = 32
_LENGTH = struct.Struct("!I")
#: Bytes in front of a line, which tell how long it is.
HEAD = _LENGTH.size
#: Bytes that are sent, or received, at a time: few enough for an even pace, and many for a call.
CHUNK = 1 << 20
_SENDER, _RECEIVER, _DATA = b"sender", b"receiver", b"data"


class TransferError(Exception):
    """Why a part was not copied, as the end of a sentence."""


class Pace:
    """Holds all transfers of a node together below a number of bytes a second."""

    def __init__(self, rate: float, stopping: threading.Event) -> None:
        """``rate``: 0 means without a bound. ``stopping``: ends all waits."""
        self._rate = rate
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at = 0.0  # of the monotonic clock: when the next bytes may be sent

    def spend(self, size: int) -> None:
        """Wait until so many more bytes may be sent. TransferError once everything stops."""
        if self._rate:
            with self._lock:
                begins = max(self._free_at, time.monotonic())
                self._free_at = begins + size / self._rate
            self._stopping.wait(max(0.0, begins - time.monotonic()))
        if self._stopping.is_set():
            raise TransferError("this agent is closing")


def send(channel: socket.socket, key: bytes, offer: Offer, pieces: Sequence[memoryview], pace: Pace) -> None:
    """Send a part. TransferError if the receiver refuses it or the connection breaks."""
    try:
        channel.settimeout(PATIENCE)
        nonce = {"nonce": os.urandom(NONCE).hex()}
        said = _line(key, _SENDER, _receive(channel, CHALLENGE), {**to_json(offer), **nonce})
        channel.sendall(said)
        seal = said[-_PROOF:]
        while (answer := _hear(channel, key, _RECEIVER, seal)).get("wait"):
            pass
        if answer.get("is_here"):
            return
        if "refused" in answer:
            raise TransferError(f"it refuses: {_printable(answer['refused'])}")
        proof = hmac.new(key, _DATA + seal, "sha256")
        for piece in pieces:
            for begin in range(0, len(piece), CHUNK):
                chunk = piece[begin : begin + CHUNK]
                pace.spend(len(chunk))
                proof.update(chunk)
                channel.sendall(chunk)
        channel.sendall(proof.digest())
        if _hear(channel, key, _RECEIVER, seal).get("stored") is not True:
            raise TransferError("it did not store it")
    except OSError as error:
        raise TransferError(_why(error)) from None


class Reception:
    """One part that comes in."""

    def __init__(self, channel: socket.socket, key: bytes) -> None:
        self._channel = channel
        self._key = key
        self.challenge = os.urandom(CHALLENGE)  # to be sent first
        self._seal = b""  # the proof of the offer

    def understand(self, data: bytes) -> Offer:
        """The offer in what followed the head. TransferError if a stranger made it, or it makes no sense."""
        message = _proved(data, self._key, _SENDER, self.challenge)
        self._seal = data[-_PROOF:]
        return _understood({name: value for name, value in message.items() if name != "nonce"})

    @property
    def wait(self) -> bytes:
        """What keeps the sender waiting."""
        return self._said({"wait": True})

    def refusal(self, reason: str, is_here: bool) -> bytes:
        """What refuses the offer."""
        return self._said({"refused": reason, "is_here": is_here})

    @property
    def taken(self) -> bytes:
        """What accepts the offer. ``take`` is next."""
        return self._said({"taken": True})

    @property
    def stored(self) -> bytes:
        """What tells the sender that its part is stored here."""
        return self._said({"stored": True})

    def take(self, targets: Sequence[memoryview]) -> None:
        """Receive the bytes of all pieces into these. TransferError if they do not come as they were sent."""
        proof = hmac.new(self._key, _DATA + self._seal, "sha256")
        try:
            self._channel.settimeout(PATIENCE)
            for target in targets:
                _fill(self._channel, target, proof.update)
            if not hmac.compare_digest(_receive(self._channel, _PROOF), proof.digest()):
                raise TransferError("what came is not what was sent")
        except OSError as error:
            raise TransferError(_why(error)) from None

    def _said(self, message: dict[str, Any]) -> bytes:
        return _line(self._key, _RECEIVER, self._seal, message)


# -- lines


def _line(key: bytes, role: bytes, seal: bytes, message: dict[str, Any]) -> bytes:
    line = json.dumps(message).encode()
    return _LENGTH.pack(len(line)) + line + _proof(key, role, seal, line)


def _hear(channel: socket.socket, key: bytes, role: bytes, seal: bytes) -> dict[str, Any]:
    return _proved(_receive(channel, line_length(_receive(channel, HEAD))), key, role, seal)


def line_length(head: bytes) -> int:
    """How many bytes follow a head: a line and its proof. TransferError if they are too many."""
    (length,) = _LENGTH.unpack(head)
    if length > MAX_LINE:
        raise TransferError("the peer speaks another protocol")
    return int(length) + _PROOF


def _proved(data: bytes, key: bytes, role: bytes, seal: bytes) -> dict[str, Any]:
    """The message in a line with its proof. TransferError if the proof is wrong, or it is no message."""
    line, proof = data[:-_PROOF], data[-_PROOF:]
    if not hmac.compare_digest(proof, _proof(key, role, seal, line)):
        raise TransferError("the peer does not belong to this job")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise TransferError("what it says makes no sense")
    return message


def _proof(key: bytes, role: bytes, seal: bytes, line: bytes) -> bytes:
    return hmac.digest(key, b"|".join((role, seal, line)), "sha256")


def _receive(channel: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    _fill(channel, memoryview(data), lambda _: None)
    return bytes(data)


def _fill(channel: socket.socket, target: memoryview, note: Callable[[memoryview], object]) -> None:
    at = 0
    while at < len(target):
        count = channel.recv_into(target[at : at + CHUNK])
        if not count:
            raise ConnectionError("the connection was closed")
        note(target[at : at + count])
        at += count


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing has moved for {PATIENCE:.0f} s"
    return error.strerror or str(error)


def _printable(text: object) -> str:
    """What another node wrote, as a text for the log."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:MAX_SENTENCE])


# -- offers


def _understood(message: dict[str, Any]) -> Offer:
    """The offer in a message of a member of the job. TransferError if it makes no sense.

    What is accepted is told to the master as it is, which takes no number or text beyond its limits.
    """
    try:
        offer = from_json(Offer, message)
    except RecordError:
        raise TransferError("the offer makes no sense") from None
    ranks = {piece.rank for piece in offer.pieces}
    digests = [offer.part.digest, offer.part.shared, *(piece.digest for piece in offer.pieces)]
    is_sane = 0 < len(offer.pieces) == len(ranks) <= MAX_PIECES and offer.part.group_rank < offer.size
    if not is_sane or not all(len(digest) <= 64 and digest.isascii() for digest in digests):
        raise TransferError("the offer makes no sense")
    return offer
