"""The rule for hangs by examples, and stacks as py-spy and faulthandler really write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.core.progress.activity import Footprint
from elasticrun.core.progress.silence import (
    CHECKPOINT_LIMIT,
    FLOOR,
    LAST_BOUND,
    LOOKS,
    MAX_SPAN,
    MULTIPLE,
    HangMachine,
    HangTerms,
    Looked,
    Phase,
    ProgressEffect,
    Resumed,
    StacksTaken,
    Stalled,
    TakeStacks,
    WorkerEnded,
    WorkerProgress,
    WorkerRestarted,
)
from elasticrun.core.protocol.messages import Evidence, Stall

STEP = 5.0  # the longest silence of the workers below
ALLOWED = MULTIPLE * STEP

HERE = 'Current thread 0x00007f (most recent call first):\n  File "/a/train.py", line 7 in load\n'
THERE = HERE.replace("line 7", "line 8")
BARRIER = (
    "Current thread 0x00007f (most recent call first):\n"
    '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 5356 in barrier\n'
    '  File "/a/train.py", line 20 in <module>\n'
)


def worker(local_rank: int = 0, sign_at: float = 100.0, **changes: float) -> WorkerProgress:
    fields = {"steps": 9, "step": 8, "longest": STEP, **changes}
    return WorkerProgress(local_rank, sign_at=sign_at, **fields)  # type: ignore[arg-type] # as floats they are ints


class Watch:
    """A machine whose effects are asserted one by one."""

    def __init__(self, size: int = 1, terms: HangTerms | None = None) -> None:
        self.machine = HangMachine(10, range(size), terms or HangTerms())

    def look(self, now: float, *workers: WorkerProgress) -> list[ProgressEffect]:
        return self.machine.handle(Looked(workers), now)

    def stacks(self, now: float, texts: dict[int, str], *workers: WorkerProgress) -> list[ProgressEffect]:
        return self.machine.handle(StacksTaken(workers, texts), now)

    @property
    def deadline(self) -> float | None:
        return self.machine.next_deadline()


def suspect(*workers: WorkerProgress, text: str = HERE, terms: HangTerms | None = None) -> Watch:
    """Workers, silent since 100.0, whose stacks were taken once."""
    watch = Watch(len(workers), terms)
    watch.look(101.0, *workers)
    due = watch.deadline
    assert due is not None
    assert watch.look(due, *workers) == [TakeStacks(tuple(range(len(workers))))]
    assert watch.deadline is None
    texts = {each.local_rank: text for each in workers}
    assert watch.stacks(due + 0.5, texts, *workers) == []
    assert watch.machine.phase is Phase.SUSPECT
    return watch


def again(watch: Watch, texts: dict[int, str], *workers: WorkerProgress) -> list[ProgressEffect]:
    """Look as often as the machine wants, up to an effect; all looks find the same."""
    for _ in range(LOOKS):
        due = watch.deadline
        assert due is not None
        assert watch.look(due, *workers) == [TakeStacks(tuple(range(len(workers))))]
        if effects := watch.stacks(due, texts, *workers):
            return effects
    raise AssertionError("more looks than there should be")


def first_of(effects: list[ProgressEffect]) -> Stalled:
    assert isinstance(effects[0], Stalled)
    return effects[0]


def only_stall(effects: list[ProgressEffect]) -> Stall:
    (effect,) = effects
    assert isinstance(effect, Stalled)
    return effect.stall


def test_a_hang_is_found_after_twice_the_allowed_silence() -> None:
    watch = suspect(worker())
    for due in (150.0, 160.0, 170.0):
        assert watch.deadline == due
        assert watch.look(due - 1, worker()) == []
        assert watch.look(due, worker()) == [TakeStacks((0,))]
        assert watch.stacks(due + 0.5, {0: HERE}, worker()) == []
    stall = only_stall(again(watch, {0: HERE}, worker()))
    doubt = "rank 10 cannot be looked at"
    assert stall == Stall(10, 0, 8, 2 * ALLOWED, ALLOWED, False, "load (/a/train.py:7)", doubt=doubt)
    assert watch.machine.phase is Phase.STALLED


def test_the_allowed_silence_has_a_floor() -> None:
    watch = Watch()
    watch.look(100.0, worker(longest=0.001))
    assert watch.deadline == 100.0 + FLOOR


def test_a_step_ends_the_suspicion() -> None:
    watch = suspect(worker())
    assert watch.look(180.0, worker(sign_at=170.0)) == []
    assert watch.machine.phase is Phase.CALM
    assert watch.deadline == 170.0 + ALLOWED


def test_a_step_while_stacks_are_taken_makes_them_worthless() -> None:
    watch = suspect(worker())
    watch.look(180.0, worker())
    assert watch.stacks(180.5, {0: HERE}, worker(sign_at=180.2)) == []
    assert watch.machine.phase is Phase.CALM
    assert watch.deadline == 180.2 + ALLOWED


def test_while_stacks_are_taken_nothing_else_is_asked_for() -> None:
    watch = suspect(worker())
    watch.look(180.0, worker())
    assert watch.look(500.0, worker()) == []
    assert watch.deadline is None


def test_work_without_steps_is_allowed_twice_the_silence_from_then_on() -> None:
    watch = suspect(worker())
    watch.look(150.0, worker())
    assert watch.stacks(150.5, {0: THERE}, worker()) == []
    assert watch.machine.allowed == 2 * ALLOWED
    assert watch.deadline == 100.0 + 2 * ALLOWED
    watch.look(200.0, worker(sign_at=199.0))
    assert watch.deadline == 199.0 + 2 * ALLOWED


def test_a_worker_that_hangs_after_such_work_is_found_by_its_second_stack() -> None:
    watch = suspect(worker())
    watch.look(150.0, worker())
    watch.stacks(150.0, {0: THERE}, worker())
    watch.look(180.0, worker())
    watch.stacks(180.0, {0: THERE}, worker())
    stall = only_stall(again(watch, {0: THERE}, worker()))
    assert (stall.allowed, stall.silence) == (2 * ALLOWED, 4 * ALLOWED)


@pytest.mark.parametrize("moved_at", range(LOOKS))
def test_one_look_that_finds_another_place_is_enough(moved_at: int) -> None:
    watch = suspect(worker())
    for look in range(moved_at + 1):
        due = watch.deadline
        assert due is not None
        watch.look(due, worker())
        watch.stacks(due, {0: THERE if look == moved_at else HERE}, worker())
    assert watch.machine.allowed == 2 * ALLOWED
    assert watch.machine.phase is Phase.CALM


def test_without_stacks_silence_alone_decides() -> None:
    watch = Watch()
    watch.look(140.0, worker())
    watch.stacks(140.1, {}, worker())
    assert only_stall(again(watch, {}, worker())).where == ""


def test_one_worker_that_works_keeps_all_from_being_suspect() -> None:
    watch = Watch(2)
    assert watch.look(200.0, worker(0), worker(1, sign_at=199.0)) == []
    assert watch.deadline == 199.0 + ALLOWED


def test_the_slowest_worker_sets_the_allowed_silence() -> None:
    watch = Watch(2)
    watch.look(101.0, worker(0, longest=2.0), worker(1, longest=20.0))
    assert watch.deadline == 100.0 + MULTIPLE * 20.0


def test_a_pause_needs_less_than_a_step() -> None:
    watch = Watch()
    watch.look(101.0, worker(pause=100.0))
    assert watch.deadline == 100.0 + 2 * 100.0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_before_the_third_step_nothing_is_judged(steps: int) -> None:
    watch = Watch()
    assert watch.look(10_000.0, worker(steps=steps, longest=0.0)) == []
    assert watch.deadline == 10_000.0 + FLOOR  # sooner it cannot have been silent for too long


def test_a_worker_that_reports_nothing_is_never_judged() -> None:
    watch = Watch()
    assert watch.look(10_000.0) == []
    assert watch.deadline == 10_000.0 + FLOOR


def test_a_worker_with_too_few_steps_is_judged_with_its_group() -> None:
    watch = suspect(worker(0, step=3), worker(1, step=1, steps=2))
    stall = only_stall(again(watch, {1: HERE}, worker(0, step=3), worker(1, step=1, steps=2)))
    assert stall.local_rank == 1


def test_a_checkpoint_suspends_the_judgement_and_its_end_is_a_sign() -> None:
    watch = Watch()
    assert watch.look(1_000.0, worker(busy_since=100.0)) == []
    assert watch.deadline == 1_000.0 + ALLOWED
    assert watch.look(1_040.0, worker(sign_at=1_030.0)) == []
    assert watch.deadline == 1_030.0 + ALLOWED


def test_a_checkpoint_of_one_worker_excuses_the_others() -> None:
    watch = Watch(2)
    assert watch.look(1_000.0, worker(0), worker(1, sign_at=900.0, busy_since=900.0)) == []


def test_a_checkpoint_that_never_ends_is_a_hang() -> None:
    watch = Watch()
    busy = worker(busy_since=100.0)
    assert watch.look(100.0 + CHECKPOINT_LIMIT - 1, busy) == []
    assert watch.look(100.0 + CHECKPOINT_LIMIT, busy) == [TakeStacks((0,))]


def test_a_frozen_host_is_not_a_hang() -> None:
    watch = Watch()
    watch.look(101.0, worker())
    assert watch.look(9_000.0, worker()) == [TakeStacks((0,))]
    assert watch.stacks(9_000.1, {0: HERE}, worker()) == []
    assert watch.deadline == 9_000.0 + ALLOWED / LOOKS
    assert only_stall(again(watch, {0: HERE}, worker())).silence == 8_900.0 + ALLOWED


def test_stalled_workers_that_go_on_are_announced_once() -> None:
    watch = suspect(worker())
    again(watch, {0: HERE}, worker())
    assert watch.deadline == 180.0 + ALLOWED
    assert watch.look(219.0, worker()) == []
    assert watch.look(260.0, worker(sign_at=250.0)) == [Resumed()]
    assert watch.look(261.0, worker(sign_at=260.5)) == []


@pytest.mark.parametrize("terms", [None, HangTerms(timeout=ALLOWED)])
def test_stalled_workers_are_looked_at_again_and_still_are(terms: HangTerms | None) -> None:
    watch = suspect(worker(), terms=terms)
    assert not first_of(again(watch, {0: HERE}, worker())).again
    for _ in range(3):
        (effect,) = again(watch, {0: HERE}, worker())
        assert first_of([effect]).again
        assert watch.machine.phase is Phase.STALLED


def test_stalled_workers_whose_stacks_move_are_not_stalled_any_more() -> None:
    watch = suspect(worker())
    again(watch, {0: HERE}, worker())
    assert watch.look(220.0, worker()) == [TakeStacks((0,))]
    assert watch.stacks(220.5, {0: THERE}, worker()) == [Resumed(), TakeStacks((0,))]
    assert watch.machine.phase is Phase.CALM


def test_the_end_of_the_only_worker_that_worked_leaves_those_that_are_silent() -> None:
    watch = Watch(2)
    watch.look(200.0, worker(0), worker(1, sign_at=199.0))
    assert watch.machine.handle(WorkerEnded(1), 200.0) == [TakeStacks((0,))]


def test_nothing_is_watched_when_all_have_ended() -> None:
    watch = Watch()
    watch.look(101.0, worker())
    assert watch.machine.handle(WorkerEnded(0), 102.0) == []
    assert watch.deadline is None
    assert watch.look(900.0, worker()) == []  # its slot is still there


def test_a_worker_that_is_restarted_is_judged_anew() -> None:
    watch = suspect(worker(), terms=HangTerms(timeout=30.0))
    only_stall(again(watch, {0: HERE}, worker()))
    now = watch.machine._asked_at
    assert watch.machine.handle(WorkerEnded(0), now) == [Resumed()]
    assert watch.machine.handle(WorkerRestarted(0), now) == []
    assert watch.deadline == now + 15.0
    assert watch.look(now + 500.0) == []  # it still imports
    assert watch.look(now + 600.0, worker(sign_at=now + 590.0)) == []
    assert watch.deadline == now + 605.0


def test_a_fixed_timeout_is_taken_at_its_word() -> None:
    watch = suspect(worker(steps=1, longest=0.0), terms=HangTerms(timeout=30.0))
    stall = only_stall(again(watch, {0: THERE}, worker(steps=1)))  # although it has moved
    assert (stall.silence, stall.allowed) == (30.0, 30.0)


def test_a_timeout_of_zero_is_never() -> None:
    watch = Watch(terms=HangTerms(timeout=0.0))
    assert watch.look(9_000.0, worker()) == []
    assert watch.deadline is None


LAGGARDS = [
    ([worker(0, step=8), worker(1, step=7)], {0: HERE, 1: BARRIER}, 1),  # fewest steps, wherever it is
    ([worker(0), worker(1)], {0: BARRIER, 1: HERE}, 1),  # not waiting for others
    ([worker(0), worker(1)], {0: BARRIER}, 1),  # shows no stack at all
    ([worker(0), worker(1, sign_at=99.0)], {0: BARRIER, 1: BARRIER}, 1),  # silent for longest
    ([worker(0), worker(1)], {0: HERE, 1: HERE}, 0),
    ([worker(0, steps=0, step=-1, sign_at=50.0), worker(1)], {0: HERE, 1: BARRIER}, 1),  # makes no steps
]


@pytest.mark.parametrize(("workers", "texts", "laggard"), LAGGARDS)
def test_the_worker_that_lags_is_named(
    workers: list[WorkerProgress], texts: dict[int, str], laggard: int
) -> None:
    watch = Watch(2)
    watch.look(140.0, *workers)
    watch.stacks(140.0, texts, *workers)
    stall = only_stall(again(watch, texts, *workers))
    assert (stall.local_rank, stall.rank) == (laggard, 10 + laggard)
    assert stall.in_collective == (texts.get(laggard) == BARRIER)


# -- evidence

QUIET = Footprint(0.0, 5.0, 700, frozenset({(1, 1)}))


class Tracks:
    """A watch over one worker, whose footprints are given, one pair for each look."""

    def __init__(self, terms: HangTerms | None = None) -> None:
        self.watch = Watch(1, terms)
        self.watch.look(101.0, worker())
        self.said: list[ProgressEffect] = []
        self._now = 0.0

    def look(self, text: str = BARRIER, **changes: Any) -> float:
        """When that was. The footprint is taken before and after the stack."""
        due = self.watch.deadline
        if due is None:
            due = self._now  # it has just moved, and is asked for its stack at once
        else:
            assert self.watch.look(due, worker()) == [TakeStacks((0,))]
        self._now = due + 0.5
        before = replace(QUIET, at=due, **changes)
        prints = {0: before}, {0: replace(before, at=due + 0.5, cpu=before.cpu + 3.0)}
        event = StacksTaken((worker(),), {0: text} if text else {}, *prints)
        self.said = self.watch.machine.handle(event, self._now)
        return due

    def looks(self, number: int, text: str = BARRIER, **changes: Any) -> None:
        for index in range(number):
            self.look(text, **changes, cpu=QUIET.cpu + 3.0 * index)

    @property
    def stall(self) -> Stall:
        return first_of(self.said).stall


def test_who_waits_for_others_and_does_nothing_is_still() -> None:
    tracks = Tracks()
    tracks.looks(LOOKS + 1)
    assert (tracks.stall.evidence, tracks.stall.lasting) == (Evidence.STILL, ALLOWED + 0.5)
    assert (tracks.stall.silence, tracks.stall.doubt) == (2 * ALLOWED + 0.5, "")


REASONS = [
    (HERE, {}, "is outside any collective"),
    (BARRIER, {"is_stopped": True}, "is stopped by a signal (state T)"),
    (BARRIER, {"has_device": True}, "uses an accelerator, whose work cannot be observed"),
    ("", {}, "shows no stack"),
    (BARRIER, {"is_traced": True}, "is being debugged"),
    (BARRIER, {"reads_stdin": True}, "waits for input"),
]


@pytest.mark.parametrize(("text", "changes", "why"), REASONS)
def test_who_may_go_on_by_himself_is_waited_for(text: str, changes: dict[str, bool], why: str) -> None:
    tracks = Tracks()
    tracks.looks(LOOKS + 1, text, **changes)
    assert (tracks.stall.evidence, tracks.stall.doubt) == (Evidence.NONE, f"rank 10 {why}")


BUSY = [
    ({"cpu": 99.0}, "uses CPU time"),
    ({"io": 1 << 20}, "reads or writes"),
    ({"processes": frozenset({(1, 1), (2, 2)})}, "has started or ended processes"),
    ({"is_running": True}, "runs"),
]


@pytest.mark.parametrize(("changes", "why"), BUSY)
def test_work_below_a_worker_starts_the_count_anew(changes: dict[str, Any], why: str) -> None:
    tracks = Tracks()
    tracks.looks(LOOKS)
    tracks.look(**{"cpu": QUIET.cpu + 3.0 * LOOKS, **changes})
    assert (tracks.stall.evidence, tracks.stall.doubt) == (Evidence.NONE, f"rank 10 {why}")


def test_what_was_told_is_said_again_at_each_further_look() -> None:
    tracks = Tracks()
    tracks.looks(LOOKS, HERE)
    told = tracks.look(HERE)
    assert not first_of(tracks.said).again
    assert tracks.look(HERE) == told + ALLOWED
    assert (tracks.stall.evidence, first_of(tracks.said).again) == (Evidence.NONE, True)


def test_a_wait_that_follows_work_is_still_after_one_allowed_silence() -> None:
    """The rank moves while it is stalled: that is work; from then on it waits for others."""
    tracks = Tracks()
    tracks.looks(LOOKS + 1, HERE)
    tracks.look()
    assert tracks.said[0] == Resumed()
    tracks.looks(LOOKS + 1)
    assert tracks.stall.evidence is Evidence.STILL


def test_looks_at_the_stalled_grow_rarer_up_to_the_last_bound() -> None:
    tracks = Tracks()
    tracks.looks(LOOKS, HERE)
    last = tracks.look(HERE)
    gaps = []
    while tracks.stall.evidence is Evidence.NONE:
        before, last = last, tracks.look(HERE)
        gaps.append(last - before)
    assert last == 100.0 + LAST_BOUND
    assert tracks.stall.evidence is Evidence.LAST_BOUND
    assert gaps[:-1] == sorted(gaps[:-1]) and max(gaps) == MAX_SPAN
    assert not first_of(tracks.said).again, "it is told once more"
    assert tracks.look(HERE) == last + MAX_SPAN
    assert first_of(tracks.said).again


def test_the_last_bound_is_never_shorter_than_what_is_needed_to_tell() -> None:
    tracks = Tracks(HangTerms(last_bound=1.0))
    tracks.looks(LOOKS + 1, HERE)
    assert tracks.stall.evidence is Evidence.LAST_BOUND


def test_movement_begins_the_last_bound_anew() -> None:
    tracks = Tracks(HangTerms(last_bound=10 * ALLOWED))
    tracks.looks(LOOKS + 1, HERE)
    moved = tracks.look(THERE)
    while (seen := tracks.look(THERE)) < moved + 10 * ALLOWED:
        assert not tracks.said or tracks.stall.evidence is Evidence.NONE
    assert tracks.stall.evidence is Evidence.LAST_BOUND
    assert seen == moved + 0.5 + 10 * ALLOWED


def test_no_time_makes_a_hang_of_a_debugger() -> None:
    tracks = Tracks()
    while tracks.look(is_traced=True) < 100.0 + 2 * LAST_BOUND:
        assert not tracks.said or tracks.stall.evidence is Evidence.NONE


def test_a_timeout_of_the_users_needs_no_more_evidence() -> None:
    stall = only_stall(again(suspect(worker(), terms=HangTerms(timeout=30.0)), {0: HERE}, worker()))
    assert (stall.evidence, stall.lasting) == (Evidence.TIMEOUT, stall.silence)


def test_a_look_during_which_a_sign_came_counts_for_nothing() -> None:
    watch = suspect(worker())
    watch.look(180.0, worker())
    prints = {0: replace(QUIET, at=180.0)}
    event = StacksTaken((worker(sign_at=180.2),), {0: BARRIER}, prints, prints)
    watch.machine.handle(event, 180.5)
    assert watch.machine._stillness.since is None
