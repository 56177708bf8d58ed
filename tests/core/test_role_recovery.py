"""Which tasks are restarted with those that are lost."""

from __future__ import annotations

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.protocol.messages import Failure, FailureKind
from elasticrun.core.protocol.tasks import Cluster
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.tensorflow.cluster import is_served
from elasticrun.core.tensorflow.role_recovery import (
    SCOPES,
    Loss,
    cause_of,
    has_saved,
    is_alone,
    is_loss,
    takes_chief,
)
from tests.core.tf_build import CHIEF, EVALUATOR, PS, WORKER, died

SERVED: Cluster = ((CHIEF, ("a:1",)), (WORKER, ("b:1",)), (PS, ("c:1",)))
MIRRORED: Cluster = ((WORKER, ("a:1", "b:1")),)
BROKEN, SAVED = died("a", 0), died("a", 0, 42)


def loss(role: TaskRole, failure: Failure | None = BROKEN) -> Loss:
    return Loss("a", 0, role, 1, failure)


def test_each_role_of_each_shape_has_a_rule() -> None:
    assert set(SCOPES) == {(served, role) for served in (True, False) for role in TaskRole} - {(False, PS)}


@pytest.mark.parametrize(
    ("cluster", "alone"), [(SERVED, {CHIEF, WORKER, PS, EVALUATOR}), (MIRRORED, {EVALUATOR})]
)
def test_who_can_be_lost_alone(cluster: Cluster, alone: set[TaskRole]) -> None:
    roles = set(TaskRole) if is_served(cluster) else set(TaskRole) - {PS}
    assert {role for role in roles if is_alone(cluster, role)} == alone


@pytest.mark.parametrize("role", TaskRole)
def test_only_a_parameter_server_takes_the_chief_along(role: TaskRole) -> None:
    assert takes_chief([loss(role)]) is (role is PS)
    assert takes_chief([loss(EVALUATOR), loss(role)]) is (role is PS)


def test_only_a_server_is_lost_if_it_ends_with_0() -> None:
    assert {role for role in TaskRole if is_loss(SERVED, role, None)} == {WORKER, PS}
    assert not any(is_loss(MIRRORED, role, None) for role in TaskRole)
    assert all(is_loss(SERVED, role, BROKEN) for role in TaskRole)
    assert is_loss(MIRRORED, EVALUATOR, BROKEN)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ((SAVED,), StopCause.SAVED),
        ((SAVED, SAVED), StopCause.SAVED),
        ((SAVED, BROKEN), StopCause.WORKER_FAILED),
        ((SAVED, None), StopCause.WORKER_FAILED),
        ((None,), StopCause.WORKER_FAILED),
    ],
)
def test_it_is_free_to_save_ones_state_and_go(failures: tuple[Failure | None, ...], cause: StopCause) -> None:
    assert cause_of([loss(CHIEF, failure) for failure in failures]) is cause


def test_only_a_status_says_that_a_state_is_saved() -> None:
    assert has_saved(SAVED)
    assert not has_saved(BROKEN)
    assert not has_saved(Failure("a", "a", 0, 0, "default", 1, FailureKind.SPAWN, 42))


def test_a_loss_in_words() -> None:
    assert str(loss(WORKER, None)) == "worker 1: ended with 0, but has to serve until the training is over"
    assert str(loss(PS)) == "ps 1: rank 0 (local rank 0, pid 1, a) exited with 1"
