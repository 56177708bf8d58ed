"""What a worker's interpreter runs first, so that training steps are reported with no change to the script.

The agent puts this directory, which holds nothing else, in front of PYTHONPATH. ``site`` imports this file
before the script's first line. It undoes that at once (PYTHONPATH, our variable, ``sys.path``), so that
neither the script nor its children see any of it. It runs the sitecustomize that would have run without it,
if there is one. With a finder on ``sys.meta_path`` it waits for the parts of torch that make steps
(``reporter.py``) and that have ranks meet (``store_wait.py``). It never imports torch itself.

In a warm parent it does not return: it forks workers, and each of them goes on from here as if it had just
been started, with all that the parent has imported. A fork for another program than the script also runs the
sitecustomize that would have run without us, as that program would, and then the program.

Invariants. It needs nothing but the interpreter: ``elasticrun`` may be missing, the Python another one. A
failure here costs the reports and some speed, never the script. A warm parent never gets to the script's
first line.
"""

import os
import sys

TYPE_CHECKING = False  # typing takes milliseconds, and nothing may be imported that the script does not have
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

VARIABLE = "ELASTICRUN_PROGRESS"
WARM = "ELASTICRUN_WARM"
#: Under these names elasticrun's worker library finds this module and the reporter.
NAME = "_elasticrun_sitecustomize"
REPORTER = "elasticrun.worker.reporter"
PARTS = ("marks", "own_time", "dumps", "reporter")  # what it imports, and it
STORE_WAIT = "elasticrun.worker.store_wait"
RENDEZVOUS = "torch.distributed.rendezvous"
#: Modules that make steps, or have ranks meet.
WANTED = (
    "torch.optim.optimizer",
    "torch.nn.parallel.distributed",
    "torch.serialization",
    "torch.utils.data.dataloader",
    "torch.distributed.checkpoint.state_dict_saver",
    RENDEZVOUS,
    "safetensors.torch",
)

#: The agent's page as the variable described it; "" if this is no worker of ours.
page = ""
pid = os.getpid()  # the page is for this process: a child that is forked later is not the worker
watch: "Any" = None  # what a warm parent has imported (``warm_watch.py``); None: there was none
kept: "dict[str, Any]" = {}  # modules of ours that it has loaded, out of sight: workers share their pages


def restore(here: str, was_set: bool) -> None:
    """Leave PYTHONPATH and ``sys.path`` as they would be without us."""
    parts = os.environ["PYTHONPATH"].split(os.pathsep)
    parts.remove(here)
    if parts or was_set:
        os.environ["PYTHONPATH"] = os.pathsep.join(parts)
    else:
        del os.environ["PYTHONPATH"]
    while here in sys.path:
        sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)


def is_injected(here: str) -> bool:
    """Whether the agent put us in front of this process's path."""
    return here in os.environ.get("PYTHONPATH", "").split(os.pathsep)


