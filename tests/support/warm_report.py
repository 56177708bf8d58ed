"""A script that reports everything that a script can see of its process, as JSON.

    warm_report.py FOLDER TASK... [-- ANYTHING]

It writes ``FOLDER/<round>-<rank>.json``: one dictionary of facts as they are at its first line ("start"), one
after it has imported torch ("torch"), and what the tasks found ("tasks"). Nothing in it knows how the process
was started, and nothing but a fact may change what it does.

Tasks: ``processes`` (subprocess and multiprocessing in all its ways), ``loader`` (a DataLoader with worker
processes), ``reduce`` (gloo's all-reduce over all workers), ``compile`` (torch.compile), ``edit`` (in the
first round, change this script and a module beside it, then fail).
"""

# ruff: noqa: E402 what the first line sees is taken before anything is imported

import sys

NAMES = sorted(globals())  # before anything else adds some
FIRST_MODULES = sorted(sys.modules)

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import secrets
import signal
import subprocess
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

EDITION = 1
SHADOWED = "pickletools"  # of the standard library; torch imports it, and a file beside the script hides it
STATUS = (
    *(
        "Umask",
        "Groups",
        "Threads",
        "SigQ",
        "SigPnd",
        "ShdPnd",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapEff",
        "CapBnd",
    ),
    *("NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Mems_allowed_list", "THP_enabled", "TracerPid"),
)
PRCTL_VALUES = {
    "dumpable": 3,
    "keep capabilities": 7,
    "timer slack": 30,
    "no new privileges": 39,
    "huge pages": 42,
}
PRCTL_POINTERS = {"death signal": 2, "subreaper": 37}
CHILD = "import json, os, sys; print(json.dumps([dict(os.environ), sys.path, sys.argv, sorted(sys.modules)]))"


class Point:
    """Something to be pickled by the name of this module."""

    def __init__(self, x: int) -> None:
        self.x = x


# -- facts


def interpreter() -> dict[str, Any]:
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "flags": repr(sys.flags),
        "warnoptions": [*sys.warnoptions, *sorted(sys._xoptions)],
        "executable": [sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix],
        "path": sys.path,
        "meta_path": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
        "path_hooks": [getattr(hook, "__qualname__", repr(hook)) for hook in sys.path_hooks],
        "names of __main__": NAMES,
        "__main__": [
            *(__name__, __file__, repr(main.__doc__)[:20], __package__, globals().get("__cached__")),
            *(
                getattr(__spec__, "name", None),
                type(main.__loader__).__name__,
                __builtins__ is __import__("builtins"),
            ),
            *(main.__dict__ is globals(), sorted(set(main.__dict__) ^ set(globals()))),
        ],
        "pickle": pickle.dumps(Point(3), 0).decode().replace("\n", " "),
        "pickled": pickle.loads(pickle.dumps(Point)) is Point,
        "stack": stack(),
        "debug": [__debug__, sys.dont_write_bytecode, sys.pycache_prefix],
        "hooks": [
            *(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__),
            *(sys.unraisablehook is sys.__unraisablehook__, sys.breakpointhook is sys.__breakpointhook__),
            *(threading.excepthook is threading.__excepthook__, sys.gettrace(), sys.getprofile()),
        ],
        "limits of the interpreter": [
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            sys.get_int_max_str_digits(),
        ],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), gc.garbage],
        "faulthandler": faulthandler.is_enabled(),
        "debug of allocations": sys.modules.get("tracemalloc") and sys.modules["tracemalloc"].is_tracing(),
        "hidden sitecustomize": sorted(
            name for name in sys.modules if name.endswith(("sitecustomize", "usercustomize"))
        ),
    }


def early() -> dict[str, Any]:
    """What a warm start cannot hide."""
    environ = Path("/proc/self/environ").read_text(errors="surrogateescape").split("\0")
    return {
        "first modules": FIRST_MODULES,
        "torch is there": "torch" in FIRST_MODULES,
        "frozen objects": gc.get_freeze_count() > 0,
        "environment in /proc": f"RANK={os.environ['RANK']}" in environ,
    }


def stack() -> list[str]:
    """The functions below this one, the outermost last."""
    frame = sys._getframe(1)
    names = []
    while frame.f_back:
        frame = frame.f_back
        names.append(f"{frame.f_code.co_filename} {frame.f_code.co_name}")
    return names


def shown_by_import() -> dict[str, Any]:
    """What importing torch changes."""
    return {
        "modules": sorted(sys.modules),
        "warning filters": [str(filter_) for filter_ in warnings.filters],
        "loggers": [logging.root.level, len(logging.root.handlers), sorted(logging.root.manager.loggerDict)],
        "importers": sorted(sys.path_importer_cache),
        "signal handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "exit handlers": atexit._ncallbacks(),
        "shadowed": getattr(sys.modules.get(SHADOWED), "__file__", None),
        **{name: value for name, value in status().items() if name in ("SigCgt",)},
    }


