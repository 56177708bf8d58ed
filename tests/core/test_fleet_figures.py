"""What a keeper of jobs counts of its own work."""

from __future__ import annotations

import pytest

from elasticrun.core.fleet.figures import ANSWERS, VERBS, Figures


@pytest.mark.parametrize(
    ("status", "answer"),
    [(200, "2xx"), (201, "2xx"), (409, "409"), (404, "4xx"), (503, "5xx"), (302, "other"), (0, "none")],
)
def test_requests_count_by_verb_and_class_of_the_answer(status: int, answer: str) -> None:
    figures = Figures()
    figures.requested("PATCH", status)
    assert {key for key, count in figures.requests.items() if count} == {("patch", answer)}
    assert len(figures.requests) == len(VERBS) * len(ANSWERS)  # whatever was counted
