"""Listeners where no descriptor is left for who connects."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import pickle
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.launching import shortage
from elasticrun.launching.relay import Relay
from elasticrun.launching.sharing import Home
from tests.support.processes import DEADLINE


class Warnings(logging.Handler):
    """Waits for the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._has_come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self._has_come.set()

    def wait(self) -> None:
        assert self._has_come.wait(DEADLINE)


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    """Those of listeners in this process."""
    warnings = Warnings()
    shortage.logger.addHandler(warnings)
    yield warnings
    shortage.logger.removeHandler(warnings)


@contextlib.contextmanager
def shortage_for(warnings: Warnings, family: int, address: Any) -> Iterator[None]:
    """Let this process open nothing more, and have so many connect that none is left for them."""
    with contextlib.ExitStack() as open_ones:
        # More than threads of earlier tests still close meanwhile.
        peers = [open_ones.enter_context(socket.socket(family)) for _ in range(64)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        open_ones.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for peer in peers:
            peer.connect(address)
        warnings.wait()
        yield


def test_the_caller_accepts_again_once_descriptors_are_free(warnings: Warnings) -> None:
    home = Home()
    there = pickle.loads(home.dumps(multiprocessing.Event()))
    with contextlib.closing(home), ThreadPoolExecutor(1) as pool:
        there.set()
        with shortage_for(warnings, socket.AF_UNIX, there._name):
            pass
        assert pool.submit(there.is_set).result(DEADLINE)
    assert warnings.texts == [
        "what ranks share with their caller cannot accept connections for now: "
        "[Errno 24] Too many open files (see ulimit -n)"
    ]


def test_a_shortage_does_not_keep_the_caller_from_its_end(
    warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticrun.launching.sharing.PAUSE", None)  # until it is told
    others = {*threading.enumerate()}
    home = Home()
    there = pickle.loads(home.dumps(multiprocessing.Event()))
    (accepting,) = {*threading.enumerate()} - others
    with shortage_for(warnings, socket.AF_UNIX, there._name):
        home.close()
    accepting.join(DEADLINE)
    assert not accepting.is_alive()


def test_a_relay_accepts_again_once_descriptors_are_free(warnings: Warnings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        relay = Relay(master.getsockname()[1])
        address = "127.0.0.1", relay.port
        with contextlib.closing(relay):
            with shortage_for(warnings, socket.AF_INET, address):
                pass
            with socket.create_connection(address) as node:
                node.sendall(b"late")
                while True:
                    far, _ = master.accept()
                    with far:
                        if far.recv(100) == b"late":  # others have ended
                            break
    assert [text.partition(" cannot")[0] for text in warnings.texts] == ["the relay to the master"]


def test_a_relay_resets_what_it_cannot_hand_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node tries again then, but not where another program seems to hold the port."""

    def none_left() -> socket.socket:
        raise OSError(errno.EMFILE, "no descriptor")

    with socket.create_server(("127.0.0.1", 0)) as master:
        relay = Relay(master.getsockname()[1])
        of_the_relay = SimpleNamespace(**{**vars(socket), "socket": none_left})
        monkeypatch.setattr("elasticrun.launching.relay.socket", of_the_relay)
        node = socket.create_connection(("127.0.0.1", relay.port))
        with contextlib.closing(relay), node, pytest.raises(ConnectionResetError):
            node.recv(100)
