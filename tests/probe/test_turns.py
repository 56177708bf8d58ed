"""Turns between processes of one host. Threads will do for most tests: an flock belongs to an open file."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticrun.probe.turns import PLACE, alone, beside
from tests.probe.harness import Children, group, results
from tests.support.cgroups import NoCgroupError, cgroup
from tests.support.ports import free_port
from tests.support.processes import DEADLINE

Turn = Callable[[float, str], contextlib.AbstractContextManager[bool]]


def later(seconds: float = DEADLINE) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize(("first", "second"), [(alone, alone), (alone, beside), (beside, alone)])
def test_who_measures_has_the_host_to_itself(first: Turn, second: Turn, tmp_path: Path) -> None:
    order: list[str] = []
    waits = threading.Event()

    def come_second() -> None:
        with second(later(0.0), str(tmp_path)) as granted:
            assert not granted
        waits.set()
        with second(later(), str(tmp_path)) as granted:
            assert granted
            order.append("second")

    with first(later(), str(tmp_path)) as granted:
        assert granted
        other = threading.Thread(target=come_second)
        other.start()
        assert waits.wait(DEADLINE)
        order.append("first")
    other.join(DEADLINE)
    assert order == ["first", "second"]


def test_others_work_side_by_side(tmp_path: Path) -> None:
    with beside(later(), str(tmp_path)) as one, beside(later(), str(tmp_path)) as other:
        assert one
        assert other


def test_a_turn_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), alone(later(), str(tmp_path)):
        raise ValueError("no")
    with alone(later(0.0) + 1, str(tmp_path)) as granted:
        assert granted


def test_where_there_are_no_turns_everybody_goes_on(tmp_path: Path) -> None:
    with alone(later(), str(tmp_path / "nowhere")) as granted:
        assert not granted


def test_turns_leave_nothing_behind(tmp_path: Path) -> None:
    with alone(later(), str(tmp_path)):
        assert not list(tmp_path.iterdir())


def test_a_host_has_a_place_for_turns() -> None:
    with beside(later(), PLACE) as granted:
        assert granted


@pytest.fixture
def core() -> Iterator[tuple[str, ...]]:
    """What begins a command that is to have one core, which other work on this box leaves to it."""
    if not shutil.which("taskset"):
        pytest.skip("needs taskset")
    try:
        with cgroup("cpu") as made:
            made.outweigh()
            yield (*made.enter, "taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    except NoCgroupError as error:
        pytest.skip(str(error))


@pytest.mark.root
def test_nodes_of_one_core_are_as_fast_as_one(children: Children, core: tuple[str, ...]) -> None:
    port = free_port()
    together = [children.start(node, [group("abc", node, port)], inside=core) for node in "abc"]
    speeds = [results(child)[0]["matmul_flops"] for child in together]
    (alone,) = results(children.start("a", [], slots=0, inside=core))
    # A third if all measured at once. What is missing to one is what the host of this box takes for others.
    assert min(speeds) > 0.5 * alone["matmul_flops"]
