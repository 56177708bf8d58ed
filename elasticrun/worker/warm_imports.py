"""What a warm parent imports, and whether it can still be forked afterwards.

Invariant: modules are looked for where the script will look for them, and nothing of that place is left in
``sys.path``. Whether a fork would be a worker is tested on this process and on a fork of it. For a parent,
that is the first worker, so that nobody waits longer for it. For a replacement it is a trial, as it must not
take the place of a parent that can do more.

It lies beside ``warm.py`` and is loaded with it, by its path.
"""

from __future__ import annotations

import contextlib
import gc
import os
import stat
import sys
import threading
import warnings
from _frozen_importlib_external import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

CUDA = "the imports initialised CUDA"
#: The library that does not tell whether a fork could use it.
SECRETIVE = "tensorflow"
#: Major numbers of devices that any process may have open: /dev/null and its like, and terminals.
ORDINARY = {1, 4, 5, *range(136, 144)}
#: Threads that their library does without in a fork: of jemalloc, which pyarrow brings, and pandas that.
SPARED = (b"jemalloc_bg_thd",)
PF_EXITING = 0x4  # a flag of a thread, in the seventh field of its stat behind the command's ")"
FLAGS = 6
SPOILT = 3  # exit status
#: Thresholds of the garbage collector, in new objects: no import makes so many.
RARELY = (10_000_000, 10, 10)
#: Where an interpreter keeps modules below its prefix. Users keep theirs below it too, as in /usr/src.
LIBRARIES = ("lib", "lib64", "local/lib", "local/lib64")


def prepare(
    names: list[str], looks_in_fork: bool, importing: Callable[[str], AbstractContextManager[None]]
) -> str:
    """Import the modules as the script would, each within what ``importing`` returns for it. Returns why no
    worker can be forked after that; "" if one can.
    """
    path = script_folder()
    if path is not None:
        sys.path.insert(0, path)
    try:
        with rare_collections():
            for name in names:
                with importing(name):
                    __import__(name)
    except BaseException as error:  # noqa: BLE001 it is told; the script meets it again and shows it all
        return f"importing {name} failed ({type(error).__name__}: {error})"
    finally:
        if path is not None and path in sys.path:
            sys.path.remove(path)
    return unsound(looks_in_fork)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Import without the garbage collections that so many new objects cause: they take a tenth of the time of
    torch's import, and find next to nothing. What the imports set themselves stays.
    """
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == RARELY[0]:  # the last one is always 0 from Python 3.14 on
            gc.set_threshold(*before)


def script_folder() -> str | None:
    """What the interpreter will put in front of ``sys.path`` for the script; None: nothing."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    script = sys.argv[0]
    if script == "-c":
        return ""
    if script == "-m":
        return os.getcwd()  # noqa: PTH109 pathlib takes milliseconds
    script = os.path.realpath(script)
    finder: Any = PathFinder._path_importer_cache(script)  # type: ignore[attr-defined]
    return os.path.dirname(script) if finder is None else script  # noqa: PTH120


def files() -> dict[str, tuple[int, int]]:
    """The files of modules that may be edited, as they are now: not those in the interpreter's libraries."""
    prefixes = {sys.prefix, sys.base_prefix}
    fixed = tuple(os.path.join(prefix, folder, "") for prefix in prefixes for folder in LIBRARIES)  # noqa: PTH118
    names = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    found = ((name, stamp(name)) for name in names if not name.startswith(fixed))
    return {name: there for name, there in found if there is not None}


def are_as(known: dict[str, tuple[int, int]]) -> bool:
    """Whether these files are still what they were. A worker looks at nothing else: a walk through all
    modules would copy the pages that they are on.
    """
    return all(stamp(name) == there for name, there in known.items())


def stamp(name: str) -> tuple[int, int] | None:
    """What changes when a file is written; None if there is no such file."""
    try:
        found = os.stat(name)  # noqa: PTH116 pathlib takes milliseconds
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def unsound(looks_in_fork: bool) -> str:
    """Why a fork of this process would not be a worker; "" if it would."""
    if threading.active_count() > 1:
        others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        return f"the imports started threads ({', '.join(others)})"
    if has_children():
        return "the imports started processes"
    if uses_cuda() or (looks_in_fork and uses_cuda_once_forked()):
        return CUDA
    return traces() if SECRETIVE in sys.modules else ""


