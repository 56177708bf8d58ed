"""Who has the port of a node that is alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from elasticrun.agent.master_host.addressing import Place, Survey
from elasticrun.agent.master_host.alone import check_endpoint, claim_master_port
from elasticrun.config import Endpoint
from elasticrun.errors import EndpointTakenError, UsageError


@pytest.fixture
def port() -> Iterator[int]:
    """One that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    yield number


def test_only_one_launcher_has_a_port_although_nobody_listens(port: int) -> None:
    address, first = claim_master_port(Endpoint("127.0.0.1", port))
    assert address == "127.0.0.1"
    with first, pytest.raises(EndpointTakenError, match="address already in use"):
        claim_master_port(Endpoint("localhost", port))
    claim_master_port(Endpoint("localhost", port))[1].close()


def test_a_port_on_which_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "192.0.2.1", "no-such-host.invalid"):
            with pytest.raises(EndpointTakenError, match="already in use"):
                claim_master_port(Endpoint(host, port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_the_name_of_a_service_is_no_address_for_the_store(host: str, port: int) -> None:
    address, claim = claim_master_port(Endpoint(host, port))
    claim.close()
    assert address == "127.0.0.1"


def test_what_may_not_be_bound_is_not_held(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> Survey:
        raise UsageError("only root")

    with monkeypatch.context() as patch:
        patch.setattr("elasticrun.agent.master_host.alone.survey", refuse)
        with pytest.raises(UsageError, match="only root"):
            claim_master_port(Endpoint("127.0.0.1", port))
    claim_master_port(Endpoint("127.0.0.1", port))[1].close()


def test_only_an_endpoint_with_a_port_can_be_in_use() -> None:
    check_endpoint(Endpoint("h", 0), Survey(Place.OCCUPIED))
    check_endpoint(Endpoint("h", 7), Survey(Place.HERE))
    with pytest.raises(EndpointTakenError, match="port 7 of h"):
        check_endpoint(Endpoint("h", 7), Survey(Place.OCCUPIED))
