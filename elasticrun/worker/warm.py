"""The warm parent's own part: import once, then fork workers that go on where this one stopped.

Theory. The warm parent is a worker's own command line, held before its first line: ``sitecustomize`` calls
``serve``, which returns in forked workers only. What comes after that is the interpreter's ordinary start, so
``sys.argv``, ``sys.path[0]``, ``__main__``, tracebacks and exit codes are right by construction, and only
what a fresh process gets from its parent has to be made here: descriptors, environment, session, death signal
and whatever libraries draw at random when they are loaded.

The spawner asks with one byte and descriptors: the request as a memory file, the worker's stdin, stdout and
stderr, and a pipe for the answer. A worker is forked twice, so that it is the spawner's child like any other:
the process between ends once no other request waits, and the workers wait until it has been reaped.

A fork may also be asked to run another program in place of the script: the probe of the node's health, which
needs torch as well. It goes the same way, but does not show what the imports printed, as that was the
script's.

Modules that most scripts import late must not delay the first start. So once a parent has forked workers, the
spawner has it fork a *replacement*, which imports these as well while the parent still serves, and then takes
its place.

Invariants. A worker answers on the pipe before the script's first line, with its pid or with what is wrong;
an end of file is a failure too. The parent runs nothing of the script and never initialises CUDA; it refuses
what cannot be forked soundly, such as threads. What the imports print is kept and shown by every worker, as
each would have printed it.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import gc
import io
import json
import os
import signal
import socket
import sys
import time
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, NoReturn

    from elasticrun.worker import warm_imports as imports  # given by ``sitecustomize``
    from elasticrun.worker import warm_memory as memory  # so are these
    from elasticrun.worker import warm_watch as watching
    from elasticrun.worker.inject.sitecustomize import load_early  # so is this

#: Descriptors go up here, out of the way of what the imports open.
HIGH_FD = 900
#: Kinds of requests, for a worker and for a replacement, and how many descriptors come with each.
REQUESTS = {b"?": 5, b"+": 1}
NAME = b"elasticrun-warm"  # the kernel keeps 15 bytes
TITLE = b"elastic-run: warm parent"
ARG_START, ARG_END = 45, 46  # fields of /proc/PID/stat, counted behind the command's ")"
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
MAX_REASON = 500  # characters


class Origin:
    """This process as it was before the imports."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self.files: dict[str, tuple[int, int]] = {}  # this and the next: known after the imports
        self.printed: list[bytes] = []
        self.watch = watching.Watch()
        before = given()
        self.added = {name: value for name, value in self.environ.items() if before.get(name) != value}
        self.added.pop("PYTHONPATH", None)  # that change was ours
        self.comm = read("/proc/self/comm").rstrip(b"\n")
        self.command = read("/proc/self/cmdline")

    def environment(self, wanted: dict[str, str]) -> dict[str, str]:
        """A worker's environment, with what the interpreter and the imports changed in this one."""
        now = dict(os.environ)
        changed = {name: value for name, value in now.items() if self.environ.get(name) != value}
        target = {**wanted, **self.added, **changed}
        return {name: value for name, value in target.items() if name in now or name not in self.environ}


def given() -> dict[str, str]:
    """The environment that this program was executed with."""
    pairs = (entry.partition(b"=") for entry in read("/proc/self/environ").split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def read(path: str) -> bytes:
    """The whole file."""
    with open(path, "rb") as file:  # noqa: PTH123 pathlib takes milliseconds
        return file.read()


def serve(terms: str) -> tuple[bool, Any]:
    """Import the modules and fork workers until the spawner is gone. Returns in forks only: whether they run
    the program in ``sys.argv[0]`` in place of the script, and what watches the script's own imports.

    ``terms`` are the control socket's number, a word for ``sitecustomize``, and the names of the modules;
    behind a semicolon those for later. A last word says whether workers stay warm at any rate.
    """
    number, _, names, *words = terms.split(":")
    names, _, later = names.partition(";")
    control = socket.socket(fileno=move_up(int(number)))
    origin = Origin()
    origin.watch.keeps_warm = words == ["on"]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, NAME, 0, 0, 0)
    take_in(names, origin, control, libc)
    spawner = os.getppid()
    fds, mask = wait_for_fork(control)
    if len(fds) == REQUESTS[b"+"]:
        control = inherit(fds[0], spawner, mask, libc)
        take_in_more(later, origin, control, libc)
        fds, mask = wait_for_fork(control)
    return be_born(fds, mask, origin, libc), origin.watch


