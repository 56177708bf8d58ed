"""Probes of hosts with networks of their own, but with the same name, as containers often have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from tests.probe.harness import BARE, FULL, Children, assert_fine, group, results
from tests.support.hosts import Namespace, why_no_hosts
from tests.support.ports import free_port

ADDRESSES = ("10.78.0.1", "10.78.0.2")


@pytest.fixture
def pair() -> Iterator[list[Namespace]]:
    """Two hosts called box, joined by a cable."""
    if why := why_no_hosts():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(contextlib.closing(Namespace("box"))) for _ in ADDRESSES]
        hosts[0].ip(f"link add eth0 type veth peer name eth0 netns {hosts[1].pid}")
        for host, address in zip(hosts, ADDRESSES, strict=True):
            host.ip(f"addr add {address}/24 dev eth0", "link set eth0 up")
        yield hosts


def start(children: Children, pair: list[Namespace], python: Sequence[str]) -> list[list[dict[str, object]]]:
    port = free_port()
    started = [
        children.start(
            node,
            [group("ab", node, port, address=ADDRESSES[0])],
            timeout=60.0,
            python=python,
            address=address,
            inside=host.enter,
        )
        for node, address, host in zip("ab", ADDRESSES, pair, strict=True)
    ]
    return [results(child) for child in started]


@pytest.mark.root
@pytest.mark.torch
def test_gloo_uses_the_address_that_reaches_the_group(children: Children, pair: list[Namespace]) -> None:
    for found in start(children, pair, FULL):
        assert_fine(found, transport="gloo")


@pytest.mark.root
def test_tcp_uses_the_address_that_reaches_the_group(children: Children, pair: list[Namespace]) -> None:
    for found in start(children, pair, BARE):
        assert_fine(found)


@pytest.mark.root
def test_a_network_stack_that_is_broken_shows_without_a_peer(
    children: Children, pair: list[Namespace]
) -> None:
    pair[0].ip("link set lo down")
    (own,) = results(children.start("a", [], slots=0, address=ADDRESSES[0], inside=pair[0].enter))
    assert own["error"].startswith("this node cannot reach itself over its own network: ")
