"""Where an endpoint is, with the kernel's real answers; names and foreign hosts are made up."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from elasticrun.agent.master_host import addressing as module
from elasticrun.agent.master_host.addressing import (
    Address,
    Place,
    Survey,
    address_for_others,
    own_position,
    survey,
)
from elasticrun.config import Endpoint
from elasticrun.errors import UsageError
from tests.support import ports

ELSEWHERE = "192.0.2.1"  # set aside for documentation: nobody's
ANY = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")


@pytest.fixture(name="free_port")
def drawn_port() -> int:
    """A port that is free on every address."""
    return ports.free_port()


@pytest.fixture
def held_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to; any other name does not."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: str, port: int, **rest: int) -> list[object]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for address in known[host] for entry in real(address, port, **rest)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "0.0.0.0", "localhost"])
def test_an_address_of_this_host(host: str, free_port: int) -> None:
    assert survey(Endpoint(host, free_port), None) == Survey(Place.HERE, host, is_local=True)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_address_of_this_host(host: str, free_port: int) -> None:
    assert survey(Endpoint(host, free_port), None) == Survey(Place.HERE, host, is_local=True)


def test_a_port_to_be_chosen() -> None:
    assert survey(Endpoint("127.0.0.1", 0), None) == Survey(Place.HERE, "127.0.0.1", is_local=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
@pytest.mark.parametrize("is_host", [None, True])
def test_a_port_that_is_held(host: str, is_host: bool | None, held_port: int) -> None:
    assert survey(Endpoint(host, held_port), is_host) == Survey(Place.OCCUPIED, is_local=True)


def test_a_look_at_a_port_leaves_it_free(free_port: int) -> None:
    for _ in range(3):
        assert survey(Endpoint("127.0.0.1", free_port), None).place is Place.HERE
    with socket.create_server(("127.0.0.1", free_port)):
        pass


def test_connections_that_linger_do_not_hold_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()  # the server's end goes first: TIME_WAIT is its
        assert client.recv(1) == b""
        client.close()
    assert survey(Endpoint("127.0.0.1", port), None).place is Place.HERE


def test_another_host() -> None:
    assert survey(Endpoint(ELSEWHERE, 29400), None) == Survey(Place.ELSEWHERE)


@pytest.mark.parametrize("host", [ELSEWHERE, "behind.a.translation"])
def test_the_users_word_hosts_an_address_that_is_not_ours(host: str, names: dict[str, list[str]]) -> None:
    names[ELSEWHERE] = [ELSEWHERE]
    found = survey(Endpoint(host, 29400), True)
    assert found == Survey(Place.HERE, ANY)
    assert not found.is_local


def test_the_users_word_leaves_our_own_address_to_others(free_port: int) -> None:
    assert survey(Endpoint("127.0.0.1", free_port), False) == Survey(Place.ELSEWHERE)


def test_a_name_that_cannot_be_resolved_yet(names: dict[str, list[str]]) -> None:
    assert survey(Endpoint("node0.job", 29400), None) == Survey(Place.UNKNOWN)


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "a..b"])
def test_a_name_that_cannot_be_one(host: str) -> None:
    assert survey(Endpoint(host, 29400), None) == Survey(Place.UNKNOWN)


def test_a_name_of_ours_listens_wherever_others_may_find_it(
    names: dict[str, list[str]], free_port: int
) -> None:
    names["node0"] = ["127.0.1.1"]  # as Debian does with the host's own name
    found = survey(Endpoint("node0", free_port), None)
    assert found == Survey(Place.HERE, ANY, is_local=True)
    assert address_for_others(Endpoint("node0", free_port), found) == "node0"


def test_a_name_of_ours_listens_on_what_it_is_here(
    names: dict[str, list[str]], free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not, as before, on every address of this host."""
    names["node0"] = ["127.0.1.1", "10.0.0.1", ELSEWHERE]
    monkeypatch.setattr(module, "_bind_error", lambda at: errno.EADDRNOTAVAIL if at[1][0] == ELSEWHERE else 0)
    found = survey(Endpoint("node0", free_port), None)
    assert found == Survey(Place.HERE, "node0", is_local=True)


def test_a_name_of_ours_whose_port_is_held_on_every_address(
    names: dict[str, list[str]], free_port: int
) -> None:
    names["node0"] = ["127.0.1.1"]
    dual = ANY == "::"
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server((ANY, free_port), family=family, dualstack_ipv6=dual):
        assert survey(Endpoint("node0", free_port), None).place is Place.OCCUPIED


def test_one_of_several_addresses_is_ours(names: dict[str, list[str]], free_port: int) -> None:
    names["both"] = [ELSEWHERE, "127.0.0.1"]
    assert survey(Endpoint("both", free_port), None).place is Place.HERE


def test_one_of_several_addresses_is_held(names: dict[str, list[str]], held_port: int) -> None:
    names["both"] = ["127.0.0.2", "127.0.0.1"]
    assert survey(Endpoint("both", held_port), None).place is Place.OCCUPIED


