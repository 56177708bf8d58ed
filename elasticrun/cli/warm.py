"""Decide, before anything runs, whether workers are forked from a process that has imported their library.

The library is torch, or tensorflow in a TensorFlow job. Both start threads and open devices only at the first
operation, so a process that has only imported them can be forked; if it cannot, it refuses to fork.

The invariant of ``auto``: a script is started warm only if it imports the library itself. A warm parent
imports it before the script's first line, so what a script sets for that import, its environment or its CPUs,
would come too late. The worker itself notices that when the script reaches the import, and goes on cold
(``worker/warm_watch.py``). Then the lines above the import run twice. So a script whose own source plainly
sets what the import reads is cold from the start, and a warning names the line; the worker handles the rest.

Even with ``on`` a warm parent must never run the script by mistake: the interpreter has to be one that is
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
from dataclasses import replace

from elasticrun.cli import options
from elasticrun.cli.arguments import Given
from elasticrun.cli.rendezvous import Notes
from elasticrun.config import Entrypoint, EntrypointKind, WorkerConfig
from elasticrun.worker.target import COMPILER, KEEPER

_ELF = b"\x7fELF"
_MOST_SOURCE = 4 * 2**20  # bytes; nobody writes more by hand

TORCH, TENSORFLOW = "torch", "tensorflow"
#: What is built upon torch and takes seconds to import as well.
FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "transformers")
#: What a chief has of ours, and imports where it makes its session.
CHIEF = ("elasticrun.tf.chief", "elasticrun.tf.backup", "elasticrun.tf.optimizers")
#: Variables that are read while torch, or a library below it, is loaded. All but one of those of CUDA, NCCL
#: and gloo are read at the first use of a device or a group instead; LD_* and PYTHON* as a process starts.
_EARLY_TORCH = (
    r"(?:OMP|GOMP|KMP|MKL|MKLDNN|ONEDNN|DNNL|OPENBLAS|GOTO|BLIS|NUMEXPR|NPY|NUMPY|ATEN)_\w+"
    r"|TORCH_(?:LOGS\w*|CPP_LOG_LEVEL|DISTRIBUTED_DEBUG|SHOW_CPP_STACKTRACES|DEVICE_BACKEND_AUTOLOAD"
    r"|USE_RTLD_GLOBAL|CUDA_SANITIZER|TRACE|DTRACE)|PYTORCH_(?:JIT\w*|NO_CUDA\w*|(?:CUDA_|HIP_)?ALLOC_CONF)"
    r"|CUDA_LAUNCH_BLOCKING"
)
#: By library. With tensorflow come Keras and all that it finds; TF_CONFIG is read by strategies only.
_EARLY = {
    TORCH: _EARLY_TORCH,
    TENSORFLOW: rf"{_EARLY_TORCH}|TF_(?!CONFIG\b)\w+|(?:XLA|KERAS|JAX|HDF5|GCS|SCIPY|PANDAS)_\w+"
    r"|PROTOCOL_BUFFERS_\w+|TPU_\w+",
}
#: Variables of torch's compiler, read once it is used. For restarts, a warm parent imports it beforehand.
_COMPILER = r"(?:TORCHDYNAMO|TORCHINDUCTOR|TORCH_COMPILE|TORCH_DYNAMO|INDUCTOR|AOT_?INDUCTOR|AOT)_\w+"
_CPUS = "sched_setaffinity|cpu_affinity|setdlopenflags"
_COST = "each restart takes the seconds of that import, where a fork takes hundredths"


def choose(
    workers: WorkerConfig,
    given: Given,
    environ: Mapping[str, str],
    notes: Notes,
    library: str = TORCH,
) -> WorkerConfig:
    """Add what the warm parent imports: ``library``, unless the user names something else.

    Workers that start cold stay unchanged; a note says why, unless the user asked for it.
    """
    mode, extra = given.get(options.WARM), given.find(options.WARM_IMPORT) or ()
    if mode == "off" or given.on(options.HEALTH_CHECK_ONLY):
        return workers
    entrypoint = workers.entrypoint
    source = None if entrypoint.kind is EntrypointKind.BINARY else _source(entrypoint)
    if reason := _unfit(entrypoint, environ) or ("" if mode == "on" else _unwanted(source, library)):
        level = "info" if _imports(source, library) else "debug"
        notes.append(("warning" if mode == "on" else level, f"workers start cold: {reason}"))
        return workers
    if mode == "auto" and (found := _set_early(source or "", library)):
        advice = "set it where elastic-run is started, or give --warm on if the order does not matter"
        notes.append(
            ("warning", f"workers start cold: {found} while {library} is imported; {_COST}: {advice}")
        )
        return workers
    compiler = _set(source or "", _COMPILER)
    if compiler:
        notes.append(("info", f"restarts import torch's compiler anew: {compiler} while that is imported"))
    is_needed = not extra or _imports(source, library)
    imports = tuple(dict.fromkeys((*((library,) if is_needed else ()), *extra)))
    later = _later(source, has_compiler=not compiler) if TORCH in imports else ()
    if TENSORFLOW in imports:  # else the user has named something else, and a restart would add it
        later += _later_of_chief(source)
    return replace(workers, warm_imports=imports, warm_later=later, keeps_warm=mode == "on")


def _later(source: str | None, has_compiler: bool) -> tuple[str, ...]:
    """What a script of torch imports late, or takes long to import: for restarts, not for the first start.

    Torch itself imports its compiler at the first step of an optimizer.
    """
    keeps_state = _imports(source, "elasticrun") and "Checkpointer" in (source or "")
    frameworks = (name for name in FRAMEWORKS if _is_plain(source or "", name))
    return (*((COMPILER,) if has_compiler else ()), *((KEEPER,) if keeps_state else ()), *frameworks)


def _later_of_chief(source: str | None) -> tuple[str, ...]:
    """What a chief imports for its session. For restarts: the whole job waits a tenth of a second for it."""
    return CHIEF if _imports(source, "elasticrun") and "ChiefSession" in (source or "") else ()


def _is_plain(source: str, framework: str) -> bool:
    """Whether a script imports a framework, and sets no variable above, most of which such imports read."""
    found = _import(source, framework)
    above = source[: found.start()] if found else ""
    return found is not None and not _set(above, r"\w+") and not _set(above, "", rf"|\b({_CPUS})\s*\(")


def _unfit(entrypoint: Entrypoint, environ: Mapping[str, str]) -> str:
    """Why these workers can never be forked; "" if they can."""
    if entrypoint.kind is EntrypointKind.BINARY:
        return "a program that is not started as Python cannot be forked from a warm parent"
    if "$local_rank" in entrypoint.target or "${local_rank}" in entrypoint.target:
        return "each local rank runs another program"
    if entrypoint.kind is EntrypointKind.SCRIPT and entrypoint.target == "-":
        return "the program comes from stdin"
    if not is_python(entrypoint.python, environ):
        return (
            f"{entrypoint.python} is not certain to be a Python interpreter (it may be a script around one)"
        )
    return ""


def is_python(program: str, environ: Mapping[str, str]) -> bool:
    """Whether this is certain to be a plain Python binary."""
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
    return ""


def _imports(source: str | None, library: str) -> bool:
    return source is not None and _import(source, library) is not None


def _import(source: str, library: str) -> re.Match[str] | None:
    """The first import of the library."""
    pattern = rf"^[ \t]*(?:import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*|from\s+){library}\b"
    return re.search(pattern, source, re.M)


def _set_early(source: str, library: str) -> str:
    """What is set above the first import, in words."""
    found = _import(source, library)
    above = source[: found.start()] if found else ""
    return _set(above, _EARLY[library]) or _set(above, "", rf"|\b({_CPUS})\s*\(")


def _set(source: str, names: str, others: str = "") -> str:
    """The first line that sets a variable or matches ``others``, in words; "" if none does."""
    found = re.search(_setting(names) + others if names else others[1:], source)
    if found is None:
        return ""
    line = source.count("\n", 0, found.start()) + 1
    name = next(name for name in reversed(found.groups()) if name)
    return f"line {line} of the program sets what is read ({name})"


def _setting(names: str) -> str:
    """The pattern of code that sets one of these variables."""
    return (
        rf"environb?\s*\[\s*b?['\"]({names})['\"]\s*\]\s*=(?!=)"
        rf"|(?:environb?\s*\.\s*(?:setdefault|pop)|putenv|unsetenv|setenv)\s*\(\s*b?['\"]({names})['\"]"
        rf"|del\s+(?:os\s*\.\s*)?environ\s*\[\s*['\"]({names})"
        rf"|environb?\s*(?:\.\s*update\s*\(|\|=)[^)}}]*?\b({names})\b"
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
