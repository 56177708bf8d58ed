"""Objects of multiprocessing that workers use from afar."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

import pytest

import elasticrun
from elasticrun.launching import sharing
from elasticrun.launching.asker import Asker, HungUpError
from elasticrun.launching.sharing import Home, Remote
from tests.support.processes import DEADLINE

METHODS = ("spawn", "fork", "forkserver")


@pytest.fixture
def home() -> Iterator[Home]:
    """Keeps objects of this process."""
    home = Home()
    yield home
    home.close()


def afar(home: Home, value: object) -> Any:
    """What a worker finds in the place of a value."""
    return pickle.loads(home.dumps(value))


# -- in one process: what a worker does is the same


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_queues_work_both_ways(home: Home, method: str, kind: str) -> None:
    here = getattr(multiprocessing.get_context(method), kind)()
    there = afar(home, here)
    there.put([1, "one"])
    assert here.get() == [1, "one"]
    here.put("two")
    assert there.get() == "two"
    here.close()


@pytest.mark.parametrize("method", METHODS)
def test_locks_belong_to_one_thread_of_one_worker(home: Home, method: str) -> None:
    context = multiprocessing.get_context(method)
    here = context.RLock()
    there = afar(home, here)
    with there, there, ThreadPoolExecutor(1) as pool:
        assert not here.acquire(block=False)
        assert not pool.submit(there.acquire, block=False).result(DEADLINE)
    assert here.acquire(block=False)
    here.release()


def test_counters_and_arrays_are_the_callers(home: Home) -> None:
    counter = multiprocessing.Value("i", 3)
    there = afar(home, counter)
    with there.get_lock():
        there.value += 1
    assert counter.value == 4
    array = afar(home, multiprocessing.Array("i", 2))
    array[1] = 7
    assert (len(array), [*array]) == (2, [0, 7])


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_double)]


def test_what_is_no_method_reads_as_a_value(home: Home) -> None:
    barrier = afar(home, multiprocessing.Barrier(2))
    assert (barrier.parties, barrier.n_waiting, barrier.broken) == (2, 0, False)
    barrier.abort()
    assert barrier.broken
    here: Any = multiprocessing.Value(Point, 1, 2)
    there = pickle.loads(pickle.dumps(afar(home, here)))
    there.x += 4
    assert (here.x, there.x, there.y) == (5, 5, 2)
    text = afar(home, multiprocessing.Array("c", b"abc"))
    assert (text.value, text.raw) == (b"abc", b"abc")


def test_what_blocks_blocks_one_thread_only(home: Home) -> None:
    event, condition = multiprocessing.Event(), multiprocessing.Condition()
    there = afar(home, (event, condition))
    barrier = afar(home, multiprocessing.Barrier(2))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(there[0].wait)
        met = pool.submit(barrier.wait)
        assert {barrier.wait(), met.result(DEADLINE)} == {0, 1}
        there[0].set()
        assert waiting.result(DEADLINE)
    with there[1]:
        assert not there[1].wait(0.001)


def test_what_a_method_raises_is_raised(home: Home) -> None:
    there = afar(home, multiprocessing.Queue())
    with pytest.raises(queue.Empty):
        there.get(timeout=0.001)
    with pytest.raises(queue.Empty):
        there.get_nowait()
    with pytest.raises(AttributeError):
        there.nothing()


def test_what_cannot_be_sent_is_told(home: Home) -> None:
    lock = threading.Lock()
    here: Any = multiprocessing.Queue()
    there = afar(home, here)
    setattr(here, "lock", lambda: lock)  # noqa: B010 mypy knows no such method
    with pytest.raises(TypeError, match="what lock returned cannot be sent"):
        there.lock()
    with pytest.raises(TypeError):
        there.put(lock)
    there.put("after that")
    assert here.get() == "after that"


def test_calls_fail_once_the_job_is_over(home: Home) -> None:
    event = multiprocessing.Event()
    there = afar(home, event)
    there.set()
    with ThreadPoolExecutor(1) as pool:
        items = afar(home, multiprocessing.SimpleQueue())
        entered = threading.Event()

        def get() -> None:
            with pytest.raises(queue.Empty):
                afar(home, multiprocessing.Queue()).get(timeout=0)  # now this thread is connected
            entered.set()
            items.get()

        waiting = pool.submit(get)
        assert entered.wait(DEADLINE)
        home.close()
        with pytest.raises((EOFError, OSError)):
            waiting.result(DEADLINE)
    with pytest.raises((EOFError, OSError)):
        there.is_set()
    with pytest.raises(RuntimeError, match="over"):
        home.dumps(event)


def test_a_fork_of_the_caller_hangs_up_for_nobody(home: Home) -> None:
    event = multiprocessing.Event()
    there = afar(home, event)
    there.set()
    child = os.fork()
    if child == 0:
        home.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert there.is_set()


# -- what a call takes that nobody waits for: the connection of a killed worker ends in the same way


def hang_up_on(remote: Any, method: str, *args: object, after: Callable[[Connection], object]) -> None:
    """Ask for something from a connection of its own, and end that without a look at the answer."""
    with sharing._connect(remote._name, remote._key) as connection:
        connection.send_bytes(pickle.dumps((remote._number, method, args, {})))
        after(connection)


def is_answered(connection: Connection) -> None:
    assert connection.poll(DEADLINE)


@pytest.mark.parametrize("args", [(), (True,), (True, DEADLINE)])
def test_an_item_goes_to_nobody_who_has_stopped_waiting(args: tuple[object, ...]) -> None:
    here: Any = multiprocessing.Queue()
    ours, theirs = multiprocessing.Pipe()
    asker = Asker(ours, os.getpid())
    theirs.close()
    here.put("item")
    assert here._reader.poll(DEADLINE)
    with pytest.raises(HungUpError):
        asker.call(here, "get", args, {}, b"")
    assert here.get(timeout=DEADLINE) == "item"
    here.close()


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_an_item_that_nobody_has_read_is_put_back(home: Home, kind: str) -> None:
    here: Any = getattr(multiprocessing, kind)()
    here.put("item")
    hang_up_on(afar(home, here), "get", after=is_answered)
    assert afar(home, here).get() == "item"
    if kind == "JoinableQueue":
        here.task_done()
        here.join()  # it was counted once
    here.close()


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition", "Semaphore"])
def test_a_lock_that_nobody_knows_to_have_is_given_back(home: Home, kind: str) -> None:
    here: Any = getattr(multiprocessing, kind)()
    hang_up_on(afar(home, here), "acquire", after=is_answered)
    assert here.acquire(timeout=DEADLINE)


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_lock_is_not_kept_for_who_has_stopped_waiting(home: Home, kind: str) -> None:
    here: Any = getattr(multiprocessing, kind)()
    acquire, release = here.acquire, here.release
    entered, taken, given_back = threading.Event(), threading.Event(), threading.Event()

    def acquire_for_a_worker(*args: object) -> object:
        entered.set()
        made = acquire(*args)
        taken.set()
        return made

    def release_for_a_worker() -> None:
        release()
        given_back.set()

    acquire()
    here.acquire, here.release = acquire_for_a_worker, release_for_a_worker
    hang_up_on(afar(home, here), "acquire", after=lambda _: entered.wait(DEADLINE))
    release()
    assert taken.wait(DEADLINE)
    assert given_back.wait(DEADLINE)
    assert acquire(True, 0)


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition"])
def test_a_lock_of_a_process_that_has_ended_is_released(home: Home, kind: str) -> None:
    here: Any = getattr(multiprocessing, kind)()
    there = afar(home, here)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            there.acquire()
            if kind != "Lock":
                there.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert here.acquire(timeout=DEADLINE)


@pytest.mark.parametrize("kind", ["RLock", "Condition"])
def test_a_lock_that_no_other_thread_can_release_ends_with_its_connection(home: Home, kind: str) -> None:
    """As that of a call which was interrupted: its process lives on, and connects anew."""
    here: Any = getattr(multiprocessing, kind)()
    there = afar(home, here)
    with sharing._connect(there._name, there._key) as connection:
        for _ in range(2):
            connection.send_bytes(pickle.dumps((there._number, "acquire", (), {})))
            assert pickle.loads(connection.recv_bytes()) == (True, True)
        assert not here.acquire(block=False)
    assert here.acquire(timeout=DEADLINE)
    here.release()


def test_what_was_taken_is_kept_once_the_answer_is_read() -> None:
    here = multiprocessing.Lock()
    ours, _theirs = multiprocessing.Pipe()
    asker = Asker(ours, os.getpid())
    assert asker.call(here, "acquire", (), {}, b"")
    asker.confirm()
    asker.give_back()
    assert not here.acquire(block=False)
    here.release()
    asker.close()


def test_a_lock_outlives_the_thread_that_has_acquired_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    here = multiprocessing.Lock()
    there = afar(home, here)
    closes = threading.Event()

    def wait(objects: list[Any], timeout: float | None = None) -> list[Any]:
        closes.set()  # before it would be released
        return multiprocessing.connection.wait(objects, timeout)

    monkeypatch.setattr("elasticrun.launching.asker.wait", wait)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(there.acquire).result(DEADLINE)
    assert closes.wait(DEADLINE), "it waits for the end of the process"
    assert not here.acquire(block=False)
    there.release()
    assert here.acquire(block=False)


@pytest.mark.root
def test_other_users_are_refused(home: Home) -> None:
    there = afar(home, multiprocessing.Event())
    name = there.__dict__["_name"]
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(name)
        os._exit(0 if peer.recv(1) == b"" else 1)
    assert os.waitpid(child, 0)[1] == 0
    there.set()
    assert there.is_set()


class Interrupted(Exception):
    """What a signal's handler raises, as KeyboardInterrupt; SIGINT may be ignored in the background."""


