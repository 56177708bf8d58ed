"""The cluster that these tests run on."""

from tests.support.cluster import cluster

__all__ = ["cluster"]
