"""Ranks wait for rank 0's store at its door, and torch's own function is called whatever happens."""

from __future__ import annotations

import importlib
import inspect
import random
import re
import socket
import sys
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from elasticrun.agent.monitors.page import ProgressPage
from elasticrun.agent.workers.ports import PortReserve
from elasticrun.worker import store_wait
from tests.worker.test_injection import run_worker

LONG = timedelta(hours=1)


class Rendezvous:
    """torch's module, as far as it is hooked: it records its calls, and whether anybody listened."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.was_refused = False
        self.module = types.ModuleType("rendezvous")
        self.module._create_c10d_store = self._create  # type: ignore[attr-defined]
        store_wait.imported("rendezvous", self.module)

    def _create(self, *args: Any, **kwargs: Any) -> str:
        self.calls.append((args, kwargs))
        given = {**dict(zip(store_wait.PARAMETERS, args, strict=False)), **kwargs}
        self.was_refused = store_wait.is_refused(store_wait.find(given["hostname"], given["port"]))
        return "the store"

    def create(self, *args: Any, **kwargs: Any) -> str:
        result: str = self.module._create_c10d_store(*args, **kwargs)
        return result


@pytest.fixture
def rendezvous() -> Rendezvous:
    return Rendezvous()


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """A port on which nobody listens yet."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        yield door


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Has a function called instead of each pause between two knocks, with the pause's number."""

    def instead(function: Callable[[int], None]) -> None:
        count = iter(range(1_000_000))

        class Event:
            def wait(self, seconds: float) -> None:
                assert store_wait.SHORTEST <= seconds <= store_wait.LONGEST
                function(next(count))

        monkeypatch.setattr(store_wait, "threading", types.SimpleNamespace(Event=Event))

    yield instead


def port_of(door: socket.socket) -> int:
    port: int = door.getsockname()[1]
    return port


Pauses = Callable[[Callable[[int], None]], None]


def test_a_rank_that_comes_first_waits_until_the_store_listens(
    rendezvous: Rendezvous, door: socket.socket, pauses: Pauses
) -> None:
    pauses(lambda number: door.listen() if number == 3 else None)
    args = ("127.0.0.1", port_of(door), 1, 2, LONG)
    assert rendezvous.create(*args, use_libuv=True) == "the store"
    assert rendezvous.calls == [(args, {"use_libuv": True})]
    assert not rendezvous.was_refused


def test_arguments_may_have_names(rendezvous: Rendezvous, door: socket.socket, pauses: Pauses) -> None:
    pauses(lambda number: door.listen())
    named = {"hostname": "127.0.0.1", "port": port_of(door), "rank": 1, "timeout": LONG, "world_size": 2}
    assert rendezvous.create(**named) == "the store"
    assert rendezvous.calls == [((), named)]
    assert not rendezvous.was_refused


def test_rank_0_does_not_wait_for_itself(rendezvous: Rendezvous, door: socket.socket, pauses: Pauses) -> None:
    pauses(lambda number: pytest.fail("it waits"))
    rendezvous.create("127.0.0.1", port_of(door), 0, 2, LONG)
    assert rendezvous.was_refused


