"""``StatefulDataLoader`` of torchdata knows what the loop has got, and saves our sampler's position."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="needs torchdata: pip install torchdata"
)

from elasticrun.data import ElasticDistributedSampler  # noqa: E402
from tests.data.build import Numbers, flat  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with torch 2.13
]


def make(workers: int) -> tuple[ElasticDistributedSampler, Any]:
    sampler = ElasticDistributedSampler(Numbers(40), 2, 1)
    return sampler, stateful.StatefulDataLoader(Numbers(40), 3, sampler=sampler, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_it_goes_on_after_the_last_batch(workers: int, steps: int) -> None:
    expected = list(ElasticDistributedSampler(Numbers(40), 2, 1))
    _, before = make(workers)
    head = flat([batch.tolist() for batch in islice(before, steps)])
    sampler, after = make(workers)
    after.load_state_dict(pickle.loads(pickle.dumps(before.state_dict())))
    sampler.set_epoch(0)
    rest = flat([batch.tolist() for batch in after])
    assert head + rest == expected
    second = flat([batch.tolist() for batch in after])
    assert second != expected
    assert len(second) == 20
