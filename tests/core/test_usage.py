"""Figures from counters: per task, per role and in words."""

from __future__ import annotations

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.protocol.usage import (
    WINDOW,
    Pace,
    Reading,
    RoleUsage,
    TaskUsage,
    UsageMeter,
    by_role,
    in_words,
)

MIB = 2**20


def last(*readings: Reading) -> TaskUsage:
    """What is known after these readings of one task."""
    meter = UsageMeter()
    for reading in readings:
        (usage,) = meter.measure({0: reading})
    return usage


@pytest.mark.parametrize(
    ("readings", "usage"),
    [
        ([Reading(10, 7, 3.0, 5)], TaskUsage(0, None, 5)),
        ([Reading(10, 7, 3.0, 5), Reading(20, 7, 18.0, 6)], TaskUsage(0, 1.5, 6)),
        ([Reading(0, 7, 0.0, 5), Reading(10, 7, 3.0, 5), Reading(20, 7, 8.0, 6)], TaskUsage(0, 0.5, 6)),
        ([Reading(10, 7, 3.0, 5), Reading(20, 7, 2.0, 6)], TaskUsage(0, 0.0, 6)),  # a child ended unseen
        ([Reading(10, 7, 3.0, 5), Reading(20, 8, 9.0, 6)], TaskUsage(0, None, 6)),  # a further attempt
        ([Reading(10, 7, 3.0, 5), Reading(10, 7, 3.0, 5)], TaskUsage(0, None, 5)),  # in the same instant
    ],
)
def test_cpu_is_that_of_the_last_interval(readings: list[Reading], usage: TaskUsage) -> None:
    assert last(*readings) == usage


def paced(at: float, *pace: float, owner: int = 7) -> Reading:
    step, timed, seconds = (*pace, 0, 0)[:3]
    return Reading(at, 7, 0.0, 5, Pace(owner, int(step), int(timed), seconds))


@pytest.mark.parametrize(
    ("readings", "step", "rate", "graph_time"),
    [
        ([paced(10, -1)], None, None, None),  # it listens, and has made no step
        ([paced(10, 30)], 30, None, None),
        ([paced(10, 30, 4, 2.0)], 30, None, 0.5),  # of all since it began
        ([paced(10, 30, 4, 2.0), paced(20, 35, 4, 2.0)], 35, 0.5, None),  # none was timed since
        ([paced(10, 30, 4, 2.0), paced(20, 35, 9, 3.0)], 35, 0.5, 0.2),
        ([paced(0, 30), paced(10, 30), paced(20, 40)], 40, 0.5, None),  # over the window
        ([paced(0, 0), paced(10, 70), paced(0 + WINDOW + 10, 100)], 100, 0.5, None),
        ([paced(10, 30), paced(20, 30)], 30, 0.0, None),
        ([paced(10, 30), paced(20, 10)], 10, None, None),  # back at a checkpoint
        ([paced(10, 30, 4, 2.0), paced(20, 5, 1, 0.25, owner=9)], 5, None, 0.25),  # a child reports now
        ([Reading(10, 7, 0.0, 5), paced(20, 5), paced(30, 10)], 10, 0.5, None),
        ([paced(10, 5), Reading(20, 7, 0.0, 5)], None, None, None),
    ],
)
def test_the_pace_is_that_of_the_last_minute(
    readings: list[Reading], step: int | None, rate: float | None, graph_time: float | None
) -> None:
    usage = last(*readings)
    assert (usage.step, usage.step_rate, usage.graph_time) == (step, rate, graph_time)


def test_each_task_is_measured_by_itself_and_forgotten_once_it_ends() -> None:
    meter = UsageMeter()
    meter.measure({1: Reading(0, 11, 0.0, 5), 0: Reading(0, 10, 0.0, 5)})
    usages = meter.measure({1: Reading(10, 11, 10.0, 6), 0: Reading(10, 10, 5.0, 7)})
    assert usages == (TaskUsage(0, 0.5, 7), TaskUsage(1, 1.0, 6))
    assert meter.measure({0: Reading(20, 10, 5.0, 7)}) == (TaskUsage(0, 0.0, 7),)
    assert meter.measure({1: Reading(30, 11, 40.0, 6)}) == (TaskUsage(1, None, 6),)
    assert meter.measure({}) == ()


def test_a_role_uses_what_its_tasks_use_and_is_as_fast_as_the_slowest() -> None:
    usages = [
        (TaskRole.WORKER, TaskUsage(1, 0.5, 100, 30, 2.0, 0.25)),
        (TaskRole.PS, TaskUsage(2, None, 300)),
        (TaskRole.WORKER, TaskUsage(0, 1.0, 200, 31, 1.5, 0.5)),
        (TaskRole.WORKER, TaskUsage(3)),
        (TaskRole.CHIEF, TaskUsage(0)),
    ]
    assert by_role(usages) == (
        RoleUsage(TaskRole.CHIEF, 1, None, None, None, None, None),
        RoleUsage(TaskRole.WORKER, 3, 1.5, 300, 30, 1.5, 0.5),
        RoleUsage(TaskRole.PS, 1, None, 300, None, None, None),
    )
    assert by_role([]) == ()


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (
            TaskUsage(0, 0.974, 512 * MIB, 1200, 8.312, 0.1104),
            "0.97 cores, 512 MiB, step 1200, 8.31 steps/s, 110 ms per step",
        ),
        (TaskUsage(0, memory=MIB), "1 MiB"),
        (TaskUsage(0), ""),
        (
            RoleUsage(TaskRole.PS, 2, 0.0, 0, 0, 0.0, 0.0),
            "0.00 cores, 0 MiB, step 0, 0 steps/s, 0 ms per step",
        ),
    ],
)
def test_what_is_known_is_said(usage: TaskUsage | RoleUsage, words: str) -> None:
    assert in_words(usage) == words
