"""The facts of the accounting, from the entries of the event log.

A log may begin in the middle of a job, as old files are dropped: then the time before is not accounted.
"""

from __future__ import annotations

from collections.abc import Iterator

from elasticrun.core.accounting import facts
from elasticrun.core.accounting.facts import Fact, Stop
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.core.recovery.budget import StopCause

#: Reasons to stop that are failures; after the others the work of the step under way is lost as well.
FAILURES = frozenset(
    cause.value
    for cause in (StopCause.WORKER_FAILED, StopCause.HANG, StopCause.MEMBER_LOST, StopCause.STORE_LOST)
)
_PHASES = {phase.value: phase for phase in AgentPhase}
_MILESTONES = {milestone.name.lower(): milestone for milestone in Milestone}


def micros(seconds: float) -> int:
    """Seconds of the log in the unit of the accounting."""
    return round(seconds * 1e6)


def facts_of(entry: LogEntry) -> Iterator[Fact]:
    """What an entry means for the accounts; entries of a kind that is not known mean nothing."""
    at, told = micros(entry.at), entry.told
    match told:
        case chronicle.NodeJoined():
            yield facts.NodeCame(at, told.node)
        case chronicle.NodeGone():
            yield facts.NodeWent(at, told.node)
        case chronicle.NodeChanged() if told.phase in _PHASES:
            yield facts.PhaseChanged(at, told.node, _PHASES[told.phase], told.round)
        case chronicle.RoundStarted():
            restores = 0 if told.round == 0 and told.restored_step is None else told.restored_step
            yield facts.RoundStarted(at, told.round, told.names, restores)
        case chronicle.RoundStopping():
            why = Stop.FAILED if told.cause in FAILURES else Stop.CHANGED
            yield facts.RoundStopped(at, told.round, why)
        case chronicle.RoundStopped():
            yield facts.RoundStopped(at, told.round, Stop.FINISHED)
        case chronicle.MilestoneReached() if told.milestone in _MILESTONES:
            yield facts.MilestoneReached(at, told.round, told.node, _MILESTONES[told.milestone])
        case chronicle.StepsDone():
            yield facts.StepsDone(at, told.round, told.step)
        case chronicle.StateSaved():
            yield facts.StateSaved(at, told.round, told.step)
        case chronicle.SaveStalled():
            yield facts.SaveStalled(at, told.round, micros(told.seconds))
        case chronicle.HangFound():
            yield facts.HangFound(at, told.round, at - micros(told.silence))
        case chronicle.StragglerFound():
            yield facts.StragglerFound(at, told.round, told.node, told.factor)
        case chronicle.JobEnded():
            yield facts.JobEnded(at)
        case _:
            pass