def wait_for_fork(control: socket.socket) -> tuple[list[int], set[Any]]:
    """Serve requests. Returns only in what is forked, once it is the spawner's child: its descriptors, and
    the signal mask it is to have.
    """
    while True:
        fds = next_request(control)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        waiting, reaped = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads: those of BLAS know how to be forked
            between = fork()
            if between == 0:
                os.close(reaped)
                fds = fork_all(control, fds)
        if between == 0:
            control.close()
            os.read(waiting, 1)
            os.close(waiting)
            return fds, mask
        for fd in (waiting, *fds):
            os.close(fd)
        if between > 0:
            os.waitpid(between, 0)
        os.close(reaped)  # those that were forked go on
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def inherit(fd: int, spawner: int, mask: set[Any], libc: Any) -> socket.socket:
    """Make this process the parent's replacement, as if the spawner had executed it; its control socket."""
    control = socket.socket(fileno=move_up(fd))
    control.setblocking(True)  # whatever the imports have made the default
    os.setsid()
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0 or os.getppid() != spawner:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    tell(control, pid=os.getpid())
    return control


def take_in(names: str, origin: Origin, control: socket.socket, libc: Any) -> None:
    """Import modules, then tell the spawner how that went; ends this process if it cannot fork workers."""
    begun = time.monotonic()
    load(names, origin, control, libc)
    load_early()
    gc.freeze()  # never thawed in a worker: a collection there would copy the pages that it shares
    tell_ready(control, begun)


def take_in_more(names: str, origin: Origin, control: socket.socket, libc: Any) -> None:
    """As before, in a replacement: the kernel ends it first if memory gets short meanwhile. The environment
    stays, as a script finds it before it imports these itself.
    """
    begun = time.monotonic()
    before, score = dict(os.environ), memory.be_first_to_go()
    load(names, origin, control, libc, is_replacement=True)
    gc.unfreeze()
    gc.collect()  # garbage of both imports, for which the first start did not wait
    gc.freeze()
    memory.put_together(libc)
    set_environment(before)
    memory.set_score(score)
    tell_ready(control, begun)


def load(names: str, origin: Origin, control: socket.socket, libc: Any, is_replacement: bool = False) -> None:
    """Import modules, and keep what workers need to know of that; ends this process if it cannot fork any."""
    wanted = [name for name in names.split(",") if name]
    reason = imports.prepare(wanted, looks_in_fork=is_replacement, importing=origin.watch.importing)
    if reason:
        tell(control, refused=reason[:MAX_REASON])
        os._exit(0)
    imports.forget_missing_folders()
    origin.printed = imports.take_output(libc)
    origin.files = {**imports.files(), **origin.files}  # inherited modules are as old as the parent's
    set_title(TITLE)
    libc.prctl(PR_SET_NAME, NAME, 0, 0, 0)  # torch 2.4 gives its own to whoever imports it
    origin.watch.hide()


def tell_ready(control: socket.socket, begun: float) -> None:
    """Tell the spawner that requests may come."""
    tell(control, seconds=time.monotonic() - begun, shared=resident())


