"""Queues, locks and other objects of multiprocessing that a function uses: they stay with the caller.

Theory. Such an object can be inherited only, and workers are no children of the caller. So a worker gets a
``Remote`` in its place, which sends each call over a socket, to a thread of the caller that makes it on the
object itself. Each thread of a worker has a connection of its own: what blocks there blocks nobody else, and
a lock knows who holds it. A signal's handler that interrupts a call counts as one more thread. A worker that
starts again connects anew; ``asker`` says what comes back from one that ends.

The socket has a name that all users of the host may see. So both sides prove that they know the key, which
only the call's file in memory holds, before anything is unpickled. The socket takes processes of this user
only, and is there once an object is shared. What a manager of multiprocessing holds needs none of this: its
proxies are sent with the key of the manager.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from elasticrun.launching.asker import Asker, HungUpError
from elasticrun.launching.shortage import PAUSE, Shortage

#: What stays with the caller: classes, by module. Who has not imported the module has none of them.
_KINDS = {
    "multiprocessing.queues": ("Queue", "SimpleQueue"),
    "multiprocessing.sharedctypes": ("SynchronizedBase",),
    "multiprocessing.synchronize": ("Barrier", "Condition", "Event", "SemLock"),
}
_PROXIES = {"multiprocessing.managers": ("BaseProxy",)}
_BACKLOG = 128
_PEER = struct.Struct("3i")  # pid, uid and gid, as SO_PEERCRED tells them

_Reducer = Callable[[Any], Any]
_Kinds = Mapping[str, tuple[str, ...]]
_Known = list[tuple[_Kinds, _Reducer]]


class Home:
    """Keeps the objects, and does what workers ask of them. To be closed."""

    def __init__(self) -> None:
        self._objects: list[object] = []
        self._numbers: dict[int, int] = {}  # of these, by id
        self._name = b"\0elasticrun-" + os.urandom(16).hex().encode()
        self._key = os.urandom(32)
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._closed = threading.Event()

    def dumps(self, value: object) -> bytes:
        """The pickle of a value, in which objects of multiprocessing are ``Remote``."""
        import cloudpickle  # only who launches a function needs it

        base: Any = cloudpickle.Pickler
        known: _Known = [(_KINDS, self._reduce), (_PROXIES, _reduce_proxy)]
        table = _Reducers(known, base.dispatch_table)  # which a pickler looks for in its class only
        file = io.BytesIO()
        type("Pickler", (base,), {"dispatch_table": table})(file).dump(value)
        return file.getvalue()

    def close(self) -> None:
        """Hang up; calls that a worker waits for fail there."""
        if os.getpid() != self._owner:
            return  # a fork shares the sockets, and has none of the threads
        with self._lock:
            self._closed.set()
            listener, self._listener = self._listener, None
            for connection in self._connections:
                _shut_down(connection)  # its thread closes it
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for workers
            listener.close()

    def _reduce(self, value: object) -> Any:
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the job is over")
            if self._listener is None:
                self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._listener.bind(self._name)
                self._listener.listen(_BACKLOG)
                _start_thread(self._accept, self._listener)
            number = self._numbers.setdefault(id(value), len(self._objects))
            if number == len(self._objects):
                self._objects.append(value)
            return Remote, (self._name, self._key, number, _properties(type(value)))

    def _accept(self, listener: socket.socket) -> None:
        shortage = Shortage("what ranks share with their caller")
        while not self._closed.is_set():
            try:
                peer, _ = listener.accept()
            except OSError as error:
                if not shortage.explains(error):  # it is closed
                    return
                self._closed.wait(PAUSE)
            else:
                self._begin(peer)

    def _begin(self, peer: socket.socket) -> None:
        pid, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        with self._lock:
            if user != os.getuid() or self._closed.is_set():
                peer.close()
                return
            connection = Connection(peer.detach())
            self._connections.add(connection)
        _start_thread(self._serve, connection, pid)

    def _serve(self, connection: Connection, pid: int) -> None:
        """Do what one thread of a worker asks, until it ends."""
        asker = Asker(connection, pid)
        try:
            with contextlib.suppress(EOFError, OSError, AuthenticationError, HungUpError):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                self._serve_calls(connection, asker)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            asker.close()

    def _serve_calls(self, connection: Connection, asker: Asker) -> None:
        try:
            while True:
                asked = connection.recv_bytes()
                asker.confirm()
                connection.send_bytes(self._answer(asker, asked))
        except ConnectionError:  # it has not read the last answer
            asker.give_back()
            raise

    def _answer(self, asker: Asker, asked: bytes) -> bytes:
        """The pickle of whether a call has returned, and what that was, or what it has raised."""
        try:
            number, name, args, kwargs = pickle.loads(asked)
            value = self._objects[number]
        except Exception as error:  # noqa: BLE001 whatever a class of the user's raises there
            return self.dumps((False, TypeError(f"what was sent cannot be read by the caller: {error}")))
        made: tuple[bool, object]
        try:
            made = True, asker.call(value, name, args, kwargs, asked)
        except HungUpError:
            raise
        except Exception as error:  # noqa: BLE001 it is the worker's
            made = False, error
        try:
            return self.dumps(made)
        except Exception as error:  # noqa: BLE001 the same
            return self.dumps((False, TypeError(f"what {name} returned cannot be sent: {error}")))


class Remote:
    """Stands in a worker for an object that the caller keeps."""

    def __init__(self, name: bytes, key: bytes, number: int, properties: frozenset[str]) -> None:
        """``properties``: names of what is read and set there; all else is called."""
        self.__dict__.update(_name=name, _key=key, _number=number, _properties=properties)

    def __reduce__(self) -> Any:
        return Remote, (self._name, self._key, self._number, self._properties)

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._properties:
            return self._ask("__getattribute__", name)
        return lambda *args, **kwargs: self._ask(name, *args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("__setattr__", name, value)

    def __enter__(self) -> Any:
        return self._ask("__enter__")

    def __exit__(self, *_: object) -> None:
        self._ask("__exit__", None, None, None)

    def __len__(self) -> int:
        return int(self._ask("__len__"))

    def __getitem__(self, key: object) -> Any:
        return self._ask("__getitem__", key)

    def __setitem__(self, key: object, value: object) -> None:
        self._ask("__setitem__", key, value)

    def _ask(self, method: str, *args: object, **kwargs: object) -> Any:
        """Have the caller call a method; raises what that raises, EOFError if the caller is gone."""
        import cloudpickle

        asked = cloudpickle.dumps((self._number, method, args, kwargs))
        connection = _take(self._name, self._key)
        try:
            connection.send_bytes(asked)
            answer = connection.recv_bytes()
        except BaseException:  # a late answer must not be taken for that to the next call
            connection.close()
            raise
        _put_back(self._name, connection)
        has_returned, value = pickle.loads(answer)
        if not has_returned:
            raise value
        return value


class _Reducers:
    """A dispatch table of a pickler that knows classes with all that inherit from them."""

    def __init__(
        self,
        known: _Known,
        others: Mapping[type, _Reducer],
    ) -> None:
        self._known = [(_loaded(kinds), reducer) for kinds, reducer in known]
        self._others = others

    def __getitem__(self, kind: type) -> _Reducer:
        for kinds, reducer in self._known:
            if issubclass(kind, kinds):
                return reducer
        return self._others[kind]


def _loaded(kinds: _Kinds) -> tuple[type, ...]:
    modules = {sys.modules[module]: names for module, names in kinds.items() if module in sys.modules}
    return tuple(getattr(module, name) for module, names in modules.items() for name in names)


def _properties(kind: type) -> frozenset[str]:
    names = (name for name in dir(kind) if not name.startswith("_"))
    return frozenset(name for name in names if isinstance(getattr(kind, name, None), property))


def _reduce_proxy(proxy: Any) -> Any:
    """What a manager's proxy makes of itself, with the key of its manager, which workers do not inherit."""
    function, (kind, token, serializer, options) = proxy.__reduce__()
    return function, (kind, token, serializer, {**options, "authkey": bytes(proxy._authkey)})


