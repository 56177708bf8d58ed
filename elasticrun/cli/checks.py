"""Check the files and modules that the command line names, before anything is started.

The invariant: nothing is refused that would run. Doubtful cases pass, and the worker then says what is
wrong: a script whose name holds a ``${local_rank}`` still to be expanded, a directory with a
``__main__.py``, a zip file, ``/dev/stdin``, or a module that its package creates while it is imported.
"""

# pathlib would cost the start of every launch some milliseconds:
# ruff: noqa: PTH100, PTH109, PTH110, PTH112, PTH113, PTH114, PTH116, PTH118, PTH120, PTH208

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence

from elasticrun.config import Entrypoint, EntrypointKind
from elasticrun.errors import UsageError

#: Seconds to wait for the child that looks for a module; after that the module passes.
CHILD_TIMEOUT = 60.0

_MARK = "elasticrun-module: missing"

#: Looks for a module as ``python -m`` does, which imports the packages around it.
_CHILD = f"""
import importlib.util, os, sys
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = os.getcwd()
name = sys.argv[1]
def missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError as error:
        return error.name is not None and (name + ".").startswith(error.name + ".")
def package(name):
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None
if missing(name) or package(name) and missing(name + ".__main__"):
    print("{_MARK}", flush=True)
"""

#: Prints which modules that TensorFlow jobs need are missing; a mere directory of that name is no module.
_CHILD_FOR_TENSORFLOW = f"""
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
for name in ("tensorflow", "elasticrun"):
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        print("{_MARK}", name, flush=True)
"""


def check_files(
    entrypoint: Entrypoint, log_dir: str | None, state_dir: str | None, environ: Mapping[str, str]
) -> None:
    """Raise UsageError if something named cannot be used."""
    if log_dir is not None and log_dir != os.devnull:
        check_directory("--log-dir", log_dir)
    if state_dir is not None:
        check_directory("--state-dir", state_dir)
        check_own("--state-dir", state_dir)
    if entrypoint.kind is EntrypointKind.BINARY:
        check_program("--no-python", entrypoint.target, environ)
        return
    if environ.get("PYTHON_EXEC"):
        check_program("PYTHON_EXEC", entrypoint.python, environ)
    if entrypoint.kind is EntrypointKind.MODULE:
        check_module(entrypoint.target, entrypoint.python, environ)
    else:
        check_script(entrypoint.target, environ)


def check_directory(option: str, path: str) -> None:
    """Refuse a path that is not a directory we can write into or make."""
    given = f"{option} {path!r}"
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{given} is not a directory: give a directory, which is made if it does not exist")
    existing = _nearest_existing(path)
    if not os.path.isdir(existing):
        raise UsageError(f"{given} cannot be made: {existing!r} is not a directory; give another directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{given} cannot be written: {existing!r} is not writable; give another directory")


def check_own(option: str, path: str) -> None:
    """Refuse a directory that others can write into: its contents are trusted later."""
    try:
        fault = _foreign(os.lstat(path)) or _foreign(os.stat(path))  # of the link itself, then of its target
    except FileNotFoundError:
        return  # it will be made
    if fault:
        inside = os.path.join(path, "elasticrun")
        raise UsageError(
            f"{option} {path!r} {fault}, so others could write the journal that is kept there: give a "
            f"directory of your own; {inside!r} would be made as one"
        )


def _foreign(found: os.stat_result) -> str:
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to user {os.geteuid()}"
    if stat.S_ISLNK(found.st_mode):
        return ""  # the mode of a link means nothing
    # Where each user has a private group, new directories are often writable by it.
    is_open = found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid
    if found.st_mode & stat.S_IWOTH or is_open:
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def check_notice_file(option: str, path: str) -> None:
    """Refuse a path at which no file can appear later."""
    given = f"{option} {path!r}"
    if os.path.isdir(path):
        raise UsageError(f"{given} is a directory: give the path of a file")
    try:
        above = _nearest_existing(os.path.dirname(os.path.abspath(path)))
    except FileNotFoundError:
        raise UsageError(
            f"{given} begins in the working directory, which is gone; give an absolute path"
        ) from None
    if not os.path.isdir(above) and not os.path.islink(above):
        raise UsageError(f"{given} cannot come to exist: {above!r} is not a directory; give another path")