def traces() -> str:
    """What ``SECRETIVE`` has left here that no fork can use; "" if there is nothing."""
    if device := open_device():
        return f"the imports opened {device}"
    return "the imports started threads in native code" if has_native_threads() else ""


def open_device() -> str:
    """A device that this process has opened; "" if there is none. Every GPU is used through one."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 pathlib takes milliseconds
        try:
            found = os.stat(f"/proc/self/fd/{name}")  # noqa: PTH116 as above
            path = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 as above
        except OSError:
            continue  # it was the listing's own
        if int(name) > 2 and stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) not in ORDINARY:
            return path
    return ""


def has_native_threads() -> bool:
    """Whether there are threads that a fork would miss. BLAS ends its own at a fork, so we fork first."""
    trial(lambda: 0)
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 as above
    return sum(is_needed(f"/proc/self/task/{thread}/stat") for thread in threads) > 1


def is_needed(status: str) -> bool:
    """Whether a thread goes on, and a fork would miss it: one that was waited for may still be exiting."""
    try:
        with open(status, "rb") as file:  # noqa: PTH123 as above
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return False
    return head.partition(b"(")[2] not in SPARED and not int(rest.split()[FLAGS]) & PF_EXITING


def uses_cuda(find: Callable[[str], object] = sys.modules.get) -> bool:
    """Whether a fork of this process could not use CUDA, as far as torch knows."""
    cuda = getattr(find("torch"), "cuda", None)
    tests = (getattr(cuda, name, None) for name in ("is_initialized", "_is_in_bad_fork"))
    return any(test() for test in tests if test is not None)


def uses_cuda_once_forked() -> bool:
    """The same in a fork: libraries may find out only there."""
    return trial(lambda: SPOILT if uses_cuda() else 0) == SPOILT


def trial(test: Callable[[], int]) -> int:
    """The exit status of a fork in which this is called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads: those of BLAS know how to be forked
        pid = os.fork()
    if pid == 0:
        status = SPOILT
        try:
            status = test()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def has_children() -> bool:
    """Whether there are processes that this one would have to wait for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def take_output(libc: Any) -> list[bytes]:
    """What the imports printed, on stdout and on stderr."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    libc.fflush(None)
    return [os.pread(number, os.fstat(number).st_size, 0) for number in (1, 2)]


def forget_missing_folders() -> None:
    """Forget, before workers are forked, which folders were missing: they may be there by now."""
    for name in [name for name, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[name]


def begin_anew() -> None:
    """Forget, in each worker, what was true of the parent, or at the time of its imports.

    A walk through all folders would copy the pages that their names are on: 450 of them after torch.
    """
    for name in sys.path:
        if sys.path_importer_cache.get(name, True) is None:
            del sys.path_importer_cache[name]  # as nobody has looked there since
    getattr(threading.main_thread(), "_set_native_id", int)()  # it is the parent's before Python 3.13


def draw_again(find: Callable[[str], Any]) -> None:
    """Draw again, in each worker, what libraries draw at random when they are loaded.

    ``random`` does so itself after a fork.
    """
    generator = getattr(find("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()  # ``torch.seed`` would leave something to be done in CUDA as well
    numpy_random = find("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process = find("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def tell_rank(find: Callable[[str], Any]) -> None:
    """Have Lightning know this worker's rank, which it looks up when it is loaded (``warm_watch.RANKED``).

    Until a strategy is made, it is what makes a function of ``rank_zero_only`` run on rank 0 only.
    """
    for name, variable in (
        ("lightning_utilities.core.rank_zero", "RANK"),
        ("torchmetrics.utilities.prints", "LOCAL_RANK"),
    ):
        function = getattr(find(name), "rank_zero_only", None)
        if function is not None and os.environ.get(variable, "").isdecimal():
            function.rank = int(os.environ[variable])