def _shut_down(connection: Connection) -> None:
    peer = socket.socket(fileno=connection.fileno())
    with contextlib.suppress(OSError):  # the other side was faster
        peer.shutdown(socket.SHUT_RDWR)
    peer.detach()


def _start_thread(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True, name="elasticrun-sharing").start()


class _Mine(threading.local):
    """The connections of this thread that no call uses, by name, and the process that has opened them."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.idle: dict[bytes, list[Connection]] = {}


_mine = _Mine()


def _take(name: bytes, key: bytes) -> Connection:
    """A connection of this thread to a ``Home``, for one call; a fork's is not its parent's.

    A call of a signal's handler gets one of its own while the call that it interrupts has the other.
    Raises OSError, AuthenticationError if it is another one's, EOFError if it hangs up.
    """
    if _mine.owner != os.getpid():
        _mine.owner, _mine.idle = os.getpid(), {}
    idle = _mine.idle.get(name)
    return idle.pop() if idle else _connect(name, key)


def _put_back(name: bytes, connection: Connection) -> None:
    """The next call gets it first: to a lock of the caller, a connection is whoever has acquired it."""
    _mine.idle.setdefault(name, []).append(connection)


def _connect(name: bytes, key: bytes) -> Connection:
    connection = _connected(name)
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    return connection


def _connected(name: bytes) -> Connection:
    """A connection to whoever listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(name)
        return Connection(peer.detach())
