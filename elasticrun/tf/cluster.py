"""Parses TF_CONFIG: where each task serves, and which task this process is.

Everything is checked here, before tensorflow is imported: its errors about a broken value come seconds
later, and do not tell what to change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from elasticrun.core.tensorflow.cluster import CONFIG_VARIABLE
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: The tasks that only serve: they run what the chief sends them.
SERVERS = ("worker", "ps")
_TO_DO = "start this program with elastic-run, or set TF_CONFIG as the documentation of tf.distribute says"


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """This process's task in a TensorFlow cluster."""

    role: str  # "chief", "worker", "ps", "evaluator"
    index: int  # within the role
    cluster: Mapping[str, tuple[str, ...]]  # host:port by index, for each role
    protocol: str = "grpc"

    @property
    def address(self) -> str:
        """Where this task serves; "" if it is not in the cluster, like an evaluator."""
        addresses = self.cluster.get(self.role, ())
        return addresses[self.index] if self.index < len(addresses) else ""

    @property
    def serves(self) -> bool:
        """Whether this task is a server: a worker or parameter server of a cluster that has a chief."""
        return self.role in SERVERS and bool(self.cluster.get("ps")) and bool(self.address)


def parse_task(text: str | None) -> ClusterTask:
    """Parse the value of TF_CONFIG; raises UsageError if it is missing, broken or contradicts itself."""
    if not text or not text.strip():
        raise UsageError(f"{CONFIG_VARIABLE} is not set; {_TO_DO}")
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _broken(f"is not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise _broken("has to be a JSON object")
    cluster = _cluster(config.get("cluster"))
    role, index = _task(config.get("task"))
    if role in SERVERS and role not in cluster:
        raise _broken(f"names this task {role}:{index}, but the cluster has no {role}")
    if role in cluster and index >= len(cluster[role]):
        raise _broken(f"names this task {role}:{index}, but the cluster has {len(cluster[role])} of {role}")
    protocol = config.get("rpc_layer") or "grpc"
    if not isinstance(protocol, str):
        raise _broken("has an rpc_layer that is not a string")
    return ClusterTask(role, index, cluster, protocol)


def parse_server(text: str | None) -> ClusterTask:
    """Parse the TF_CONFIG of a server; raises UsageError also if this task is not a server."""
    task = parse_task(text)
    if task.serves:
        return task
    if task.role in SERVERS:
        raise UsageError(
            f"{CONFIG_VARIABLE} has no ps, and without parameter servers a worker runs the training script "
            "itself: start that instead of elasticrun.tf.server, or add parameter servers"
        )
    raise UsageError(
        f"{CONFIG_VARIABLE} names this task {task.role}:{task.index}, but only a worker or a ps can be a "
        "server; the others run the training script"
    )


def _cluster(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not value:
        raise _broken('has no "cluster" that maps roles to lists of host:port')
    for role, addresses in value.items():
        if not isinstance(addresses, list) or not all(_is_address(address) for address in addresses):
            raise _broken(f"must give {role!r} a list of host:port")
    return {role: tuple(addresses) for role, addresses in value.items() if addresses}


def _is_address(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    host, _, port = value.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def _task(value: Any) -> tuple[str, int]:
    match value:
        case {"type": str(role), "index": int(index)} if role and index >= 0:
            return role, int(index)
    raise _broken('has no "task" with a "type" and an "index" from 0 on')


def _broken(problem: str) -> UsageError:
    return UsageError(f"{CONFIG_VARIABLE} {problem}; {_TO_DO}")
