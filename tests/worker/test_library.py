"""What a script may call: with an agent, without one, and in the agent's own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

import elasticrun
from elasticrun.agent.monitors.page import VARIABLE, ProgressPage, Slot
from tests.support.processes import TORCH_DEADLINE


def run(page: ProgressPage | None, code: str, auto: bool = False) -> str:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if page is not None:
        environment |= page.environment(0, environment, auto)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TORCH_DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def slot(page: ProgressPage) -> Slot:
    found = page.read(0)
    assert found is not None
    return found


EVERYTHING = """
import elasticrun
elasticrun.report_step()
with elasticrun.checkpointing(): pass
elasticrun.on_drain(print)
print(elasticrun.drain_requested())
"""


def test_outside_of_a_launch_nothing_happens() -> None:
    assert run(None, EVERYTHING) == "False"


def test_importing_the_package_imports_no_part_of_it() -> None:
    code = """
    import sys; before = set(sys.modules)
    import elasticrun
    print(set(sys.modules) - before)
    """
    assert run(None, code) == "{'elasticrun'}"


def test_the_package_offers_the_library_and_nothing_else() -> None:
    from elasticrun import worker

    state = {"Checkpointer", "RandomState"}  # these import torch, when they are first used
    jobs = {"Job", "JobFailedError", "Line", "Result", "WorkerFailed", "launch", "start"}
    assert set(elasticrun.__all__) == state | jobs | set(worker.__all__)
    for name in worker.__all__:
        assert getattr(elasticrun, name) is getattr(worker, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        elasticrun.nonsense  # noqa: B018


@pytest.mark.parametrize("auto", [True, False])
def test_a_script_numbers_its_steps(page: ProgressPage, auto: bool) -> None:
    code = """
    import elasticrun, os
    elasticrun.report_step(1000); elasticrun.report_step(); elasticrun.report_step()
    print(os.getpid())
    """
    pid = run(page, code, auto)
    assert (slot(page).progress.steps, slot(page).progress.step) == (3, 1002)
    assert slot(page).owner == int(pid)
    assert slot(page).signum > 0


@pytest.mark.torch
def test_steps_of_optimizers_do_not_count_beside_those_of_the_script(page: ProgressPage) -> None:
    code = """
    import elasticrun, torch
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    elasticrun.report_step(7)
    for _ in range(3): optimizer.step()
    """
    run(page, code, auto=True)
    assert (slot(page).progress.steps, slot(page).progress.step) == (1, 7)


def test_while_a_script_saves_it_is_busy(page: ProgressPage) -> None:
    code = """
    import elasticrun, os
    elasticrun.report_step()
    with elasticrun.checkpointing():
        with elasticrun.checkpointing(): pass
        if {}: os._exit(0)
    """
    run(page, code.format(True))
    assert slot(page).progress.busy_since is not None
    page.reset()
    run(page, code.format(False))
    assert slot(page).progress.busy_since is None


def test_a_child_that_ends_within_a_checkpoint_changes_nothing(page: ProgressPage) -> None:
    code = """
    import elasticrun, os
    elasticrun.report_step()
    with elasticrun.checkpointing():
        pid = os.fork()
        if pid: os.waitpid(pid, 0); os._exit(0)
    os._exit(0)
    """
    run(page, code)
    assert slot(page).progress.busy_since is not None


DRAIN = """
import elasticrun
@elasticrun.on_drain
def save(): print("saved")
elasticrun.report_step()
elasticrun.report_step()
print(elasticrun.drain_requested())
"""


def test_a_drain_calls_the_callback_once_after_a_step(page: ProgressPage) -> None:
    page.request_drain(time.monotonic() + 30.0)
    assert run(page, DRAIN) == "saved\nTrue"
    assert slot(page).listens


def test_without_a_drain_nothing_is_called(page: ProgressPage) -> None:
    assert run(page, DRAIN) == "False"
    assert slot(page).listens


def test_a_worker_that_never_asks_does_not_listen(page: ProgressPage) -> None:
    run(page, "import elasticrun; elasticrun.report_step()")
    assert not slot(page).listens


def test_what_a_callback_raises_is_the_scripts(page: ProgressPage) -> None:
    page.request_drain(1.0)
    code = """
    import elasticrun
    @elasticrun.on_drain
    def leave(): raise SystemExit
    elasticrun.report_step()
    print("not reached")
    """
    assert run(page, code) == ""
    assert slot(page).progress.steps == 1


def test_a_callback_hears_of_an_optimizers_step(page: ProgressPage) -> None:
    """The hook itself, with something like torch."""
    page.request_drain(1.0)
    code = """
    import types
    from elasticrun import on_drain
    from elasticrun.worker import reporter
    on_drain(lambda: print("saved"))
    hooks = []
    torch = types.SimpleNamespace(
        compiler=types.SimpleNamespace(is_compiling=lambda: False),
        cuda=types.SimpleNamespace(is_initialized=lambda: False),
    )
    module = types.SimpleNamespace(torch=torch, register_optimizer_step_post_hook=hooks.append)
    reporter.imported("torch.optim.optimizer", module)
    hooks[0](None, (), {}); hooks[0](None, (), {})
    """
    assert run(page, code) == "saved"
    assert slot(page).progress.steps == 2
