"""Both ends of a stream prove that they know the job's token, which itself never crosses the wire.

::

    server -> client   challenge    32 fresh random bytes, in the initial metadata; empty without a token
    client -> server   nonce        32 fresh random bytes, in Hello
                       proof        HMAC-SHA256(token, "agent" | challenge | nonce | job id | incarnation)
    server -> client   proof        HMAC-SHA256(token, "master" | challenge | nonce), in Welcome

An operator's order is proven in the same way, except that the proof covers the bytes of the order itself,
and that of the answer its text. The parts are length-prefixed, so that two different lists of parts never
give the same bytes, and the first part names who proves what, so that no proof can be sent back to where it
came from or used for another purpose.

What this stops: whoever does not know the token can neither join the job, nor give it orders, nor pose as
its master; what was recorded from one stream is worth nothing on another, since each has a challenge
and a nonce of its own; and a guess costs a stream, of which the server grants few to who guesses wrong. The
master proves itself only to somebody who has done so before, so it cannot be asked for proofs.

What it does not stop: whoever sits *between* an agent and the master can let them prove themselves to one
another and then read and change the stream (an order and its answer excepted, as their proofs cover
them), and whoever listens can read it and try tokens against what he heard, at his own speed. So a token must
be long and random, and a network that is not trusted needs TLS as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticrun.core.protocol import Hello
from elasticrun.errors import ProtocolError
from elasticrun.rpc.text import clean

if TYPE_CHECKING:
    from elasticrun.core.orders import ControlHello

#: The key of the metadata that carries the challenge; gRPC encodes values of keys in -bin.
CHALLENGE_KEY = "elasticrun-challenge-bin"
#: Length of challenges, nonces and proofs in bytes.
SIZE = 32
_PROTOCOL = b"elasticrun.v1"


def fresh() -> bytes:
    """A challenge or a nonce: random, and never drawn before."""
    return os.urandom(SIZE)


def challenge_in(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """The server's challenge; empty if its job has no token, None if it speaks of none at all.

    Raises ProtocolError for a challenge that is none: a proof for a short one might be had in advance.
    """
    for key, value in metadata:
        if key == CHALLENGE_KEY and isinstance(value, bytes):
            if len(value) not in (0, SIZE):
                raise ProtocolError(f"the master's challenge must have {SIZE} bytes, got {len(value)}")
            return value
    return None


@dataclass(frozen=True, slots=True)
class Handshake:
    """What both ends of one stream know if both are what they claim to be."""

    token: str = field(repr=False)
    challenge: bytes

    def of_agent(self, hello: Hello) -> bytes:
        """The proof that belongs into ``hello``."""
        return self._prove(b"agent", hello.nonce, _utf8(hello.job_id), _utf8(hello.info.incarnation))

    def of_master(self, nonce: bytes) -> bytes:
        """The proof that belongs into the Welcome for the agent that drew ``nonce``."""
        return self._prove(b"master", nonce)

    def of_operator(self, hello: ControlHello, request: bytes) -> bytes:
        """The proof that belongs into ``hello`` if the order's bytes are ``request``."""
        return self._prove(b"operator", hello.nonce, _utf8(hello.job_id), request)

    def of_answer(self, nonce: bytes, ok: bool, text: str) -> bytes:
        """The proof that belongs into the answer to the operator who drew ``nonce``."""
        return self._prove(b"answer", nonce, b"\1" if ok else b"\0", _utf8(text))

    def _prove(self, role: bytes, *parts: bytes) -> bytes:
        import hmac  # not needed by a job without a token

        transcript = b"".join(map(_prefixed, (_PROTOCOL, role, self.challenge, *parts)))
        return hmac.digest(_utf8(self.token), transcript, "sha256")


def same(proof: bytes, expected: bytes) -> bool:
    """Whether a proof is the expected one; how long that takes tells nothing about it."""
    import hmac

    return hmac.compare_digest(proof, expected)


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _utf8(text: str) -> bytes:
    # What UTF-8 cannot express arrives as U+FFFD, so that is what can be proven.
    return clean(text).encode()
