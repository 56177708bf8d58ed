"""Milestones, steps done and save stalls: as a worker tells them, and as its agent reads them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from elasticrun.agent.monitors import page as page_module
from elasticrun.agent.monitors.page import HEADER_SIZE, SLOT, TIMES, Marks, ProgressPage
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.worker import marks, store_wait
from elasticrun.worker.reporter import Reporter
from tests.support.processes import DEADLINE


def read(page: ProgressPage) -> Marks:
    found = page.marks(0)
    assert found is not None
    return found


def rings(page: ProgressPage) -> int:
    try:
        return len(os.read(page.bell, 100))
    except BlockingIOError:
        return 0


def test_both_sides_have_the_same_layout() -> None:
    assert page_module.MARKS.format == marks.MARKS.format
    assert SLOT.size + TIMES.size + page_module.MARKS.size + page_module.OWN.size == page_module.SLOT_SIZE
    order = ("IMPORTED", "CONNECTED", "RESTORED", "FIRST_STEP")
    assert [getattr(marks, name) for name in order] == [0, 1, 2, 3]
    assert list(page_module._MILESTONES) == [Milestone[name] for name in order]
    assert (store_wait.BEGINS, store_wait.CONNECTED) == (marks.IMPORTED, marks.CONNECTED)


def test_milestones_are_told_once_and_ring(page: ProgressPage, worker: Reporter) -> None:
    assert page.marks(0) is None
    before = time.monotonic()
    for _ in range(2):
        for each in (marks.IMPORTED, marks.CONNECTED):
            worker.reach(each)
    worker.restored(0)
    assert rings(page) == 3
    for _ in range(3):
        worker.step()
    assert rings(page) == 1
    told = read(page)
    assert set(told.reached) == set(Milestone) - {Milestone.NONE, Milestone.SPAWNED}
    assert list(told.reached.values()) == sorted(told.reached.values())
    assert before <= told.reached[Milestone.IMPORTED] <= told.done_at <= time.monotonic()
    assert told.done == 3


def test_a_first_step_says_that_imports_are_done(page: ProgressPage, worker: Reporter) -> None:
    worker.claim()
    worker.live()
    assert set(read(page).reached) == {Milestone.IMPORTED}
    assert read(page).done == -1
    worker.step()
    assert set(read(page).reached) == {Milestone.IMPORTED, Milestone.FIRST_STEP}


@pytest.mark.parametrize(
    ("restored", "numbers", "done"),
    [
        (0, [0, 1, 2], 3),  # counted from 0
        (0, [1, 2, 3], 3),  # from 1
        (0, [None, None], 2),
        (50, [50, 51], 52),
        (50, [51, 52], 52),
        (50, [0, 1, 2], 53),  # anew in each process
        (50, [None, None], 52),
        (None, [100, 110], 110),  # the script restores by itself
    ],
)
def test_steps_that_the_script_numbers(
    page: ProgressPage, worker: Reporter, restored: int | None, numbers: list[int | None], done: int
) -> None:
    if restored is not None:
        worker.restored(restored)
    worker.step()  # an optimizer's: the script's reports take over
    for number in numbers:
        worker.numbered_step(number)
    assert read(page).done == done


def test_a_save_says_what_a_step_is(page: ProgressPage, worker: Reporter) -> None:
    worker.restored(10)
    for step in (11, 12):
        worker.step()
        worker.step()  # of a second optimizer
        assert read(page).done == 10 + 2 * (step - 10)
    worker.saved(12, 0)
    assert read(page).done == 12
    worker.step()
    assert read(page).done == 12
    worker.step()
    assert read(page).done == 13
    worker.saved(12, 0)
    assert read(page).done == 13, "it is not new"


@pytest.mark.parametrize(("saved", "done"), [(5, 5), (6, 5), (4, 5), (500, 500)])
def test_a_save_beside_reports(page: ProgressPage, worker: Reporter, saved: int, done: int) -> None:
    for number in range(1, 6):
        worker.numbered_step(number)
    worker.saved(saved, 0)
    assert read(page).done == done


def test_stalls_add_up_and_count_once(page: ProgressPage, worker: Reporter) -> None:
    worker.step()
    worker.stalled(2_000_000_000)
    worker.saved(1, 500_000_000)
    assert read(page).stalled == 2.5
    worker.begin_checkpoint()
    worker.saved(1, 7_000_000_000)  # within it
    worker.end_checkpoint()
    assert 2.5 < read(page).stalled < 2.5 + DEADLINE


def test_marks_of_an_earlier_process_do_not_count(page: ProgressPage, worker: Reporter) -> None:
    worker.step()
    SLOT.pack_into(page._map, HEADER_SIZE, *(fields := (7, 1, 0, 1, 1, 0, 0, 0, 0)), marks.checksum(fields))
    assert read(page).reached == {}
    page.clear(0)
    assert page.marks(0) is None
    assert not any(page._map[HEADER_SIZE:])


def test_marks_that_are_being_written_are_read_as_they_were(page: ProgressPage, worker: Reporter) -> None:
    worker.step()
    before = read(page)
    offset = HEADER_SIZE + SLOT.size + TIMES.size + 5 * 8
    page._map[offset : offset + 1] = b"\1"  # of the stall
    assert read(page) == before


@pytest.mark.parametrize("path", ["/not/there", "/dev/null"])
def test_a_bell_that_is_gone_or_another_file_is_not_rung(
    path: str, page: ProgressPage, worker: Reporter
) -> None:
    worker._marks._bell = path
    worker.reach(marks.CONNECTED)
    assert Milestone.CONNECTED in read(page).reached
    assert rings(page) == 0


def test_another_pipe_is_not_rung(page: ProgressPage, worker: Reporter) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    worker._marks._bell = f"/proc/self/fd/{writer}"
    worker.reach(marks.CONNECTED)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)


def test_a_full_bell_holds_nobody_up(page: ProgressPage, worker: Reporter) -> None:
    with pytest.raises(BlockingIOError):
        while True:
            os.write(page._ring, bytes(65536))
    worker.step()
    assert Milestone.FIRST_STEP in read(page).reached


def test_a_forked_child_says_nothing(page: ProgressPage) -> None:
    code = """
    import os
    from elasticrun.worker import reporter
    reporter.reach(reporter.IMPORTED)
    if not os.fork():
        reporter.reach(reporter.FIRST_STEP)
        os._exit(0)
    os.wait()
    """
    environment = os.environ | page.environment(0, {}, auto=False)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, env=environment, timeout=DEADLINE, check=True)
    assert set(read(page).reached) == {Milestone.IMPORTED}
    assert rings(page) == 1


TORCH = """
import torch
import torch.distributed as dist
from elasticrun import Checkpointer
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2)).sum().backward()
optimizer.step()
torch.save(model.state_dict(), "saved.pt")
"""


def test_a_script_that_knows_nothing_of_us(page: ProgressPage, tmp_path: Path) -> None:
    environment: dict[str, Any] = dict(os.environ)
    environment |= page.environment(0, environment, auto=True)
    command = [sys.executable, "-c", TORCH]
    subprocess.run(command, env=environment, cwd=tmp_path, timeout=300, check=True)
    told = read(page)
    assert set(told.reached) == {Milestone.IMPORTED, Milestone.CONNECTED, Milestone.FIRST_STEP}
    assert list(told.reached.values()) == sorted(told.reached.values())
    assert told.done == 1
    assert 0 < told.stalled < 300
