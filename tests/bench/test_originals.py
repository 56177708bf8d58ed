"""The comparison with the tests that come with torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from scripts.benchmarks.originals import PORTED, have_all_passed
from scripts.benchmarks.pairs import PAIRS


def test_each_pair_exists() -> None:
    ported = PORTED.read_text()
    for name in PAIRS.values():
        assert f"def {name.partition('[')[0]}(" in ported
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("needs torch")
    distributed = Path(torch.origin).parent / "testing/_internal/distributed/distributed_test.py"
    originals = distributed.read_text()
    for name in PAIRS:
        assert f"def {name}(self)" in originals


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("....\n4 passed in 1.20s\n", True),
        ("....\n======= 4 passed, 2 warnings in 61.20s (0:01:01) =======", True),
        ("...\n3 passed in 1.20s", False),
        ("....s\n4 passed, 1 skipped in 1.20s", False),
        ("....F\n1 failed, 4 passed in 1.20s", False),
        ("....E\n4 passed, 1 error in 1.20s", False),
        ("", False),
    ],
)
def test_a_session_counts_only_if_all_of_it_passed(output: str, counts: bool) -> None:
    assert have_all_passed(output, tests=4) == counts
