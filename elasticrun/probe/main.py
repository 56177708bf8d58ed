"""The probe child's program: ``python main.py < settings > result``; see ``program.py`` for both.

It is started by its path, because the interpreter that runs it is the job's and may not have elasticrun. To
let its modules import one another, it loads its folder as a package of another name. It takes the folder off
the path, where the names of its modules could hide others.

Whatever else writes to stdout (NCCL does, if asked to be verbose) is sent to stderr.
"""

# ruff: noqa: E402 the job's folders may hide modules of the standard library, which this program needs

from __future__ import annotations

import os
import sys

_LIBRARIES = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is of the standard library, too
sys.path.sort(key=lambda entry: not entry.startswith(_LIBRARIES) or entry.endswith("-packages"))
for _name in [name for name in sys.modules if name.partition(".")[0] in sys.stdlib_module_names]:
    if _name != "__main__" and not (getattr(sys.modules[_name], "__file__", None) or _LIBRARIES).startswith(
        _LIBRARIES
    ):
        del sys.modules[_name]  # a warm parent imported it from the job's folders

import importlib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

PACKAGE = "elasticrun_probe"
RESULT = 1
STDERR = 2


def load_package() -> Any:
    """The module ``program`` of this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    init = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location(PACKAGE, init, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.program")


def main() -> None:
    """Read settings, probe, write results."""
    result = os.fdopen(os.dup(RESULT), "w")
    os.dup2(STDERR, RESULT)

    def write(line: Mapping[str, Any]) -> None:
        result.write(json.dumps(line) + "\n")
        result.flush()

    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"  # see compute.py
    # A failed NCCL operation has to become an exception of ours. By default it ends the process.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    program = load_package()
    around = program.Surroundings(
        fault=os.environ.get("ELASTICRUN_PROBE_FAULT", ""),
        interface=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        hides_gpus=os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"),
    )
    program.Probe(program.parse_settings(sys.stdin.read()), around, write).run()
    sys.stderr.flush()
    os._exit(0)  # torch's cleanup takes time, and may wait for a peer or a driver that hangs


if __name__ == "__main__":
    main()