def load(name: str, file: str) -> "Any":
    """A module that lies beside this directory, without any import of its package."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), file)  # noqa: PTH100, PTH118, PTH120 pathlib takes milliseconds
    spec: Any = type(__spec__)(name, type(__loader__)(name, path), origin=path)  # type: ignore[name-defined]
    module: Any = type(sys)(name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, path
    spec.loader.exec_module(module)
    return module


def load_reporter() -> "Any":
    """The reporter, which all of this process shares."""
    if REPORTER not in sys.modules:
        for part in PARTS:
            name = f"elasticrun.worker.{part}"
            sys.modules[name] = kept.pop(name, None) or load(name, f"{part}.py")
    return sys.modules[REPORTER]


def load_early() -> None:
    """Load, in a warm parent, what its workers will need of ours; nobody sees it in ``sys.modules``."""
    names = [f"elasticrun.worker.{part}" for part in PARTS]
    if sys.modules.keys().isdisjoint(names):  # else the script's own imports brought them
        load_reporter()
        kept.update({name: sys.modules.pop(name) for name in names})
    kept[STORE_WAIT] = load(STORE_WAIT, "store_wait.py")


class Finder:
    """Finds nothing itself, but hears when certain modules have been executed; then it goes away.

    It makes an import use what a warm parent has imported.
    """

    def __init__(self, watch: "Any", wanted: "set[str]") -> None:
        self.watch = watch
        self.wanted = wanted

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """What the other finders find, with a loader that tells us."""
        is_hidden = self.watch is not None and self.watch.batch_of(name) is not None
        if name not in self.wanted and not is_hidden:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if is_hidden:
                    return self.watch.arrange(spec, self.put_back)
                self.wanted.discard(name)
                hook(spec.loader, name)
                self.leave_if_done()
                return spec
        return None

    def put_back(self) -> None:
        """Hook the wanted modules that are found again: a warm parent has executed them."""
        for name in sorted(self.wanted):
            # One by one: a walk through all modules copies the pages of their names. And not before a script
            # imports the package, as in a process that has imported nothing.
            if name in sys.modules and name.partition(".")[0] in sys.modules:
                self.wanted.discard(name)
                imported(name, sys.modules[name])

    def leave_if_done(self) -> None:
        """Leave the list. Called only where a spec is returned, as importlib is walking it."""
        if not self.wanted and self.watch is None and self in sys.meta_path:
            sys.meta_path.remove(self)


def hook(loader: "Any", name: str) -> None:
    """Make the loader call us once, after the module's own code; then nothing is left of us in it."""

    def exec_module(module: "ModuleType") -> None:
        del loader.exec_module
        loader.exec_module(module)
        imported(name, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return  # a loader in C: this module stays as it is


def imported(name: str, module: "ModuleType") -> None:
    """Hook a module that we waited for."""
    try:
        reporter = load_reporter()
        if name == RENDEZVOUS:
            store_wait = kept.pop(STORE_WAIT, None) or load(STORE_WAIT, "store_wait.py")
            store_wait.imported(name, module, reporter.reach)
        else:
            reporter.imported(name, module)
    except Exception:  # noqa: BLE001 whatever it is, the script goes on without reports
        return


def take_page(here: str) -> "set[str]":
    """Take the page out of the environment, and this directory off the path; the modules to wait for."""
    global page
    page = os.environ.pop(VARIABLE, "")
    restore(here, page.endswith(":set"))
    return set(WANTED) if page.count(":") else set()


def adopt() -> None:
    """Be a worker, as ``os.environ`` says, in a fork of a process that has loaded this without ``start``."""
    global pid
    pid = os.getpid()
    here = os.path.dirname(__file__)  # noqa: PTH120 pathlib takes milliseconds
    if is_injected(here) and (wanted := take_page(here)):
        hear_of_imports(wanted)
        reporter = load_reporter().current()
        if reporter is not None:
            reporter.claim()  # it can show where it stands, though it may never use torch


def hear_of_imports(wanted: "set[str]") -> None:
    """Hear of modules that will be imported, and of those that a warm parent has imported."""
    if wanted or watch is not None:
        finder = Finder(watch, wanted)
        sys.meta_path.insert(0, finder)
        finder.put_back()


def be_warm_parent(here: str, terms: str) -> bool:
    """Fork workers; only they return, each with the environment that it was to be started with. Returns
    whether it runs another program than the script.
    """
    global pid, watch
    try:
        restore(here, ":set:" in terms)
        warm = load("elasticrun.worker.warm", "warm.py")
        warm.imports = load("elasticrun.worker.warm_imports", "warm_imports.py")
        warm.memory = load("elasticrun.worker.warm_memory", "warm_memory.py")
        warm.watching = load("elasticrun.worker.warm_watch", "warm_watch.py")
        warm.load_early = load_early
        warm.watching.AWAITED = frozenset(WANTED)
        is_another, watch = warm.serve(terms)
    except BaseException:  # noqa: BLE001 whatever it is, the script must not run here
        os._exit(70)
    pid = os.getpid()
    return bool(is_another)


def run_another() -> None:
    """Run the program that ``sys.argv`` names, to the end of this process."""
    import runpy

    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:  # noqa: BLE001 as the interpreter would show it; the script must not run here
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def start() -> None:
    """Undo the agent's changes, then run the sitecustomize that would have run without us.

    If there is none, its ImportError passes through us to ``site``, which ignores it: then there is no module
    of that name afterwards, as there would be none without us.
    """
    here = os.path.dirname(__file__)  # noqa: PTH120 pathlib takes milliseconds
    terms = os.environ.pop(WARM, "")
    is_another = be_warm_parent(here, terms) if terms else False
    name = __name__
    module = sys.modules.pop(name)
    wanted: set[str] = set()
    if is_injected(here):  # else it is a warm parent's worker that has nothing to report
        wanted = take_page(here)
        sys.modules[NAME] = module
    hear_of_imports(wanted)
    try:
        __import__(name)
    finally:
        if is_another:
            run_another()


if __name__ == "sitecustomize":
    start()
