"""What the command line says of the nodes of a job on Ray, above all by ``--platform-conf``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elasticrun.cli import options, values
from elasticrun.cli.arguments import Given
from elasticrun.cli.platform_options import PLATFORM_CONF
from elasticrun.cli.roles import roles_of_nodes
from elasticrun.config import TaskRole
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.platforms.kubernetes.quantity import memory_of
from elasticrun.platforms.ray.words import Needs

_MOST = 1 << 20
#: What Ray calls its own resources.
_RESERVED = frozenset({"CPU", "GPU", "object_store_memory"})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RayConf:
    """What each node takes and is, and how often nodes that fail are replaced."""

    needs: Needs
    restarts: int
    roles: tuple[TaskRole, ...]  # of the nodes, by their slots; (): this is no job of single tasks


def read_ray_conf(given: Given) -> RayConf:
    """What is asked for. Raises UsageError for what Ray never gives."""
    texts, workers = dict(given.get(PLATFORM_CONF)), given.get(options.NPROC_PER_NODE)

    def take(key: str, convert: Callable[[str], T], default: str) -> T:
        try:
            return convert(texts.pop(key, default))
        except ValueError as error:
            given.refuse(PLATFORM_CONF, f"{key}: {error}; {PLATFORM_CONF.allowed}")

    memory, restarts = take("memory", memory_of, "0"), take("restarts", values.whole(0), "10")
    cpus = take("cpus", _amount, str(workers) if isinstance(workers, int) else "1")
    gpus = take("gpus", _amount, "0")
    if taken := _RESERVED.intersection(texts):
        given.refuse(PLATFORM_CONF, f"{min(taken)} is Ray's own word; give cpus, gpus or memory")
    if gpus > 1 and gpus % 1:
        given.refuse(PLATFORM_CONF, f"gpus is {gpus:g}; Ray gives whole ones, or a part of one")
    needs = Needs(cpus, gpus, memory, tuple((name, take(name, _amount, "0")) for name in list(texts)))
    if not needs.cpus and not needs.gpus and not needs.memory and not needs.others:
        given.refuse(PLATFORM_CONF, "each node takes nothing; give it something, such as cpus=1")
    if workers == "gpu" and not needs.gpus:
        raise UsageError("--nproc-per-node gpu needs GPUs: give --platform-conf gpus=N, for each node")
    return RayConf(needs, restarts, roles_of_nodes(given))


def _amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < _MOST:
        raise ValueError(f"{text!r} is no amount")
    return number
