"""Every reason for an agent to leave its job, and what its workers and the master are told.

A departure is a *farewell* if the job may go on without this node, and the master has to know.
"""

from __future__ import annotations

from elasticrun.core.agent.events import OUTCOME_STATUS, REJECT_STATUS, Finish
from elasticrun.core.protocol.messages import JobEnded, Outcome, RejectCode, Rejected
from elasticrun.dataclass import dataclass
from elasticrun.errors import ExitCode

SIGTERM = 15


@dataclass(frozen=True, slots=True)
class Departure:
    """How this node leaves once its workers are gone."""

    finish: Finish
    signum: int = SIGTERM  # for the workers that run when it is decided
    drains: bool = False  # they may save their state first
    is_farewell: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the job has ended as it should."""
        return self.finish.outcome is Outcome.SUCCEEDED

    @classmethod
    def job_over(cls, message: JobEnded, program: str = "", has_worked: bool = True) -> Departure:
        """The job has ended, well or not. After a success, a spare says that its program never ran."""
        status, reason = OUTCOME_STATUS[message.outcome], message.reason
        is_spare = not has_worked and message.outcome is Outcome.SUCCEEDED and not message.checkup
        if is_spare and message.other_program:
            status = ExitCode.WRONG_JOB
            reason = f"this node was a spare, and the job ran {message.other_program}; {program} never ran"
        elif is_spare:
            reason = f"the job succeeded; this node was a spare, so {program} never ran here"
        finish = Finish(status, reason, message.outcome, message.failures, message.checkup, is_spare)
        return cls(finish)

    @classmethod
    def refused(cls, message: Rejected) -> Departure:
        """The master does not want this node, or not any more."""
        finish = Finish(REJECT_STATUS[message.code], message.message)
        return cls(finish, drains=message.code is RejectCode.DRAINED)

    @classmethod
    def stopped(cls, signum: int) -> Departure:
        """The launcher was told to stop; SIGTERM is how a platform takes its nodes away."""
        finish = Finish(128 + signum, f"stopped by signal {signum}")
        return cls(finish, signum, drains=signum == SIGTERM, is_farewell=True)

    @classmethod
    def preempted(cls, reason: str) -> Departure:
        """This node will be taken away."""
        return cls(Finish(ExitCode.DRAINED, reason), drains=True, is_farewell=True)

    @classmethod
    def broken(cls, exit_status: int, reason: str) -> Departure:
        """The launcher cannot go on."""
        return cls(Finish(exit_status, reason), is_farewell=True)

    @classmethod
    def stuck(cls, seconds: float) -> Departure:
        """Workers survive SIGKILL (a driver holds them in the kernel): this node is of no use any more."""
        reason = f"workers are still alive {seconds:g} s after SIGKILL; reboot this node"
        return cls.broken(ExitCode.NODE_FAULT, reason)

    @classmethod
    def leaderless(cls, seconds: float, has_begun: bool) -> Departure:
        """Masters come and step down, and none of them can form a world."""
        why, advice = "not all hosts of --rdzv-endpoint were here", "start it anew once they are up"
        if has_begun:
            why = "too few nodes of the last one are left, and a host that lost its state is a new node"
            advice = "start the job anew, with a --state-dir on each host that survives"
        reason = f"for {seconds:.0f} s no master could form a world, as {why}: {advice}"
        return cls(Finish(ExitCode.RENDEZVOUS_TIMEOUT, reason), is_farewell=True)

    @classmethod
    def deserted(cls, seconds: float, hangs: bool) -> Departure:
        """The master is gone for good, and there is nothing to keep alive: no workers, or only hung ones."""
        hung = ", and the workers make no steps" if hangs else ""
        reason = f"the master went away and did not come back within {seconds:g} s{hung}"
        return cls(Finish(ExitCode.MASTER_LOST, reason))
