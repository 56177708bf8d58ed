"""With a token nothing but the other end's next frame is taken for it, whoever is in between."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.config import Endpoint
from elasticrun.core.protocol.messages import (
    Heartbeat,
    JobEnded,
    MasterMessage,
    Outcome,
    RejectCode,
    Rejected,
    Waiting,
    Welcome,
)
from elasticrun.errors import ElasticRunError, MasterUnreachableError, UnauthenticatedError
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream, UnprovenError
from elasticrun.rpc.security.admission import Context
from elasticrun.rpc.security.auth import MAC_SIZE, SIZE, ForgedError, Handshake, KeyedHash, Seal, keyed
from elasticrun.rpc.security.tickets import Tickets
from elasticrun.rpc.stream import StreamBrokenError
from elasticrun.rpc.transport import METHOD, PATH
from tests.rpc.harness import DEADLINE, LOCKED, OPEN, hello, impersonating, run, serving

ENDED = codec.encode_master(JobEnded(1, 9, Outcome.SUCCEEDED, "says somebody in between"))


# Frames by themselves


def seals(challenge: bytes = bytes(SIZE), nonce: bytes = bytes(SIZE)) -> tuple[Seal, Seal]:
    return Handshake(keyed("a token"), challenge).seals(nonce)


def opened(seal: Seal, frames: Sequence[bytes]) -> list[bytes]:
    """The messages up to the first frame that is refused."""
    messages = []
    with suppress(ForgedError):
        for frame in frames:
            messages.append(seal.open(frame))
    return messages


messages = st.lists(st.binary(max_size=40), max_size=6)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=300), max_size=6))
def test_a_keyed_hash_is_hmac(key: bytes, said: list[bytes]) -> None:
    hashed = KeyedHash(key)
    assert [hashed.of(message) for message in said] == [hmac.digest(key, each, "sha256") for each in said]


@given(messages)
def test_what_is_closed_can_be_opened_in_its_order(said: list[bytes]) -> None:
    here, there = seals()[0], seals()[0]
    frames = [here.close(message) for message in said]
    assert [len(frame) - len(message) for frame, message in zip(frames, said, strict=True)] == [
        MAC_SIZE
    ] * len(said)
    assert opened(there, frames) == said


@given(messages, st.data())
def test_whatever_is_done_to_frames_only_a_beginning_of_what_was_said_is_heard(
    said: list[bytes], data: st.DataObject
) -> None:
    here, back = seals()
    elsewhere = seals(nonce=b"n" * SIZE)[0]
    frames = [here.close(message) for message in said]
    strange = [*frames, *map(back.close, said), *map(elsewhere.close, said), b"", bytes(MAC_SIZE)]
    # Replayed, reordered, doubled, reflected, left out.
    mixed: list[bytes] = list(data.draw(st.lists(st.sampled_from(strange), max_size=8)))
    for at in data.draw(st.sets(st.integers(0, 7), max_size=1)) & set(range(len(mixed))):
        frame = bytearray(mixed[at] or b"\0")
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        mixed[at] = bytes(frame)
    heard = opened(seals()[0], mixed)
    assert heard == said[: len(heard)]


@given(st.binary(max_size=200))
def test_noise_is_no_frame(noise: bytes) -> None:
    with pytest.raises(ForgedError):
        seals()[0].open(noise)


# Somebody in between: as a listed host's free port can be taken, this needs no place on the network

Change = Callable[[int, bytes], list[bytes]]  # the number of a frame and itself -> what is passed on


def unchanged(_: int, frame: bytes) -> list[bytes]:
    return [frame]


@asynccontextmanager
async def relay(
    master: Endpoint, down: Change = unchanged, up: Change = unchanged, last: bytes = b""
) -> AsyncIterator[Endpoint]:
    """Lets both ends prove themselves to one another, and passes on what it likes."""

    async def attach(_: object, context: Context) -> None:
        async with grpc.aio.insecure_channel(str(master)) as channel:
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(PATH)
            call = method()
            await context.send_initial_metadata(tuple(await call.initial_metadata()))
            upwards = asyncio.create_task(pass_up(context, call))
            number = 0
            with suppress(grpc.aio.AioRpcError):
                while isinstance(frame := await call.read(), bytes):
                    for changed in down(number, frame):
                        await context.write(changed)
                    number += 1
            upwards.cancel()

    async def pass_up(context: Context, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        number = 0
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while isinstance(frame := await context.read(), bytes):
                for changed in up(number, frame):
                    await call.write(changed)
                number += 1
            await call.done_writing()

    async with impersonating(METHOD, attach) as endpoint:
        yield endpoint


async def heard(stream: MasterStream) -> tuple[list[MasterMessage], str]:
    """What comes on a stream until it breaks, and how it does."""
    said = []
    try:
        async for message in stream:
            said.append(message)
    except StreamBrokenError as error:
        return said, str(error)
    return said, ""


def test_a_relay_that_changes_nothing_is_of_no_account() -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, master), relay(master) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            recorder.sessions[0].send(Waiting(1, "go on"))
            assert await anext(stream) == Waiting(1, "go on")
            await stream.close()

    run(main())


DOWN: dict[str, Change] = {
    "its own word instead": lambda number, frame: [ENDED if number == 1 else frame],
    "its own word with an old seal": lambda number, frame: (
        [frame[:MAC_SIZE] + ENDED] if number == 1 else [frame]
    ),
    "its own word as well": lambda number, frame: [frame, ENDED] if number == 0 else [frame],
    "a bit": lambda number, frame: [frame[:-1] + bytes((frame[-1] ^ 1,))] if number == 1 else [frame],
    "doubled": lambda number, frame: [frame, frame],
    "left out": lambda number, frame: [] if number == 1 else [frame],
    "cut short": lambda number, frame: [frame[: MAC_SIZE - 1]] if number == 1 else [frame],
    "empty": lambda number, frame: [b""] if number == 1 else [frame],
}


@pytest.mark.parametrize("kind", DOWN)
def test_a_relay_cannot_steer_an_agent_only_cut_its_stream(kind: str) -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, master), relay(master, down=DOWN[kind]) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            for word in ("one", "two", "three"):
                recorder.sessions[0].send(Waiting(1, word))
            recorder.sessions[0].close()  # with a frame of its own
            said, end = await asyncio.wait_for(heard(stream), DEADLINE)
            assert "altered on its way" in end
            honest: list[MasterMessage] = [Waiting(1, word) for word in ("one", "two", "three")]
            assert said == honest[: len(said)]
            await stream.close(0.0)

    run(main())


def test_a_relay_cannot_swap_two_frames() -> None:
    kept: list[bytes] = []
    holds = asyncio.Event()

    def swap(number: int, frame: bytes) -> list[bytes]:
        if number == 1:
            kept.append(frame)
            holds.set()
            return []
        return [frame, *kept] if number == 2 else [frame]

    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, master), relay(master, down=swap) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            recorder.sessions[0].send(Waiting(1, "one"))
            await holds.wait()
            recorder.sessions[0].send(Waiting(1, "two"))
            assert (await asyncio.wait_for(heard(stream), DEADLINE))[0] == []
            await stream.close(0.0)

    run(main())


FIRST: dict[str, bytes] = {
    "its own welcome": codec.encode_master(Welcome(1, 10.0, ticket=bytes(SIZE), key=bytes(16))),
    "the end of the job": ENDED,
    "nothing": b"",
}


@pytest.mark.parametrize("kind", FIRST)
def test_a_relay_cannot_welcome_in_the_masters_place_even_if_it_passes_on_the_rest(kind: str) -> None:
    """The frames behind are sealed, which must not be taken for a seal of the first."""

    def down(number: int, frame: bytes) -> list[bytes]:
        return [FIRST[kind] if number == 0 else frame]

    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, master), relay(master, down=down) as endpoint:
            attempt = asyncio.create_task(MasterStream.open(endpoint, hello(), DEADLINE, LOCKED))
            await recorder.until(lambda: bool(recorder.sessions))
            for word in ("one", "two", "three"):
                recorder.sessions[0].send(Waiting(1, word))
            with pytest.raises(ElasticRunError):
                await attempt

    run(main())


UP: dict[str, Change] = {
    "a beat of its own": lambda number, frame: (
        [codec.encode_agent(Heartbeat("i0"))] if number == 1 else [frame]
    ),
    "doubled": lambda number, frame: [frame, frame] if number else [frame],
    "a bit": lambda number, frame: [frame[:-1] + bytes((frame[-1] ^ 1,))] if number else [frame],
    "left out": lambda number, frame: [] if number == 1 else [frame],
}


@pytest.mark.parametrize("kind", UP)
def test_a_relay_cannot_speak_for_an_agent(kind: str) -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, master), relay(master, up=UP[kind]) as endpoint:
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            for _ in range(3):
                stream.send(Heartbeat("i0"))
            await recorder.until(lambda: bool(recorder.detachments))
            assert "altered on its way" in recorder.detachments[0][1]
            assert len(recorder.messages) <= 1
            await stream.close(0.0)

    run(main())


def test_a_relay_cannot_change_who_says_hello() -> None:
    """Today's agent would come as rank 0, or from another address."""

    def up(number: int, frame: bytes) -> list[bytes]:
        return [frame.replace(b"127.0.0.1", b"127.6.6.6") if number == 0 else frame]

    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, master), relay(master, up=up) as endpoint:
            with pytest.raises(UnauthenticatedError):
                await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            assert recorder.hellos == []

    run(main())


