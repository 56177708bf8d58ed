"""Ports for the workers' store and for tasks, with real sockets."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticrun.agent.workers import ports as module
from elasticrun.agent.workers.ports import SPARE_PORTS, NodePorts, PortPool, PortReserve, is_taken
from elasticrun.config import TaskRole
from elasticrun.core.protocol.tasks import Task

pytestmark = pytest.mark.xdist_group("ports")  # tests that count on a port look at the same range
needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")


@pytest.fixture
def range_file(tmp_path: Path) -> Path:
    path = tmp_path / "ip_local_port_range"
    path.write_text("32768\t60999\n")
    return path


def is_free(port: int) -> bool:
    try:
        with socket.socket() as trial:
            trial.bind(("", port))
    except OSError:
        return False
    return True


def free_port(range_file: Path) -> int:
    reserve = PortReserve(random.Random(7), range_file)
    port = reserve.reserve()
    reserve.release()
    return port


def test_a_port_is_below_those_of_outgoing_connections(range_file: Path) -> None:
    reserve = PortReserve(random.Random(1), range_file)
    for _ in range(20):
        assert 20_768 <= reserve.reserve() < 32_768
    reserve.release()


def test_a_port_is_held_until_it_is_released(range_file: Path) -> None:
    reserve = PortReserve(random.Random(1), range_file)
    first = reserve.reserve()
    assert not is_free(first)
    second = reserve.reserve()  # a fresh one, and the first is let go
    assert first != second
    assert is_free(first)
    reserve.release()
    assert is_free(second)
    reserve.release()


def test_a_given_port_is_reserved_again_although_connections_linger(range_file: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        given = free.getsockname()[1]
    reserve = PortReserve(random.Random(1), range_file, given)
    assert reserve.reserve() == given
    reserve.release()
    with socket.create_server(("127.0.0.1", given)) as server:
        client = socket.create_connection(("127.0.0.1", given))
        server.accept()[0].close()  # this end, which has the port, has to linger
        client.close()
        assert reserve.reserve() != given  # somebody listens there
    assert reserve.reserve() == given
    reserve.release()


def test_two_agents_with_the_same_luck_get_different_ports(range_file: Path) -> None:
    one, other = (PortReserve(random.Random(1), range_file) for _ in range(2))
    assert one.reserve() != other.reserve()
    one.release()
    other.release()


@pytest.mark.parametrize(
    ("family", "host"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        pytest.param(socket.AF_INET6, "::1", marks=needs_ipv6),
        pytest.param(socket.AF_INET6, "::", marks=needs_ipv6),
    ],
)
def test_a_port_in_use_on_any_address_is_not_chosen(
    range_file: Path, family: socket.AddressFamily, host: str
) -> None:
    seed, port, server = taken(range_file, family, host)
    with server:
        reserve = PortReserve(random.Random(seed), range_file)
        assert reserve.reserve() != port
        reserve.release()


def taken(range_file: Path, family: socket.AddressFamily, host: str) -> tuple[int, int, socket.socket]:
    """A server on the port that would be chosen with this seed; jobs of other tests may be quicker."""
    for seed in range(20):
        seen = PortReserve(random.Random(seed), range_file)
        port = seen.reserve()
        seen.release()
        with contextlib.suppress(OSError):
            return seed, port, socket.create_server((host, port), family=family)
    raise AssertionError("all ports are in use")


def test_where_all_are_taken_the_kernel_chooses(range_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._bind
    monkeypatch.setattr(module, "_bind", lambda port: real(port) if port == 0 else None)
    reserve = PortReserve(random.Random(1), range_file)
    assert not is_free(reserve.reserve())
    reserve.release()


def test_a_host_without_a_port_is_told_in_a_sentence(
    range_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_bind", lambda port: None)
    with pytest.raises(OSError, match="no port is free for the workers' store"):
        PortReserve(random.Random(1), range_file).reserve()


@pytest.mark.parametrize("step", ["socket", "bind"])
def test_a_kernel_without_ipv6(range_file: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    class WithoutIPv6(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            if family == socket.AF_INET6 and step == "socket":
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, kind)

        def bind(self, address: object) -> None:
            if self.family is socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(module.socket, "socket", WithoutIPv6)  # type: ignore[attr-defined]
    reserve = PortReserve(random.Random(1), range_file)
    port = reserve.reserve()
    monkeypatch.undo()
    assert not is_free(port)
    reserve.release()


@pytest.fixture
def pool(range_file: Path) -> Iterator[PortPool]:
    made = PortPool(random.Random(), range_file)
    yield made
    made.close()


def test_ports_for_tasks_stay_the_same_until_they_are_taken(pool: PortPool) -> None:
    one, two, three = first = pool.offer(3)
    assert len(set(first)) == 3
    assert not any(map(is_free, first))
    assert pool.offer(3) == first
    assert pool.offer(2) == (one, two)
    pool.take(two)
    assert is_free(two)
    assert not is_free(one)
    *kept, fresh = pool.offer(3)
    assert kept == [one, three]
    assert fresh not in first
    assert not is_free(fresh)
    pool.close()
    assert all(map(is_free, (one, three, fresh)))


def test_nothing_is_held_for_no_task(pool: PortPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bind", lambda port: pytest.fail("it was asked for none"))
    assert pool.offer(0) == ()


def test_the_port_of_a_task_is_offered_to_no_other_until_all_have_ended(range_file: Path) -> None:
    pool = PortPool(random.Random(), range_file)
    pool._candidates = range(20_000, 20_002)
    for port in (20_000, 20_001):
        pool.take(port)  # not held by us, as when a task starts again
    (other,) = pool.offer(1)
    assert other not in (20_000, 20_001)
    pool.take(other)
    pool.forget()
    assert set(pool.offer(2)) == {20_000, 20_001}
    pool.close()


def test_a_host_with_too_few_ports_offers_those(pool: PortPool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pool.offer(2)
    monkeypatch.setattr(module, "_bind", lambda port: None)
    assert pool.offer(5) == first


def test_a_node_holds_ports_for_its_roles_and_some_more() -> None:
    ports = NodePorts(random.Random(), (TaskRole.CHIEF, TaskRole.PS, TaskRole.EVALUATOR))
    store, offered = ports.prepare()
    assert len({store, *offered}) == 1 + 2 + SPARE_PORTS
    assert ports.news() is None
    tasks = [Task(0, TaskRole.CHIEF, 0, port=offered[0]), Task(2, TaskRole.EVALUATOR, 0)]
    ports.take(tasks, {0, 1, 2})
    assert is_free(offered[0])
    now = ports.news()
    assert now is not None
    assert (now[:-1], len(now)) == (offered[1:], len(offered))
    ports.take(tasks, {0})
    assert ports.news() is None  # it serves where it did
    assert ports.prepare()[1] == now
    ports.release()
    assert is_free(store)
    assert not is_free(now[0])
    ports.close()
    assert is_free(now[0])


def test_what_was_added_to_a_round_has_ports_in_the_next_one() -> None:
    ports = NodePorts(random.Random(), (TaskRole.PS,))
    offered = ports.prepare()[1]
    tasks = [Task(number, TaskRole.PS, number, port=port) for number, port in enumerate(offered)]
    ports.take(tasks[:1], {0})
    ports.take(tasks, {task.local_rank for task in tasks[1:]})
    assert len(ports.prepare()[1]) == len(tasks) + SPARE_PORTS
    ports.take(tasks[:1], {0})
    assert len(ports.prepare()[1]) == len(offered), "only of the last round"
    ports.close()


def test_a_node_without_roles_holds_no_more_than_one() -> None:
    ports = NodePorts(random.Random(), ())
    assert ports.prepare()[1] == ()
    assert ports.news() is None
    ports.close()


def test_too_few_ports_for_the_roles_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bind", lambda port: None)
    with pytest.raises(OSError, match="only 0 ports are free, but 2 tasks need one each"):
        NodePorts(random.Random(), (TaskRole.WORKER,) * 2).prepare()


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("32768 60999", range(20_768, 32_768)),
        ("15000 65000", range(10_000, 22_000)),
        ("1024 65535", range(10_000, 22_000)),
        ("60000 61000", range(48_000, 60_000)),
        ("", range(20_768, 32_768)),
        ("many", range(20_768, 32_768)),
        (None, range(20_768, 32_768)),
    ],
)
def test_the_range_to_choose_from(tmp_path: Path, text: str | None, ports: range) -> None:
    path = tmp_path / "range"
    if text is not None:
        path.write_text(text)
    assert module._port_range(path) == ports


def test_a_port_that_is_listened_at_is_never_free_until_the_next_reserve(range_file: Path) -> None:
    reserve = PortReserve(random.Random(1), range_file)
    port = reserve.reserve()
    with pytest.raises(OSError, match="not the one"):
        reserve.listen(port + 1)
    listener = reserve.listen(port)
    with socket.create_connection(("127.0.0.1", port)):  # the kernel has it wait
        assert not is_free(port)
    assert listener.getsockname()[1] == port
    assert reserve.reserve() != port
    reserve.release()
    with pytest.raises(OSError, match="not the one"):
        reserve.listen(port)


def test_a_given_port_is_never_let_go_while_the_launcher_serves(range_file: Path) -> None:
    port = free_port(range_file)
    reserve = PortReserve(random.Random(1), range_file, given=port)
    assert reserve.reserve() == port
    listener = reserve.listen(port)
    with socket.create_connection(("127.0.0.1", port)) as late:
        assert reserve.reserve() == port
        assert late.recv(1) == b""  # who came for the last round is not the next one's
    assert reserve.listen(port) is listener
    assert is_taken(port)
    reserve.release()
    assert not is_taken(port)


def test_a_given_port_that_was_taken_between_two_rounds_gives_way(range_file: Path) -> None:
    with socket.create_server(("", 0)) as thief:
        port = int(thief.getsockname()[1])
        assert is_taken(port)
        reserve = PortReserve(random.Random(1), range_file, given=port)
        assert reserve.reserve() != port
    assert reserve.reserve() == port
    reserve.release()


def test_a_given_port_that_another_listens_at_a_moment_sooner_is_taken(
    monkeypatch: pytest.MonkeyPatch, range_file: Path
) -> None:
    def listen(sock: socket.socket, backlog: int) -> None:
        raise OSError(errno.EADDRINUSE, "in use")

    port = free_port(range_file)
    monkeypatch.setattr(socket.socket, "listen", listen)
    assert is_taken(port)
