"""``GlobalBatch``: the same gradient for any number of ranks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from elasticrun.data import ElasticDataLoader, ElasticDistributedSampler, GlobalBatch  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402

pytestmark = pytest.mark.torch


def test_figures_of_a_rank() -> None:
    batch = GlobalBatch(512, micro=32, num_replicas=3, rank=2)
    assert (batch.rank_size, batch.micro_steps, len(batch.parts)) == (170, 6, 6)
    assert [part.size for part in batch.parts] == [29, 29, 28, 28, 28, 28]
    alone = GlobalBatch(512, num_replicas=1, rank=0)
    assert (alone.rank_size, alone.micro_steps) == (512, 1)


@pytest.mark.parametrize("micro", [1, 3, 5, 16])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 7])
def test_the_gradient_of_each_step_is_that_of_its_mean_loss(world: int, micro: int) -> None:
    """As DistributedDataParallel makes it: each rank's gradients added up, then the mean over the ranks."""
    torch.manual_seed(0)
    data = torch.randn(37, 4, dtype=torch.float64)
    weight = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def gradients(world: int, rank: int, batch: GlobalBatch) -> list[Any]:
        dealt = ElasticDistributedSampler(data, world, rank)
        loader: Any = ElasticDataLoader(data, batch, sampler=dealt)
        steps, weight.grad = [], None
        for samples in loader:
            (loader.part.scale * (samples @ weight).pow(2).mean()).backward()
            if loader.part.is_last:
                steps.append(weight.grad)
                weight.grad = None
        return steps

    whole = gradients(1, 0, GlobalBatch(16, None, 1, 0))
    ranks = [gradients(world, rank, GlobalBatch(16, micro, world, rank)) for rank in range(world)]
    averages = [sum(step) / world for step in zip(*ranks, strict=True)]
    assert len(averages) == len(whole) == 3
    for one, other in zip(averages, whole, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0,), "size of a GlobalBatch is a number of samples from 1 on, got 0"),
        ((1.5,), "size of a GlobalBatch .* got 1.5"),
        ((8, 0), "micro of a GlobalBatch .* got 0"),
        ((2, None, 3, 0), "a global batch of 2 samples has none for each of 3 ranks"),
        ((8, None, 3, 3), "rank must be from 0 to 2 in a world of 3, got 3"),
    ],
)
def test_what_is_no_batch_is_refused(values: tuple[Any, ...], words: str) -> None:
    with pytest.raises(DataError, match=words):
        GlobalBatch(*values)


def test_the_package_offers_it_all_and_imports_torch_only_when_it_is_used() -> None:
    program = (
        "import sys, elasticrun, elasticrun.data\n"
        "assert 'torch' not in sys.modules\n"
        "assert elasticrun.data is sys.modules['elasticrun.data']\n"
        "found = [getattr(elasticrun.data, name).__name__ for name in elasticrun.data.__all__]\n"
        "assert found == elasticrun.data.__all__, found\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    program = "import elasticrun; print(elasticrun.data.__name__, hasattr(elasticrun.data, 'Nothing'))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "elasticrun.data False\n"