def move_up(fd: int) -> int:
    """The same file under a high number, if the limits allow one."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return moved


def tell(control: socket.socket, **words: Any) -> None:
    """One message to the spawner."""
    control.send(json.dumps(words).encode("ascii"))


def resident() -> int:
    """Bytes of memory that this process has in use."""
    return int(read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def set_title(command: bytes) -> None:
    """Have ``ps`` show this command, as far as there is room; a courtesy, as agents do it."""
    try:
        stat = read("/proc/self/stat")
        fields = stat[stat.rindex(b")") + 1 :].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 as above
            memory.seek(start)
            memory.write(command[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        return


# -- forking


def next_request(control: socket.socket, flags: int = 0) -> list[int]:
    """The descriptors of the next request; ends this process with the spawner, or once it is replaced."""
    room = socket.CMSG_SPACE(max(REQUESTS.values()) * array.array("i").itemsize)
    data, ancillary, _, _ = control.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC | flags)
    fds = array.array("i", b"".join(raw for _, _, raw in ancillary))
    if len(fds) != REQUESTS.get(data):
        os._exit(0)
    return fds.tolist()


def fork_all(control: socket.socket, fds: list[int]) -> list[int]:
    """Fork a process for this request, and for each one that waits: a fork here is cheaper than another
    process between. Returns in the forks only: the descriptors of each.
    """
    while True:
        if fork() == 0:
            return fds
        for fd in fds:
            os.close(fd)
        try:
            fds = next_request(control, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os._exit(0)


def fork() -> int:
    """As ``os.fork``; -1 if the host refuses another process: the spawner learns of it from the pipe."""
    try:
        return os.fork()
    except OSError:
        return -1


# -- in the worker


def be_born(fds: list[int], mask: set[Any], origin: Origin, libc: Any) -> bool:
    """Make this process what a fresh one would be, then say so; whether it runs another program."""
    request_file, *standard, answer = fds
    try:
        request = read_request(request_file)
        become(request, standard, origin, libc)
    except BaseException as error:  # noqa: BLE001 the spawner is told, and starts this worker cold
        fail(answer, f"{type(error).__name__}: {error}")
    if imports.uses_cuda(origin.watch.find):
        fail(answer, imports.CUDA, for_good=True)
    os.write(answer, json.dumps({"pid": os.getpid()}).encode("ascii"))
    os.close(answer)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    is_another = bool(request["program"])
    if is_another:
        origin.watch.show()
    for number, output in enumerate(() if is_another else origin.printed, 1):
        show(number, output)
    return is_another


def fail(answer: int, reason: str, for_good: bool = False) -> NoReturn:
    """End this worker before it has begun; the spawner starts it cold, or all from now on."""
    words = {"refused": reason[:MAX_REASON], "for_good": for_good}
    try:
        os.write(answer, json.dumps(words).encode("ascii"))
    finally:
        os._exit(1)


def read_request(fd: int) -> dict[str, Any]:
    """What ``fork_requests`` sends: command line and environment, the spawner's pid; closes the file."""
    with open(fd, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = json.load(file)
    return request


def become(request: dict[str, Any], standard: list[int], origin: Origin, libc: Any) -> None:
    """Do what the spawner does to a process that it executes, then what the program's start does."""
    if not imports.are_as(origin.files):
        raise ImportError("a module was edited after it had been imported")
    os.setsid()
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError("no death signal")
    if os.getppid() != request["spawner"]:
        os._exit(1)
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    libc.prctl(PR_SET_NAME, origin.comm, 0, 0, 0)
    own = b"\0".join(map(os.fsencode, [*request["argv"], ""]))
    set_title(own if request["program"] or len(own) == len(origin.command) else origin.command)
    set_environment(origin.environment(request["env"]))
    origin.watch.command = request
    if request["program"]:
        sys.argv[:], sys.orig_argv[:] = request["argv"][1:], request["argv"]
        os.sched_setaffinity(0, request["cpus"])
    else:
        set_arguments(request["argv"])
    reopen(sys.__stdout__, 1)
    reopen(sys.__stderr__, 2)
    origin.watch.begin(reopen_input(sys.__stdin__))
    imports.begin_anew()
    imports.draw_again(origin.watch.find)
    imports.tell_rank(origin.watch.find)


def set_environment(target: dict[str, str]) -> None:
    """Set the environment in the order of a fresh process, and for libraries written in C as well."""
    os.environ.clear()
    os.environ.update(target)


def set_arguments(argv: list[str]) -> None:
    """Set the arguments; they differ from the parent's where one of them holds the local rank."""
    count = len(sys.argv) - 1
    sys.argv[1:] = argv[len(argv) - count :]
    sys.orig_argv[1:] = argv[len(argv) - len(sys.orig_argv) + 1 :]


def reopen(stream: Any, number: int) -> None:
    """Have a stream of the interpreter look at its descriptor again, which is another file now."""
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.FileIO):  # not as -u makes it: somebody else's
        return
    fresh = io.FileIO(number, "wb", closefd=False)
    fresh.name = raw.name
    stream.__init__(
        fresh,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=True,
    )


def reopen_input(stream: Any) -> Any:
    """As ``reopen``, with a file that notes whether it was read; None if there is none."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if raw is None:
        return None
    fresh = watching.Noted(0, "rb", closefd=False)
    fresh.name = raw.name
    stream.__init__(
        io.BufferedReader(fresh),
        encoding=stream.encoding,
        errors=stream.errors,
        write_through=stream.write_through,
    )
    return fresh


def show(number: int, output: bytes) -> None:
    """Print what the imports printed; a console that is gone is the script's affair."""
    while output:
        try:
            output = output[os.write(number, output) :]
        except OSError:
            return
