"""A worker in the test's own process, and the page of its agent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticrun.agent.monitors.page import VARIABLE, ProgressPage
from elasticrun.worker import reporter
from elasticrun.worker.reporter import Reporter, connect


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    page = ProgressPage(1)
    yield page
    page.close()


@pytest.fixture
def worker(page: ProgressPage, monkeypatch: pytest.MonkeyPatch) -> Reporter:
    """It has claimed nothing yet; its stacks are nobody's business."""
    monkeypatch.setattr(reporter, "arm_stacks", lambda path: 0)
    found = connect(page.environment(0, {}, auto=False)[VARIABLE])
    assert found is not None
    return found
