"""The codec of messages between agents and the master; see the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from elasticrun.core.protocol.bounds import MAX_NAME
from elasticrun.core.protocol.messages import (
    AgentMessage,
    Hello,
    JobEnded,
    JudgeCommits,
    MasterMessage,
    Report,
    SaveStacks,
    StopRound,
    Waiting,
)
from elasticrun.errors import ProtocolError
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.abridged import abridged, name_abridged
from elasticrun.rpc.codec.mapper import Codec

_AGENT: Codec[AgentMessage, pb.AgentMessage] = Codec(
    AgentMessage, pb.AgentMessage, prepare={"hello": name_abridged, "report": name_abridged}
)
_MASTER: Codec[MasterMessage, pb.MasterMessage] = Codec(MasterMessage, pb.MasterMessage)
#: The master's last message, in which there is nothing to decode; see elastic.proto.
GOODBYE = pb.MasterMessage(goodbye=pb.Goodbye()).SerializeToString()
#: The tag before the length of each message in the field ``more``: field number and wire type.
_MORE = bytes((pb.MasterMessage.MORE_FIELD_NUMBER << 3 | 2,))
#: Messages that many agents are told alike at the same time.
_FOR_ALL = (Waiting, SaveStacks, StopRound, JobEnded, JudgeCommits)
#: The most bytes that joining adds to a message.
JOINT = 5


def encode_agent(message: AgentMessage) -> bytes:
    """The bytes of an agent's message."""
    if isinstance(message, Hello | Report) and message.status.tasks:
        message = replace(message, status=abridged(message.status))
    return _AGENT.encode(message)


def decode_agent(data: bytes) -> AgentMessage:
    """The agent's message in ``data``; raises ProtocolError."""
    return _AGENT.decode(data)


def version_in(data: bytes) -> str | None:
    """The version that a Hello claims, even if the rest cannot be decoded; None if it is no Hello.

    Lets a master answer an agent of a later version with "wrong version" instead of "malformed".
    """
    try:
        return _AGENT.parse(data).hello.version[:MAX_NAME] or None
    except ProtocolError:
        return None


def encode_master(message: MasterMessage) -> bytes:
    """The bytes of a master's message."""
    if isinstance(message, _FOR_ALL):
        return _encode_for_all(message)
    return _MASTER.encode(message)


@lru_cache(maxsize=1)
def _encode_for_all(message: MasterMessage) -> bytes:
    """Encodes once what thousands of agents are told alike."""
    return _MASTER.encode(message)


def join_master(first: bytes, more: Iterable[bytes]) -> bytes:
    """Several encoded messages of the master as one message of the wire, in order."""
    # Protobuf takes fields in any order, so the appended bytes are the field ``more`` of the first message.
    return b"".join((first, *(part for data in more for part in (_MORE, _varint(len(data)), data))))


def _varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def decode_master(data: bytes) -> tuple[MasterMessage, ...]:
    """The master's messages in ``data``, in order, at least one; raises ProtocolError."""
    message = _MASTER.parse(data)
    return (_MASTER.load(message), *map(_MASTER.load, message.more))
