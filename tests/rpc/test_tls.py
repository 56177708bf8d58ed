"""Mutual TLS on a real loopback, and what each of its mistakes is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from elasticrun.config import Endpoint, SecurityConfig, TlsConfig
from elasticrun.core.protocol.messages import Heartbeat
from elasticrun.core.protocol.orders import ShowStatus
from elasticrun.errors import EndpointTakenError, UnauthenticatedError, UsageError
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.control import give_order
from elasticrun.rpc.security.tls import explain
from elasticrun.rpc.server import MasterServer, Orders
from tests.rpc.harness import DEADLINE, OPEN, TOKEN, Obedient, Recorder, admit, hello, run, serving
from tests.rpc.pki import Authority


@dataclass(frozen=True)
class Files:
    """What the tests below mix up."""

    good: TlsConfig
    foreign: TlsConfig  # another authority, in every respect
    mixed: TlsConfig  # signed by the other authority, but trusts ours
    expired: TlsConfig
    misnamed: TlsConfig
    named: TlsConfig  # a name, no address
    mismatched: TlsConfig
    garbage: TlsConfig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("pki")
    ours, theirs = Authority(directory, "ours"), Authority(directory, "theirs")
    good, foreign = ours.issue("good"), theirs.issue("foreign")
    noise = directory / "noise.pem"
    noise.write_text("-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n")
    return Files(
        good=good,
        foreign=foreign,
        mixed=replace(foreign, ca=ours.ca),
        expired=ours.issue("expired", days=-1),
        misnamed=ours.issue("misnamed", "elsewhere.example", "192.0.2.7"),
        named=ours.issue("named", "localhost"),
        mismatched=replace(good, key=foreign.key),
        garbage=replace(good, cert=str(noise)),
    )


def tls(config: TlsConfig | None, token: str | None = None) -> SecurityConfig:
    return SecurityConfig(token, config)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_both_show_a_good_certificate(files: Files, host: str, token: str | None) -> None:
    async def main() -> None:
        security = tls(files.good, token)
        async with serving(security=security, host=host) as (recorder, endpoint):
            stream = await MasterStream.open(endpoint, hello(), DEADLINE, security)
            stream.send(Heartbeat("i0"))
            await recorder.until(lambda: recorder.messages == [Heartbeat("i0")])
            await stream.close()

    run(main())


MISTAKES: dict[str, tuple[str | None, str | None, str]] = {
    "a master of another authority": ("foreign", "good", "is not signed by the authority of --tls-ca"),
    "a master whose certificate has expired": (
        "expired",
        "good",
        "has expired: give its host a new --tls-cert",
    ),
    "a master with another name": ("misnamed", "good", "is for another name than 127.0.0.1"),
    "a master that has a name and is called by its address": ("named", "good", "is for another name than"),
    "a master without TLS": (None, "good", "answers without TLS"),
    "an agent of another authority": ("good", "mixed", "may not accept the certificate of this node"),
    "an agent whose certificate has expired": (
        "good",
        "expired",
        "may not accept the certificate of this node",
    ),
    "an agent with a key of somebody else": ("good", "mismatched", "the key must belong to the certificate"),
    "an agent with a certificate that is none": ("good", "garbage", "each must be PEM"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(files: Files, mistake: str) -> None:
    master, agent, words = MISTAKES[mistake]

    def of(name: str | None) -> SecurityConfig:
        return OPEN if name is None else tls(getattr(files, name))

    async def main() -> None:
        async with serving(security=of(master)) as (recorder, endpoint):
            with pytest.raises(UnauthenticatedError, match=words) as caught:
                await MasterStream.open(endpoint, hello(), DEADLINE, of(agent))
            assert "\n" not in str(caught.value) and "SSL" not in str(caught.value)
            assert recorder.sessions == []

    run(main())


def test_an_agent_without_tls_hears_of_the_options(files: Files) -> None:
    async def main() -> None:
        async with serving(security=tls(files.good)) as (_, endpoint):
            with pytest.raises(EndpointTakenError, match="given --tls-ca, --tls-cert and --tls-key"):
                await MasterStream.open(endpoint, hello(), DEADLINE)

    run(main())


def test_the_name_must_be_the_one_that_the_user_wrote(files: Files) -> None:
    """Both lead to the same address; the certificate is for the name."""

    async def main() -> None:
        async with serving(security=tls(files.named)) as (_, endpoint):
            named = Endpoint("localhost", endpoint.port)
            async with await MasterStream.open(named, hello(), DEADLINE, tls(files.good)):
                pass

    run(main())


@pytest.mark.parametrize("which", ["mismatched", "garbage"])
def test_a_master_says_which_files_it_cannot_use(files: Files, which: str) -> None:
    config: TlsConfig = getattr(files, which)

    async def main() -> None:
        with pytest.raises(UsageError, match="--tls-ca, --tls-cert and --tls-key must be PEM") as caught:
            await MasterServer(Recorder(), admit, security=tls(config)).start("127.0.0.1", 0)
        assert config.key in str(caught.value)

    run(main())


def test_a_taken_port_is_not_blamed_on_the_files(files: Files) -> None:
    async def main() -> None:
        async with serving(security=tls(files.good)) as (_, endpoint):
            second = MasterServer(Recorder(), admit, security=tls(files.good))
            with pytest.raises(EndpointTakenError):
                await second.start(endpoint.host, endpoint.port)

    run(main())


@pytest.mark.parametrize("flag", ["ca", "cert", "key"])
def test_a_file_that_is_gone_is_named(files: Files, flag: str, tmp_path: Path) -> None:
    missing = replace(files.good, **{flag: str(tmp_path / "gone.pem")})

    async def main() -> None:
        with pytest.raises(UsageError, match=f"--tls-{flag} .*gone.pem.* cannot be read"):
            await MasterServer(Recorder(), admit, security=tls(missing)).start("127.0.0.1", 0)
        async with serving(security=tls(files.good)) as (_, endpoint):
            with pytest.raises(UsageError, match=f"--tls-{flag} .*gone.pem.* cannot be read"):
                await MasterStream.open(endpoint, hello(), DEADLINE, tls(missing))

    run(main())


def test_orders_go_through_tls_as_well(files: Files) -> None:
    async def main() -> None:
        security = tls(files.good, TOKEN)
        orders = Orders(Obedient(), "job")
        async with serving(security=security, orders=orders) as (_, endpoint):
            reply = await give_order(endpoint, "job", ShowStatus(), security, DEADLINE)
            assert reply.ok
            with pytest.raises(UnauthenticatedError, match="may not accept the certificate"):
                await give_order(endpoint, "job", ShowStatus(), tls(files.mixed, TOKEN), DEADLINE)

    run(main())


def test_words_of_core_that_mean_something_else_are_not_explained() -> None:
    assert explain("Connection refused", Endpoint("h", 1)) is None
