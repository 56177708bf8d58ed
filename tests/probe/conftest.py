"""The fixtures of the probe's tests."""

from tests.probe.harness import children

__all__ = ["children"]
