"""The books under any facts, absurd ones too: sums are exact, and all is as a naive model has it.

The model has no meter that is shared and settles nothing late: each fact lets time pass for each node.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.accounting.account import after
from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.books import IDLE, OUTSIDE, Books
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
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone


@dataclass
class Row:
    """One node of the model, or the job."""

    doing: Activity = Activity.START
    is_member: bool = False
    milestone: Milestone = Milestone.NONE
    work: int = 0  # that is open
    safe: int = 0  # of it, what is saved
    spent: Counter[Activity] = field(default_factory=Counter)


class Naive:
    """Lets time pass for each node at each fact."""

    def __init__(self) -> None:
        self.now, self.is_over, self.sees_steps, self.high = 0, False, False, 0
        self.rows: dict[str, Row] = {}
        self.gone: dict[str, Counter[Activity]] = {}
        self.job = Row()
        self.number, self.runs, self.trains, self.hangs = -(10**9), False, False, False
        self.restores: int | None = 0
        self.closed = 0, 0  # steps of this round, and the time that they took
        self.step, self.saved, self.floor, self.slowest, self.pace = 0, 0, 0, "", 1000

    @property
    def members(self) -> list[Row]:
        return [row for row in (*self.rows.values(), self.job) if row.is_member]

    def go(self, now: int) -> None:
        if self.is_over:
            return
        passed, self.now = max(0, now - self.now), max(self.now, now)
        for row in (*self.rows.values(), self.job):
            if row.is_member and self.trains and not self.hangs:
                row.work += passed
            else:
                row.spent[Activity.HUNG if row.is_member and self.trains else row.doing] += passed

    def book(self, row: Row, spent: Counter[Activity], redone: int) -> None:
        """What is open was work."""
        waits = row is not self.job and row is not self.rows.get(self.slowest)
        for activity, micros in ((Activity.PRODUCTIVE, row.work - redone), (Activity.REDONE, redone)):
            fast = micros * 1000 // self.pace if waits else micros
            spent[activity] += fast
            spent[Activity.SLOW] += micros - fast

    def release(self, row: Row, doing: Activity, is_lost: bool) -> None:
        if row.is_member:
            self.book(row, row.spent, self.redone(row, is_lost and self.sees_steps))
        row.work, row.safe = 0, 0
        row.is_member, row.doing, row.milestone = False, doing, Milestone.NONE

    def stop(self, is_lost: bool) -> None:
        for row in self.members:
            self.release(row, Activity.STOPPED, is_lost)
        if self.runs:
            self.step = max(self.step, self.saved) if self.trains else self.step
            self.mark()
        self.runs = False

    def redone(self, row: Row, is_lost: bool) -> int:
        """What of the open work was, or will be, done another time."""
        is_behind = max(self.step, self.saved) < self.floor
        rest = row.work - row.safe if is_lost or is_behind else 0
        return self.again(row.safe, self.saved) + rest

    def again(self, work: int, step: int) -> int:
        """What of the work on the steps up to this one was done by an earlier round."""
        again = sum(each <= self.floor for each in range(self.step + 1, step + 1))
        return work * again // max(1, step - self.step)

    def begin(self) -> None:
        self.trains = True

    def take(self, fact: Fact) -> None:
        self.go(fact.at)
        if self.is_over:
            return
        match fact:
            case NodeCame(_, node):
                if node not in self.rows:
                    self.rows[node] = Row(spent=self.gone.pop(node, Counter()))
            case NodeWent(_, node):
                if node in self.rows:
                    self.release(self.rows[node], Activity.STOPPED, True)
                    self.gone[node] = self.rows.pop(node).spent
            case JobEnded():
                self.stop(True)
                self.is_over = True
            case RoundStarted(_, number, names, restores):
                if number > self.number:
                    self.stop(True)
                    self.number, self.restores, self.runs, self.trains = number, restores, True, False
                    self.hangs, self.step, self.slowest, self.pace = False, max(0, restores or 0), "", 1000
                    self.saved, self.closed = self.step, (0, 0)
                    self.floor = 0 if restores is None else self.high
                    for row in [self.rows[name] for name in {*names} & self.rows.keys()] + [self.job]:
                        row.is_member, row.doing, row.milestone = True, Activity.START, Milestone.NONE
            case PhaseChanged(_, node, phase, number):
                if node in self.rows:
                    self.phase(self.rows[node], phase, number)
            case _ if self.runs and fact.round == self.number:
                self.tell(fact)
        self.follow()

    def phase(self, row: Row, phase: AgentPhase, number: int) -> None:
        if row.is_member and number not in (-1, self.number):
            return
        is_new = not row.is_member and self.runs and not self.trains and number == self.number
        if phase is AgentPhase.RUNNING and is_new:
            row.is_member, row.doing, row.milestone = True, Activity.START, Milestone.NONE
        if row.is_member and phase is AgentPhase.RUNNING:
            self.reach(row, Milestone.SPAWNED)
        elif phase is not AgentPhase.RUNNING and not (
            row.is_member and phase in IDLE and row.milestone is Milestone.NONE
        ):
            self.release(row, OUTSIDE[phase], phase is not AgentPhase.FINISHED)

    def reach(self, row: Row, milestone: Milestone) -> None:
        if milestone > row.milestone:
            row.milestone = milestone
            row.doing = after(milestone, self.restores)
            if milestone is Milestone.FIRST_STEP and not self.trains:
                self.trains, self.step = True, self.step + 1
                self.mark()

    def mark(self) -> None:
        if self.restores is not None:
            self.high = max(self.high, self.step)

    def tell(self, fact: Fact) -> None:
        match fact:
            case RoundStopped(_, _, why):
                self.stop(why is not Stop.FINISHED)
            case MilestoneReached(_, _, node, milestone):
                if node in self.rows and self.rows[node].is_member:
                    self.reach(self.rows[node], milestone)
            case StepsDone(_, _, step):
                self.sees_steps = True
                if not self.trains:
                    self.trains, self.step = True, max(self.step, step)
                elif step > self.step:
                    steps, work = self.closed
                    self.closed = steps + step - self.step, work + self.job.work
                    for row in self.members:
                        self.book(row, row.spent, self.again(row.work, step))
                        row.work, row.safe = 0, 0
                    self.step, self.hangs = step, False
                self.mark()
            case StateSaved(_, _, step):
                if self.trains and step > max(self.step, self.saved):
                    self.saved = step
                    steps, work = self.closed
                    for row in self.members:
                        lasted = work * (step - self.step) // steps if steps else row.work
                        row.safe = min(row.work, lasted)
            case SaveStalled(_, _, micros):
                self.claim(Activity.CHECKPOINT, micros)
            case HangFound(_, _, since):
                self.trains = True
                self.claim(Activity.HUNG, self.now - since)
                self.hangs = True
            case StragglerFound(_, _, node, factor):
                if node in self.rows and self.rows[node].is_member:
                    pace = int(min(factor, 1000.0) * 1000) if factor > 1 else 1000
                    if node == self.slowest or pace > self.pace:
                        self.slowest, self.pace = (node, pace) if pace > 1000 else ("", 1000)

    def claim(self, activity: Activity, micros: int) -> None:
        for row in self.members:
            taken = min(max(0, micros), row.work)
            row.work -= taken
            row.safe = min(row.safe, row.work)
            row.spent[activity] += taken

    def follow(self) -> None:
        rows = self.rows.values()
        doing = {row.doing for row in rows if not row.is_member}
        between = next((it for it in (Activity.STOPPED, Activity.START) if it in doing), Activity.WAITING)
        milestones = [row.milestone for row in rows if row.is_member]
        self.job.doing = after(min(milestones), self.restores) if milestones else between

    def seen(self, row: Row) -> Counter[Activity]:
        """What it has spent, if what is open is as good as it looks."""
        spent = row.spent.copy()
        self.book(row, spent, self.redone(row, is_lost=False))
        return spent


NAMES = st.sampled_from(("a", "b", "c", "stranger"))
ROUNDS = st.sampled_from((0, 0, 0, 1, 1, 2, 3, -7))
STEPS = st.integers(-2, 12)
MICROS = st.one_of(st.integers(-5, 40), st.sampled_from((10**18, -(10**18))))
FACTORS = st.sampled_from((1.5, 2.0, 1.0001, 3.0, 0.0, -1.0, float("inf"), float("nan")))
AT = st.just(0)
FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(NodeCame, AT, NAMES),
    st.builds(NodeWent, AT, NAMES),
    st.builds(PhaseChanged, AT, NAMES, st.sampled_from(AgentPhase), st.sampled_from((-1, 0, 1, 2))),
    st.builds(
        RoundStarted,
        AT,
        ROUNDS,
        st.lists(NAMES, max_size=4).map(tuple),
        st.one_of(st.none(), st.integers(-1, 8)),
    ),
    st.builds(RoundStopped, AT, ROUNDS, st.sampled_from(Stop)),
    st.builds(MilestoneReached, AT, ROUNDS, NAMES, st.sampled_from(Milestone)),
    st.builds(StepsDone, AT, ROUNDS, STEPS),
    st.builds(StepsDone, AT, ROUNDS, STEPS),
    st.builds(StateSaved, AT, ROUNDS, STEPS),
    st.builds(SaveStalled, AT, ROUNDS, MICROS),
    st.builds(HangFound, AT, ROUNDS, MICROS),
    st.builds(StragglerFound, AT, ROUNDS, NAMES, FACTORS),
)
TIMED = st.tuples(
    st.one_of(st.integers(0, 50), st.integers(0, 50), st.integers(-100, 10**7)),
    st.one_of(*[FACTS] * 6, st.builds(JobEnded, AT)),
    st.booleans(),  # whether somebody asks a while later
)
PRELUDES = st.sampled_from(
    (
        (),
        (NodeCame(0, "a"), NodeCame(0, "b"), RoundStarted(0, 0, ("a", "b"), 0), StepsDone(3, 0, 1)),
        (NodeCame(0, "a"), NodeCame(0, "b"), NodeCame(1, "c"), RoundStarted(9, 0, ("a", "b", "c"), 4)),
        (
            *(NodeCame(0, name) for name in "abc"),
            *(RoundStarted(0, 0, ("a", "b"), 0), StepsDone(3, 0, 1), StepsDone(30, 0, 9)),
            *(RoundStarted(40, 1, ("a", "b", "c"), 5), StepsDone(70, 1, 5), StragglerFound(90, 1, "b", 2.0)),
        ),
    )
)


def agree(books: Books, model: Naive, here: dict[str, int], now: int) -> None:
    """All is exact, and as the model has it. ``here``: how long each node has been here."""
    summary = books.summary(now)
    assert {name: sum(spent.values()) for name, spent in summary.nodes.items()} == here
    assert sum(summary.job.values()) == summary.at - summary.start
    assert all(micros >= 0 for spent in (*summary.nodes.values(), summary.job) for micros in spent.values())
    assert summary.total == {each: sum(spent[each] for spent in summary.nodes.values()) for each in Activity}
    expected = {name: model.seen(row) for name, row in model.rows.items()} | model.gone
    assert {name: +Counter(spent) for name, spent in summary.nodes.items()} == {
        name: +spent for name, spent in expected.items()
    }
    assert +Counter(summary.job) == +model.seen(model.job)


@given(PRELUDES, st.lists(TIMED, max_size=50))
def test_the_books_are_exact_after_each_absurd_fact(
    prelude: tuple[Fact, ...], drawn: list[tuple[int, Fact, bool]]
) -> None:
    hold(prelude, drawn)


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_the_books_are_exact_in_long_jobs(first: int) -> None:
    for seed in range(first, first + 20):
        hold((), walk(Random(seed)))


def walk(random: Random) -> list[tuple[int, Fact, bool]]:
    """A job that is plausible for the most part, and so gets far."""
    found: list[tuple[int, Fact, bool]] = []
    number, step = -1, 0
    kinds = "steps " * 8 + "milestone " * 5 + "phase " * 3 + "came saved stall hang slow slow stop round went"
    for _ in range(150):
        node, of = random.choice("abc"), number if random.random() < 0.95 else random.randint(-1, 5)
        match random.choice(kinds.split()):
            case "steps":
                step += random.randint(-1, 4)
                fact: Fact = StepsDone(0, of, step)
            case "milestone":
                fact = MilestoneReached(0, of, node, random.choice([*Milestone]))
            case "phase":
                fact = PhaseChanged(0, node, random.choice([*AgentPhase]), random.choice((-1, of)))
            case "came":
                fact = NodeCame(0, node)
            case "went":
                fact = NodeWent(0, node)
            case "saved":
                fact = StateSaved(0, of, step + random.randint(-1, 3))
            case "stall":
                fact = SaveStalled(0, of, random.randint(0, 60))
            case "hang":
                fact = HangFound(0, of, random.randint(0, 90))
            case "slow":
                fact = StragglerFound(0, of, node, random.choice((0.5, 1.0, 1.5, 2.0, 7.0)))
            case "stop":
                fact = RoundStopped(0, of, random.choice([*Stop]))
            case _:
                for name in "abc":
                    found.append((0, NodeCame(0, name), False))
                number += 1
                restores = random.choice((None, 0, max(0, step - random.randint(0, 9))))
                step = restores or 0
                fact = RoundStarted(0, number, ("a", "b", "c")[: random.randint(1, 3)], restores)
        found.append((random.choice((0, 1, 13, 40, 997, -20)), fact, random.random() < 0.2))
    return found


def hold(prelude: tuple[Fact, ...], drawn: list[tuple[int, Fact, bool]]) -> None:
    """Tell the books and the model, and compare them after each fact."""
    books, model = Books(), Naive()
    present, here, clock, is_over = set[str](), dict[str, int](), 0, False
    facts = [*((0, fact, False) for fact in prelude), *drawn]
    for number, (passes, fact, asks) in enumerate(facts):
        at = fact.at if number < len(prelude) else clock + passes
        told = _at(fact, at)
        before, settled = books.summary(clock), books.settle(clock)
        unsettled = sum(before.job.values()) - sum(settled.values())
        passed = 0 if is_over else max(0, at - clock)
        here = {name: lasted + passed * (name in present) for name, lasted in here.items()}
        clock += passed
        books.take(told)
        model.take(told)
        match told:
            case _ if is_over:
                pass
            case NodeCame(_, node):
                present.add(node)
                here.setdefault(node, 0)
            case NodeWent(_, node):
                present.discard(node)
            case JobEnded():
                is_over = True
        agree(books, model, here, clock)
        if asks:  # what comes is the same for somebody who looks
            glance, ahead = copy.deepcopy(model), 0 if is_over else 17
            glance.go(clock + ahead)
            seen = {name: lasted + ahead * (name in present) for name, lasted in here.items()}
            agree(books, glance, seen, clock + ahead)
        later = books.summary(clock)
        final = books.settle(clock)
        assert all(settled[each] <= final[each] <= later.job[each] for each in Activity)
        assert all(sum(later.nodes[name].values()) >= sum(it.values()) for name, it in before.nodes.items())
        assert all(later.job[each] >= before.job[each] - unsettled for each in Activity)


def _at(fact: Fact, at: int) -> Fact:
    """The same fact at another moment. Moments of hangs move with it."""
    values = {name: getattr(fact, name) for name in type(fact).__dataclass_fields__} | {"at": at}
    if isinstance(fact, HangFound):
        values["since"] = at - fact.since
    return type(fact)(**values)
