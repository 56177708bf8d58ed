"""The process that forks the ranks of a session's tests: it has collected them, and runs none itself.

Theory. A rank must have its test as pytest has made it: with rewritten assertions, parameters, fixtures and
hooks of the user's plugins. Collecting takes longer than most tests. So one process of the session collects
the files of its distributed tests, once, as pytest does anywhere, and becomes a fork server where it would
run them. Each rank is a fork of it, finds its test by its id, and runs it by pytest's own protocol.

Invariant. Nothing is written at the end of this session, as it has none: reports, caches and coverage are the
calling session's affair.

It begins while the calling session still collects, with the one file that is known by then to speak of
distributed tests, as the import of torch takes the longest of all. Once that session has collected its tests,
it tells the files that are needed, and the others are collected, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from elasticrun.testing import mark
from elasticrun.worker import warm_imports

_NO_GPU = (
    "CUDA is in use already in the process that all ranks are forked from, so none of them can use a GPU: "
    "what is imported to collect the tests has begun to use it. Use it in tests and fixtures only. For a "
    "condition of skipif, torch.cuda.is_available() does no harm where torch can ask NVML: not with MIG- in "
    "CUDA_VISIBLE_DEVICES, nor with PYTORCH_NVML_BASED_CUDA_CHECK=0."
)


class _Session:
    """The session of this process, once its tests are collected."""

    items: dict[Id, pytest.Item] | None = None  # by their ids
    capture = "fd"
    uses_cuda = False  # what was imported to collect them
    is_here = False  # whether this process collects for ranks, or is one


Id = tuple[str, ...]


def id_of(item: pytest.Item) -> Id:
    """What a test is called in each process that collects it: its path, then kinds and names in turn.

    pytest's own ids differ between them: they depend on what the command line names if that is outside the
    root directory, and pytest-xdist appends its group. The kinds tell a function from a doctest.
    """
    below = [node for node in item.listchain() if not isinstance(node, pytest.Session | pytest.Directory)]
    named = ((type(node).__name__, "" if isinstance(node, pytest.File) else node.name) for node in below)
    return (str(item.path), *(f"{kind} {name}".rstrip() for kind, name in named))


def collected(name: Id) -> pytest.Item:
    """The test with this id, as the process has collected it that this one was forked from.

    A look at each test would have the kernel copy the pages of all of them.

    Raises:
        LookupError: it has found no such test.
    """
    assert _Session.items is not None, "no tests are collected here"
    item = _Session.items.get(name)
    if item is None:
        raise LookupError(
            f"the process that collects the tests for the ranks has not found {', '.join(name)}: give its "
            "parameters the same names, in the same order, each time that they are collected"
        )
    return item


def no_gpu() -> str:
    """Why no rank can use a GPU; "" if each can."""
    return _NO_GPU if _Session.uses_cuda else ""


def collect(arguments: Sequence[str], files: Sequence[str], capture: str, serve: Callable[[], object]) -> int:
    """Collect as ``pytest arguments`` does, but ``files``, then serve; returns pytest's exit status.

    The program's first argument is the number of the socket on which the caller tells which files it needs.
    """
    _Session.capture, _Session.is_here = capture, True
    gc.disable()  # what is imported here stays; ``serve`` collects once
    return int(pytest.main([*arguments], plugins=[_Serving(files, serve, int(sys.argv[1]))]))


class _Serving:
    def __init__(self, files: Sequence[str], serve: Callable[[], object], caller: int) -> None:
        """``caller``: the number of a socket."""
        self._files = files
        self._serve = serve
        self._caller = caller

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Collect these files only; open no debugger on ranks: nobody types there, and a debugger that is
        left is no failure.
        """
        config.args[:] = self._files
        for name in ("usepdb", "trace", "setupshow"):
            setattr(config.option, name, False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve in place of running tests."""
        if not self._has_collected(session, _needed(self._caller)):
            return False  # some could not be collected: pytest says which
        gc.enable()
        _Session.items = {id_of(item): item for item in reversed(session.items)}  # the first of each id
        config = session.config
        plugins = config.pluginmanager
        reporter = plugins.get_plugin("terminalreporter")
        if reporter is not None:
            plugins.unregister(reporter)  # ranks have nobody to report to but the calling session
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all ranks
        _have_capture(plugins)
        _import_torch(session.items)
        _Session.uses_cuda = "torch" in sys.modules and warm_imports.uses_cuda_once_forked()
        self._serve()
        return True

    def _has_collected(self, session: pytest.Session, needed: Sequence[str]) -> bool:
        """Collect what is needed and not there yet; whether all of it is there."""
        if not {*self._files} <= {*needed}:  # that was for nothing, and so it does not matter how it went
            session.testsfailed, session.items, self._files = 0, [], ()
        found, rest = session.items, [file for file in needed if file not in self._files]
        if rest and not session.testsfailed:
            session.config.args[:] = rest
            session.config.hook.pytest_collection(session=session)
            session.items = [*found, *session.items]
        return not session.testsfailed


def _have_capture(plugins: pytest.PytestPluginManager) -> None:
    """Have ranks capture output as the calling session does, once they start to; this process never does."""
    from _pytest.capture import CaptureManager

    plugins.unregister(name="capturemanager")
    plugins.register(CaptureManager(_Session.capture), "capturemanager")  # type: ignore[arg-type]


def _import_torch(items: Sequence[pytest.Item]) -> None:
    """Import torch if a test needs it for its process group: else each rank would, as tests may not do so."""
    found = [it for item in items if (it := item.get_closest_marker(mark.NAME)) is not None]
    if any(it.kwargs.get("backend", mark.BACKEND) is not None for it in found):
        with contextlib.suppress(ImportError):  # each test that needs it says so
            importlib.import_module("torch.distributed")


def _needed(number: int) -> list[str]:
    """The files with tests that the caller is going to run; waits until it knows. ``number``: of a socket."""
    with socket.socket(fileno=os.dup(number)) as caller:
        data, fds, _, _ = socket.recv_fds(caller, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise SystemExit  # it is gone
    with Path(f"/proc/self/fd/{fds[0]}").open() as file:
        files: list[str] = json.load(file)
    os.close(fds[0])
    return files
