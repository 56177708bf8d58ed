"""The all-reduce of ``all_reduce.py`` as torch's own tests are written; needs ``pip install expecttest``."""

from __future__ import annotations

from torch.testing._internal.common_distributed import MultiProcessTestCase

from scripts.benchmarks.sessions.all_reduce import RANKS, TESTS, in_group


class TestCase(MultiProcessTestCase):
    """By torch's own class."""

    @property
    def world_size(self) -> int:
        return RANKS

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


for each in range(TESTS):

    def test_case(self: TestCase) -> None:
        """One of many."""
        in_group(self.rank, self.file_name)

    setattr(TestCase, f"test_{each}", test_case)
