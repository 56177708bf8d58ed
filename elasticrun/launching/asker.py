"""What one thread of a worker asks of objects of multiprocessing, and what comes back when it ends.

Theory. The thread may end, or give a call up, at any time. What a call takes - an item of a queue, a lock, a
slot of a semaphore - must then not be lost. While a call waits for an item, it waits for the end of the
connection too, and then takes nothing. A lock has no such way: the call waits on, and gives back what it got.
And an answer may come too late to be read. The kernel tells: to send to a closed end of a socket fails, and
an end that is closed with something unread in it resets the other. So what was taken for an answer that was
not read is given back: a lock at once, an item at the end of its queue, as nothing can be put at its head.

A ``Lock`` that a thread holds is released once its *process* has ended, as nobody else would do it; what it
guards is as that process has left it. The end of a thread alone, or of a connection, tells nothing: another
thread may release the lock. This is done by the thread here that has acquired it, as no other can know whose
the lock is now. So it comes late if the last call of its holder still waits for something else than an item
of a queue: after that call. An ``RLock``, and so the lock of a ``Condition``, can be released by nobody but
the connection that has acquired it. So it is released with that: also if a call was interrupted, or the
thread alone has ended. Semaphores are no property of who has acquired them, so their slots stay taken.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from queue import Empty
from typing import Any

_ACQUIRING = ("__enter__", "acquire")
_GETTING = ("get", "get_nowait")
_PUTTING = ("put", "put_nowait")
#: What the pickle of a tensor of a GPU has in it: where it is.
_ON_GPU = b"cuda:"
#: What the pickle of a handle has in it: the function of torch that opens it.
_HANDLE = b"rebuild_cuda_tensor"


class HungUpError(Exception):
    """Who asks has ended meanwhile, or no longer waits for the answer."""


class Asker:
    """Makes the calls of one thread of a worker, in one thread here. To be closed."""

    def __init__(self, connection: Connection, pid: int) -> None:
        """``pid``: of the worker that has connected."""
        self._connection = connection
        self._pid = pid
        self._process: int | None = None  # a pidfd
        self._undo: Callable[[], object] | None = None  # gives back what the last call took
        self._taken: dict[int, Any] = {}  # locks that it holds, or held, by id

    def call(self, value: Any, name: str, args: Any, kwargs: Any, asked: bytes) -> object:
        """Call a method. Raises what that raises; HungUpError if nobody waits for what it would take.

        ``asked``: the pickle that the arguments came in.
        """
        if name in _ACQUIRING and hasattr(value, "release"):
            return self._acquire(value, name, args, kwargs)
        if name in _GETTING and hasattr(value, name) and _is_queue(value):
            item = self._get(value, *(args if name == "get" else (False, *args)), **kwargs)
            self._undo = lambda: _put_back(value, item)
            return item
        if name in _PUTTING and hasattr(value, name) and _is_queue(value, "put"):
            args = tuple(_by_value(each, asked) for each in args[:1]) + tuple(args[1:])
            kwargs = {key: _by_value(each, asked) if key == "obj" else each for key, each in kwargs.items()}
        return getattr(value, name)(*args, **kwargs)

    def confirm(self) -> None:
        """The answer to the last call has been read."""
        self._undo = None

    def give_back(self) -> None:
        """Undo the last call, whose answer was not read."""
        undo, self._undo = self._undo, None
        if undo is not None:
            with contextlib.suppress(OSError, ValueError):  # the queue is closed
                undo()

    def close(self) -> None:
        """Release what nobody else can; wait for the process if it has a ``Lock``, and release that."""
        if self._process is None:
            return
        for lock in self._taken.values():
            while _is_recursive(lock) and _is_mine(lock):
                lock.release()
        if any(_is_mine(lock) for lock in self._taken.values()):
            wait([self._process])
        os.close(self._process)
        for lock in self._taken.values():
            while _is_mine(lock):
                lock.release()

    def _acquire(self, value: Any, name: str, args: Any, kwargs: Any) -> object:
        lock = getattr(value, "_lock", value)  # of a condition, or a counter
        if _has_owner(lock) and self._process is None:
            try:  # before it can know that it has the lock, so it is still the one that has connected
                self._process = os.pidfd_open(self._pid)
            except ProcessLookupError as error:
                raise HungUpError from error
        made = getattr(value, name)(*args, **kwargs)
        if made or name == "__enter__":
            self._undo = lock.release
            if _has_owner(lock):
                self._taken[id(lock)] = lock
        return made

    def _get(self, items: Any, block: bool = True, timeout: float | None = None) -> object:
        """As ``get`` of the queue; a call that waits keeps nobody else from it, and ends with the worker."""
        from multiprocessing.reduction import ForkingPickler

        if getattr(items, "_closed", False):
            raise ValueError(f"{items!r} is closed")
        seconds = timeout if block else 0
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait([self._connection, items._reader], left)
            if self._connection in ready:  # it says nothing before it has its answer
                raise HungUpError
            if not ready or not items._rlock.acquire(True, left):
                raise Empty
            try:
                if items._reader.poll():  # nobody else was faster
                    data = items._reader.recv_bytes()
                    break
            finally:
                items._rlock.release()
        if hasattr(items, "_sem"):
            items._sem.release()
        try:
            return ForkingPickler.loads(data)
        except RuntimeError as error:
            if not _uses_cuda() or _HANDLE not in data:
                raise
            why = str(error).partition("\n")[0]
            raise TypeError(
                f"an item of this queue cannot be read by the caller, which hands it on ({why}): if it has "
                "tensors of a GPU that the caller has put, put tensor.cpu()"
            ) from error


def _is_queue(value: Any, method: str = "get") -> bool:
    """Whether it gets or puts items as multiprocessing does, and not in a way of its own."""
    return bool(getattr(type(value), method).__module__ == "multiprocessing.queues")


def _put_back(items: Any, item: object) -> None:
    from multiprocessing.queues import Queue, SimpleQueue

    put = Queue.put if isinstance(items, Queue) else SimpleQueue.put  # no other: the item has been counted
    # Whoever put it may have sent a handle, which does not say that it is of a GPU's memory.
    put(items, _Copy(item) if _uses_cuda() else item)


def _uses_cuda() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized()


class _Copy:
    """An item that is put into a queue with its tensors of a GPU, and not with handles of their memory: the
    process that has made such a handle, which is this one, cannot read it. All else goes as ever.
    """

    def __init__(self, item: object) -> None:
        from multiprocessing.reduction import ForkingPickler

        others: Any = ForkingPickler

        class Pickler(ForkingPickler):
            def reducer_override(self, value: Any) -> Any:
                memory = getattr(value, "_untyped_storage", value)  # a typed one warns that it is deprecated
                is_handle = type(value) in others._extra_reducers and getattr(memory, "is_cuda", False)
                return value.__reduce_ex__(pickle.DEFAULT_PROTOCOL) if is_handle else NotImplemented

        file = io.BytesIO()
        Pickler(file).dump(item)
        self._pickled = file.getvalue()

    def __reduce__(self) -> Any:
        return pickle.loads, (self._pickled,)


def _by_value(item: object, data: bytes) -> object:
    """What to put into a queue for the item that this pickle is of."""
    return _Copy(item) if _uses_cuda() and _ON_GPU in data else item


def _has_owner(lock: Any) -> bool:
    """Whether it is a Lock or an RLock, and no semaphore, of one slot or more."""
    from multiprocessing.synchronize import Lock, RLock

    return isinstance(lock, Lock | RLock)


def _is_recursive(lock: Any) -> bool:
    """Whether it is an RLock: no other thread can release it."""
    return bool(lock._semlock.kind == 0)


def _is_mine(lock: Any) -> bool:
    return bool(lock._semlock._is_mine())