def counters() -> dict[str, Any]:
    """Names that are numbered."""
    thread = threading.Thread()
    return {
        "numbers": [int(thread.name.partition("-")[2]) > 0, multiprocessing.current_process().name],
        "first thread": FIRST_THREAD,
        "multiprocessing": [
            *(multiprocessing.get_start_method(allow_none=True), multiprocessing.parent_process()),
            *(multiprocessing.current_process().pid == os.getpid(), multiprocessing.current_process().daemon),
            multiprocessing.active_children(),
        ],
        "main thread": [
            *(threading.main_thread() is threading.current_thread(), threading.active_count()),
            *(
                threading.main_thread().ident == threading.get_ident(),
                threading.get_native_id() == os.getpid(),
            ),
            *(threading.main_thread().native_id == os.getpid(), threading.main_thread().name),
        ],
    }


def streams() -> dict[str, Any]:
    found = {}
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        found[name] = [
            *(stream.fileno(), stream.encoding, stream.errors, stream.line_buffering, stream.write_through),
            *(
                stream.isatty(),
                stream.name,
                stream.mode,
                stream.newlines,
                stream is getattr(sys, f"__{name}__"),
            ),
            *(type(stream.buffer).__name__, os.get_blocking(stream.fileno())),
        ]
    return {
        **found,
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.getlocale()],
        "encodings": [sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "time zone": [time.tzname, time.timezone],
    }


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    values = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    values["SigQ"] = values["SigQ"][0].split("/")[1:]  # how many are queued is the whole user's
    return {name: " ".join(values.get(name, ["none"])) for name in STATUS}


def descriptors() -> list[list[Any]]:
    """[number, kind, flags of the file, flags of the descriptor] of all that is open."""
    found = []
    for number in sorted(int(name) for name in os.listdir("/proc/self/fd")):  # noqa: PTH208 the numbers
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 may be no path
            flags, own = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            continue  # the one that listed them
        found.append([number, target.partition(":[")[0], flags, own])
    return found


