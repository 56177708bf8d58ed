"""How many workers this node runs.

``cpu`` is the number of cores this process may use. ``gpu``, ``xpu``, ``auto`` and names of other torch
backends are counted by torch itself, in a child of the interpreter that will run the workers: the
launcher never imports torch, and no CUDA context is left behind. Where that interpreter has no torch,
``auto`` and ``gpu`` count the device files ``/dev/nvidia0``, ``/dev/nvidia1``, ... (in a container: the
devices it was given), limited by ``CUDA_VISIBLE_DEVICES``; ``auto`` falls back to cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: Seconds. Importing torch from a slow network disk takes long; longer than this is a hang.
CHILD_TIMEOUT = 180.0

_MARK = "elasticrun-devices:"

#: Prints the mark and one line of JSON: torch's version, "" if it is missing, the kind and number of devices.
_CHILD = f"""
import json, sys
sys.path = [entry for entry in sys.path if entry]  # workers do not look in the current directory either
word = sys.argv[1]
def find(torch):
    if word == "gpu":
        return "CUDA", torch.cuda.device_count() if torch.cuda.is_available() else 0
    if word == "xpu":
        return "XPU", torch.xpu.device_count() if hasattr(torch, "xpu") and torch.xpu.is_available() else 0
    if word == "auto":
        if hasattr(torch, "accelerator"):
            if not torch.accelerator.is_available():
                return "accelerator", 0
            return torch.accelerator.current_accelerator().type, torch.accelerator.device_count()
        return "CUDA", torch.cuda.device_count() if torch.cuda.is_available() else 0
    if word == torch._C._get_privateuse1_backend_name() and hasattr(torch, word):
        module = getattr(torch, word)
        return word, module.device_count() if module.is_available() else 0
    return "", 0
try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    found = {{"torch": ""}}
else:
    kind, count = find(torch)
    found = {{"torch": torch.__version__, "kind": kind, "count": count}}
print("{_MARK}" + json.dumps(found), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Devices:
    """The answer of a child: ``torch`` is "" if it has none, ``kind`` if torch does not know the word."""

    torch: str
    kind: str = ""
    count: int = 0


def count_workers(
    wanted: int | str, source: str, python: str, environ: Mapping[str, str], notes: list[tuple[str, str]]
) -> int:
    """Turn ``--nproc-per-node`` into a number; ``source`` is how a usage error quotes the option."""
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        count, found = usable_cores(), "usable cores"
    else:
        count, found = _count_devices(wanted, source, python, environ)
    notes.append(("info", f"{source}: {count} workers, one for each of the {found}"))
    return count


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _count_devices(wanted: str, source: str, python: str, environ: Mapping[str, str]) -> tuple[int, str]:
    devices = ask_torch(wanted, source, python, environ)
    if not devices.torch:
        return _count_without_torch(wanted, source, python, environ)
    if not devices.kind:
        raise UsageError(
            f"{source} is not valid: torch {devices.torch} in {python} has no backend of this name; "
            "give a number of 1 or more, cpu, gpu, xpu or auto"
        )
    if devices.count:
        return devices.count, f"{devices.kind} devices that torch {devices.torch} sees"
    if wanted == "auto":
        return usable_cores(), f"usable cores (torch {devices.torch} sees no accelerator)"
    raise UsageError(
        f"{source}: torch {devices.torch} in {python} sees no {devices.kind} device; "
        "give a number, or cpu for one worker per core"
    )


def _count_without_torch(
    wanted: str, source: str, python: str, environ: Mapping[str, str]
) -> tuple[int, str]:
    if wanted not in ("gpu", "auto"):
        raise UsageError(
            f"{source} is not valid: {python} has no torch that could know this device; "
            "give a number of 1 or more, cpu, gpu or auto"
        )
    count = visible_nvidia_devices(_device_files(), environ.get("CUDA_VISIBLE_DEVICES"))
    if count:
        return count, "devices /dev/nvidia<N> (no torch to ask)"
    if wanted == "auto":
        return usable_cores(), "usable cores (no torch to ask, no /dev/nvidia<N>)"
    raise UsageError(
        f"{source}: {python} has no torch to ask and no device /dev/nvidia<N> is visible; "
        "give a number, or cpu for one worker per core"
    )


def _device_files() -> list[str]:
    return os.listdir("/dev")  # noqa: PTH208 - pathlib is slow to import


def visible_nvidia_devices(device_files: Sequence[str], visible: str | None) -> int:
    """NVIDIA devices among these names of device files that ``CUDA_VISIBLE_DEVICES`` leaves visible."""
    present = sum(1 for name in device_files if name.startswith("nvidia") and name[6:].isdecimal())
    if visible is None:
        return present
    listed = 0
    for entry in visible.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break  # CUDA stops at the first entry that names no device
        listed += 1
    return min(present, listed)


def ask_torch(wanted: str, source: str, python: str, environ: Mapping[str, str]) -> Devices:
    """Start ``python`` to count devices; raises UsageError if it cannot tell."""
    import json
    import subprocess

    from elasticrun.cli.child import ask

    try:
        child = ask(python, _CHILD, wanted, environ, CHILD_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{source}: {python} could not count devices ({error}); give a number") from None
    for line in child.stdout.splitlines():
        if line.startswith(_MARK):
            return Devices(**json.loads(line[len(_MARK) :]))
    last = (child.stderr.strip().splitlines() or [f"it ended with status {child.returncode}"])[-1]
    raise UsageError(f"{source}: {python} could not count devices ({last}); give a number")
