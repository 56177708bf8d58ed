"""Whether an operator's order for another number of tasks can be obeyed, and what it does, in words.

Only a job with parameter servers changes the number of its tasks while it trains: its chief starts again on
the new cluster, and the other tasks know only the chief. Without parameter servers the world is fixed in
every process, and a job grows by nodes as a torch job does.

The answer holds for the moment at which the order arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.config import TaskRole
from elasticrun.core.protocol.tasks import MAX_CLUSTER
from elasticrun.core.tensorflow.cluster import SERVERS, is_served
from elasticrun.core.tensorflow.round_tasks import RoundTasks

#: The ports that each node of the round holds free.
Ports = Mapping[str, Sequence[int]]

#: What to do instead in a job whose number of tasks is fixed while a round runs.
_BY_NODES = "change its number of nodes (elastic-ctl scale N)"


def scale_refusal(tasks: RoundTasks | None, ports: Ports, role: TaskRole, count: int, idle: str = "") -> str:
    """Why a role cannot have so many tasks, in one sentence that also says what to do; "" if it can.

    ``tasks`` are those of the round, None if it is not TensorFlow's; ``idle`` says what the job is doing in
    place of running a round, "" if one runs.
    """
    if role not in SERVERS:
        return f"a cluster has one {role.value} at most; only the numbers of worker and ps can be changed"
    if count < 1:
        return f"{role.value}={count} is not possible: the chief needs at least one; give 1 or more"
    if idle:
        return f"the job is {idle}, so there is nothing to change; order it again when a round runs"
    if tasks is None:
        return f"this is no TensorFlow job; {_BY_NODES}"
    return _no_room(tasks, ports, role, count)


def _no_room(tasks: RoundTasks, ports: Ports, role: TaskRole, count: int) -> str:
    if not is_served(tasks.cluster):
        return f"the job has no parameter servers, and its workers train in step; {_BY_NODES}"
    if tasks.is_over:
        return "the chief has ended, and with it the training: there is nothing to change"
    here = tasks.count(role)
    if count == here:
        return f"the job has {role.value}={here} already; give another number"
    others = sum(len(addresses) for other, addresses in tasks.cluster if other is not role)
    if count + others > MAX_CLUSTER:
        return f"a cluster has at most {MAX_CLUSTER} tasks: give at most {role.value}={MAX_CLUSTER - others}"
    room = tasks.room(role, ports)
    if count - here <= room:
        return ""
    if not room:
        return f"the nodes hold no free port for another {role.value}: give at most {role.value}={here}"
    return (
        f"the nodes hold free ports for {room} more of {role.value}: give at most {role.value}={here + room}"
    )


def scale_promise(tasks: RoundTasks, role: TaskRole, count: int) -> str:
    """What an order that is not refused does, in one sentence; asked before it is carried out."""
    here = tasks.count(role)
    low, high = sorted((here, count))
    which, plural = (
        (f"{role.value} {low}", "s") if high - low == 1 else (f"{role.value} {low} to {high - 1}", "")
    )
    chief = "the chief saves its state and starts again"
    steps = f"{which} start{plural} now, {chief}" if count > here else f"{chief}, then {which} end{plural}"
    return f"{role.value}: {here} -> {count}: {steps}; all others go on"