def kernel() -> dict[str, Any]:
    me = Path("/proc/self")
    stat = (me / "stat").read_text().rpartition(")")[2].split()
    parent = Path(f"/proc/{os.getppid()}")
    return {
        **status(),
        "cwd": os.getcwd(),  # noqa: PTH109
        "files": descriptors(),
        "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
        "leads": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "terminal": [stat[4], stat[5], can_open("/dev/tty")],
        "end is told by signal": stat[35],
        "scheduling": [
            stat[15],
            stat[16],
            stat[38],
            os.sched_getscheduler(0),
            sorted(os.sched_getaffinity(0)),
        ],
        "parent": (parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip(),
        "children": [
            (me / f"task/{os.getpid()}/children").read_text(),
            waits(),
            resource.getrusage(-1).ru_utime,
        ],
        "limits": (me / "limits").read_text().splitlines(),
        "resource limits": [resource.getrlimit(number) for number in range(16)],
        "oom": (me / "oom_score_adj").read_text(),
        "personality": (me / "personality").read_text(),
        "cgroup": (me / "cgroup").read_text(),
        "comm": (me / "comm").read_text(),
        "cmdline": (me / "cmdline").read_text().split("\0"),
        "exe": os.readlink(me / "exe"),  # noqa: PTH115
        "root": os.readlink(me / "root"),  # noqa: PTH115
        "namespaces": [os.readlink(entry) for entry in sorted((me / "ns").iterdir())],  # noqa: PTH115
        "timers": [signal.getitimer(which) for which in (0, 1, 2)],
        "prctl": prctl_values(),
        "wakeup": wakeup(),
        "C's random numbers": C_RANDOM,
    }


def can_open(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return str(error)
    return "yes"


def waits() -> str:
    try:
        return str(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        return "no children"


def wakeup() -> int:
    old = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(old)
    return old


def prctl_values() -> dict[str, int]:
    call = ctypes.CDLL(None).prctl
    found = {name: int(call(option, 0, 0, 0, 0)) for name, option in PRCTL_VALUES.items()}
    for name, option in PRCTL_POINTERS.items():
        value = ctypes.c_int(-1)
        call(option, ctypes.byref(value), 0, 0, 0)
        found[name] = value.value
    return found


def environment() -> dict[str, Any]:
    """As Python has it, and as C has it."""
    pointers = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    in_c: list[str] = []
    while entry := pointers[len(in_c)]:
        in_c.append(entry.decode(errors="surrogateescape"))
    return {
        "environment": dict(sorted(os.environ.items())),
        "environment in C": sorted(in_c),
        "twice in the environment": len(in_c) - len(os.environ),
    }


def drawn() -> dict[str, Any]:
    """What has to differ between any two processes."""
    import numpy
    import torch

    return {
        "random": random.random(),
        "SystemRandom": random.SystemRandom().random(),
        "secrets": secrets.token_hex(),
        "uuid": str(uuid.uuid4()),
        "temporary name": next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        "numpy": numpy.random.random(),
        "numpy's generators": numpy.random.default_rng().random(),
        "torch's seed": torch.initial_seed(),
        "torch": torch.rand(1, dtype=torch.float64).item(),
    }


def facts() -> dict[str, Any]:
    return {**interpreter(), **shown_by_import(), **counters(), **streams(), **kernel(), **environment()}


def of_torch() -> dict[str, Any]:
    import numpy
    import torch

    square = torch.ones(300, 300)
    for _ in range(3):  # every pool of threads has its threads afterwards
        (square @ square).sum().item()
        numpy.dot(square.numpy(), square.numpy())
    return {
        "torch's threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "threads after operations": status()["Threads"],
        "torch's modes": [
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        ],
        "torch's precision": [
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        ],
        "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), torch.cuda.device_count()],
        "numpy's errors": numpy.geterr(),
    }


# -- tasks


def child_facts(_: object = None) -> dict[str, Any]:
    """What a process of multiprocessing sees."""
    return {
        "main": [__name__, Point.__module__, sys.argv, sys.path],
        "environment": dict(sorted(os.environ.items())),
        "modules": "torch" in sys.modules,
        "parent": os.getppid() == multiprocessing.parent_process().pid,  # type: ignore[union-attr]
        "signals": [status()[name] for name in ("SigBlk", "SigIgn", "SigPnd")],
        "random": random.random(),
    }


def child_of_queue(queue: Any) -> None:
    queue.put(child_facts())


def processes(numbers: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("fork", "spawn", "forkserver"):
        context: Any = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child_of_queue, args=(queue,))
        process.start()
        found[method] = queue.get()
        numbers[method] = found[method].pop("random")
        process.join()
        found[method]["end"] = [process.exitcode, process.name]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found["pool"] = pool.map(abs, [-1, 2, -3])
    command = [sys.executable, "-c", CHILD, "an argument"]
    found["subprocess"] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found["exit status"] = subprocess.run(["sh", "-c", "exit 7"], check=False).returncode
    found["forked"] = os.waitstatus_to_exitcode(os.waitpid(fork_and(lambda: os._exit(9)), 0)[1])
    return found


def fork_and(do: Callable[[], None]) -> int:
    if pid := os.fork():
        return pid
    try:
        do()
    finally:
        os._exit(1)


class Squares:
    """A data set that tells who loaded an item."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[int]:
        import torch

        info: Any = torch.utils.data.get_worker_info()
        return [index * index, info.id, info.seed]


def loader(numbers: dict[str, Any]) -> list[Any]:
    from torch.utils.data import DataLoader

    loaded = DataLoader(Squares(), num_workers=2, batch_size=2)  # type: ignore[arg-type, var-annotated]
    batches = [[value.tolist() for value in batch] for batch in loaded]
    numbers["loader"] = [batch[2][0] for batch in batches]
    return [batch[:2] for batch in batches]


def reduce(_: object) -> list[float]:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.tensor([float(os.environ["RANK"]) + 1])
    distributed.all_reduce(value)
    return value.tolist()


def compiled(_: object) -> list[float]:
    import torch

    return torch.compile(lambda x: torch.sin(x) + 2 * x)(torch.arange(3.0)).tolist()


def edit() -> None:
    """Once all have reported, change what a restart will read, then fail; other ranks wait to be stopped."""
    from torch import distributed

    distributed.barrier()
    if os.environ["RANK"] != "0":
        signal.pause()
    here = Path(__file__)
    here.write_text(here.read_text().replace("\nEDITION = 1\n", "\nEDITION = 23\n"))
    here.with_name("beside.py").write_text("VALUE = 45\n")
    sys.exit(3)


def main() -> None:
    folder, *tasks = sys.argv[1:]
    tasks = tasks[: tasks.index("--")]
    report: dict[str, Any] = {"start": {**early(), **facts()}}

    import torch

    report["torch"] = {**facts(), **of_torch()}
    report["drawn"] = drawn()
    restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    if "edit" in tasks and restarts == "0":
        tasks = ["reduce", "edit"]
    known = {"processes": processes, "loader": loader, "reduce": reduce, "compile": compiled}
    report["tasks"] = {name: known[name](report["drawn"]) for name in tasks if name in known}
    report["tasks"]["edition"] = [EDITION, importlib.import_module("beside").VALUE]
    path = Path(folder, f"{restarts}-{rank}.json")
    path.write_text(json.dumps(report, default=str))
    atexit.register(lambda: path.with_suffix(".end").write_text("atexit"))
    sys.stdout.write(f"rank {rank} to stdout\n")
    sys.stderr.write(f"rank {rank} to stderr\n")
    if tasks[-1] == "edit" and restarts == "0":
        edit()
    if "reduce" in tasks:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    FIRST_THREAD = threading.Thread().name
    C_RANDOM = [ctypes.CDLL(None).rand() for _ in range(3)]
    main()