# Refusals


@asynccontextmanager
async def stranger(*words: bytes, trailing: Rejected | None = None) -> AsyncIterator[Endpoint]:
    """Has got the master's port, and says these words to whoever comes."""

    async def attach(_: object, context: Context) -> None:
        metadata = (("elasticrun-challenge-bin", bytes(SIZE)), ("elasticrun-ticket-bin", bytes(48)))
        await context.send_initial_metadata(metadata)
        await context.read()
        for word in words:
            await context.write(word)
        if trailing is not None:
            context.set_trailing_metadata((("elasticrun-rejected-bin", codec.encode_master(trailing)),))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "")
        while isinstance(await context.read(), bytes):
            pass

    async with impersonating(METHOD, attach) as endpoint:
        yield endpoint


@pytest.mark.parametrize("security", [LOCKED, OPEN], ids=["token", "none"])
@pytest.mark.parametrize("is_trailing", [False, True])
@pytest.mark.parametrize("code", RejectCode)
def test_who_gets_the_port_cannot_send_a_node_away_that_was_welcomed(
    code: RejectCode, is_trailing: bool, security: object
) -> None:
    rejected = Rejected(code, "go away", proof=bytes(SIZE))
    words = () if is_trailing else (codec.encode_master(rejected),)

    async def main() -> None:
        tickets = Tickets()
        assert security in (LOCKED, OPEN)
        mine = LOCKED if security is LOCKED else OPEN
        async with serving(security=mine) as (_, endpoint):
            await (await MasterStream.open(endpoint, hello(), DEADLINE, mine, tickets)).close()
        async with stranger(*words, trailing=rejected if is_trailing else None) as endpoint:
            with pytest.raises(UnprovenError, match="does not prove to be this job's master: go away"):
                await MasterStream.open(endpoint, hello(), DEADLINE, mine, tickets)

    run(main())
    assert issubclass(UnprovenError, MasterUnreachableError)


@pytest.mark.parametrize("code", RejectCode)
def test_a_new_node_with_a_token_believes_what_a_master_says_before_it_can_prove_anything(
    code: RejectCode,
) -> None:
    early = {"WRONG_VERSION", "UNAUTHENTICATED", "MALFORMED", "OVERSIZED", "OUT_OF_ORDER", "TOO_MANY"}

    async def main() -> None:
        async with stranger(codec.encode_master(Rejected(code, "go away"))) as endpoint:
            with pytest.raises(ElasticRunError, match="go away") as caught:
                await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            assert isinstance(caught.value, UnprovenError) is (code.name not in early)

    run(main())