@pytest.mark.parametrize(("group_rank", "waits"), [("0", False), ("1", True)])
def test_only_other_nodes_wait_for_a_store_that_the_launcher_serves(
    group_rank: str,
    waits: bool,
    rendezvous: Rendezvous,
    door: socket.socket,
    pauses: Pauses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(*store_wait.SERVED)
    monkeypatch.setenv("GROUP_RANK", group_rank)
    waited: list[int] = []

    def listen(number: int) -> None:
        waited.append(number)
        door.listen()

    pauses(listen)
    rendezvous.create("127.0.0.1", port_of(door), 1, 2, LONG)
    assert bool(waited) is waits


def test_after_a_tenth_of_the_timeout_it_is_torchs_turn(
    rendezvous: Rendezvous, door: socket.socket, monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    clock = [0.0]

    def pass_time(number: int) -> None:
        assert clock[0] < 6.0
        clock[0] += 1.0

    pauses(pass_time)
    monkeypatch.setattr(store_wait, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    rendezvous.create("127.0.0.1", port_of(door), 1, 2, timedelta(seconds=60))
    assert rendezvous.was_refused
    assert clock[0] == 6.0


@pytest.mark.parametrize(("ranks", "seconds"), [(2, 0.001), (1000, 0.05), (10_000, 0.5), (100_000, 1.0)])
def test_many_ranks_do_not_storm_the_store(
    ranks: int, seconds: float, door: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    class Event:
        def wait(self, seconds: float) -> None:
            paused.append(seconds)
            door.listen()

    monkeypatch.setattr(store_wait, "threading", types.SimpleNamespace(Event=Event))
    monkeypatch.setattr(store_wait, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
    store_wait.knock(store_wait.find("127.0.0.1", port_of(door)), ranks, 60.0)
    assert paused == [pytest.approx(seconds)]


def test_a_name_is_looked_up_once(
    door: socket.socket, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses(lambda number: door.listen() if number == 3 else None)
    asked: list[bytes] = []
    find = socket.getaddrinfo

    def noted(host: bytes, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        return find(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    store_wait.knock_first(("127.0.0.1", port_of(door), 1, 2, LONG), {})
    assert asked == [b"127.0.0.1"], "text would be encoded with tables that take milliseconds to load"


def test_who_listens_at_one_of_several_addresses_is_found(door: socket.socket) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        doors = [*store_wait.find("127.0.0.1", port_of(other)), *store_wait.find("127.0.0.1", port_of(door))]
        unknown = (9999, *doors[0][1:])  # no socket is of that family
        assert store_wait.is_refused([unknown, *doors])
        assert not store_wait.is_refused([unknown])
        door.listen()
        assert not store_wait.is_refused([unknown, *doors])


@pytest.mark.parametrize(
    "args",
    [
        ("no.such.host.invalid", 1, 1, 2, LONG),
        ("127.0.0.1", -1, 1, 2, LONG),
        ("127.0.0.1", 1, 1, 2, None),
        ("127.0.0.1", 1, None, 2, LONG),
        ("127.0.0.1",),
        (),
    ],
)
def test_what_is_odd_is_for_torch_to_tell(pauses: Pauses, args: tuple[Any, ...]) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError(f"called with {given}")

    pauses(lambda number: pytest.fail("it waits"))
    module = types.ModuleType("rendezvous")
    module._create_c10d_store = fail  # type: ignore[attr-defined]
    store_wait.imported("rendezvous", module)
    with pytest.raises(RuntimeError, match=re.escape(f"called with {args}")):
        module._create_c10d_store(*args)


def test_another_torch_is_left_alone() -> None:
    module = types.ModuleType("rendezvous")
    store_wait.imported("rendezvous", module)
    assert not hasattr(module, "_create_c10d_store")


@pytest.mark.torch
def test_the_real_torch_has_the_functions_that_are_hooked() -> None:
    module = importlib.import_module("torch.distributed.rendezvous")
    function = inspect.unwrap(module._create_c10d_store)
    found = tuple(inspect.signature(function).parameters)
    assert found[: len(store_wait.PARAMETERS)] == store_wait.PARAMETERS
    groups = importlib.import_module(store_wait.GROUPS)
    assert len(inspect.signature(getattr(groups, store_wait.CHANGE)).parameters) == 1
    assert groups.PrefixStore


class Groups(types.ModuleType):
    """torch's module of groups, as far as it is hooked."""

    def __init__(self) -> None:
        super().__init__(store_wait.GROUPS)
        self._world = types.SimpleNamespace(default_pg=None)

    def _update_default_pg(self, group: Any) -> None:
        self._world.default_pg = group

    def PrefixStore(self, prefix: str, store: str) -> str:
        return f"{prefix} of {store}"

    def live_once(self, size: int) -> None:
        self._update_default_pg(types.SimpleNamespace(size=lambda: size))
        self._update_default_pg(None)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups()
    monkeypatch.setitem(sys.modules, store_wait.GROUPS, groups)
    monkeypatch.setenv(*store_wait.SERVED)
    return groups


def test_a_world_after_another_has_a_part_of_the_store_of_its_own(
    rendezvous: Rendezvous, door: socket.socket, groups: Groups
) -> None:
    def create(size: int) -> str:
        return rendezvous.create("127.0.0.1", port_of(door), 0, size, LONG)

    assert create(2) == "the store"
    groups._update_default_pg(None)  # that group was never made: all of its ranks try again
    assert create(2) == "the store"
    groups.live_once(2)
    assert create(2) == "again_1 of the store"
    assert create(4) == "the store", "another rank may come to a world of 4 without having been in one of 2"
    groups.live_once(2)
    assert create(2) == "again_2 of the store"


def test_a_store_that_rank_0_serves_ends_with_its_world(
    rendezvous: Rendezvous, door: socket.socket, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store_wait.SERVED[0], "False")
    for _ in range(2):
        assert rendezvous.create("127.0.0.1", port_of(door), 0, 2, LONG) == "the store"
        groups.live_once(2)


MEET = """
import os, sys, threading, torch
from datetime import timedelta
from torch.distributed import TCPStore, rendezvous
hooked = sys.modules["torch.distributed.rendezvous"]._create_c10d_store
assert hooked.__code__.co_filename.endswith("store_wait.py")
port = int(os.environ["MASTER_PORT"])
def serve():
    return TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=60), wait_for_workers=False)
stores = []
late = threading.Timer(0.05, lambda: stores.append(serve()))
late.start()
store, rank, size = next(rendezvous("env://"))
store.set("met", "yes")
late.join()
print(stores[0].get("met").decode(), rank, size)
"""


@pytest.mark.torch
@pytest.mark.parametrize("libuv", ["0", "1"])
def test_ranks_of_the_real_torch_meet_and_say_nothing(libuv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = PortReserve(random.Random())
    world = {"MASTER_PORT": str(ports.reserve()), "MASTER_ADDR": "127.0.0.1", "RANK": "1", "WORLD_SIZE": "2"}
    ports.release()
    for name, value in {**world, "USE_LIBUV": libuv}.items():
        monkeypatch.setenv(name, value)
    page = ProgressPage(2)
    try:
        assert run_worker(page, MEET) == "yes 1 2"
    finally:
        page.close()
