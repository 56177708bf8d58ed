"""Fixtures of the tests of the observer."""

from __future__ import annotations

from tests.observer.collector import collector
from tests.support.cluster import cluster

__all__ = ["cluster", "collector"]
