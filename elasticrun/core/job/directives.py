"""What agents are told, as a function of the job's state.

No directive is remembered: each is derived anew from the facts. So an agent that lost one with its stream
gets the same again, or the one that is in force by then.
"""

from __future__ import annotations

from elasticrun.core.job.events import OUTCOMES
from elasticrun.core.job.round import Round
from elasticrun.core.job.state import JOIN, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.roster import describe_spares, describe_waiting, name_some
from elasticrun.core.protocol.messages import JobEnded, MasterMessage, StartProbe, StartRound, StopRound
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import GRACEFUL
from elasticrun.core.tensorflow.cluster import is_served
from elasticrun.core.tensorflow.round_tasks import name_tasks


def directive(job: JobState, node: Node, sequence: int) -> MasterMessage | None:
    """The directive in force for a node; None before the first round if the node has nothing to do."""
    stamp = (job.epoch, sequence)
    name = node.info.node
    if job.ended:
        return _ending(job, node, stamp)
    if job.checkup is not None and name in job.checkup.pending:
        groups = job.checkup.groups_of(name)
        slots = len(job.checkup.step.slots)
        number, timeout = job.checkup.number, job.config.health.timeout
        return StartProbe(*stamp, number, groups, slots, timeout, probe_secret(job.key, number))
    if name in job.current.pending:
        if job.phase is JobPhase.RUNNING or name in job.current.serving:
            current = job.current
            return StartRound(*stamp, current.assignments[name], current.start_reason, current.after)
        return StopRound(*stamp, job.round, job.current.stop_reason, _drains(job.current, name))
    if job.newest < 0:
        return None
    # Also to a node that runs nothing: it makes an earlier directive that comes late stale.
    return StopRound(*stamp, job.newest, "this node is not part of the newest round")


def _drains(current: Round, name: str) -> bool:
    """Whether the workers of a node may save their state before they stop; a chief saves for all."""
    if current.stop is None or current.stop[0] not in GRACEFUL:
        return False
    tasks = current.tasks
    return tasks is None or not is_served(tasks.cluster) or name == tasks.leader[0]


def probe_secret(key: str, number: int) -> bytes:
    """The secret of one probe: the same for all its nodes, also for those that hear of it late."""
    import hmac  # not needed where nothing is checked

    return hmac.digest(key.encode(), b"elasticrun.v1 probe %d" % number, "sha256")


def _ending(job: JobState, node: Node, stamp: tuple[int, int]) -> JobEnded:
    failed = job.phase in (JobPhase.FAILED, JobPhase.HOPELESS)
    failures = tuple(job.current.failures) if failed else ()
    other = job.fit.other_program(node.info)
    return JobEnded(*stamp, OUTCOMES[job.phase], job.end_reason, failures, job.table, other)


def notice(job: JobState) -> tuple[str, list[str]]:
    """What the job waits for, and the names of the nodes that wait."""
    if job.ending is not None:
        text = f"{job.ending[1]}; before the job ends, {job.storing.commit} is written to the storage"
        return text, list(job.members.nodes)
    if job.phase is JobPhase.GATHERING:
        present = [node.info for name, node in job.members.nodes.items() if name not in job.cordoned]
        doubts = [f"{name}: {reason}" for name, reason in job.health.doubtful.items()]
        shut_out = [f"{name} is {why}" for name, why in job.cordoned.items() if name in job.members.nodes]
        waiting = job.obstacle or describe_waiting(present, job.limits)
        text = "; ".join([waiting, *doubts[:1], *shut_out[:1]])
        return text, list(job.members.nodes)
    if job.phase is JobPhase.STOPPING:
        pending = name_some(sorted(job.current.pending))
        return f"round {job.round} is being stopped; waiting for {pending}", list(job.members.nodes)
    tasks = job.current.tasks
    if tasks is not None and tasks.is_over and tasks.unfinished:
        ended, late = name_tasks(tasks, [tasks.leader]), name_tasks(tasks, tasks.unfinished)
        bound = f"at most {job.config.finish_timeout:g} s (--tf-finish-timeout)"
        return f"{ended} has ended with 0; waiting for {late} to end, {bound}", list(job.current.assignments)
    text = describe_spares(len(job.current.assignments), len(job.ready), len(job.held), job.limits)
    return text, [*job.ready, *job.held.since]


def patience(job: JobState) -> str:
    """How long nodes have been waited for, of how long, and how a missing one is started; "" if not known."""
    until = job.timers.at((JOIN, ""))
    if job.ending is not None or job.phase is not JobPhase.GATHERING or until is None:
        return ""
    longest = job.config.join_timeout
    text = f"; waited {job.now - until + longest:.0f} s of at most {longest:g} s (join_timeout)"
    is_short = not job.obstacle and len(job.members.nodes) < job.limits.smallest
    start = job.config.join_command if is_short else ""
    return f"{text}; start a missing node by: {start}" if start else text
