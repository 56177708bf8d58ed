"""The pytest plugin: tests marked as ``distributed`` run on ranks, all others as ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elasticrun.testing import mark

if TYPE_CHECKING:
    from elasticrun.testing.running import Runner

_SPOKEN = f"mark.{mark.NAME}".encode()  # where a file says this, tests may have the mark
_RUNNER = pytest.StashKey["Runner"]()
_IS_EARLY = pytest.StashKey[bool]()  # whether ranks may be prepared before the first test that needs them


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", mark.HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Prepare ranks early in a session that is going to run what it collects, and runs it itself."""
    config = session.config
    runs_none = config.option.collectonly or config.getoption("setuponly", default=False)
    is_one_of_many = hasattr(config, "workerinput")  # of xdist: this one may get none of these tests
    config.stash[_IS_EARLY] = not (runs_none or is_one_of_many or _is_rank())


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Collect the first file with distributed tests for the ranks while it is collected here."""
    stash = collector.config.stash
    if (
        stash.get(_IS_EARLY, False)
        and _RUNNER not in stash
        and isinstance(collector, pytest.Module)
        and not collector.config.option.markexpr  # who chooses by marks may want none of these
        and _speaks_of_mark(collector)
    ):
        _runner(collector.session).begin(str(collector.path))


def _speaks_of_mark(collector: pytest.Module) -> bool:
    try:
        return _SPOKEN in collector.path.read_bytes()
    except OSError:  # pytest tells of it
        return False


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Now that all tests are known: see to it that the ranks of these are prepared, or none."""
    config = session.config
    goes_on = not session.testsfailed or config.option.continue_on_collection_errors
    if not config.stash.get(_IS_EARLY, False):
        return
    if not goes_on or not _files(session):
        if _RUNNER in config.stash:
            config.stash[_RUNNER].tell([])
        return
    _runner(session).tell(_files(session))
    _runner(session).open()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a distributed test on its ranks, and report what they report."""
    found = item.get_closest_marker(mark.NAME)
    if found is None or _is_rank() or item.config.getoption("setuponly", default=False):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runner = _runner(item.session)
    if not runner.knows:
        runner.tell(_files(item.session))
    for report in runner.run(item, found):
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
    """Whether this process collects tests for ranks, or is one."""
    import sys

    collected = sys.modules.get("elasticrun.testing.collected")
    return collected is not None and collected._Session.is_here


def _files(session: pytest.Session) -> list[str]:
    """The files with distributed tests of this session."""
    return sorted({str(it.path) for it in session.items if it.get_closest_marker(mark.NAME) is not None})


def _runner(session: pytest.Session) -> Runner:
    from elasticrun.testing.running import Runner

    stash = session.config.stash
    if _RUNNER not in stash:
        stash[_RUNNER] = Runner(session.config)
    return stash[_RUNNER]
