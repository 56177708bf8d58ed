"""Distributed tests with pytest: a test's body runs on every rank, and a failing rank fails the test.

::

    import pytest
    import torch

    @pytest.mark.distributed(nproc=2)
    def test_the_sum_of_all_ranks() -> None:
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert total.item() == 2

The plugin is there once elasticrun is installed. ``simulate`` runs jobs without processes, under faults, once
for each of many seeds: ``elasticrun.testing.simulation`` has all that it takes. See ``elastic-ctl manual
testing``.
"""

TYPE_CHECKING = False  # pytest loads this in each session: it imports nothing
if TYPE_CHECKING:
    from elasticrun.launching.faults import Fault, Freeze, Join, Kill, LoseNode, Partition, Slow
    from elasticrun.testing.simulation import SimulationFailed, simulate

__all__ = [
    "Fault",
    "Freeze",
    "Join",
    "Kill",
    "LoseNode",
    "Partition",
    "SimulationFailed",
    "Slow",
    "simulate",
]


def __dir__() -> list[str]:
    """The names, whether they were used or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """The faults and the simulator, imported when one is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'elasticrun.testing' has no attribute {name!r}")
    if name in ("SimulationFailed", "simulate"):
        from elasticrun.testing import simulation

        return getattr(simulation, name)
    from elasticrun.launching import faults

    return getattr(faults, name)
