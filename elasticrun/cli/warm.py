"""Whether workers are forked from a process that has imported torch, decided before anything runs.

The invariant of ``auto``: a script is started warm only if it imports torch itself and nothing in its source
says that the order matters. A warm parent imports torch before the script's first line, so what a script
sets for that import, its environment or its CPUs, would come too late. A changed ``sys.path`` is not looked
for: it is common, and seldom chooses another torch. What cannot be told from the source is cold.

Not even ``on`` may have a warm parent run the script by mistake: the interpreter has to be one that is
known to read ``sitecustomize`` first, so anything but a plain Python binary is started cold.
"""

# pathlib would cost the start of every launch some milliseconds:
# ruff: noqa: PTH109, PTH112, PTH113, PTH118, PTH119, PTH123

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping

from elasticrun.cli import options
from elasticrun.cli.arguments import Given
from elasticrun.cli.rendezvous import Notes
from elasticrun.config import Entrypoint, EntrypointKind

_ELF = b"\x7fELF"
_MOST_SOURCE = 4 * 2**20  # bytes; nobody writes more by hand

_IMPORTS_TORCH = re.compile(r"^\s*(?:import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*|from\s+)torch\b", re.M)
#: Names that are read while torch, or a library below it, is loaded.
_EARLY = (
    r"(?:OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|TORCH\w*|PYTORCH|CUDA|NVIDIA|NCCL|GLOO|LD|PYTHON|HIP|ROCR)_?"
)
_SETS_EARLY = re.compile(
    rf"environ(?:b)?\s*\[\s*b?['\"]{_EARLY}\w*['\"]\s*\]\s*=(?!=)"
    rf"|(?:environ(?:b)?\s*\.\s*(?:setdefault|pop)|putenv|unsetenv|setenv)\s*\(\s*b?['\"]{_EARLY}\w*['\"]"
    rf"|del\s+(?:os\s*\.\s*)?environ\s*\[\s*['\"]{_EARLY}"
    r"|environ(?:b)?\s*(?:\.\s*(?:update|clear)\s*\(|\|=|=\s*[\w{(])"
    r"|environ(?:b)?\s*\[\s*(?!b?['\"])[^\]\n]*\]\s*=(?!=)"
    r"|(?:putenv|environ(?:b)?\s*\.\s*setdefault)\s*\(\s*(?!b?['\"])"
    r"|\b(?:sched_setaffinity|cpu_affinity|setdlopenflags)\s*\("
)


def warm_imports(
    given: Given, entrypoint: Entrypoint, environ: Mapping[str, str], notes: Notes
) -> tuple[str, ...] | None:
    """What the warm parent imports; None if workers start cold, and a note says why."""
    mode, extra = given.get(options.WARM), given.find(options.WARM_IMPORT) or ()
    if mode == "off" or given.on(options.HEALTH_CHECK_ONLY):
        return None
    source = None if entrypoint.kind is EntrypointKind.BINARY else _source(entrypoint)
    reason = _unfit(entrypoint, environ) or (_unwanted(source) if mode == "auto" else "")
    if reason:
        level = "info" if _imports_torch(source) else "debug"
        notes.append(("warning" if mode == "on" else level, f"workers start cold: {reason}"))
        return None
    needs_torch = not extra or _imports_torch(source)
    return tuple(dict.fromkeys((*(("torch",) if needs_torch else ()), *extra)))


def _unfit(entrypoint: Entrypoint, environ: Mapping[str, str]) -> str:
    """Why these workers can never be forked; "" if they can."""
    if entrypoint.kind is EntrypointKind.BINARY:
        return "a program that is not started as Python cannot be forked from a warm parent"
    if "$local_rank" in entrypoint.target or "${local_rank}" in entrypoint.target:
        return "each local rank runs another program"
    if entrypoint.kind is EntrypointKind.SCRIPT and entrypoint.target == "-":
        return "the program comes from stdin"
    if not _is_python(entrypoint.python, environ):
        return (
            f"{entrypoint.python} is not certain to be a Python interpreter (it may be a script around one)"
        )
    return ""


def _is_python(program: str, environ: Mapping[str, str]) -> bool:
    path = shutil.which(program, path=environ.get("PATH", os.defpath))
    if path is None or not os.path.basename(os.path.realpath(path)).startswith("python"):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:  # it may be executed, but not read
        return program == sys.executable


def _unwanted(source: str | None) -> str:
    """Why ``auto`` starts this program cold; "" if it does not."""
    if source is None:
        return "the source of the program is not at hand (--warm on forks it all the same)"
    if not _imports_torch(source):
        return "the program's own source does not import torch (--warm on forks it all the same)"
    if found := _SETS_EARLY.search(source):
        line = source.count("\n", 0, found.start()) + 1
        return f"line {line} of the program sets what may matter while torch is imported"
    return ""


def _imports_torch(source: str | None) -> bool:
    return source is not None and _IMPORTS_TORCH.search(source) is not None


def _source(entrypoint: Entrypoint) -> str | None:
    """The text of the script or module; None if there is no plain file of it."""
    if entrypoint.kind is not EntrypointKind.MODULE:
        target = entrypoint.target
        return _read(os.path.join(target, "__main__.py") if os.path.isdir(target) else target)
    name = entrypoint.target.replace(".", os.sep)
    for directory in (os.getcwd(), *sys.path):
        for path in (f"{name}.py", os.path.join(name, "__main__.py")):
            if os.path.isfile(found := os.path.join(directory, path)):
                return _read(found)
    return None


def _read(path: str) -> str | None:
    if not os.path.isfile(path):  # a FIFO would lose what is read here
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_SOURCE)
    except OSError:
        return None
    return None if b"\0" in data else data.decode(errors="replace")
