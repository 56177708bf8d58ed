"""Whether workers are forked from a process that has imported their library, decided before anything runs.

The library is torch, or tensorflow in a TensorFlow job. Both leave their threads and devices to the first
operation, so a process that has only imported them can be forked; where it is otherwise, it refuses.

The invariant of ``auto``: a script is started warm only if it imports the library itself and nothing in its
source says that the order matters. A warm parent imports it before the script's first line, so what a script
sets for that import, its environment or its CPUs, would come too late. A changed ``sys.path`` is not looked
for: it is common, and seldom chooses another library. What cannot be told from the source is cold.

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

TORCH, TENSORFLOW = "torch", "tensorflow"
#: Names that are read while torch, or a library below it, is loaded.
_EARLY_TORCH = (
    r"OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|TORCH\w*|PYTORCH|CUDA|NVIDIA|NCCL|GLOO|LD|PYTHON|HIP|ROCR"
)
#: By library. With tensorflow come Keras and all that it finds; TF_CONFIG is read by strategies only.
_EARLY = {
    TORCH: _EARLY_TORCH,
    TENSORFLOW: rf"{_EARLY_TORCH}|TF(?!_CONFIG\b)|XLA|KERAS|JAX|GRPC|ABSL|CUDNN|CUBLAS|ONEDNN|DNNL|TPU"
    "|PROTOCOL_BUFFERS|HDF5|NPY|NUMPY|SCIPY|SKLEARN|PANDAS",
}


def warm_imports(
    given: Given,
    entrypoint: Entrypoint,
    environ: Mapping[str, str],
    notes: Notes,
    library: str = TORCH,
) -> tuple[str, ...] | None:
    """What the warm parent imports: ``library``, unless the user names something else.

    None if workers start cold, and a note says why.
    """
    mode, extra = given.get(options.WARM), given.find(options.WARM_IMPORT) or ()
    if mode == "off" or given.on(options.HEALTH_CHECK_ONLY):
        return None
    source = None if entrypoint.kind is EntrypointKind.BINARY else _source(entrypoint)
    reason = _unfit(entrypoint, environ) or (_unwanted(source, library) if mode == "auto" else "")
    if reason:
        level = "info" if _imports(source, library) else "debug"
        notes.append(("warning" if mode == "on" else level, f"workers start cold: {reason}"))
        return None
    is_needed = not extra or _imports(source, library)
    return tuple(dict.fromkeys((*((library,) if is_needed else ()), *extra)))


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


def _unwanted(source: str | None, library: str) -> str:
    """Why ``auto`` starts this program cold; "" if it does not."""
    if source is None:
        return "the source of the program is not at hand (--warm on forks it all the same)"
    if not _imports(source, library):
        return f"the program's own source does not import {library} (--warm on forks it all the same)"
    if found := re.search(_setting(_EARLY[library]), source):
        line = source.count("\n", 0, found.start()) + 1
        return f"line {line} of the program sets what may matter while {library} is imported"
    return ""


def _imports(source: str | None, library: str) -> bool:
    pattern = rf"^\s*(?:import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*|from\s+){library}\b"
    return source is not None and re.search(pattern, source, re.M) is not None


def _setting(names: str) -> str:
    """The pattern of code that sets CPUs, or a variable whose name begins so or is no literal."""
    names = rf"(?:{names})_?"
    return (
        rf"environ(?:b)?\s*\[\s*b?['\"]{names}\w*['\"]\s*\]\s*=(?!=)"
        rf"|(?:environ(?:b)?\s*\.\s*(?:setdefault|pop)|putenv|unsetenv|setenv)\s*\(\s*b?['\"]{names}\w*['\"]"
        rf"|del\s+(?:os\s*\.\s*)?environ\s*\[\s*['\"]{names}"
        r"|environ(?:b)?\s*(?:\.\s*(?:update|clear)\s*\(|\|=|=\s*[\w{(])"
        r"|environ(?:b)?\s*\[\s*(?!b?['\"])[^\]\n]*\]\s*=(?!=)"
        r"|(?:putenv|environ(?:b)?\s*\.\s*setdefault)\s*\(\s*(?!b?['\"])"
        r"|\b(?:sched_setaffinity|cpu_affinity|setdlopenflags)\s*\("
    )


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
