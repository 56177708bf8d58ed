"""The pytest plugin: tests marked as ``distributed`` run on ranks, all others as ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from elasticrun.testing.running import Runner

MARK = "distributed"
_RUNNER = pytest.StashKey["Runner"]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(nproc=2, nodes=1, backend='gloo', timeout=60, **options): run the test on every rank of a "
        "job; options are those of elasticrun.launch",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a distributed test on its ranks, and report what they report."""
    mark = item.get_closest_marker(MARK)
    if mark is None or _is_rank() or item.config.getoption("setuponly", default=False):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _runner(item.session).run(item, mark):
        hook.pytest_runtest_logreport(report=report)
    _tear_down(item, nextitem)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tear down fixtures of earlier tests that the next one does not share; a failure is this test's."""

    def tear_down() -> None:
        item.session._setupstate.teardown_exact(nextitem)

    call = pytest.CallInfo.from_call(
        tear_down, "teardown", reraise=(pytest.exit.Exception, KeyboardInterrupt)
    )
    if call.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process that forks ranks, if there is one."""
    runner = config.stash.get(_RUNNER, None)
    if runner is not None:
        runner.close()


def _is_rank() -> bool:
    import sys

    collected = sys.modules.get("elasticrun.testing.collected")
    return collected is not None and collected._Session.found is not None


def _runner(session: pytest.Session) -> Runner:
    from elasticrun.testing.running import Runner

    stash = session.config.stash
    if _RUNNER not in stash:
        stash[_RUNNER] = Runner(session, MARK)
    return stash[_RUNNER]
