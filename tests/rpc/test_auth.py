"""Who knows the token gets in, and who does not learns nothing."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.messages import Hello, RejectCode, Rejected, Waiting, Welcome
from elasticrun.core.protocol.orders import ControlHello
from elasticrun.errors import (
    ElasticRunError,
    ProtocolError,
    UnauthenticatedError,
    WrongJobError,
    WrongVersionError,
)
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.security import auth
from elasticrun.rpc.security.auth import CHALLENGE_KEY, MAC_SIZE, SIZE, Handshake, challenge_in, fresh, keyed
from elasticrun.rpc.transport import METHOD
from tests.rpc.harness import (
    DEADLINE,
    LOCKED,
    NONCE,
    OPEN,
    TOKEN,
    RawCall,
    hello,
    impersonating,
    proven,
    raw_calls,
    run,
    serving,
    with_proof,
)

OTHER = SecurityConfig("another token, just as long")
CHALLENGE = bytes(SIZE)
KNOWN = [
    "c42a091bd5f16883e73c7585ab88aeab51269534a67fb16b1b3d50837045e876",
    "002a7bccea949303f44a4431fe2b77186f6e65",
    "73d597110433e00c904b88a9efab29b374776f",
    "c4df2f914fef1f929b718408a98e1dad6f6e65",
]


# Proofs


def proofs(token: str, challenge: bytes, nonce: bytes, said: bytes) -> set[bytes]:
    """One of each kind, over the same things."""
    shake = Handshake(keyed(token), challenge)
    text = said.decode()
    order = ControlHello(text, "1", nonce)
    return {
        shake.of_agent(said),
        shake.of_operator(order, said),
        shake.of_answer(nonce, True, text),
        shake.of_answer(nonce, False, text),
        *(seal.close(said)[:MAC_SIZE] for seal in shake.seals(nonce)),
    }


def test_a_proof_is_good_for_one_thing_only() -> None:
    others = [
        ("Token", CHALLENGE, NONCE, b"hello"),
        ("token", b"c" * SIZE, NONCE, b"hello"),
        ("token", CHALLENGE, NONCE, b"hallo"),
    ]
    mine = proofs("token", CHALLENGE, NONCE, b"hello")
    assert len(mine) == 6, "one kind of proof passes for another"
    for other in others:
        assert not mine & proofs(*other), other
    again = proofs("token", CHALLENGE, b"m" * SIZE, b"hello")
    assert mine & again == {Handshake(keyed("token"), CHALLENGE).of_agent(b"hello")}, (
        "its nonce is in the Hello"
    )


def test_proofs_have_known_values() -> None:
    """Both ends may run different Pythons; what a version proves must never change."""
    shake = Handshake(keyed("tökén"), CHALLENGE)
    agent, master = shake.seals(NONCE)
    assert [shake.of_agent(b"hello").hex(), agent.close(b"one").hex(), agent.close(b"two").hex()] == KNOWN[:3]
    assert master.close(b"one").hex() == KNOWN[3]


def test_a_frame_is_that_of_the_module_docstring() -> None:
    """Written down once more, with the HMAC of Python's own library."""

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, hashlib.sha256).digest()

    parts = (b"elasticrun.v1", b"frames", CHALLENGE, NONCE)
    key = mac(b"token", b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    agent, _ = Handshake(keyed("token"), CHALLENGE).seals(NONCE)
    for number in range(3):
        expected = mac(key, b"a" + number.to_bytes(8, "big") + b"message")[:16] + b"message"
        assert agent.close(b"message") == expected


def test_challenges_and_nonces_are_long_and_never_the_same() -> None:
    drawn = {fresh() for _ in range(1000)}
    assert len(drawn) == 1000 and {len(each) for each in drawn} == {SIZE}


def test_who_hears_of_an_agent_does_not_hear_its_proof() -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            assert [(said.nonce, said.proof) for said in recorder.hellos] == [(b"", b"")]
            await stream.close()

    run(main())


def test_the_token_is_in_no_text() -> None:
    assert TOKEN not in repr(Handshake(keyed(TOKEN), CHALLENGE)) + repr(LOCKED)


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1, 1000])
def test_a_challenge_that_may_be_no_random_one_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"{SIZE} bytes, got {size}"):
        challenge_in([(CHALLENGE_KEY, bytes(size))])


