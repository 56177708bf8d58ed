"""Which warm parents this node needs.

A warm parent's environment is what all rounds have in common: whatever is read while modules are imported
(PYTHON*, LD_*, OMP_*, CUDA_VISIBLE_DEVICES and so on) is in it and part of the key, while ranks, ports and
files of a round are not. Local ranks share a parent unless one of these, or the CPUs, differ.

The servers of a TensorFlow job run another program than the script, so they have a parent of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from elasticrun.agent.programs import INJECTED
from elasticrun.agent.spawner.client import WarmRecipe
from elasticrun.agent.workers.env import common_environment, worker_argv
from elasticrun.config import Entrypoint, WorkerConfig
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

STDIN = 0
#: The key of the parent of servers; those of others are numbers.
SERVERS = "servers"


@dataclass(frozen=True, slots=True)
class WarmKeys:
    """Which warm parent forks a worker."""

    first: tuple[str, ...]  # by local rank; none if workers start cold
    added: str | None  # of those that are added while a round runs
    servers: str | None = None  # of tasks that run ``WorkerConfig.servers``

    def of(self, local_rank: int) -> str | None:
        """The key for a local rank; None: it starts cold."""
        return self.first[local_rank] if local_rank < len(self.first) else self.added


def warm_keys(config: WorkerConfig, cpus: Sequence[frozenset[int]]) -> WarmKeys:
    """The keys of the recipes.

    An added worker is bound to no CPUs, so a parent that is bound may not fork it; nor may one that sees
    other devices than the worker should.
    """
    keys = tuple(recipe.key for recipe in warm_recipes(config, cpus))
    is_alike = bool(keys) and not cpus and not config.virtual_local_rank
    servers = SERVERS if server_recipe(config, cpus) is not None else None
    return WarmKeys(keys, keys[0] if is_alike else None, servers)


def server_recipe(config: WorkerConfig, cpus: Sequence[frozenset[int]]) -> WarmRecipe | None:
    """The recipe of the servers' warm parent; None if they start cold.

    One parent is for all local ranks, so there is none where these see other CPUs or devices.
    """
    is_alike = not cpus and not config.virtual_local_rank
    if config.servers is None or config.server_imports is None or not is_alike or not _is_injectable():
        return None
    return replace(_recipe(config, config.servers, cpus, 0, config.server_imports, ()), key=SERVERS)


def warm_recipes(config: WorkerConfig, cpus: Sequence[frozenset[int]]) -> list[WarmRecipe]:
    """The recipe of each local rank's warm parent; none if workers start cold."""
    imports = config.warm_imports
    if imports is None or not _is_injectable():
        return []
    try:
        recipes = [
            _recipe(config, config.entrypoint, cpus, rank, imports, config.warm_later)
            for rank in range(config.local_world_size)
        ]
    except UsageError:
        return []  # the start of the workers says what is wrong
    # Recipes of one key may differ in arguments with an expanded local rank: a worker gets its own.
    keys: list[tuple[object, ...]] = [(sorted(it.env.items()), it.cpus) for it in recipes]
    first = [recipes[keys.index(key)] for key in keys]
    return [replace(recipe, key=str(keys.index(key))) for recipe, key in zip(first, keys, strict=True)]


def _is_injectable() -> bool:
    return os.path.isdir(INJECTED) and os.pathsep not in INJECTED


def _recipe(
    config: WorkerConfig,
    entrypoint: Entrypoint,
    cpus: Sequence[frozenset[int]],
    local_rank: int,
    imports: Sequence[str],
    later: Sequence[str],
) -> WarmRecipe:
    env = common_environment(config, local_rank)
    before = env.get("PYTHONPATH")
    return WarmRecipe(
        key="",
        argv=worker_argv(entrypoint, local_rank),
        env={**env, "PYTHONPATH": os.pathsep.join(filter(None, (INJECTED, before)))},
        cpus=cpus[local_rank] if cpus else None,
        terms=":".join(
            (
                "unset" if before is None else "set",
                _terms(imports, later),
                "on" if config.keeps_warm else "auto",
            )
        ),
    )


def _terms(imports: Sequence[str], later: Sequence[str]) -> str:
    added = [name for name in later if name not in imports]
    return ";".join(filter(None, (",".join(imports), ",".join(added))))


def probe_key(config: WorkerConfig) -> str | None:
    """The key of a warm parent that can fork the probe; None: it starts cold.

    The parent imports torch, in the probe's environment; there is none where each local rank has a device of
    its own.
    """
    return None if config.virtual_local_rank else torch_key(config)


def torch_key(config: WorkerConfig) -> str | None:
    """The key of a warm parent that imports torch, whichever devices it sees; None: there is none."""
    recipes = warm_recipes(config, ()) if "torch" in (config.warm_imports or ()) else ()
    return recipes[0].key if recipes else None
