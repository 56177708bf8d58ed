"""Whether a forked worker may use what its warm parent has imported, asked when the script imports it.

Theory. Modules read the environment while they are imported, and some libraries the process's CPUs and
limits. A warm parent imports before the script's first line, so what the script changes before its own
``import torch`` would come too late. Hence the parent writes down what is read during its imports, and takes
the modules out of ``sys.modules`` again. So the script's import comes to a finder, as it would in a cold
process. If nothing that was read has changed by then, and the module would still be found where the parent
found it, and loaded in the same way, the modules are put back. Else the worker *goes on cold*: it executes
its own command line anew, in the same process, with the environment, directory and CPUs that it was given.
What the script did before that import runs a second time.

Invariants. A worker goes on cold at most once, and only while its program still begins: at the first import
of what was asked for, or at a later one that stands at the top of a module. It does not if it has threads or
children by then, or has read its standard input, as a new start would lose them, nor under ``--warm on``;
then it says in a warning which change comes too late. Nor does a child that a worker has forked: it would
run the whole program beside the worker. Names that libraries read in C cannot be
seen from here; ``EARLY`` has them, and a test compares it with the installed torch.

To put a module back copies the page that it lies on, and that of its name. So the names are copies that lie
side by side, and only those public modules are hidden that scripts import first: packages down to the fourth
level, modules right below the top, and those in ``AWAITED``. A script that begins with another one is checked
at its next import. This file lies beside ``warm.py`` and is loaded with it, by its path.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

#: Variables that C code reads as it is loaded, below torch and tensorflow; a file of the sources lists them.
EARLY = re.compile(
    r"(?:OMP|GOMP|KMP|LIBOMP|MKL|MKLDNN|ONEDNN|DNNL|OPENBLAS|GOTO|BLIS|NPY|NUMPY|NUMEXPR|ATEN|ACC|GFORTRAN"
    r"|I_MPI|MPI|OMPI|HDF5|GCS|XLA|TF)_\w+"
    r"|TORCH_(?:CPP_LOG_LEVEL|CUSTOM_TERMINATE|ALLOW_TF32_CUBLAS_OVERRIDE|SHOW_CPP_STACKTRACES"
    r"|DISTRIBUTED_DEBUG|LINALG_\w+|BLAS_\w+|ROCM_\w+|VITAL|SYMMMEM)"
    r"|PYTORCH_(?:API_USAGE_STDERR|(?:CUDA_|HIP_|NO_CUDA_)\w+|ALLOC_CONF)"
    r"|INTEL_\w+|KINETO_USE_DAEMON|THP_MEM_ALLOC_ENABLE|OPENSSL_\w+|LLVM_\w+|GLIBCXX_TUNABLES"
    r"|DISABLE_HOST_SEND_RECV_REGISTRATION|GRPC_THREAD_POOL_VERBOSE_FAILURES|AS_SECURE_LOG_FILE"
    r"|CUBLAS_LOG\w+|CUBLASLT_DISABLE_\w+|CASK_\w+|LIBNVVM_\w+|NVRTC_\w+|NV_NVVM_VERSION"  # builds for GPUs
    r"|CUDA_(?:7a3f9c2d|LAUNCH_BLOCKING|PREFER_SPINLOCKS_ON_HOST)"
)
#: This one is read whenever a strategy is made.
LATE = "TF_CONFIG"
#: What Lightning looks up in these modules, each worker does again (``warm_imports.tell_rank``).
RANKS = {"RANK", "LOCAL_RANK"}
RANKED = re.compile(r"(?:lightning\.|lightning_)fabric\.utilities\.rank_zero|torchmetrics\.utilities\.prints")
#: Limits that libraries meet as they start threads and take memory.
LIMITS = re.compile(rb"^Max (?:stack size|processes|address space|data size) .*$", re.M)
#: Levels of names that are hidden.
PACKAGES, MODULES = 4, 2
#: Modules that ``sitecustomize`` waits for, and gives here.
AWAITED: frozenset[str] = frozenset()
#: The finder that calls us.
WITHIN = os.path.join(os.path.dirname(__file__), "inject", "sitecustomize.py")  # noqa: PTH118, PTH120 pathlib takes milliseconds
ADVICE = "--warm off starts all workers cold, --warm on keeps them warm"


class Batch:
    """A requested module and all that its import brought, and the variables that they read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.modules: dict[str, ModuleType] = {}  # those that are hidden
        self.bound: list[tuple[ModuleType, str, ModuleType]] = []  # attributes of modules outside of it
        self.reads: set[str] = set()

    def hide(self) -> None:
        """Take the modules out of ``sys.modules``, and their attributes out of other modules."""
        for name, module in self.modules.items():
            package, _, attribute = name.rpartition(".")
            owner = sys.modules.get(package) if package not in self.modules else None
            if owner is not None and vars(owner).get(attribute) is module:
                delattr(owner, attribute)
                self.bound.append((owner, attribute, module))
        for name in self.modules:
            sys.modules.pop(name, None)

    def show(self) -> None:
        """Undo ``hide``."""
        sys.modules.update(self.modules)
        while self.bound:
            owner, attribute, module = self.bound.pop()
            setattr(owner, attribute, module)

    def release(self, names: list[str]) -> None:
        """Show some of the modules for good."""
        back = {name: self.modules.pop(name) for name in names}
        sys.modules.update(back)
        for owner, attribute, module in self.bound:
            if module in back.values():
                setattr(owner, attribute, module)

    def is_meant(self, name: str) -> bool:
        """Whether an import of this module counts as one of the whole batch."""
        return top(name) == top(self.name)

    def part(self, name: str) -> list[str]:
        """What is put back when this module is imported: all, or its own package if that came along."""
        return [it for it in self.modules if self.is_meant(name) or top(it) == top(name)]


