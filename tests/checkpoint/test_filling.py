"""Filling a tensor from saved bytes: the same bits, in any threads; and damage is found."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.checkpoint import filling
from elasticrun.checkpoint.filling import Filling
from elasticrun.checkpoint.parallel import run_all
from elasticrun.checkpoint.parts import Damaged, Item, checksum, total_of
from tests.checkpoint.test_parts import DTYPES, bits, made

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a few bytes are copied as large ones are."""
    monkeypatch.setattr(filling, "JOB", 64)
    monkeypatch.setattr(filling, "PIECE", 16)


def saved(tensor: torch.Tensor) -> tuple[torch.Tensor, Item]:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
    kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    return data, Item("it", 0, data.numel(), kind, shape, (), shape, sum=total_of(checksum(data)))


def fill(target: torch.Tensor, data: torch.Tensor, item: Item, *box: tuple[int, int]) -> None:
    wanted = box or tuple((0, length) for length in item.shape)
    work = Filling(target, data, item, 3, wanted)
    run_all([*work.jobs()], 3)
    work.finish()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (33, 5), (2, 0, 3)], ids=str)
def test_the_same_bits_arrive(dtype: str, shape: tuple[int, ...]) -> None:
    source = made(dtype, shape)
    target = torch.zeros(shape, dtype=source.dtype)
    fill(target, *saved(source))
    assert bits(target) == bits(source)


def test_into_a_tensor_of_other_strides_or_of_another_type() -> None:
    source = torch.randn(33, 5)
    turned, wider = torch.zeros(5, 33).t(), torch.zeros(33, 5, dtype=torch.float64)
    fill(turned, *saved(source))
    fill(wider, *saved(source))
    assert torch.equal(turned, source)
    assert torch.equal(wider, source.double())


def test_a_view_that_torch_negates_by_itself() -> None:
    source = torch.randn(40)
    target = torch._neg_view(torch.zeros(40))
    assert target.is_neg() and target.is_contiguous()
    fill(target, *saved(source))
    assert torch.equal(target, source)


def test_a_part_of_what_was_saved() -> None:
    source = torch.randn(33, 5)
    target = torch.zeros(10, 2)
    fill(target, *saved(source), (7, 10), (3, 2))
    assert torch.equal(target, source[7:17, 3:5])


@pytest.mark.parametrize("target", [torch.zeros(41), torch.zeros(82)[::2]], ids=["plain", "with gaps"])
def test_any_flipped_byte_is_found(target: torch.Tensor) -> None:
    data, item = saved(torch.randn(41))
    for at in range(len(data)):
        data[at] ^= 4
        with pytest.raises(Damaged, match=r"^it is damaged in the part of rank 3"):
            fill(target, data, item)
        data[at] ^= 4
    fill(target, data, item)


def test_what_does_not_fit_is_raised() -> None:
    data, item = saved(torch.randn(41))
    with pytest.raises(RuntimeError, match="size"):
        fill(torch.zeros(7), data, item)


def test_tensors_of_inference_stay_in_their_thread() -> None:
    data, item = saved(torch.randn(41))
    with torch.inference_mode():
        work = Filling(torch.zeros(41), data, item, 0, ((0, 41),))
        assert not work.may_be_elsewhere
        run_all([*work.jobs()], 1)
        work.finish()