def test_a_challenge_is_found() -> None:
    assert challenge_in([("other-bin", b"x"), (CHALLENGE_KEY, CHALLENGE)]) == CHALLENGE
    assert challenge_in([(CHALLENGE_KEY, b"")]) == b""
    assert challenge_in([("other-bin", CHALLENGE)]) is None


# Agents


def test_both_know_the_token() -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)
            assert recorder.hellos[0].info == hello().info
            recorder.sessions[0].send(Waiting(1, "go on"))
            assert await anext(stream) == Waiting(1, "go on")
            await stream.close()

    run(main())


@pytest.mark.parametrize(
    ("master", "agent", "words"),
    [
        (LOCKED, OTHER, "the job has a token, and this node has another one"),
        (LOCKED, OPEN, "the job has a token, and this node has none"),
        (OPEN, LOCKED, "has no token, but this node has one"),
    ],
)
def test_tokens_that_differ_are_explained_at_the_agent(
    master: SecurityConfig, agent: SecurityConfig, words: str
) -> None:
    async def main() -> None:
        async with serving(security=master) as (recorder, endpoint):
            with pytest.raises(UnauthenticatedError, match=words) as caught:
                await MasterStream.open(endpoint, hello(), DEADLINE, agent)
            assert "--token-file" in str(caught.value)
            assert recorder.hellos == [], "the job hears nothing of it"

    run(main())


@pytest.mark.parametrize(
    ("said", "security", "error"),
    [
        (hello(job_id="other"), LOCKED, WrongJobError),
        (hello(job_id="other"), OTHER, UnauthenticatedError),
        (hello(job_id="other"), OPEN, UnauthenticatedError),
        (hello(incarnation="old"), OTHER, UnauthenticatedError),  # would be superseded
        (hello(version="0.0"), OPEN, WrongVersionError),
        (hello(version="0.0", job_id="other"), OPEN, WrongVersionError),
    ],
)
def test_strangers_learn_nothing_of_the_job(
    said: Hello, security: SecurityConfig, error: type[ElasticRunError]
) -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (_, endpoint):
            with pytest.raises(error) as caught:
                await MasterStream.open(endpoint, said, DEADLINE, security)
            if error is not WrongJobError:
                assert "'job'" not in str(caught.value) and "n0" not in str(caught.value)

    run(main())


async def challenged(call: RawCall) -> Handshake:
    """What an agent with the token would make its proof of."""
    challenge = challenge_in(await call.call.initial_metadata())
    assert challenge
    return Handshake(keyed(TOKEN), challenge)


FORGERIES: dict[str, Callable[[Handshake], bytes]] = {
    "none": lambda shake: codec.encode_agent(hello()),
    "zeros": lambda shake: with_proof(codec.encode_agent(hello()), bytes(SIZE)),
    "short": lambda shake: codec.encode_agent(replace(hello(), nonce=NONCE, proof=b"\0")),
    "of another challenge": lambda shake: proven(Handshake(keyed(TOKEN), CHALLENGE), hello()),
    "of another life": lambda shake: with_proof(
        codec.encode_agent(hello()), proven(shake, hello(incarnation="i1"))[-SIZE:]
    ),
    "with something behind": lambda shake: proven(shake, hello()) + codec.encode_agent(hello()),
    "as a field": lambda shake: codec.encode_agent(
        replace(hello(), proof=shake.of_agent(codec.encode_agent(hello())))
    ),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_proof_is_refused(kind: str) -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, endpoint), raw_calls(endpoint) as opened:
            call = opened()
            (answer,) = await call.say([FORGERIES[kind](await challenged(call))])
            assert isinstance(answer, Rejected) and answer.code is RejectCode.UNAUTHENTICATED
            assert recorder.sessions == []

    run(main())


