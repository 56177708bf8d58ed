"""Proofs that are appended to the bytes of the Hello that they cover.

A proof is a field of Hello. Protobuf merges a message that comes twice, so a field can be appended to bytes
that are encoded already: the decoder finds it in its place. The check takes it off again and has exactly the
bytes that it was made for.
"""

from __future__ import annotations

from enum import IntEnum

from elasticrun.rpc import elastic_pb2 as pb

_SIZE = 32
_LENGTH = 2  # the wire type of fields with a length before them


class HelloProof(IntEnum):
    """Which proof: the number of its field in Hello. In bytes that have both, RETURNING comes first."""

    TOKEN = pb.Hello.PROOF_FIELD_NUMBER
    RETURNING = pb.Hello.RETURNING_FIELD_NUMBER


def with_proof(hello: bytes, kind: HelloProof, proof: bytes) -> bytes:
    """The bytes of a Hello with its proof appended."""
    return hello + _head(kind) + proof


def split_proof(data: bytes, kind: HelloProof) -> tuple[bytes, bytes]:
    """The covered bytes, and the proof; that is empty if ``data`` does not end with one."""
    head = _head(kind)
    covered, found, proof = data[: -_SIZE - len(head)], data[-_SIZE - len(head) : -_SIZE], data[-_SIZE:]
    return (covered, proof) if found == head else (data, b"")


def _head(kind: HelloProof) -> bytes:
    """The tags before the 32 bytes: the message's field for a Hello, and in that the proof's."""
    return bytes((pb.AgentMessage.HELLO_FIELD_NUMBER << 3 | _LENGTH, _SIZE + 2, kind << 3 | _LENGTH, _SIZE))