Handled = Callable[[Callable[[], object]], None]


@pytest.fixture
def handled_signal() -> Iterator[Handled]:
    """Takes what SIGUSR1 calls in the main thread."""

    def handle(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    before = signal.getsignal(signal.SIGUSR1)
    yield handle
    signal.signal(signal.SIGUSR1, before)


def test_the_answer_to_an_interrupted_call_is_none_to_the_next(home: Home, handled_signal: Handled) -> None:
    here: Any = multiprocessing.Event()
    waits, goes_on, interrupted = threading.Event(), threading.Event(), threading.Event()

    def interrupt_the_call() -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise Interrupted

    def wait() -> str:
        waits.set()
        assert goes_on.wait(DEADLINE)
        return "to the interrupted call"

    def interrupt() -> None:
        assert waits.wait(DEADLINE)
        # Python calls no handler if the signal came just before the call began to wait.
        while not interrupted.wait(0.2) and not goes_on.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    handled_signal(interrupt_the_call)
    here.wait = wait
    event, counter = afar(home, (here, multiprocessing.Value("i", 7)))
    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(Interrupted):
            event.wait()
        interrupting.result(DEADLINE)
        goes_on.set()
        assert counter.value == 7


def test_a_handler_may_call_while_a_call_waits(home: Home, handled_signal: Handled) -> None:
    here: Any = multiprocessing.Event()
    waits, goes_on = threading.Event(), threading.Event()

    def wait() -> str:
        waits.set()
        assert goes_on.wait(DEADLINE)
        return "to the interrupted call"

    def interrupt() -> None:
        assert waits.wait(DEADLINE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        goes_on.set()

    here.wait = wait
    event, counter, lock = afar(home, (here, multiprocessing.Value("i", 7), multiprocessing.RLock()))
    found = list[int]()
    handled_signal(lambda: found.append(counter.value))
    with ThreadPoolExecutor(1) as pool, lock:
        interrupting = pool.submit(interrupt)
        assert event.wait() == "to the interrupted call"
        interrupting.result(DEADLINE)
        assert found == [7]
        assert lock.acquire(False), "its connection is the same as before"
        lock.release()


# -- in jobs


def test_ranks_share_what_the_caller_has() -> None:
    results: Any = multiprocessing.Queue()
    count = multiprocessing.Value("i", 0)
    started = multiprocessing.Barrier(3)

    def work(base: int, results: Any) -> None:
        with count.get_lock():
            count.value += 1
        results.put(base + int(os.environ["RANK"]))
        started.wait()

    with elasticrun.start(work, 10, results) as job:
        assert {results.get(timeout=DEADLINE), results.get(timeout=DEADLINE)} == {10, 11}
        started.wait(DEADLINE)
        job.wait()
    assert count.value == 2


def test_what_a_manager_holds_is_shared() -> None:
    with multiprocessing.get_context("spawn").Manager() as manager:
        found = manager.dict()

        def work() -> None:
            found[os.environ["RANK"]] = manager_list[0]

        manager_list = manager.list(["item"])
        elasticrun.launch(work)
        assert {**found} == {"0": "item", "1": "item"}


def test_a_rank_that_is_killed_keeps_nothing() -> None:
    items: Any = multiprocessing.Queue()
    lock = multiprocessing.Lock()
    started = multiprocessing.Event()

    def work() -> object:
        if os.environ["ELASTICRUN_ROUND"] == "0":
            lock.acquire()
            waits: Any = multiprocessing.connection.Connection
            waits.recv_bytes = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # it has asked by then
            return items.get(timeout=DEADLINE)
        started.set()
        with lock:
            return items.get(timeout=DEADLINE)

    with elasticrun.start(work, nproc=1, max_restarts=1) as job:
        assert started.wait(DEADLINE)
        items.put("for round 1")
        assert [result.value for result in job.wait(DEADLINE)] == ["for round 1"]


class Unreadable(Exception):
    """Cannot be made from its ``args``, as many exceptions of users."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first)


#: Who has unpickled a stranger's words.
FOOLED = list[str]()


class Poison:
    """Leaves a trace where it is unpickled."""

    def __init__(self, reader: str) -> None:
        self._reader = reader

    def __reduce__(self) -> Any:
        return note_fooled, (self._reader,)


def note_fooled(reader: str) -> None:
    FOOLED.append(reader)


def test_the_caller_unpickles_nothing_that_a_stranger_says(home: Home) -> None:
    remote = pickle.loads(home.dumps(multiprocessing.get_context("spawn").SimpleQueue()))
    poison = pickle.dumps(Poison("the caller"))
    with contextlib.suppress(EOFError, OSError), sharing._connected(remote._name) as connection:
        while not FOOLED:  # until it hangs up
            connection.send_bytes(poison)
            connection.recv_bytes()
    assert not FOOLED
    remote.put(2)
    assert remote.get() == 2, "others are served as before"


def test_a_worker_unpickles_nothing_that_a_stranger_says() -> None:
    """Who listens in the place of the caller: it welcomes any worker, and does not know the key."""
    name = b"\0elasticrun-test-" + os.urandom(16).hex().encode()
    poison = pickle.dumps((True, Poison("a worker")))

    def pretend(listener: socket.socket) -> None:
        with Connection(listener.accept()[0].detach()) as connection:
            connection.send_bytes(b"#CHALLENGE#" + bytes(20))
            connection.recv_bytes()
            connection.send_bytes(b"#WELCOME#")
            connection.recv_bytes()
            connection.send_bytes(poison)

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(name)
        listener.listen()
        pretending = pool.submit(pretend, listener)
        with pytest.raises((AuthenticationError, OSError)):
            Remote(name, b"the key", 0, frozenset()).put(1)
        pretending.result(DEADLINE)
    assert not FOOLED


def test_what_cannot_be_read_is_the_askers_error(home: Home) -> None:
    remote = pickle.loads(home.dumps(multiprocessing.get_context("spawn").SimpleQueue()))
    with pytest.raises(TypeError, match="cannot be read by the caller"):
        remote.put(Unreadable("a", 1))
    assert remote
    remote.put(3)
    assert remote.get() == 3


class OnDevice:
    """Multiprocessing sends where it is, as torch does for tensors of a GPU, and cannot read that here."""

    is_cuda = True

    def __init__(self, value: int) -> None:
        self.value = value
        self.device = "cuda:0"


def rebuild_cuda_tensor(place: int) -> OnDevice:
    raise RuntimeError(f"invalid device context of {place}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process uses one."""
    reducers = {OnDevice: lambda value: (rebuild_cuda_tensor, (id(value),))}
    monkeypatch.setattr("multiprocessing.reduction.ForkingPickler._extra_reducers", reducers)
    cuda = types.SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_what_workers_put_from_a_device_arrives(home: Home, device: None, kind: str) -> None:
    here = getattr(multiprocessing.get_context("spawn"), kind)()
    there = afar(home, here)
    there.put(OnDevice(1))
    assert here.get().value == 1
    there.put(obj=[OnDevice(2)])
    assert there.get()[0].value == 2


def refuse() -> None:
    raise RuntimeError("sour")


class Sour:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return refuse, ()


class Shared(str):
    """Has a reducer of multiprocessing, as tensors on the CPU."""


class Counted(multiprocessing.queues.Queue):  # type: ignore[type-arg]  # it takes none at run time
    """Looks at what is put."""

    def put(self, obj: Any, *args: Any) -> None:
        super().put((type(obj), 1), *args)


def test_a_queue_of_ones_own_puts_what_was_given_to_it(home: Home, device: None) -> None:
    here = Counted(ctx=multiprocessing.get_context("spawn"))
    there = afar(home, here)
    there.put(OnDevice(1))
    assert here.get() == (OnDevice, 1)


def test_what_is_put_back_has_no_handle(home: Home, device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process of the program has put it: what it sent does not say that it is on a GPU."""
    here = multiprocessing.get_context("spawn").SimpleQueue()
    with monkeypatch.context() as elsewhere:
        reducers = {OnDevice: lambda value: (OnDevice, (value.value,))}
        elsewhere.setattr("multiprocessing.reduction.ForkingPickler._extra_reducers", reducers)
        here.put(OnDevice(3))
    hang_up_on(afar(home, here), "get", after=is_answered)
    assert here.get().value == 3


def test_what_a_class_raises_itself_is_raised(home: Home, device: None) -> None:
    here = multiprocessing.get_context("spawn").SimpleQueue()
    here.put(Sour())
    with pytest.raises(RuntimeError, match="sour"):
        afar(home, here).get()


def test_only_what_is_on_a_device_is_copied(
    home: Home, device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else goes as multiprocessing sends it."""
    from multiprocessing.reduction import ForkingPickler

    sent = list[str]()

    def reduce(value: Shared) -> tuple[type, tuple[str]]:
        sent.append(value)
        return str, (str(value),)

    monkeypatch.setitem(ForkingPickler._extra_reducers, Shared, reduce)  # type: ignore[attr-defined]
    here = multiprocessing.get_context("spawn").SimpleQueue()
    afar(home, here).put([Shared("one"), OnDevice(2)])
    assert here.get()[1].value == 2
    assert sent == ["one"]


def test_what_the_caller_puts_from_a_device_is_refused(home: Home, device: None) -> None:
    here = multiprocessing.get_context("spawn").Queue()
    here.put(OnDevice(1))
    with pytest.raises(TypeError, match=r"put tensor\.cpu\(\)"):
        afar(home, here).get()


def test_a_semaphore_of_one_slot_is_nobodys_property() -> None:
    """Whoever acquired it may end and leave the release to another."""
    from multiprocessing import get_context

    from elasticrun.launching.asker import _has_owner

    context = get_context()
    assert not _has_owner(context.BoundedSemaphore(1))
    assert _has_owner(context.Lock())
    assert _has_owner(context.RLock())