def test_what_was_recorded_on_one_stream_is_worth_nothing_on_another() -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (recorder, endpoint), raw_calls(endpoint) as opened:
            first = opened()
            recorded = proven(await challenged(first), hello())
            await first.call.write(recorded)
            assert isinstance(await first.call.read(), bytes)
            assert len(recorder.sessions) == 1, "it was good the first time"
            (answer,) = await opened().say([recorded])
            assert isinstance(answer, Rejected) and answer.code is RejectCode.UNAUTHENTICATED
            assert len(recorder.sessions) == 1

    run(main())


def test_every_stream_has_a_challenge_of_its_own() -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (_, endpoint), raw_calls(endpoint) as opened:
            calls = [opened() for _ in range(20)]
            assert len({(await challenged(call)).challenge for call in calls}) == 20

    run(main())


# Masters


@asynccontextmanager
async def impostor(challenge: bytes | None, seal: Callable[[Hello], bytes]) -> AsyncIterator[Endpoint]:
    """A master that does not know the token, and welcomes everybody; ``seal`` stands before its frame."""

    async def attach(_: object, context: grpc.aio.ServicerContext[object, bytes]) -> None:
        metadata = () if challenge is None else ((CHALLENGE_KEY, challenge),)
        await context.send_initial_metadata(metadata)
        data = await context.read()
        assert isinstance(data, bytes)
        said = codec.decode_agent(data)
        assert isinstance(said, Hello)
        assert TOKEN.encode() not in data
        await context.write(seal(said) + codec.encode_master(Welcome(1, 10.0)))
        while isinstance(await context.read(), bytes):
            pass

    async with impersonating(METHOD, attach) as endpoint:
        yield endpoint


@pytest.mark.parametrize("challenge", [None, CHALLENGE, fresh()], ids=["none", "usual", "fresh"])
@pytest.mark.parametrize(
    "seal",
    [
        lambda said: b"",
        lambda said: bytes(MAC_SIZE),
        lambda said: said.proof[:MAC_SIZE],  # sent back to where it came from
        lambda said: Handshake(keyed("a guess"), CHALLENGE).seals(said.nonce)[1].close(b""),
    ],
)
def test_a_master_that_does_not_know_the_token_is_left(
    challenge: bytes | None, seal: Callable[[Hello], bytes]
) -> None:
    async def main() -> None:
        async with impostor(challenge, seal) as endpoint:
            with pytest.raises((UnauthenticatedError, ProtocolError)):
                await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)

    run(main())


def test_a_master_with_a_strange_challenge_is_left_before_anything_is_proven() -> None:
    async def main() -> None:
        async with impostor(b"short", lambda said: b"") as endpoint:
            with pytest.raises(ProtocolError, match="challenge must have"):
                await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED)

    run(main())


def test_the_comparison_takes_no_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert auth.same(b"a", b"a") and not auth.same(b"a", b"b")
    assert compared == [(b"a", b"a"), (b"a", b"b")]


def test_a_guesser_is_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(security=LOCKED) as (_, endpoint):
            for _ in range(40):
                with pytest.raises(UnauthenticatedError):
                    await MasterStream.open(endpoint, hello(), DEADLINE, OTHER)

    run(main())
    lines = [record.getMessage() for record in caplog.records if "refused a stream" in record.getMessage()]
    assert len(lines) == 1
    assert "refused a stream from 127.0.0.1:" in lines[0] and TOKEN not in caplog.text


def test_an_attempt_is_cancelled_cleanly_while_it_waits_for_the_challenge() -> None:
    async def silent(_: object, context: grpc.aio.ServicerContext[object, bytes]) -> None:
        while isinstance(await context.read(), bytes):
            pass

    async def main() -> None:
        async with impersonating(METHOD, silent) as endpoint:
            attempt = asyncio.create_task(MasterStream.open(endpoint, hello(), DEADLINE, LOCKED))
            await asyncio.wait((attempt,), timeout=0.2)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt

    run(main())
