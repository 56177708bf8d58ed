"""A script that reports everything that a script can see of its process, as JSON.

    warm_report.py FOLDER TASK... [-- ANYTHING]

It writes ``FOLDER/<round>-<rank>.json``: one dictionary of facts as they are at its first line ("start"), one
after it has imported torch ("torch"), and what the tasks found ("tasks"). Nothing in it knows how the process
was started, and nothing but a fact may change what it does.

Tasks: ``processes`` (subprocess and multiprocessing in all its ways), ``loader`` (a DataLoader with worker
processes), ``reduce`` (gloo's all-reduce over all workers), ``compile`` (torch.compile), ``edit`` (in the
first round, wait for a line from ``FOLDER/gate``, change this script and a module beside it, then fail).
"""

# ruff: noqa: E402 what the first line sees is taken before anything is imported

import sys

NAMES = sorted(globals())  # before anything else adds some
FIRST_MODULES = sorted(sys.modules)

import atexit
import faulthandler
import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
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

kernel_report = importlib.import_module("kernel_report")  # a copy beside this one, of the same edition

EDITION = 1
SHADOWED = "pickletools"  # of the standard library; torch imports it, and a file beside the script hides it
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
        "__main__": [__name__, __file__, repr(main.__doc__)[:20], __package__, globals().get("__cached__")],
        "specification": [getattr(__spec__, "name", None), type(main.__loader__).__name__],
        "dictionaries": [main.__dict__ is globals(), __builtins__ is __import__("builtins")],
        "pickle": pickle.dumps(Point(3), 0).decode().replace("\n", " "),
        "pickled": pickle.loads(pickle.dumps(Point)) is Point,
        "stack": stack(),
        "debug": [__debug__, sys.dont_write_bytecode, sys.pycache_prefix],
        "hooks": [
            *(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__),
            *(sys.unraisablehook is sys.__unraisablehook__, sys.breakpointhook is sys.__breakpointhook__),
            *(threading.excepthook is threading.__excepthook__, sys.gettrace(), sys.getprofile()),
        ],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), gc.garbage],
        "faulthandler": faulthandler.is_enabled(),
        "debug of allocations": sys.modules.get("tracemalloc") and sys.modules["tracemalloc"].is_tracing(),
        "customize": sorted(name for name in sys.modules if name.endswith("customize")),
    }


def early() -> dict[str, Any]:
    """What a warm start cannot hide."""
    environ = Path("/proc/self/environ").read_text(errors="surrogateescape").split("\0")
    return {
        "first modules": FIRST_MODULES,
        "torch is there": "torch._C" in FIRST_MODULES,  # its public modules are hidden until then
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
        **{name: value for name, value in kernel_report.status().items() if name in ("SigCgt",)},
    }


def counters() -> dict[str, Any]:
    """Names that are numbered."""
    main, process = threading.main_thread(), multiprocessing.current_process()
    return {
        "first thread": FIRST_THREAD,
        "multiprocessing": [
            multiprocessing.get_start_method(allow_none=True),
            multiprocessing.parent_process(),
        ],
        "process": [
            process.name,
            process.pid == os.getpid(),
            process.daemon,
            multiprocessing.active_children(),
        ],
        "main thread": [main is threading.current_thread(), main.name, threading.active_count()],
        "number of the main thread": [main.ident == threading.get_ident(), main.native_id == os.getpid()],
    }


def streams() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        found[name] = {
            it: getattr(stream, it)
            for it in ("encoding", "errors", "line_buffering", "newlines", "name", "mode")
        }
        found[name]["number"] = [stream.fileno(), stream.isatty(), os.get_blocking(stream.fileno())]
        found[name]["buffer"] = [type(stream.buffer).__name__, stream.write_through]
        found[name]["first"] = stream is getattr(sys, f"__{name}__")
    return {
        **found,
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.getlocale()],
        "encodings": [sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "time zone": [time.tzname, time.timezone],
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


def seeded() -> dict[str, Any]:
    """The same in any two processes."""
    import numpy
    import torch

    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    found = {
        "random": random.random(),
        "numpy": numpy.random.random(),
        "torch": torch.rand(2).tolist(),
        "torch's normal": torch.randn(2).tolist(),
        "permuted": torch.randperm(9).tolist(),
    }
    random.seed()
    numpy.random.seed()
    torch.seed()
    return found


def facts() -> dict[str, Any]:
    return {
        **interpreter(),
        **shown_by_import(),
        **counters(),
        **streams(),
        **kernel_report.kernel(),
        **kernel_report.environment(),
    }


def of_torch() -> dict[str, Any]:
    import numpy
    import torch

    cuda: Any = torch.cuda
    square = torch.ones(300, 300)
    for _ in range(3):  # every pool of threads has its threads afterwards
        (square @ square).sum().item()
        numpy.dot(square.numpy(), square.numpy())
    return {
        "torch's threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "threads after operations": kernel_report.status()["Threads"],
        "torch's modes": [
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        ],
        "torch's precision": [
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        ],
        "cuda": [cuda.is_initialized(), cuda._is_in_bad_fork(), cuda.device_count()],
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
        "signals": [kernel_report.status()[name] for name in ("SigBlk", "SigIgn", "SigPnd")],
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


def compiled(_: object) -> dict[str, Any]:
    import torch
    from torch._dynamo.utils import counters

    layer = torch.nn.Linear(3, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(3.0))
        layer.bias.fill_(0.5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.125)
    loss = torch.compile(lambda x: (torch.sin(layer(x)) + 2 * x).sum())(torch.ones(3))
    loss.backward()
    optimizer.step()
    return {
        "loss": loss.item(),
        "weights": [value.tolist() for value in layer.parameters()],
        "counted": {
            name: dict(values) for name, values in counters.items() if name in ("stats", "graph_break")
        },
        "threads": threading.active_count(),
    }


def edit() -> None:
    """Once all have reported, change what a restart will read, then fail; other ranks wait to be stopped."""
    from torch import distributed

    distributed.barrier()
    if os.environ["RANK"] != "0":
        signal.pause()
    with Path(sys.argv[1], "gate").open() as gate:
        gate.readline()
    here = Path(__file__)
    here.write_text(here.read_text().replace("\nEDITION = 1\n", "\nEDITION = 23\n"))
    here.with_name("beside.py").write_text("VALUE = 45\n")
    sys.exit(3)


def main() -> None:
    folder, *tasks = sys.argv[1:]
    tasks = tasks[: tasks.index("--")]
    report: dict[str, Any] = {
        "start": {**early(), **facts(), "used by children": kernel_report.used_by_children()}
    }

    import torch

    report["torch"] = {**facts(), **of_torch()}
    report["drawn"] = drawn()
    restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    if "edit" in tasks and restarts == "0":
        tasks = ["reduce", *(name for name in tasks if name == "compile"), "edit"]
    known = {"processes": processes, "loader": loader, "reduce": reduce, "compile": compiled}
    report["tasks"] = {name: known[name](report["drawn"]) for name in tasks if name in known}
    report["tasks"]["seeded"] = seeded()
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
    main()
