"""The agent's stream to the master, whatever carries it.

One stream is one attempt: it is opened, attached and, whatever ends it, never used again. ``client.py`` has
the one through the network, ``local.py`` that of a node that is alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from elasticrun.clock import within
from elasticrun.core.protocol.messages import AgentMessage, MasterMessage, RejectCode, Rejected, Welcome
from elasticrun.errors import (
    DrainedError,
    ElasticRunError,
    ExcludedError,
    ExitCode,
    MasterUnreachableError,
    MisfitError,
    NameInUseError,
    ProtocolError,
    SupersededError,
    TooManyError,
    UnauthenticatedError,
    WrongJobError,
    WrongVersionError,
)

_REJECTIONS: dict[RejectCode, type[ElasticRunError]] = {
    RejectCode.WRONG_JOB: WrongJobError,
    RejectCode.WRONG_VERSION: WrongVersionError,
    RejectCode.SUPERSEDED: SupersededError,
    RejectCode.EXCLUDED: ExcludedError,
    RejectCode.DRAINED: DrainedError,
    RejectCode.UNAUTHENTICATED: UnauthenticatedError,
    RejectCode.TOO_MANY: TooManyError,
    RejectCode.MISFIT: MisfitError,
    RejectCode.MALFORMED: ProtocolError,
    RejectCode.OUT_OF_ORDER: ProtocolError,
    RejectCode.OVERSIZED: ProtocolError,
    RejectCode.IMPLAUSIBLE: ProtocolError,
    RejectCode.NAME_IN_USE: NameInUseError,
}


class StreamBrokenError(ElasticRunError):
    """The stream to the master ended without our doing; a new one may be opened."""

    exit_code = ExitCode.MASTER_LOST


def rejection(rejected: Rejected) -> ElasticRunError:
    """The error that a rejection stands for."""
    return _REJECTIONS[rejected.code](rejected.message)


class Stream(Protocol):
    """An attached stream; iterate over it for the master's messages.

    The iteration yields every message after Welcome, a Rejected included, ends after ``close``, and raises
    StreamBrokenError when the stream ends otherwise or ProtocolError when a message cannot be decoded.
    It may be cancelled and taken up again without losing a message.
    """

    welcome: Welcome

    def send(self, message: AgentMessage) -> None:
        """Queues a message; never blocks. Dropped on a stream that has ended, which the iteration reports."""

    def __aiter__(self) -> Stream: ...

    async def __anext__(self) -> MasterMessage: ...

    async def close(self, timeout: float = ...) -> None:
        """Ends the stream once the master has read all that was sent, after ``timeout`` seconds anyway."""


async def attach(
    stream: Stream, greeting: Awaitable[Welcome], who: object, timeout: float, spent: float = 0.0
) -> None:
    """Sets the stream's welcome to what ``greeting`` returns, or closes the stream and raises.

    Raises MasterUnreachableError if that takes more than ``timeout`` seconds, ``spent`` of which are over.
    """
    try:
        stream.welcome = await within(max(0.0, timeout - spent), greeting)
    except BaseException as error:
        await stream.close(0.0)
        if isinstance(error, asyncio.TimeoutError):
            raise MasterUnreachableError(f"{who} did not answer Hello within {timeout:.3g} s") from None
        raise


def welcome_in(answer: MasterMessage, who: object) -> Welcome:
    """The answer to Hello, if it is a welcome; else raises the error of the refusal, or ProtocolError."""
    if isinstance(answer, Rejected):
        raise rejection(answer)
    if not isinstance(answer, Welcome):
        raise ProtocolError(f"{who} answered Hello with {type(answer).__name__}")
    return answer