def top(name: str) -> str:
    """The package that a module belongs to."""
    return name.partition(".")[0]


class Watch:
    """What a warm parent has imported, and under which circumstances."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.cpus = os.sched_getaffinity(0)
        self.limits = limits()
        self.folder = folder()
        self.mask = os.umask(0o77)
        os.umask(self.mask)
        self.keeps_warm = False
        self.expected: dict[str, str] = {}  # the environment, as the imports would find it
        self.command: dict[str, Any] = {}  # argv and env of this worker
        self.is_used = False  # something that was asked for has been put back
        self.pid = 0  # of the worker; its children have another
        self.stdin: Noted | None = None

    # -- in the parent

    @contextlib.contextmanager
    def importing(self, name: str) -> Iterator[None]:
        """Make a batch of all that is imported in this block, which asks for this module."""
        for batch in self.batches:
            batch.show()
        new, before = Batch(name), set(sys.modules)
        with reads_noted(new.reads):
            yield
        came = {it: module for it, module in [*sys.modules.items()] if it not in before}
        found = [it for it in came if may_hide(it, name, "__path__" in vars(came[it]))]
        new.modules = {own: came[own] for own in side_by_side(found)}
        self.batches.append(new)

    def hide(self) -> None:
        """Hide all modules, so that they are found through a finder only."""
        if not self.expected:  # what is imported later leaves it as it was
            self.expected = dict(os.environ)
        for batch in self.batches:
            batch.hide()

    def find(self, name: str) -> ModuleType | None:
        """A module, hidden or not."""
        batch = self.batch_of(name)
        return batch.modules[name] if batch is not None else sys.modules.get(name)

    # -- in a worker

    def begin(self, stdin: Noted | None) -> None:
        """Prepare for the script. Its CPUs are noted only now: a scheduler may have moved us."""
        self.pid, self.stdin = os.getpid(), stdin
        self.cpus = os.sched_getaffinity(0)

    def show(self) -> None:
        """Put everything back: there is no script that could have changed anything."""
        for batch in self.batches:
            batch.release([*batch.modules])

    def batch_of(self, name: str) -> Batch | None:
        """The batch that still hides a module of this name."""
        return next((batch for batch in self.batches if name in batch.modules), None)

    def arrange(self, spec: Any, then: Callable[[], None]) -> Any:
        """Have an import of a hidden module use what is there, or go on cold; ``then`` follows the former."""
        spec.loader = Loader(spec.loader, self, spec.origin, then)
        return spec

    def release(self, name: str, origin: str | None, loader: Any) -> None:
        """Put back a module that the script imports now; first go on cold if anything has changed."""
        batch = self.batch_of(name)
        if batch is None:
            return
        module = batch.modules[name]
        changes = self.changes(batch if self.is_used else None)
        if origin != getattr(module.__spec__, "origin", origin):
            changes.append(f"where {name} is found ({origin})")
        elif is_hooked(loader, getattr(module.__spec__, "loader", None)):
            changes.append(f"what loads {name} ({type(loader).__name__})")
        if changes:
            self.go_on_cold(name, changes)
        self.is_used = self.is_used or batch.is_meant(name)
        batch.release(batch.part(name))

    def changes(self, only: Batch | None) -> list[str]:
        """What has changed since the imports, in words; ``only``: just variables that this batch has read."""
        batches = self.batches if only is None else [only]
        names = {name for name in {*self.expected, *os.environ} if EARLY.fullmatch(name)} - {LATE}
        names = set().union(*(batch.reads for batch in batches), names if only is None else ())
        found = [name for name in sorted(names) if os.environ.get(name) != self.expected.get(name)]
        if only is None:
            found += ["the process's CPUs"] if os.sched_getaffinity(0) != self.cpus else []
            found += ["a resource limit"] if limits() != self.limits else []
        return found

    def go_on_cold(self, name: str, changes: list[str]) -> None:
        """Execute this worker's command anew; returns if that is out of the question."""
        changed = f"{', '.join(changes)} changed before the script's import of {name}{place()}"
        if reason := self.stays():
            say(f"{changed}: too late for a worker that was forked with {name}, and {reason}; {ADVICE}")
            return
        say(
            f"{changed}: this worker goes on cold, by a new start of its program, and each restart will take"
            f" the time of the import; {ADVICE}"
        )
        try:
            self.execute()
        except OSError as error:
            say(f"it cannot start anew ({error}), and keeps the warm imports")

    def stays(self) -> str:
        """Why this process cannot be started anew; "" if it can."""
        if self.keeps_warm:
            return "--warm on keeps it"
        if os.getpid() != self.pid:
            return "it is a child of the worker"
        if has_threads():
            return "it has threads"
        if has_children():
            return "it has children"
        if self.stdin is not None and self.stdin.was_read:
            return "it has read its standard input"
        return "it is at work already" if self.is_used and not is_beginning() else ""

    def execute(self) -> None:
        """Start the program as the spawner does; the process stays, and so do its standard files."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the script may have put anything in their place
                stream.flush()
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)  # else its signal ends the program before that has a handler
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 pathlib takes milliseconds
            if int(number) > 2:
                with contextlib.suppress(OSError):  # the listing's own
                    os.set_inheritable(int(number), False)
        os.chdir(self.folder)
        os.sched_setaffinity(0, self.cpus)
        os.umask(self.mask)
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        argv = self.command["argv"]
        os.execvpe(argv[0], argv, self.command["env"])


class Noted(io.FileIO):
    """A worker's standard input, and whether anything was read from it."""

    was_read = False

    def readinto(self, *args: Any) -> Any:  # what a buffer calls
        self.was_read = True
        return super().readinto(*args)

    def readall(self) -> Any:  # the same, when all is wanted
        self.was_read = True
        return super().readall()


