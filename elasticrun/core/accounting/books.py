"""The books of a job: facts in, and at any moment out what each node has spent its time on.

Theory. A fact moves an account to another activity, or tells the meter of the round something
(``training.py``). So it costs the same however many nodes there are; only a round that starts costs something
for each of its members. The job has an account of its own for the critical path: it trains while its round
does, with the straggler; before that it is as far as the member that is least far; between rounds it is
stopped while any node is, else it starts while any node is preparing, else it waits.

Facts may be late, doubled, out of order or absurd. None of them raises. Time never goes back: what is late
happened now. A round that is not the newest, or has stopped, is not spoken of any more; nor is a node that is
not here, or not in its round. Such facts change nothing but the time.

Invariants. What a node has spent is exactly the time in which it was here; what the job has spent is exactly
its age. Memory is in proportion to the nodes that are here, with the newest ``PAST`` of those that were; what
others had spent is kept as one sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from elasticrun.core.accounting.account import Account, Place, after
from elasticrun.core.accounting.activities import Activity, Spent, add, nothing, take_off
from elasticrun.core.accounting.facts import (
    Fact,
    HangFound,
    JobEnded,
    MilestoneReached,
    NodeCame,
    NodeWent,
    PhaseChanged,
    RoundStarted,
    RoundStopped,
    SaveStalled,
    StateSaved,
    StepsDone,
    Stop,
    StragglerFound,
)
from elasticrun.core.accounting.summary import Summary
from elasticrun.core.accounting.training import Training
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone

#: How many nodes that left are known by name.
PAST = 4096
#: What a node does in each phase, outside a round; RUNNING says nothing of a node that is in none.
OUTSIDE = {
    AgentPhase.PREPARING: Activity.START,
    AgentPhase.CHECKING: Activity.START,
    AgentPhase.READY: Activity.WAITING,
    AgentPhase.FINISHED: Activity.WAITING,
    AgentPhase.FAILED: Activity.STOPPED,
    AgentPhase.STOPPING: Activity.STOPPED,
}
#: Phases without workers. One that is told before its workers were seen is older than the round.
IDLE = frozenset({AgentPhase.PREPARING, AgentPhase.CHECKING, AgentPhase.READY})


class Books:
    """Of one job, which begins at ``start``, in microseconds of its clock."""

    def __init__(self, start: int = 0) -> None:
        self._start = self._now = start
        self._job = Account(start, is_node=False)
        self._here: dict[str, Account] = {}
        self._past: dict[str, Spent] = {}  # of nodes that left, the oldest first; none of it changes
        self._left = nothing()  # what these, and those that were forgotten, had spent together
        self._round: Training | None = None  # the newest
        self._places = Counter[Place]()  # how many nodes are where
        self._high = 0  # the highest step of all rounds
        self._sees_steps = False  # else nobody can tell what was lost
        self._is_over = False

    def take(self, fact: Fact) -> None:
        """Take in one fact."""
        if self._is_over:
            return
        self._now = max(self._now, fact.at)
        match fact:
            case NodeCame(_, node):
                self._came(node)
            case NodeWent(_, node):
                self._went(node)
            case PhaseChanged(_, node, phase, number):
                self._phase(node, phase, number)
            case RoundStarted():
                self._started(fact)
            case JobEnded():
                self._stop(is_lost=True)
                self._is_over = True
            case _:
                training = self._round
                if training is not None and training.is_open and training.number == fact.round:
                    self._tell(training, fact)
        self._follow()

    def summary(self, now: int) -> Summary:
        """Where the time went until now: as late as this, or as the last fact. To look changes nothing."""
        now = self._now if self._is_over else max(self._now, now)
        nodes = {name: account.until(now) for name, account in self._here.items()}
        total = dict(self._left)
        for spent in nodes.values():
            add(total, spent)
        return Summary(now, self._start, self._past | nodes, total, self._job.until(now))

    def settle(self, now: int) -> Spent:
        """What the job has spent until now, as far as it cannot be judged otherwise: no kind of it falls.

        So time passes for good: a fact that comes later and happened before is taken to have happened now.
        """
        if not self._is_over:
            self._now = max(self._now, now)
        return self._job.settled(self._now)

    def job_spent(self, now: int) -> Spent:
        """What the job alone has spent until now. It costs the same however many nodes there are."""
        return self._job.until(self._now if self._is_over else max(self._now, now))

    # -- nodes

    def _came(self, node: str) -> None:
        if node not in self._here:
            before = self._past.pop(node, None)
            if before is not None:
                take_off(self._left, before)
            self._here[node] = Account(self._now, None if before is None else dict(before))
            self._places[Activity.START] += 1

    def _went(self, node: str) -> None:
        account = self._here.pop(node, None)
        if account is None:
            return
        self._places[account.place] -= 1
        account.leave(self._now, Activity.STOPPED, self._sees_steps)
        self._past[node] = account.spent
        add(self._left, account.spent)
        if len(self._past) > PAST:
            del self._past[next(iter(self._past))]

    def _phase(self, node: str, phase: AgentPhase, number: int) -> None:
        account = self._here.get(node)
        if account is None:
            return
        training = account.training
        if training is None or not training.is_open:
            if phase is not AgentPhase.RUNNING:
                self._leave(account, phase)
            else:
                self._enter(account, number)
        elif number not in (-1, training.number):
            return  # of another round
        elif phase is AgentPhase.RUNNING:
            self._reach(account, training, Milestone.SPAWNED)
        elif phase not in IDLE or account.milestone is not Milestone.NONE:
            self._leave(account, phase)

    def _enter(self, account: Account, number: int) -> None:
        """A node runs workers of a round whose list of members did not name it, as the list was long.

        The round has made no step yet: ranks step together, and this node is one of them.
        """
        training = self._round
        if training is None or training.number != number:
            return
        if not training.is_open or training.begun is not None:
            return
        before = account.place
        account.leave(self._now, Activity.START, is_lost=False)
        account.enter(training)
        self._shift(before, account.place)
        self._reach(account, training, Milestone.SPAWNED)

    def _leave(self, account: Account, phase: AgentPhase) -> None:
        """A node is outside a round, perhaps since now."""
        is_lost = self._sees_steps and phase is not AgentPhase.FINISHED
        before = account.place
        account.leave(self._now, OUTSIDE[phase], is_lost)
        self._shift(before, account.place)

    # -- rounds

    def _started(self, fact: RoundStarted) -> None:
        if self._round is not None and fact.round <= self._round.number:
            return
        self._stop(is_lost=True)
        training = self._round = Training(fact.round, fact.restores, self._high)
        for name in fact.members:
            account = self._here.get(name)
            if account is not None:
                before = account.place
                account.leave(self._now, Activity.START, is_lost=False)
                account.enter(training)
                self._shift(before, account.place)
        self._job.leave(self._now, Activity.START, is_lost=False)
        self._job.enter(training)

    def _stop(self, is_lost: bool) -> None:
        """The newest round stops, with all that are in it."""
        training = self._round
        if training is not None and training.is_open:
            training.stop(self._now, is_lost and self._sees_steps)
            self._mark(training)
            self._places[Activity.STOPPED] += sum(self._places.pop(each, 0) for each in Milestone)

    def _tell(
        self,
        training: Training,
        fact: RoundStopped
        | MilestoneReached
        | StepsDone
        | StateSaved
        | SaveStalled
        | HangFound
        | StragglerFound,
    ) -> None:
        """Something about the newest round, which is open."""
        match fact:
            case RoundStopped(_, _, why):
                self._stop(why is not Stop.FINISHED)
            case MilestoneReached(_, _, node, milestone):
                account = self._member(node, training)
                if account is not None:
                    self._reach(account, training, milestone)
            case StepsDone(_, _, step):
                training.sample(self._now, step)
                self._sees_steps = True
                self._mark(training)
            case StateSaved(_, _, step):
                training.save(self._now, step)
            case SaveStalled(_, _, micros):
                training.stall(self._now, micros)
            case HangFound(_, _, since):
                training.hang(self._now, since)
            case _:
                self._slow_down(training, fact)

    def _member(self, node: str, training: Training) -> Account | None:
        account = self._here.get(node)
        return account if account is not None and account.training is training else None

    def _reach(self, account: Account, training: Training, milestone: Milestone) -> None:
        """The workers of a member are so far, if they were not before."""
        if milestone <= account.milestone:
            return
        self._shift(account.place, milestone)
        account.milestone = milestone
        if training.begun is None:
            account.do(self._now, after(milestone, training.restores))
            if milestone is Milestone.FIRST_STEP:
                training.begin(self._now)
                self._mark(training)

    def _shift(self, before: Place, now: Place) -> None:
        """A node is at another place."""
        self._places[before] -= 1
        self._places[now] += 1

    def _mark(self, training: Training) -> None:
        """How far the job is. Steps of a round of which nobody knows where it began say nothing of that."""
        if training.restores is not None:
            self._high = max(self._high, training.step)

    def _slow_down(self, training: Training, fact: StragglerFound) -> None:
        if self._member(fact.node, training) is None:
            return
        before = self._member(training.slowest, training)
        training.slow_down(fact.node, fact.factor)
        now = self._member(training.slowest, training)
        if before is not None:
            before.wait(training, True)
        if now is not None:
            now.wait(training, False)

    # -- the job

    def _follow(self) -> None:
        """What the job does follows from where its nodes are."""
        job, training = self._job, self._job.training
        if training is not None and not training.is_open:
            job.leave(self._now, _between(self._places), is_lost=False)
        elif training is None or training.begun is None:
            activity = _between(self._places) if training is None else self._before(training)
            if activity is not job.activity:
                job.do(self._now, activity)

    def _before(self, training: Training) -> Activity:
        """What the job does before the first step of its round."""
        least = next((each for each in Milestone if self._places[each]), None)
        return _between(self._places) if least is None else after(least, training.restores)


def _between(places: Mapping[Place, int]) -> Activity:
    """What the job does while no round runs."""
    for activity in (Activity.STOPPED, Activity.START):
        if places.get(activity):
            return activity
    return Activity.WAITING
