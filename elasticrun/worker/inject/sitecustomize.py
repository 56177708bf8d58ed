"""What a worker's interpreter runs first, so that training steps are reported with no change to the script.

The agent puts this directory, which holds nothing else, in front of PYTHONPATH. ``site`` imports this file
before the script's first line. It undoes that at once (PYTHONPATH, our variable, ``sys.path``), so that
neither the script nor its children see any of it; gives way to the sitecustomize that would have run without
it, if there is one; and waits for torch with a finder on ``sys.meta_path``. It never imports torch itself.

Invariants. It needs nothing but the interpreter: ``elasticrun`` may be missing, the Python another one. What
it does wrong costs the reports, never the script.
"""

import os
import sys

TYPE_CHECKING = False  # typing takes milliseconds, and nothing may be imported that the script does not have
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

VARIABLE = "ELASTICRUN_PROGRESS"
#: Under these names elasticrun's worker library finds this module and the reporter.
NAME = "_elasticrun_sitecustomize"
REPORTER = "elasticrun.worker.reporter"

#: The agent's page as the variable described it; "" if this is no worker of ours.
page = ""
pid = os.getpid()  # the page is for this process: a child that is forked later is not the worker


def restore(here: str) -> None:
    """Leave the environment and ``sys.path`` as they would be without us."""
    global page
    page = os.environ.pop(VARIABLE, "")
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here in parts:
        parts.remove(here)
        if parts or page.endswith(":set"):
            os.environ["PYTHONPATH"] = os.pathsep.join(parts)
        else:
            del os.environ["PYTHONPATH"]
    while here in sys.path:
        sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)


def load_reporter() -> "Any":
    """The reporter, which lies beside this directory, without any import of its package."""
    if REPORTER in sys.modules:
        return sys.modules[REPORTER]
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reporter.py")  # noqa: PTH100, PTH118, PTH120 pathlib takes milliseconds
    spec: Any = type(__spec__)(REPORTER, type(__loader__)(REPORTER, path), origin=path)  # type: ignore[name-defined]
    module: Any = type(sys)(REPORTER)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, path
    spec.loader.exec_module(module)
    sys.modules[REPORTER] = module
    return module


class Finder:
    """Finds nothing itself, but hears when certain modules have been executed; then it goes away."""

    def __init__(self) -> None:
        self.wanted = {
            "torch.optim.optimizer",
            "torch.serialization",
            "torch.utils.data.dataloader",
            "torch.distributed.checkpoint.state_dict_saver",
            "safetensors.torch",
        }

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """What the other finders find, with a loader that tells us."""
        if name not in self.wanted:
            return None
        self.wanted.discard(name)
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                watch(spec.loader, name)
                self.leave_if_done()
                return spec
        return None

    def leave_if_done(self) -> None:
        """Called only where a spec is returned, as importlib is walking the list."""
        if not self.wanted and self in sys.meta_path:
            sys.meta_path.remove(self)


def watch(loader: "Any", name: str) -> None:
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
    """A module that we waited for is there."""
    try:
        load_reporter().imported(name, module)
    except Exception:  # noqa: BLE001 whatever it is, the script goes on without reports
        return


def start() -> None:
    """Undo the agent's doing, then run the sitecustomize that would have run without us.

    If there is none, its ImportError passes through us to ``site``, which ignores it: then there is no module
    of that name afterwards, as there would be none without us.
    """
    restore(os.path.dirname(__file__))  # noqa: PTH120 pathlib takes milliseconds
    name = __name__
    sys.modules[NAME] = sys.modules.pop(name)
    if page.count(":"):
        sys.meta_path.insert(0, Finder())
    __import__(name)


if __name__ == "sitecustomize":
    start()
