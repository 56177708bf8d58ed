"""The time of one node, or of the job as a whole.

Outside a round, and in one that has made no step yet, an account has an activity of its own. From the first
step of its round on, the round's meter counts for it. It is settled only when something changes for this
account; a round that stops tells nobody, and its members find out when they are asked next.

Invariant. What was spent, with what the open activity or the meter adds until now, is exactly the time since
the account was opened, less the time in which it was closed.
"""

from __future__ import annotations

from elasticrun.core.accounting.activities import Activity, Spent, add, nothing
from elasticrun.core.accounting.training import ZERO, Training
from elasticrun.core.protocol.round_progress import Milestone

#: Where an account is: at a milestone of a round, or outside.
Place = Activity | Milestone
#: What workers do after each milestone. After CONNECTED it is START if there is nothing to restore.
AFTER = {
    Milestone.NONE: Activity.START,
    Milestone.SPAWNED: Activity.IMPORT,
    Milestone.IMPORTED: Activity.RENDEZVOUS,
    Milestone.CONNECTED: Activity.RESTORE,
    Milestone.RESTORED: Activity.START,
    Milestone.FIRST_STEP: Activity.START,
}


def after(milestone: Milestone, restores: int | None) -> Activity:
    """What workers do after a milestone, in a round that restores this step."""
    is_new = milestone is Milestone.CONNECTED and restores == 0
    return Activity.START if is_new else AFTER[milestone]


class Account:
    """One of them. ``spent``: what it had spent before, if it was here before.

    Not ``is_node``: it is the job, which is as slow as its straggler and waits for nobody.
    """

    def __init__(self, now: int, spent: Spent | None = None, is_node: bool = True) -> None:
        self.spent = nothing() if spent is None else spent
        self.training: Training | None = None  # the round that it is in
        self.milestone = Milestone.NONE
        self.activity = Activity.START
        self._since = now  # of the activity
        self._read = ZERO  # the meter, when it was settled last
        self._is_node = self._waits = is_node  # for stragglers

    @property
    def place(self) -> Place:
        """Where it is. A round that has stopped has no members."""
        if self.training is None:
            return self.activity
        return self.milestone if self.training.is_open else Activity.STOPPED

    def do(self, now: int, activity: Activity) -> None:
        """Go on with another activity of its own."""
        self.spent[self.activity] += now - self._since
        self.activity, self._since = activity, now

    def enter(self, training: Training) -> None:
        """Become a member of a round, after leaving the one before."""
        self.training, self._read, self.milestone = training, ZERO, Milestone.NONE

    def leave(self, now: int, activity: Activity, is_lost: bool) -> None:
        """Be no member any more. ``is_lost``: so is the work of the step under way."""
        training = self.training
        if training is None:
            self.do(now, activity)
            return
        end = now if training.over is None else training.over
        if training.begun is not None:
            self.do(training.begun, activity)
            add(self.spent, training.reading(end, is_lost).since(self._read).spent(self._waits))
            self._since = end
        else:
            self.do(end, activity)
        self.training, self._waits = None, self._is_node
        if end < now:
            self.activity = Activity.STOPPED  # in between
            self.do(now, activity)

    def wait(self, training: Training, waits: bool) -> None:
        """From now on it waits for the straggler of its round, or is the straggler."""
        add(self.spent, training.metered.since(self._read).spent(self._waits))
        self._read, self._waits = training.metered, waits

    def until(self, now: int) -> Spent:
        """What it has spent until now, if what is open is as good as it looks."""
        view = Account(self._since, dict(self.spent), self._waits)
        view.activity, view.training, view._read = self.activity, self.training, self._read
        view.leave(now, Activity.STOPPED, is_lost=False)
        return view.spent

    def settled(self, now: int) -> Spent:
        """What it has spent until now, less what is open: none of it ever falls."""
        spent, training = self.until(now), self.training
        if training is not None and training.is_open:
            reading = training.reading(max(now, self._since))
            open_ = reading.since(training.metered)._replace(hung=0)  # a hang is found, and goes on
            for activity, micros in open_.spent(self._waits).items():
                spent[activity] -= micros
        return spent
