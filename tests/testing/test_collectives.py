"""The collectives of torch's process groups, as plain functions that run on two ranks: what users write.

They are the project's own use of its plugin: each one would be a script, a launch and a file of results.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
dist = pytest.importorskip("torch.distributed", reason="needs torch")

# One process of the session has the ranks.
pytestmark = [pytest.mark.distributed(nproc=2), pytest.mark.torch, pytest.mark.xdist_group("ranks")]


def me() -> int:
    """This rank."""
    return int(dist.get_rank())


def mine(*shape: int) -> Any:
    """A tensor full of this rank's number, counted from 1."""
    return torch.full(shape or (2,), float(me() + 1))


OPERATIONS = [("SUM", 3), ("PRODUCT", 2), ("MIN", 1), ("MAX", 2)]  # and what they make of 1 and 2


@pytest.mark.parametrize(("operation", "result"), OPERATIONS)
def test_all_reduce(operation: str, result: float) -> None:
    tensor = mine()
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation))
    assert tensor.tolist() == [result] * 2


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "float16", "complex64"])
def test_all_reduce_of_a_type(dtype: str) -> None:
    tensor = mine().to(getattr(torch, dtype))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3, 3]


def test_all_reduce_that_is_waited_for() -> None:
    tensor = mine()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.is_completed()
    assert tensor.tolist() == [3, 3]


def test_all_reduce_in_a_group_of_all() -> None:
    tensor, group = mine(), dist.new_group()
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3, 3]
    assert (dist.get_rank(group), dist.get_world_size(group)) == (me(), 2)


def test_all_reduce_of_sparse_tensors() -> None:
    tensor = torch.sparse_coo_tensor([[me(), 2]], [1.0, 5.0], (3,), check_invariants=False)
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1, 1, 10]


@pytest.mark.parametrize("source", [0, 1])
def test_broadcast(source: int) -> None:
    tensor = mine()
    dist.broadcast(tensor, src=source)
    assert tensor.tolist() == [source + 1] * 2


@pytest.mark.parametrize(("operation", "result"), OPERATIONS)
def test_reduce_to_one(operation: str, result: float) -> None:
    tensor = mine()
    dist.reduce(tensor, dst=1, op=getattr(dist.ReduceOp, operation))
    if me() == 1:
        assert tensor.tolist() == [result] * 2


def test_all_gather() -> None:
    found = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(found, mine())
    assert [each.tolist() for each in found] == [[1, 1], [2, 2]]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names change with 2.13
def test_all_gather_into_one_tensor() -> None:
    found = torch.zeros(4)
    dist.all_gather_into_tensor(found, mine())
    assert found.tolist() == [1, 1, 2, 2]


def test_gather() -> None:
    found = [torch.zeros(2) for _ in range(2)] if me() == 0 else None
    dist.gather(mine(), found, dst=0)
    if found is not None:
        assert [each.tolist() for each in found] == [[1, 1], [2, 2]]


def test_scatter() -> None:
    parts = [torch.tensor([5.0]), torch.tensor([6.0])] if me() == 0 else None
    part = torch.zeros(1)
    dist.scatter(part, parts, src=0)
    assert part.item() == 5 + me()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names change with 2.13
def test_reduce_scatter() -> None:
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.tensor([1.0, 10.0]) * (me() + 1))
    assert part.item() == (3 if me() == 0 else 30)


def test_all_to_all() -> None:
    found = torch.zeros(2)
    dist.all_to_all_single(found, torch.tensor([10.0 * me(), 10.0 * me() + 1]))
    assert found.tolist() == [me(), 10 + me()]


def test_send_and_receive() -> None:
    tensor = mine()
    if me() == 0:
        dist.send(tensor, dst=1)
    else:
        assert dist.recv(tensor, src=0) == 0
        assert tensor.tolist() == [1, 1]


def test_receive_by_tag() -> None:
    if me() == 0:
        for work in [dist.isend(torch.tensor([float(tag)]), dst=1, tag=tag) for tag in (1, 2)]:
            work.wait()
    else:
        first, second = torch.zeros(1), torch.zeros(1)
        dist.recv(second, src=0, tag=2)
        dist.recv(first, src=0, tag=1)
        assert (first.item(), second.item()) == (1, 2)


def test_receive_from_whoever_sends() -> None:
    tensor = mine()
    if me() == 0:
        dist.send(tensor, dst=1)
    else:
        assert dist.recv(tensor) == 0
        assert tensor.tolist() == [1, 1]


def test_send_that_is_waited_for() -> None:
    tensor = mine()
    work = dist.isend(tensor, dst=1) if me() == 0 else dist.irecv(tensor, src=0)
    work.wait()
    assert work.is_completed()
    assert tensor.tolist() == [1, 1]


def test_send_and_receive_side_by_side() -> None:
    other, found = 1 - me(), torch.zeros(2)
    sent = dist.P2POp(dist.isend, mine(), other)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, found, other)]):
        work.wait()
    assert found.tolist() == [other + 1] * 2


def test_objects_of_any_kind() -> None:
    gathered: list[object] = [None, None]
    dist.all_gather_object(gathered, {"rank": me()})
    assert gathered == [{"rank": 0}, {"rank": 1}]
    told: list[object] = [("a", 1), None] if me() == 0 else [None, None]
    dist.broadcast_object_list(told, src=0)
    assert told == [("a", 1), None]
    given: list[object] = [None]
    dist.scatter_object_list(given, ["left", "right"] if me() == 0 else None, src=0)
    assert given == [["left", "right"][me()]]


def test_barriers() -> None:
    dist.barrier()
    dist.monitored_barrier()


def test_a_group_of_one_rank() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    tensor = mine()
    dist.all_reduce(tensor, group=groups[me()])
    assert tensor.tolist() == [me() + 1] * 2
    assert dist.get_rank(groups[1 - me()]) == -1


def test_the_store_counts_and_waits() -> None:
    store = dist.distributed_c10d._get_default_store()
    assert store.add("count", 1) in (1, 2)
    if me() == 0:
        store.set("word", "from 0")
    store.wait(["word"])
    assert store.get("word") == b"from 0"


def test_gradients_are_averaged() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(mine(1, 1)).sum().backward()
    assert model.weight.grad.item() == 1.5
