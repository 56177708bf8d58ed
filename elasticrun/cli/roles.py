"""Whether this is a TensorFlow job, and which role each of this node's tasks has in it.

The invariant: the roles of a job of one node make a cluster that TensorFlow accepts; those of one node of
several make a part of such a cluster. The master checks the roles of all nodes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elasticrun.cli import checks, options
from elasticrun.cli.arguments import Given
from elasticrun.cli.rendezvous import Notes
from elasticrun.cli.warm import TENSORFLOW, choose, is_python
from elasticrun.config import Entrypoint, EntrypointKind, TaskRole, WorkerConfig
from elasticrun.core.protocol.tasks import MAX_TASKS
from elasticrun.core.tensorflow.cluster import SINGLE, count_roles, expand, impossible
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

#: What ``--tf-servers ready`` runs.
SERVER_MODULE = "elasticrun.tf.server"
#: What a warm parent of these imports.
PRELOAD_MODULE = "elasticrun.tf.preload"
#: Settings of all gRPC connections of a TensorFlow task. Its own are used if it has any.
_GRPC_VARIABLE = "TF_GRPC_DEFAULT_OPTIONS"
#: A task that does not reach another one tries again after so long, then after 1.6 times that and so on, up
#: to a second. gRPC would wait a second at once, but a server that was lost is back before that.
_GRPC_OPTIONS = "grpc.initial_reconnect_backoff_ms=100"


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles asked for; ``roles_by_rank`` applies them once the number of workers is known."""

    source: str  # how an error quotes the option that makes this a TensorFlow job
    listed: tuple[TaskRole, ...] = ()  # of all tasks of the job, which has one node
    each: TaskRole = TaskRole.WORKER  # of every task of this node, if none are listed


def read_roles(given: Given, max_nodes: int, notes: Notes) -> Roles | None:
    """The roles asked for; None for a job without roles, and for a mere health check.

    Raises UsageError if they contradict one another, or can make no job.
    """
    roles = _asked_for(given, max_nodes)
    if roles is None and given.has(options.TF_SERVERS):
        notes.append(("warning", f"{options.TF_SERVERS.flag} without effect: this is no TensorFlow job"))
    return None if given.on(options.HEALTH_CHECK_ONLY) else roles


def _asked_for(given: Given, max_nodes: int) -> Roles | None:
    counts, role = given.find(options.ROLE_COUNTS), given.find(options.TF_ROLE)
    framework = given.get(options.FRAMEWORK)
    for option in (options.ROLE_COUNTS, options.TF_ROLE):
        if framework == "torch" and given.has(option):
            reason = f"it is for TensorFlow jobs, but {given.texts[options.FRAMEWORK.name]} was given"
            given.refuse(option, f"{reason}; leave one of them out")
    if counts is not None:
        return _listed(given, counts, max_nodes)
    if role is not None:
        return Roles(str(given.texts[options.TF_ROLE.name]), each=role)
    return Roles(str(given.texts[options.FRAMEWORK.name])) if framework == "tensorflow" else None


def roles_of_nodes(given: Given) -> tuple[TaskRole, ...]:
    """The role of each node where a platform starts one for each task; () without ``--role-counts``.

    Raises UsageError if they can make no job.
    """
    if given.find(options.ROLE_COUNTS) is None:
        return ()
    for option in (options.NNODES, options.NPROC_PER_NODE):
        if given.has(option):
            given.refuse(option, f"with {options.ROLE_COUNTS.flag} each task is a node; leave it out")
    if given.on(options.HEALTH_CHECK_ONLY):
        given.refuse(options.ROLE_COUNTS, f"a check has no tasks; give {options.NNODES.flag} instead")
    roles = _asked_for(given, 1)
    return () if roles is None else roles.listed


def _listed(given: Given, counts: dict[TaskRole, int], max_nodes: int) -> Roles:
    option = options.ROLE_COUNTS
    if given.has(options.TF_ROLE):
        given.refuse(options.TF_ROLE, f"{option.flag} says every task's role; leave one of them out")
    if max_nodes > 1:
        given.refuse(
            option,
            f"it is for jobs of one node, but {options.NNODES.flag} allows {max_nodes}; "
            f"give {options.TF_ROLE.flag} on each node, or {options.NNODES.flag} 1",
        )
    if reason := impossible(counts):
        given.refuse(option, reason)
    if sum(counts.values()) > MAX_TASKS:
        given.refuse(option, f"one node runs {MAX_TASKS} tasks at most; give fewer")
    return Roles(str(given.texts[option.name]), listed=expand(counts))


def prepare(
    workers: WorkerConfig, roles: Roles, given: Given, environ: Mapping[str, str], notes: Notes
) -> WorkerConfig:
    """Add the program of tasks that only serve, and the warm parent of the others.

    Raises UsageError if TensorFlow is missing where the tasks run. Only a node with parameter servers has a
    warm parent for servers: the job waits for a ps that was lost, but does without a worker.
    """
    entrypoint = workers.entrypoint
    server = None
    if given.get(options.TF_SERVERS) == "ready":
        server = Entrypoint(EntrypointKind.MODULE, SERVER_MODULE, python=entrypoint.python)
    needs_server = server is not None and TaskRole.PS in (roles.listed or (roles.each,))
    checks.check_tensorflow(roles.source, entrypoint, environ, needs_server=needs_server)
    only_serves = needs_server and not roles.listed
    is_warm = needs_server and given.get(options.WARM) != "off" and is_python(entrypoint.python, environ)
    workers = replace(workers, servers=server, server_imports=(PRELOAD_MODULE,) if is_warm else None)
    return workers if only_serves else choose(workers, given, environ, notes, TENSORFLOW)


def settle_grpc(env: dict[str, str]) -> None:
    """Have tasks that do not reach one another try again soon, unless the user has settings of his own."""
    env.setdefault(_GRPC_VARIABLE, _GRPC_OPTIONS)


def roles_by_rank(roles: Roles, given: Given, workers: int, max_nodes: int) -> tuple[TaskRole, ...]:
    """The role of each worker by local rank; raises UsageError if the roles do not fit the workers."""
    if roles.listed:
        if len(roles.listed) != workers:
            given.refuse(
                options.ROLE_COUNTS,
                f"that makes {len(roles.listed)} tasks, but {given.texts[options.NPROC_PER_NODE.name]} "
                f"asks for {workers}; leave {options.NPROC_PER_NODE.flag} out",
            )
        return roles.listed
    if reason := _unfit(roles.each, workers, max_nodes):
        raise UsageError(f"{roles.source} is not valid: {reason}")
    return (roles.each,) * workers


def _unfit(role: TaskRole, workers: int, max_nodes: int) -> str:
    """Why a node cannot run so many tasks of one role; "" if it can."""
    if role in SINGLE and workers > 1:
        return (
            f"a cluster has one {role.value} at most, but this node has {workers} workers; "
            f"give {options.NPROC_PER_NODE.flag} 1"
        )
    if workers > MAX_TASKS:
        return (
            f"one node runs {MAX_TASKS} tasks at most, but this one has {workers} workers; "
            f"give {options.NPROC_PER_NODE.flag} {MAX_TASKS} or less"
        )
    if max_nodes == 1 and (reason := impossible(count_roles((role,) * workers))):
        return f"this job has one node, where {reason} to {options.ROLE_COUNTS.flag}"
    return ""
