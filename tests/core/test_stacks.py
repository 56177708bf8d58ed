"""Stacks as py-spy and faulthandler really write them, and what they say of a worker."""

from __future__ import annotations

import pytest

from elasticrun.core.progress.stacks import (
    Frame,
    Stack,
    awaits_peers,
    have_moved,
    is_at_prompt,
    is_in_collective,
    main_stack,
)

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


C10D = f"{TORCH}/distributed/distributed_c10d.py"
WAITS: list[Stack] = [
    (Frame("barrier", C10D, 5356), Frame("main", "/a/train.py", 3)),
    (Frame("_store_based_barrier", C10D, 30),),
    (Frame("wrapper", "torch/distributed/c10d_logger.py", 83),),
    (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979),),
    (Frame("__call__", f"{TORCH}/_ops.py", 1), Frame("wait_tensor", f"{TORCH}/x.py", 1)),
]
WORKS: list[Stack] = [
    (),
    (Frame("__call__", f"{TORCH}/_ops.py", 1),),
    (Frame("send_results", "/a/train.py", 7), Frame("barrier", C10D, 1)),
    (Frame("barrier", "/a/mpi.py", 7),),
    (Frame("_dispatch", f"{TORCH}/distributed/tensor/_dispatch.py", 1),),
    (Frame("rpc_sync", f"{TORCH}/distributed/rpc/api.py", 1),),
]


@pytest.mark.parametrize("stack", WAITS)
def test_who_waits_for_others_in_torch_cannot_go_on_alone(stack: Stack) -> None:
    assert awaits_peers(stack)


@pytest.mark.parametrize("stack", WORKS)
def test_who_may_do_anything_else_can(stack: Stack) -> None:
    assert not awaits_peers(stack)


PROMPTS = [
    Frame("interaction", "/usr/lib/python3.11/pdb.py", 400),
    Frame("Pdb.cmdloop", "cmd.py", 126),
    Frame("InteractiveConsole.raw_input", "/usr/lib/python3.11/code.py", 2),
    Frame("_do_wait_suspend", "/v/site-packages/debugpy/_vendored/pydevd/pydevd.py", 2),
    Frame("mainloop", "IPython/terminal/embed.py", 1),
]


@pytest.mark.parametrize("frame", PROMPTS)
def test_a_prompt_is_recognised_wherever_it_is_on_the_stack(frame: Frame) -> None:
    assert is_at_prompt((Frame("f", "x.py", 1), frame, Frame("main", "/a/train.py", 3)))


def test_a_script_of_a_similar_name_is_no_prompt() -> None:
    assert not is_at_prompt((Frame("main", "/a/my_pdb.py", 1), Frame("main", "/a/cmd.py", 3)))


def test_a_thread_that_polls_within_a_collective_has_not_moved() -> None:
    def waiting(line: int, caller: int) -> Stack:
        inner = Frame("is_done", C10D, line), Frame("__call__", f"{TORCH}/_ops.py", 1)
        return (*inner, Frame("all_reduce", C10D, 10), Frame("main", "/a/train.py", caller))

    assert not have_moved({0: waiting(1, 5)}, {0: waiting(2, 5)})
    assert have_moved({0: waiting(1, 5)}, {0: waiting(1, 6)})
    assert have_moved({0: waiting(1, 5)}, {0: (Frame("main", "/a/train.py", 6),)})
    assert not have_moved({0: waiting(1, 5)[:-1]}, {0: waiting(2, 5)[:-1]}), "nobody called it, it seems"
