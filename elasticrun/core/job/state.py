"""What the master knows of one job: data, and nothing that decides.

The parts of the machine (``core/job/machine.py``) read all of it. Each field has one owner among them, and
only the owner assigns to it. What a machine does next follows from this state and the next event: a
snapshot of this is a snapshot of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticrun.config import JobConfig, TaskRole
from elasticrun.core.health.candidates import Candidates, Standing
from elasticrun.core.health.checkup import Checkup, HealthBook
from elasticrun.core.job.events import OUTCOMES, Trigger
from elasticrun.core.job.growth import HeldBack
from elasticrun.core.job.round import Round
from elasticrun.core.membership.fit import Fit
from elasticrun.core.membership.nodes import Membership
from elasticrun.core.membership.quorum import Quorum
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.membership.scaling import Operation, ScaleResult
from elasticrun.core.membership.seniority import Seniority
from elasticrun.core.protocol.bounds import Horizon
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import NodeCheck
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import Budget
from elasticrun.core.recovery.settlement import Recovery
from elasticrun.core.state.ledger import CommitLedger
from elasticrun.core.state.replication import Replication
from elasticrun.core.state.storing import Storing
from elasticrun.core.tensorflow.round_tasks import Order
from elasticrun.core.timers import Deadlines

if TYPE_CHECKING:
    from elasticrun.core.data.desk import Desks

Timer = tuple[str, str]  # its kind, and the node it is about, or ""
#: Kinds of timers.
HEARTBEAT, LAST_CALL, JOIN, NOTICE, REATTACH = "heartbeat", "last call", "join", "notice", "re-attach"
CHECK, BACKOFF, STEP_DOWN = "check", "back-off", "step down"
GROWTH, WARMING = "growth", "warming"
MENDING, LINGER, SERVING = "mending", "linger", "serving"
COLLECTING, ARRIVING, SAVING = "collecting", "arriving", "saving"
STORING, FLUSH = "storing", "flush"
SCALING = "scaling"
Verdict = tuple[CommitId | None, CommitId | None, CommitId | None, CommitId | None]
UNJUDGED: Verdict = (None, None, None, None)


@dataclass(slots=True)
class JobState:
    """The facts about one job. ``now`` and deadlines are seconds of the master's monotonic clock."""

    config: JobConfig
    recovery: Recovery  # what is remembered of failures: Settling
    quorum: Quorum
    fit: Fit
    limits: WorldLimits  # as an operator ordered last: Scaling
    members: Membership
    health: HealthBook
    candidates: Candidates
    ledger: CommitLedger  # of saved states
    seniority: Seniority = field(default_factory=Seniority)
    timers: Deadlines[Timer] = field(default_factory=Deadlines)
    now: float = 0.0  # when the event that is being handled happened
    events: int = 0  # its number in the life of the job, from 1; heartbeats, not journaled, have none

    # Where the job stands: JobMachine
    phase: JobPhase = JobPhase.GATHERING
    end_reason: str = ""

    # Who leads: Intake
    epoch: int = 0
    key: str = ""  # of all masters of this journal, in hex; the secrets of probes come from it
    horizon: Horizon = field(default_factory=Horizon)

    # Who is here: Attendance
    held: HeldBack = field(default_factory=HeldBack)  # ready, but no world waits for them
    leaving: dict[str, str] = field(default_factory=dict)  # drained nodes that hold saved states, and why
    newest: int = -1  # the highest round that any node has heard of, perhaps from a forgotten master
    probes: int = 0  # number of the newest probe, perhaps of a forgotten master

    # What operators ordered
    stop_ordered: str = ""  # why the job is to end: Orders
    check_ordered: str = ""  # why all nodes are checked before the next world: Checking
    cordoned: dict[str, str] = field(default_factory=dict)  # names that no new world takes, and why: Cordons
    scalings: int = 0  # how many scale operations there were: Scaling
    scaling: Operation | None = None  # the one that is not over
    scaled: ScaleResult | None = None  # how the last one ended

    # The next world: Formation
    obstacle: str = ""  # why no world is formed although enough nodes are there
    last_called: bool = False
    weighed: int = -1  # the newest event after which saved states were on their way into the next world

    # The check that runs: Checking
    checkup: Checkup | None = None
    table: tuple[NodeCheck, ...] = ()  # of the last check, in a check-only job

    # The newest world: Formation makes it, then it is Rounds'
    round: int = -1  # the newest round whose members this master knows
    current: Round = field(default_factory=Round)
    previous: tuple[str, ...] = ()  # its members by group rank
    role_orders: dict[TaskRole, Order] = field(default_factory=dict)  # the newest for each role

    # Saved states: Commits
    replication: Replication = field(default_factory=Replication)
    verdict: Verdict = UNJUDGED  # as members were told

    # Data that the ranks of the newest round share: SharedData
    desks: Desks | None = None
    readers: dict[int, str] = field(default_factory=dict)  # nodes of ranks that have asked

    # What is written to the storage: Storage
    storing: Storing = field(default_factory=Storing)
    ending: tuple[Trigger, str] | None = None  # an end that waits until the newest commit is written

    # What was said: Outbox
    sequence: int = 0  # of the newest directive

    @classmethod
    def new(cls, config: JobConfig) -> JobState:
        """The state of a new job."""
        quorum, health = Quorum(config.endpoints), HealthBook()
        members = Membership(config.max_nodes)
        return cls(
            config,
            Recovery(Budget(config.max_restarts)),
            quorum,
            Fit(config.min_nodes, config.max_nodes),
            WorldLimits(config.min_nodes, config.max_nodes, config.node_unit),
            members,
            health,
            Candidates(members.nodes, quorum, health),
            CommitLedger(quorum.is_needed),
        )

    @property
    def budget(self) -> Budget:
        """The restarts that were used and are left."""
        return self.recovery.budget

    @property
    def ready(self) -> Mapping[str, Standing]:
        """The nodes outside a round that could start at once, in the order in which they became ready."""
        return self.candidates.ready

    @property
    def ended(self) -> bool:
        """Whether the job has ended: no round will follow."""
        return self.phase in OUTCOMES