def _nearest_existing(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _expands(target: str) -> bool:
    return "$local_rank" in target or "${local_rank}" in target


def check_script(path: str, environ: Mapping[str, str]) -> None:
    """Refuse what ``python path`` cannot run: not a file, a zip file or a directory with ``__main__.py``."""
    if path == "-" or _expands(path):
        return
    reason = _script_fault(path)
    if reason:
        raise UsageError(
            f"training script {path!r}: {reason}{_script_hint(path, environ)}; "
            f"give the path of a python program (looked for from {os.getcwd()!r})"
        )


def _script_fault(path: str) -> str:
    if not os.path.lexists(path):
        return "there is no such file"
    if not os.path.exists(path):
        return "" if path.startswith(("/dev/", "/proc/")) else "it is a link to nowhere"
    if os.path.isdir(path):
        return "" if _has_main(path) else "it is a directory without a __main__.py"
    if os.path.isfile(path) and not os.access(path, os.R_OK):
        return "this user may not read it"
    return ""


def _script_hint(path: str, environ: Mapping[str, str]) -> str:
    if os.path.isfile(f"{path}.py"):
        return f" (did you mean {path}.py?)"
    if "/" not in path and not path.endswith(".py") and _program_path(path, environ):
        return " (for a program that is not python, give --no-python)"
    return ""


def _has_main(directory: str) -> bool:
    return any(name == "__main__" or name.startswith("__main__.") for name in os.listdir(directory))


def check_program(option: str, program: str, environ: Mapping[str, str]) -> None:
    """Refuse a program that cannot be executed, by its path or found on PATH."""
    reason = "" if _expands(program) else _program_fault(program, environ)
    if reason:
        raise UsageError(f"{option}: {reason}; give the path of a program or the name of one on PATH")


def _program_fault(program: str, environ: Mapping[str, str]) -> str:
    if "/" not in program:
        if _program_path(program, environ):
            return ""
        here = f" (did you mean ./{program}?)" if os.path.isfile(program) else ""
        return f"no program {program!r} is on PATH{here}"
    if not os.path.exists(program):
        return f"there is no program {program!r}"
    if os.path.isdir(program):
        return f"{program!r} is a directory"
    return "" if os.access(program, os.X_OK) else f"{program!r} is not executable (chmod +x makes it so)"


def _program_path(name: str, environ: Mapping[str, str]) -> str:
    """The first executable file of this name on PATH, or ""."""
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def check_module(name: str, python: str, environ: Mapping[str, str]) -> None:
    """Refuse a module that ``python -m name`` cannot run; import no package unless necessary."""
    if _expands(name):
        return
    if "" in name.split("."):
        raise UsageError(f"-m {name!r} is not the name of a module: give a full name such as package.train")
    if python == sys.executable and _is_on_path(name, [os.getcwd(), *sys.path]):
        return
    if _child_misses(name, python, environ):
        raise UsageError(
            f"-m {name if name.isprintable() else repr(name)}: {python} finds no module of this name"
            f" that it can run{_module_hint(name)}: "
            f"give one on its path or in {os.getcwd()!r}"
        )


def _is_on_path(name: str, path: Sequence[str]) -> bool:
    """Whether the module is certainly there, judged by directories alone; False means unknown."""
    from importlib.machinery import PathFinder

    search: Sequence[str] | None = path
    parts = name.split(".")
    try:
        for depth in range(1, len(parts) + 1):
            if search is None:
                return False
            spec = PathFinder.find_spec(".".join(parts[:depth]), search)
            if spec is None:
                return False
            search = spec.submodule_search_locations
        return search is None or PathFinder.find_spec(f"{name}.__main__", search) is not None
    except KeyError:  # a namespace package inside another needs its parent imported
        return False


def _child_misses(name: str, python: str, environ: Mapping[str, str]) -> bool:
    import subprocess

    from elasticrun.cli.child import ask

    try:
        child = ask(python, _CHILD, name, environ, CHILD_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return _MARK in child.stdout


def _module_hint(name: str) -> str:
    if name.endswith(".py"):
        better = name.removesuffix(".py").strip("/").replace("/", ".")
        return f" (did you mean -m {better}, or {name} without -m?)"
    if "/" in name:
        return f" (did you mean -m {name.strip('/').replace('/', '.')}?)"
    return ""


def check_tensorflow(
    source: str, entrypoint: Entrypoint, environ: Mapping[str, str], *, needs_server: bool
) -> None:
    """Refuse a Python without tensorflow, or elasticrun if ``needs_server``; neither is imported."""
    if entrypoint.kind is EntrypointKind.BINARY:
        return
    is_script = entrypoint.kind is not EntrypointKind.MODULE
    beside = os.path.dirname(os.path.abspath(entrypoint.target)) if is_script else os.getcwd()
    if entrypoint.python == sys.executable and _has_tensorflow([beside, *sys.path]):
        return
    missing = _missing_for_tensorflow(entrypoint.python, beside, environ)
    if "tensorflow" in missing:
        raise UsageError(
            f"{source}: {entrypoint.python} finds no tensorflow; "
            "install it there, or name a Python that has it in PYTHON_EXEC"
        )
    if needs_server and "elasticrun" in missing:
        raise UsageError(
            f"{source}: {entrypoint.python} finds no elasticrun, whose server is what parameter servers run; "
            "install it there, or give --tf-servers script"
        )


def _has_tensorflow(path: Sequence[str]) -> bool:
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("tensorflow", path)
    return spec is not None and spec.origin is not None


def _missing_for_tensorflow(python: str, beside: str, environ: Mapping[str, str]) -> frozenset[str]:
    import subprocess

    from elasticrun.cli.child import ask

    try:
        child = ask(python, _CHILD_FOR_TENSORFLOW, beside, environ, CHILD_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(line.removeprefix(_MARK).strip() for line in child.stdout.splitlines() if _MARK in line)
