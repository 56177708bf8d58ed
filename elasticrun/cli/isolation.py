"""Keep modules on a job's path from hiding the launcher's own.

Theory. PYTHONPATH, and the working directory of ``python -m``, come before the standard library. They belong
to the job, and a ``json.py`` or ``logging.py`` there is for its workers, not for the launcher. So the
launcher looks for modules in the standard library first, then where it was installed itself, and in the job's
folders last: a platform may install there what the launcher needs. Workers get the variable, and the
directory, unchanged.

Invariants. This runs first, and needs only modules that are there before any path is searched. Modules that
the interpreter's start took from the job's folders under a name of the standard library are forgotten, and
no others.
"""

# pathlib is of the standard library, too:
# ruff: noqa: PTH100, PTH118, PTH120

import os
import sys

_LIBRARIES = os.path.join(os.path.dirname(os.__file__), "")
_PACKAGES = ("site-packages", "dist-packages")
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def isolate() -> None:
    """Move the job's folders to the end of ``sys.path``; ours, if among them, goes before site-packages."""
    is_safe = getattr(sys.flags, "safe_path", False)
    folders = {*_pythonpath(), *(() if is_safe else map(os.path.abspath, sys.path[:1]))}
    theirs = [entry for entry in sys.path if os.path.abspath(entry) in folders]
    kept = [entry for entry in sys.path if entry not in theirs]
    first = next((number for number, entry in enumerate(kept) if entry.endswith(_PACKAGES)), len(kept))
    own = [entry for entry in theirs if os.path.abspath(entry) == _OWN]
    sys.path[:] = [*kept[:first], *own, *kept[first:], *(entry for entry in theirs if entry not in own)]
    _forget(folders)


def isolate_as(path: list[str]) -> None:
    """Use the path of the process that started this one."""
    sys.path[:] = path
    _forget(_pythonpath())


def _pythonpath() -> set[str]:
    return {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}


def _forget(folders: set[str]) -> None:
    """Forget modules from these folders that have a name of the standard library."""
    prefixes = tuple(os.path.join(folder, "") for folder in folders)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None) or ""
        is_standard = name.partition(".")[0] in sys.stdlib_module_names
        if is_standard and file.startswith(prefixes) and not file.startswith(_LIBRARIES):
            del sys.modules[name]
