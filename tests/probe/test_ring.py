"""The ring within one process: a thread for each rank."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticrun.probe.ring import Ring, join_ring, pattern
from elasticrun.probe.sockets import ProbeError, listen
from tests.support.processes import DEADLINE

TAG = (7, 0)


def on_every_rank(size: int, work: Callable[[Ring], object], damages: int = -1) -> list[object]:
    """What ``work`` returned, or the ProbeError it raised, on each rank of a ring."""
    deadline = time.monotonic() + DEADLINE
    names = [f"n{rank}" for rank in range(size)]
    listeners = [listen("127.0.0.1", 0) for _ in names]
    places = [listener.getsockname() for listener in listeners]

    def take_part(rank: int) -> object:
        try:
            ring = join_ring(names, rank, TAG, listeners[rank], places, deadline, rank == damages)
            with contextlib.closing(ring):
                return work(ring)
        except ProbeError as error:
            return error
        finally:
            listeners[rank].close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(take_part, range(size)))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_everybody_gets_everything(size: int) -> None:
    assert (
        on_every_rank(size, lambda ring: ring.share(ring._rank + 0.5))
        == [[rank + 0.5 for rank in range(size)]] * size
    )


@pytest.mark.parametrize("length", [8, 1_000_000])
def test_contents_are_verified_and_timed(length: int) -> None:
    for seconds in on_every_rank(3, lambda ring: ring.time_gather(length)):
        assert isinstance(seconds, float)
        assert 0 < seconds < DEADLINE


def test_damage_is_blamed_on_who_sent_it() -> None:
    first, second, third = on_every_rank(3, lambda ring: ring.time_gather(1_000_000), damages=1)
    assert isinstance(second, float)
    assert {str(first), str(third)} <= {
        "what n1 sent arrived damaged",
        # the other one may hang up first
        "the connection from n2 or to n1 failed: the connection was closed",
        "the connection from n1 or to n0 failed: the connection was closed",
    }
    assert "what n1 sent arrived damaged" in {str(first), str(third)}


def test_patterns_differ_by_rank_and_do_not_repeat_with_pages() -> None:
    assert pattern(0, 1000) != pattern(1, 1000)
    assert len(pattern(3, 200_000)) == 200_000
    page = 4096
    repeated = pattern(0, 40 * page)
    assert len({bytes(repeated[i * page : (i + 1) * page]) for i in range(40)}) == 40


def test_a_stranger_in_front_of_the_neighbour_is_turned_away() -> None:
    deadline = time.monotonic() + DEADLINE
    listeners = [listen("127.0.0.1", 0) for _ in range(2)]
    places = [listener.getsockname() for listener in listeners]
    stranger = socket.create_connection(places[0])
    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
    hangs_up = socket.create_connection(places[0])
    hangs_up.close()
    with ThreadPoolExecutor(2) as threads:
        rings = threads.map(lambda r: join_ring("ab", r, TAG, listeners[r], places, deadline), range(2))
        for ring in rings:
            ring.close()
    with contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b""
    for opened in (stranger, *listeners):
        opened.close()


def test_a_silent_neighbour_ends_at_the_deadline() -> None:
    def work(ring: Ring) -> object:
        if ring._rank == 0:
            return "silent"
        ring._deadline = time.monotonic() + 0.2
        return ring.time_gather(8)

    silent, waiting = on_every_rank_and_stay(work)
    assert silent == "silent"
    assert str(waiting) == "the connection with n0 failed: Connection timed out"


def on_every_rank_and_stay(work: Callable[[Ring], object]) -> list[object]:
    """As ``on_every_rank`` for two, but the first to finish keeps its connections until the other has."""
    kept: list[Ring] = []

    def keep(ring: Ring) -> object:
        kept.append(Ring(["n0", "n1"], ring._rank, ring._left.dup(), ring._right.dup(), ring._deadline))
        return work(ring)

    found = on_every_rank(2, keep)
    for ring in kept:
        ring.close()
    return found


def test_a_neighbour_that_has_gone_is_named() -> None:
    gone = listen("127.0.0.1", 0)
    place = gone.getsockname()
    gone.close()
    deadline = time.monotonic() + DEADLINE
    with (
        listen("127.0.0.1", 0) as listener,
        pytest.raises(ProbeError, match=r"^cannot connect to b at 127\.0\.0\.1: Connection refused$"),
    ):
        join_ring("ab", 0, TAG, listener, [listener.getsockname(), place], deadline)


def test_nobody_comes_from_before() -> None:
    with listen("127.0.0.1", 0) as ours, listen("127.0.0.1", 0) as theirs:
        places = [ours.getsockname(), theirs.getsockname()]
        with pytest.raises(ProbeError, match=r"^no connection came from b: Connection timed out$"):
            join_ring("ab", 0, TAG, ours, places, time.monotonic() + 0.1)
