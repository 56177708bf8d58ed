"""The rule for hangs by examples, and stacks as py-spy and faulthandler really write them."""

from __future__ import annotations

import pytest

from elasticrun.core.progress import (
    CHECKPOINT_LIMIT,
    FLOOR,
    LOOKS,
    MULTIPLE,
    Frame,
    HangMachine,
    HangTerms,
    Looked,
    Phase,
    ProgressEffect,
    Resumed,
    Stack,
    StacksTaken,
    Stalled,
    TakeStacks,
    WorkerEnded,
    WorkerProgress,
    WorkerRestarted,
    have_moved,
    is_in_collective,
    main_stack,
)
from elasticrun.core.protocol import Stall

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
    assert stall == Stall(10, 0, 8, 2 * ALLOWED, ALLOWED, False, "load (/a/train.py:7)")
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


# -- stacks

FAULTHANDLER = """\
Thread 0x00007f9eefe556c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/tmp/hang.py", line 3 in helper

Current thread 0x00007f9ef041cb80 (most recent call first):
  File "/tmp/hang.py", line 6 in all_reduce
  File "/tmp/hang.py", line 9 in <module>
"""
PY_SPY = """\
Process 19835: /usr/bin/python3 /tmp/hang.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 19877 (idle): "Thread-1 (helper)"
    Condition.wait (threading.py:327)
    helper (hang.py:3)
Thread 19835 (active+gil): "MainThread"
    T.all_reduce (hang.py:6)
    <module> (hang.py:9)
"""


def test_the_main_thread_is_found_in_what_faulthandler_writes() -> None:
    expected = (Frame("all_reduce", "/tmp/hang.py", 6), Frame("<module>", "/tmp/hang.py", 9))
    assert main_stack(FAULTHANDLER) == expected


def test_the_main_thread_is_last_even_if_another_one_took_the_signal() -> None:
    other = FAULTHANDLER.replace("Current thread", "?").replace("Thread", "Current thread")
    assert main_stack(other.replace("?", "Thread")) == main_stack(FAULTHANDLER)


def test_in_a_list_that_was_cut_the_current_thread_is_the_main_one() -> None:
    thread, _, current = FAULTHANDLER.partition("\n\n")
    assert main_stack(f"{current}\n{thread}\n...\n") == main_stack(FAULTHANDLER)


def test_the_main_thread_is_found_in_what_py_spy_writes() -> None:
    assert main_stack(PY_SPY) == (Frame("T.all_reduce", "hang.py", 6), Frame("<module>", "hang.py", 9))


def test_the_first_thread_is_taken_where_py_spy_names_none() -> None:
    assert main_stack(PY_SPY.replace(': "MainThread"', ""))[0].function == "Condition.wait"


@pytest.mark.parametrize(
    "text", ["", "Error: Permission Denied", '  File "/a.py", line 1 in f', "    f (a.py:1)"]
)
def test_where_there_is_no_stack_none_is_found(text: str) -> None:
    assert main_stack(text) == ()


def test_both_tools_name_the_same_place() -> None:
    assert not have_moved({0: main_stack(PY_SPY)}, {0: main_stack(FAULTHANDLER)})


def test_no_stack_is_no_evidence_of_movement() -> None:
    assert not have_moved({0: main_stack(PY_SPY), 1: ()}, {0: (), 1: main_stack(PY_SPY)})
    assert not have_moved({0: main_stack(PY_SPY)}, {})


def test_a_frame_is_shown_with_the_file_as_one_knows_it() -> None:
    assert str(Frame("f", "/v/lib/site-packages/torch/nn/x.py", 3)) == "f (torch/nn/x.py:3)"
    assert str(Frame("f", "/home/me/project/a/b.py", 3)) == "f (project/a/b.py:3)"


TORCH = "/v/lib/python3.11/site-packages/torch"
COLLECTIVES: list[Stack] = [
    (Frame("barrier", f"{TORCH}/distributed/distributed_c10d.py", 5356),),
    (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3),),
    (Frame("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py", 83),),
    (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979), Frame("f", "/a/train.py", 1)),
    (
        Frame(
            "DistributedDataParallel._distributed_broadcast_coalesced", "torch/nn/parallel/distributed.py", 2
        ),
    ),
    (Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1),),
    (Frame("_allgather_base", "horovod/x.py", 1),),
    (Frame("reduce_scatter_tensor_coalesced", "deepspeed/comm/torch.py", 1),),
    (Frame("__call__", f"{TORCH}/_ops.py", 1), Frame("wait_tensor", "/x/_functional_collectives.py", 1)),
]
OTHERS: list[Stack] = [
    (),
    (Frame("__call__", f"{TORCH}/_ops.py", 1),),
    (Frame("Condition.wait", "threading.py", 327), Frame("barrier", f"{TORCH}/distributed/x.py", 1)),
    (Frame("load", "/a/train.py", 7), Frame("forward", f"{TORCH}/distributed/fsdp/x.py", 1)),
    (Frame("write", f"{TORCH}/distributed/checkpoint/filesystem.py", 1),),
    (Frame("backwards", "/a/train.py", 7),),
    (Frame("sender", "/a/train.py", 7),),
]


@pytest.mark.parametrize("stack", COLLECTIVES)
def test_a_collective_is_recognised(stack: Stack) -> None:
    assert is_in_collective(stack)


@pytest.mark.parametrize("stack", OTHERS)
def test_anything_else_is_not_taken_for_a_collective(stack: Stack) -> None:
    assert not is_in_collective(stack)
