"""Distributed tests with pytest: a test's body runs on every rank, and a failing rank fails the test.

::

    @pytest.mark.distributed(nproc=2)
    def test_the_sum_of_all_ranks() -> None:
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert total.item() == 2

The plugin is there once elasticrun is installed. See ``elastic-ctl manual testing``.
"""
