"""Both ends of a stream prove that they know the job's token, which itself never crosses the wire.

::

    server -> client   challenge    32 fresh random bytes, in the initial metadata; empty without a token
    client -> server   nonce        32 fresh random bytes, in Hello
                       proof        HMAC-SHA256(token, "agent" | challenge | Hello), behind that Hello
    both ways          every other frame is MAC | message

The parts that a proof covers are length-prefixed, so that two different lists of parts never give the same
bytes. The first part names the prover and the purpose, so that no proof can be sent back to where it came
from or used for another purpose.

**Frames.** The two random strings and the token give a key for the frames of one stream::

    key = HMAC-SHA256(token, "frames" | challenge | nonce)
    MAC = the first 16 bytes of HMAC-SHA256(key, who sent it, as one byte | number of the frame | message)

A direction's frames are numbered from 0, and both ends count for themselves. So a frame is accepted only in
its place: one that is changed, doubled, left out, moved, sent back to where it came from, or taken from
another stream has another number, another sender or another key. The receiver of such a frame ignores its
content and treats the connection as lost. The master's first frame is its own proof: nobody can make it
without the token.

So an attacker without the token cannot join the job, pose as its master, or steer a stream that passes
through his hands. He can only cut it. A guess costs a stream, and the server grants few streams after wrong
guesses. The master proves itself only to a client that has proven itself first, so nobody can collect proofs
from it.

An operator's order is proven in the same way as a Hello, and the proof of its answer covers the text.

This does not stop an eavesdropper: he can read the stream, and try tokens against it at his own speed. So a
token must be long and random, and what must stay secret needs TLS.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from elasticrun.dataclass import dataclass
from elasticrun.errors import ProtocolError
from elasticrun.rpc.text import clean

if TYPE_CHECKING:
    from elasticrun.core.protocol.orders import ControlHello

#: The key of the metadata that carries the challenge; gRPC encodes values of keys in -bin.
CHALLENGE_KEY = "elasticrun-challenge-bin"
#: Length of challenges, nonces and proofs in bytes, and of the MAC before each message.
SIZE = 32
MAC_SIZE = 16
_PROTOCOL = b"elasticrun.v1"
_COUNTER_SIZE = 8
_BLOCK_SIZE = 64  # of SHA-256
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


class ForgedError(Exception):
    """A frame is not the next one that the other end sent."""


def fresh() -> bytes:
    """A challenge or a nonce: random, and never drawn before."""
    return os.urandom(SIZE)


def challenge_in(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """The server's challenge; empty if its job has no token, None if it sent none at all.

    Raises ProtocolError for a wrong length: proofs for a short challenge could be collected in advance.
    """
    for key, value in metadata:
        if key == CHALLENGE_KEY and isinstance(value, bytes):
            if len(value) not in (0, SIZE):
                raise ProtocolError(f"the master's challenge must have {SIZE} bytes, got {len(value)}")
            return value
    return None


class KeyedHash:
    """HMAC-SHA256 (RFC 2104) of many messages: the two blocks that only depend on the key are hashed once."""

    def __init__(self, key: bytes) -> None:
        from hashlib import sha256  # not needed by a node that is alone

        block = (key if len(key) <= _BLOCK_SIZE else sha256(key).digest()).ljust(_BLOCK_SIZE, b"\0")
        self._inner = sha256(block.translate(_INNER_PAD))
        self._outer = sha256(block.translate(_OUTER_PAD))

    def of(self, message: bytes) -> bytes:
        """The 32 bytes for one message."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


class Seal:
    """One direction of one stream: makes its frames at one end, and opens them at the other."""

    def __init__(self, keyed_hash: KeyedHash, sender: bytes) -> None:
        """``sender`` is one byte that names the end that makes the frames."""
        self._hash = keyed_hash
        self._sender = sender
        self._count = 0

    def close(self, message: bytes) -> bytes:
        """The next frame."""
        return self._mac(message) + message

    def open(self, frame: bytes) -> bytes:
        """The message of the next frame; raises ForgedError."""
        message = frame[MAC_SIZE:]
        if not same(frame[:MAC_SIZE], self._mac(message)):
            raise ForgedError
        return message

    def _mac(self, message: bytes) -> bytes:
        mac = self._hash.of(self._sender + self._count.to_bytes(_COUNTER_SIZE, "big") + message)[:MAC_SIZE]
        self._count += 1
        return mac


@dataclass(frozen=True, slots=True)
class Handshake:
    """What both ends of one stream share: the token and the challenge."""

    token: KeyedHash  # see ``keyed``
    challenge: bytes

    def of_agent(self, hello: bytes) -> bytes:
        """The proof to append to the bytes of a Hello."""
        return self._prove(b"agent", hello)

    def seals(self, nonce: bytes) -> tuple[Seal, Seal]:
        """The seals of the agent's frames and of the master's, if the agent drew ``nonce``."""
        of_stream = KeyedHash(self._prove(b"frames", nonce))
        return Seal(of_stream, b"a"), Seal(of_stream, b"m")

    def of_operator(self, hello: ControlHello, request: bytes) -> bytes:
        """The proof to put into ``hello`` if the order's bytes are ``request``."""
        return self._prove(b"operator", hello.nonce, _utf8(hello.job_id), request)

    def of_answer(self, nonce: bytes, ok: bool, text: str, status: bytes = b"") -> bytes:
        """The proof of the answer, with its encoded status, to the operator that drew ``nonce``."""
        parts = (status,) if status else ()
        return self._prove(b"answer", nonce, b"\1" if ok else b"\0", _utf8(text), *parts)

    def _prove(self, role: bytes, *parts: bytes) -> bytes:
        return self.token.of(proven(role, self.challenge, *parts))


def keyed(token: str) -> KeyedHash:
    """The hash that makes proofs with this token, for any number of handshakes."""
    return KeyedHash(_utf8(token))


def proof_of(key: bytes, role: bytes, *parts: bytes) -> bytes:
    """The proof that the sender of these parts, in this role, knows ``key``."""
    return KeyedHash(key).of(proven(role, *parts))


def proven(role: bytes, *parts: bytes) -> bytes:
    """The bytes that a proof of these parts in this role covers."""
    return b"".join(map(_prefixed, (_PROTOCOL, role, *parts)))


def same(proof: bytes, expected: bytes) -> bool:
    """Whether a proof is the expected one, compared in constant time."""
    import hmac  # not needed by a node that is alone

    return hmac.compare_digest(proof, expected)


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _utf8(text: str) -> bytes:
    # What UTF-8 cannot express arrives as U+FFFD, so that is what can be proven.
    return clean(text).encode()
