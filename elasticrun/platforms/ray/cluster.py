"""Ray itself: the one module that imports it.

Theory. A node of a job is one actor. The first ones, as many as the job needs at least, get the bundles of
one placement group, so that two jobs cannot each hold half of what both need. Whoever comes later is placed
alone, or gets a bundle that is free again: see ``places.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from elasticrun.clock import within
from elasticrun.core.fleet.replicas import Cause
from elasticrun.core.protocol.plain import one_line
from elasticrun.errors import UsageError
from elasticrun.platforms.protocol import PlatformError
from elasticrun.platforms.ray.node import Node
from elasticrun.platforms.ray.words import Chunk, Needs, NodeLostError, Place

#: Calls that one actor answers at a time: the launcher's end, its output, signals, and whether it is alive;
#: and those of connections that were lost.
_CALLS = 16
#: Seconds to wait for an answer of an actor whose connection has ended.
_PATIENCE = 2.0
_LONGEST = 300
#: How Ray says that the host of an actor is gone.
_HOST_GONE = ("node has died", "node was terminated", "owner's node has crashed")


def connect(address: str | None) -> RayCluster:
    """Connect to a cluster, as ``ray.init`` does. Raises PlatformError, and UsageError for a Ray client."""
    if address is not None and "://" in address:
        raise UsageError(
            f"RAY_ADDRESS={address!r} is not valid: the hosts of the cluster have to reach the master beside"
            " the driver; give HOST:PORT, on one of the cluster's hosts, or use elastic-ctl ray submit"
        )
    try:
        ray.init(address=address, log_to_driver=False)
    except Exception as error:  # noqa: BLE001 Ray raises what comes: ConnectionError, RuntimeError, ValueError
        raise PlatformError(f"there is no way to the Ray cluster: {_words(error)}") from None
    return RayCluster()


class RayCluster:
    """The cluster of this driver."""

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def address(self) -> str:
        """At which the hosts of the cluster reach this one."""
        return _address()

    async def reserve(self, count: int, needs: Needs) -> None:
        """Wait for the placement group."""
        group: Any = None
        try:
            group = placement_group([_bundle(needs)] * count, strategy="SPREAD")
            await group.ready()
        except (RayError, ValueError) as error:
            if group is not None:
                remove_placement_group(group)  # else it would take the room that the next try needs
            raise PlatformError(f"Ray reserves nothing: {_words(error)}") from None
        self._group = group

    def release(self) -> None:
        """Remove the placement group."""
        with contextlib.suppress(RayError):
            remove_placement_group(self._group)
        self._group = None

    def start(self, name: str, needs: Needs, bundle: int, avoided: Sequence[str]) -> RayActor:
        """Create an actor; Ray looks for its place."""
        options: dict[str, Any] = {
            "name": name,
            "num_cpus": needs.cpus,
            "num_gpus": needs.gpus,
            "resources": dict(needs.others),
            "max_restarts": 0,
            "max_concurrency": _CALLS,
            "scheduling_strategy": "SPREAD",
        }
        if needs.memory:
            options["memory"] = needs.memory
        if bundle >= 0:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, bundle)
        elif avoided:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(avoided)})"}
        try:
            return RayActor(ray.remote(Node).options(**options).remote())
        except (RayError, ValueError) as error:
            raise PlatformError(f"Ray refuses a node: {_words(error)}") from None

    def close(self) -> None:
        """Leave the cluster: all that is left of the job there ends."""
        ray.shutdown()


def _bundle(needs: Needs) -> dict[str, float]:
    given = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": float(needs.memory), **dict(needs.others)}
    return {name: count for name, count in given.items() if count}


class RayActor:
    """One actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def place(self) -> Place:
        """Wait until it is there."""
        return Place(*await _answer(self._actor.__ray_call__.remote(_where)))

    async def run(self, request: bytes) -> int:
        """Run the launcher; if only the connection was lost, wait for the same one again."""
        return int(await self._patiently(lambda: self._actor.run.remote(request)))

    async def read(self, after: int) -> Sequence[Chunk]:
        """Wait for what the launcher prints next."""
        found = await self._patiently(lambda: self._actor.read.remote(after))
        return [(int(number), int(stream), bytes(data)) for number, stream, data in found]

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """What a call returns that may be made again, if only the connection was lost."""
        while True:
            try:
                return await _answer(call())
            except NodeLostError as error:
                if error.cause is not Cause.HOST_LOST or not await self.answers(_PATIENCE):
                    raise

    def signal(self, signum: int) -> None:
        """Pass a signal on."""
        with contextlib.suppress(RayError):
            self._actor.signal.remote(signum)

    async def answers(self, seconds: float) -> bool:
        """Whether it answers within this time."""
        try:
            await within(seconds, _answer(self._actor.ping.remote()))
        except (NodeLostError, asyncio.TimeoutError):
            return False
        return True

    def kill(self) -> None:
        """End the actor; its child finds its input closed."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._actor)


def _address() -> str:
    """At which other hosts of the cluster reach this process."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call] # Ray has no types there


def _where(_: Node) -> tuple[str, str, str, str, str]:
    """Runs in the actor: where that is."""
    context = ray.get_runtime_context()
    directory = os.getcwd() if context.runtime_env.get("working_dir") else ""  # noqa: PTH109
    address = _address()
    return context.get_node_id(), address, f"{socket.gethostname()} ({address})", sys.executable, directory


async def _answer(reference: Any) -> Any:
    """What a call returns. Raises NodeLostError."""
    try:
        return await reference
    except OutOfMemoryError as error:
        raise NodeLostError(Cause.OUT_OF_MEMORY, _words(error)) from None
    except ActorUnavailableError as error:
        raise NodeLostError(Cause.HOST_LOST, _words(error)) from None
    except ActorDiedError as error:
        is_preempted = bool(getattr(error, "preempted", False))
        is_host = any(words in str(error) for words in _HOST_GONE)
        cause = Cause.PREEMPTED if is_preempted else Cause.HOST_LOST if is_host else Cause.EXITED
        raise NodeLostError(cause, _words(error)) from None
    except RayError as error:
        raise NodeLostError(Cause.NOT_STARTED, _words(error)) from None


def _words(error: Exception) -> str:
    return one_line(str(error))[:_LONGEST]
