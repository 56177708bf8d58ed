"""Names and amounts as Kubernetes writes them. Each function raises ValueError, maybe with a hint.

``variable`` also raises UsageError, which does not repeat the value: it may be a secret.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from elasticrun.errors import UsageError

#: Pods, Services and labels get the name with up to twenty characters behind it, of 63.
LONGEST_NAME = 43

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]*)")
_LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BYTES: dict[str, int] = {"": 1} | {
    unit + mark: int(base**power)
    for base, mark in ((1000, ""), (1024, "i"))
    for power, unit in enumerate("kMGTPE" if base == 1000 else "KMGTPE", 1)
}
#: Variables that nobody sets here, and why.
_REFUSED = {
    "TORCHELASTIC_HEALTH_CHECK_PORT": "a manifest sets it to the port that its probes ask, and nodes of a "
    "batch system may have several jobs; leave it out",
    "ELASTICRUN_TOKEN": "whoever reads the manifest would have the job's token; give --token-secret, "
    "or --token-file with --format sbatch",
}


def job_name(text: str) -> str:
    """The name of a job, short enough for all that is named after it."""
    if len(text) > LONGEST_NAME:
        raise ValueError(f"it has {len(text)} characters")
    return _matched(_NAME, text)


def object_name(text: str) -> str:
    """The name of a namespace, a queue, a Secret or another object that exists."""
    if len(text) > 253:
        raise ValueError(f"it has {len(text)} characters")
    return _matched(_SUBDOMAIN, text)


def queue_name(text: str) -> str:
    """The name of a queue, or of a partition of Slurm, which may have capitals and _."""
    if not text:
        raise ValueError
    return _matched(_LABEL_VALUE, text)


def image(text: str) -> str:
    """The name of an image, with its tag or digest."""
    return _matched(_IMAGE, text)


def cpu(text: str) -> str:
    """A number of cores above 0, such as 4, 0.5 or 500m."""
    if cores(text) <= 0:
        raise ValueError
    return text


def memory(text: str) -> str:
    """A number of bytes above 0, such as 64Gi or 500M."""
    _bytes(text)
    return text


def cores(text: str) -> Decimal:
    """How many cores a number, or a number of thousandths, is."""
    number, unit = _parts(text)
    if unit not in ("", "m"):
        raise ValueError(f"{unit!r} is no unit of cores")
    return number / 1000 if unit else number


def mebibytes(text: str) -> int:
    """How many MiB an amount of memory is, rounded up."""
    return math.ceil(_bytes(text) / (1 << 20))


def _bytes(text: str) -> Decimal:
    number, unit = _parts(text)
    if unit not in _BYTES:
        fitting = next((it for it in _BYTES if it and it.lower() == unit.lower().removesuffix("b")), "")
        hint = f", did you mean {number}{fitting}?" if fitting else ""
        raise ValueError(f"{unit!r} is no unit of Kubernetes{hint}")
    if number <= 0:
        raise ValueError
    return number * _BYTES[unit]


def devices(text: str) -> tuple[str, int]:
    """``N`` of NVIDIA's, or ``RESOURCE=N``."""
    resource, equals, number = text.rpartition("=")
    if not equals:
        resource = "nvidia.com/gpu"
    if "/" not in resource:
        raise ValueError(f"{resource!r} names no resource")
    _matched(_LABEL_KEY, resource)
    if not number.isascii() or not number.isdecimal():
        raise ValueError
    return resource, int(number)


def label(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` of a label."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("it has no =")
    return _matched(_LABEL_KEY, key), _matched(_LABEL_VALUE, value)


def variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` of an environment."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("it has no =")
    if name in _REFUSED:
        raise UsageError(f"--env cannot set {name}: {_REFUSED[name]}")
    return _matched(_VARIABLE, name), value


def claim(text: str) -> tuple[str, str]:
    """``CLAIM:PATH`` of a volume."""
    name, _, path = text.partition(":")
    if not path.startswith("/") or ":" in path:
        raise ValueError(f"{path!r} is no absolute path")
    return object_name(name), path


def version(text: str) -> int:
    """``1.MINOR``; below 25 some of what the manifests need is missing."""
    found = re.fullmatch(r"v?1\.(\d{1,3})(\.\d+)?", text)
    if found is None or int(found[1]) < 25:
        raise ValueError
    return int(found[1])


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError
    return text


def _parts(text: str) -> tuple[Decimal, str]:
    found = _AMOUNT.fullmatch(text) if text.isascii() else None
    if found is None:
        raise ValueError
    return Decimal(found[1]), found[2]