class Loader:
    """Gives the hidden module instead of loading it; leaves all else to the loader that it replaces."""

    def __init__(self, loader: Any, watch: Watch, origin: str | None, then: Callable[[], None]) -> None:
        self._loader = loader
        self._watch = watch
        self._origin = origin
        self._then = then
        self._spec: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """The module that was hidden."""
        self._watch.release(spec.name, self._origin, self._loader)
        module = sys.modules[spec.name]
        self._spec = module.__spec__  # importlib is about to give it the new one
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing: the parent did."""
        module.__spec__ = self._spec
        self._then()


def is_hooked(loader: Any, before: Any) -> bool:
    """Whether a loader of another type loads it now: mostly a tracer's, from the user's sitecustomize."""
    return None not in (loader, before) and type(loader) is not type(before)


def may_hide(name: str, asked: str, is_package: bool) -> bool:
    """Whether a script may import this first, and an interpreter that was just started would not have it."""
    if top(name) in sys.stdlib_module_names:
        return False
    deepest = PACKAGES if is_package else MODULES
    below = name[len(asked) :] if f"{name}.".startswith(f"{asked}.") else f".{name}"
    is_public = "._" not in below and name.count(".") < deepest
    return is_public or name in AWAITED or asked.startswith(f"{name}.")


def side_by_side(names: list[str]) -> list[str]:
    """New copies of the strings, which share pages with one another and with little else."""
    return list(json.loads(json.dumps(names)))


@contextlib.contextmanager
def reads_noted(names: set[str]) -> Iterator[None]:
    """Note which variables are looked up by way of ``os.environ``."""
    kind: Any = type(os.environ)
    look_up = kind.__getitem__

    def noting(environ: Any, name: Any) -> Any:
        read = os.fsdecode(name)
        if read not in RANKS or not RANKED.fullmatch(reader()):
            names.add(read)
        return look_up(environ, name)

    kind.__getitem__ = noting
    try:
        yield
    finally:
        kind.__getitem__ = look_up


def reader() -> str:
    """The module that looks up a variable."""
    frame: Any = sys._getframe(2)
    while (name := str(frame.f_globals.get("__name__"))) in ("os", "collections.abc"):
        frame = frame.f_back
    return name


def limits() -> list[bytes]:
    """Limits of this process that matter to libraries."""
    try:
        with open("/proc/self/limits", "rb") as file:  # noqa: PTH123 pathlib takes milliseconds
            return LIMITS.findall(file.read())
    except OSError:
        return []


def folder() -> str:
    """The working directory; "." if it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 pathlib takes milliseconds
    except OSError:
        return "."


def has_children() -> bool:
    """Whether this process has any, ended ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_threads() -> bool:
    """Whether this process has threads besides the main one, Python's or not."""
    return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208 pathlib takes milliseconds


def is_beginning() -> bool:
    """Whether this is an import at the top of the program: no function of it runs."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if name != "<module>" and not file.startswith("<") and file not in (__file__, WITHIN):
            return False
        frame = frame.f_back
    return True


def place() -> str:
    """The place in a file of the import that is under way."""
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename == __file__ or "importlib" in frame.f_code.co_filename):
        frame = frame.f_back
    return f" ({os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno})"  # noqa: PTH119 as above


def say(text: str) -> None:
    """Write a line to this worker's stderr."""
    with contextlib.suppress(OSError):
        os.write(2, f"elastic-run: {text}\n".encode(errors="replace"))