def test_without_ipv6_a_name_listens_on_ipv4(
    names: dict[str, list[str]], free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names["node0"] = ["127.0.0.1"]
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert survey(Endpoint("node0", free_port), None).listen_host == "0.0.0.0"


class Kernel:
    """Answers to bind: privileged ports are refused, addresses of others are not found."""

    def __init__(self, port_first: bool) -> None:
        self._port_first = port_first

    def bind_error(self, target: Address) -> int:
        host, port = target[1][0], target[1][1]
        is_privileged = isinstance(port, int) and 0 < port < 1024
        is_ours = host in ("127.0.0.1", "::1")
        if is_privileged and (self._port_first or is_ours):
            return errno.EACCES
        return 0 if is_ours else errno.EADDRNOTAVAIL


@pytest.mark.parametrize(("host", "port_first"), [("127.0.0.1", False), ("::1", True)])
def test_a_privileged_port_is_refused_in_a_sentence(
    host: str, port_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_bind_error", Kernel(port_first).bind_error)
    with pytest.raises(UsageError, match=r"port 80 of the .* endpoint .*:80 may only be bound by root"):
        survey(Endpoint(host, 80), None)


@pytest.mark.parametrize(("host", "port_first"), [(ELSEWHERE, False), ("2001:db8::1", True)])
def test_a_privileged_port_of_another_host_is_its_own_affair(
    host: str, port_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_bind_error", Kernel(port_first).bind_error)
    assert survey(Endpoint(host, 80), None) == Survey(Place.ELSEWHERE)


@needs_ipv6
def test_a_zone_that_is_none_of_ours_is_elsewhere_or_unknown() -> None:
    found = survey(Endpoint("fe80::1%lo", 29400), None)
    assert found.place in (Place.ELSEWHERE, Place.UNKNOWN)


# -- a list of endpoints


def test_of_a_list_the_first_free_address_of_this_host_is_ours(free_port: int, held_port: int) -> None:
    elsewhere, held = Endpoint(ELSEWHERE, 1), Endpoint("127.0.0.1", held_port)
    free = Endpoint("127.0.0.1", free_port)
    assert own_position([elsewhere, held, free], None) == (2, Survey(Place.HERE, "127.0.0.1", is_local=True))
    assert own_position([held, elsewhere], None) == (0, Survey(Place.OCCUPIED, is_local=True))
    assert own_position([elsewhere, elsewhere], None) == (-1, Survey(Place.ELSEWHERE))


def test_a_name_on_a_list_that_nobody_knows_yet_may_be_ours(
    names: dict[str, list[str]], free_port: int
) -> None:
    names["other"] = [ELSEWHERE]
    both = [Endpoint("other", 29400), Endpoint("ours", free_port)]
    assert own_position(both, None) == (-1, Survey(Place.UNKNOWN))
    names["ours"] = ["127.0.0.1"]
    assert own_position(both, None) == (1, survey(both[1], None))


def test_the_users_word_about_a_list(free_port: int) -> None:
    elsewhere, free = Endpoint(ELSEWHERE, 29400), Endpoint("127.0.0.1", free_port)
    assert own_position([elsewhere, free], False)[0] == -1
    assert own_position([elsewhere, free], True)[0] == 1
    assert own_position([elsewhere, elsewhere], True) == (0, Survey(Place.HERE, ANY))


# -- how others reach us

NO_ROUTE = "no route"


@pytest.fixture(autouse=True)
def fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered without a route, to tell it from the loopback's own route."""
    monkeypatch.setattr(module, "_LOOPBACK", NO_ROUTE)


def test_on_the_endpoints_host_others_use_the_endpoint() -> None:
    found = Survey(Place.HERE, "127.0.0.9", is_local=True)
    assert address_for_others(Endpoint("127.0.0.9", 1), found) == "127.0.0.9"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_is_no_address_to_be_reached_at(host: str) -> None:
    assert address_for_others(Endpoint(host, 1), Survey(Place.HERE, host, is_local=True)) == NO_ROUTE


def test_elsewhere_others_use_the_address_we_talk_to_the_endpoint_from() -> None:
    assert address_for_others(Endpoint("127.0.0.1", 29400), Survey(Place.ELSEWHERE)) == "127.0.0.1"


@needs_ipv6
def test_elsewhere_over_ipv6() -> None:
    assert address_for_others(Endpoint("::1", 29400), Survey(Place.ELSEWHERE)) == "::1"


def test_the_first_address_with_a_route_counts(names: dict[str, list[str]]) -> None:
    names["some"] = ["255.255.255.255", "127.0.0.1"]  # a datagram socket may not talk to everybody
    assert address_for_others(Endpoint("some", 1), Survey(Place.ELSEWHERE)) == "127.0.0.1"


def test_while_the_name_is_unknown_the_default_route_counts(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FAR_AWAY", [(socket.AF_INET, ("127.0.0.1", 9))])
    assert address_for_others(Endpoint("node0", 1), Survey(Place.UNKNOWN)) == "127.0.0.1"


def test_without_a_route_there_is_only_this_host(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FAR_AWAY", [(socket.AF_INET, ("255.255.255.255", 9))])
    assert address_for_others(Endpoint("node0", 1), Survey(Place.UNKNOWN)) == NO_ROUTE


def test_a_kernel_without_ipv6_skips_ipv6_addresses(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["both"] = ["::1", "127.0.0.1"]
    real = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    assert address_for_others(Endpoint("both", 1), Survey(Place.ELSEWHERE)) == "127.0.0.1"
