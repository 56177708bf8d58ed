"""The process that forks the ranks of a session's tests: it has collected them, and runs none itself.

Theory. A rank must have its test as pytest has made it: with rewritten assertions, parameters, fixtures and
hooks of the user's plugins. Collecting takes longer than most tests. So one process of the session collects
the files of its distributed tests, once, as pytest does anywhere, and becomes a fork server where it would
run them. Each rank is a fork of it, finds its test by its id, and runs it by pytest's own protocol.

Invariant. Nothing is written at the end of this session, as it has none: reports, caches and coverage are the
calling session's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


class _Session:
    """The session of this process, once its tests are collected."""

    found: pytest.Session | None = None
    capture = "fd"


def session() -> pytest.Session:
    """The collected session that this process was forked from."""
    assert _Session.found is not None, "no tests are collected here"
    return _Session.found


def capture_method() -> str:
    """How the calling session captures output."""
    return _Session.capture


def collect(arguments: Sequence[str], capture: str, serve: Callable[[], object]) -> int:
    """Collect as ``pytest arguments`` does, then serve; returns pytest's exit status."""
    _Session.capture = capture
    return int(pytest.main([*arguments], plugins=[_Serving(serve)]))


class _Serving:
    def __init__(self, serve: Callable[[], object]) -> None:
        self._serve = serve

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Open no debugger on ranks: nobody types there, and a debugger that is left is no failure."""
        for name in ("usepdb", "trace", "setupshow"):
            setattr(config.option, name, False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve in place of running tests."""
        if session.testsfailed:
            return False  # some could not be collected: pytest says which
        _Session.found = session
        config = session.config
        plugins = config.pluginmanager
        reporter = plugins.get_plugin("terminalreporter")
        if reporter is not None:
            plugins.unregister(reporter)  # ranks have nobody to report to but the calling session
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all ranks
        self._serve()
        return True
