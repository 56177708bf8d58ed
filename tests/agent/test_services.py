"""What stands beside the workers: when the silence of tasks is a hang."""

from __future__ import annotations

import pytest

from elasticrun.agent.services import hang_terms
from elasticrun.config import Entrypoint, EntrypointKind, TaskRole, WorkerConfig


@pytest.mark.parametrize(
    ("roles", "given", "timeout"),
    [
        ((), None, None),
        ((), 60.0, 60.0),
        ((TaskRole.CHIEF, TaskRole.PS), None, 0.0),
        ((TaskRole.CHIEF, TaskRole.PS), 60.0, 60.0),
    ],
)
def test_the_silence_of_tasks_is_no_hang_unless_the_user_says_so(
    roles: tuple[TaskRole, ...], given: float | None, timeout: float | None
) -> None:
    config = WorkerConfig(Entrypoint(EntrypointKind.SCRIPT, "x.py"), 2, hang_timeout=given, roles=roles)
    assert hang_terms(config).timeout == timeout
