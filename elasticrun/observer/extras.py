"""Metrics and traces, where their packages are installed. What is missing costs nothing but itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from elasticrun.errors import UsageError


def metrics_of(follower: Any) -> Callable[[], tuple[bytes, str]] | None:
    """What renders the metrics of a followed job; None if prometheus_client is not installed."""
    try:
        render: Any = importlib.import_module("elasticrun.observer.metrics").render
    except ImportError:
        return None
    return lambda: render(follower)


def tracer_to(endpoint: str, job_id: str) -> Any:
    """What sends traces to this URL. Raises UsageError if OpenTelemetry is not installed."""
    try:
        module: Any = importlib.import_module("elasticrun.observer.traces")
    except ImportError:
        raise UsageError(
            "--traces needs OpenTelemetry, which is not installed: pip install 'elasticrun[traces]'"
        ) from None
    return module.Tracer(endpoint, job_id)
