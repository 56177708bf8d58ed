"""Distributed tests with pytest: a test's body runs on every rank, and a failing rank fails the test.

::

    @pytest.mark.distributed(nproc=2)
    def test_the_sum_of_all_ranks() -> None:
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert total.item() == 2

The plugin is there once elasticrun is installed. See ``elastic-ctl manual testing``.
"""

TYPE_CHECKING = False  # pytest loads this in each session: it imports nothing
if TYPE_CHECKING:
    from elasticrun.launching.faults import Fault, Freeze, Join, Kill, LoseNode, Partition, Slow

__all__ = ["Fault", "Freeze", "Join", "Kill", "LoseNode", "Partition", "Slow"]


def __getattr__(name: str) -> object:
    """The faults, imported when one is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'elasticrun.testing' has no attribute {name!r}")
    from elasticrun.launching import faults

    return getattr(faults, name)
