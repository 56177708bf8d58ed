"""The calling session's side: run a test on ranks, and make one test's reports of what they report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from elasticrun.errors import ElasticRunError, UsageError
from elasticrun.launching.api import start
from elasticrun.launching.call import read_all
from elasticrun.launching.job import Job
from elasticrun.launching.server import Server
from elasticrun.testing.collected import id_of
from elasticrun.testing.counting import settings
from elasticrun.testing.mark import BACKEND
from elasticrun.testing.merging import as_failure, merge
from elasticrun.testing.ranks import RankReports, run_test, temporary

#: Seconds that the other ranks have to end, or to fail by themselves, once one has failed.
GRACE = 1.0
#: Seconds that a test has, unless its mark says another number; and the collecting of all.
TIMEOUT, COLLECTING = 60.0, 600.0
#: pytest would rewrite the assertions of elasticrun, which has been imported by then: as good as an error.
_UNHEARD = (
    "ignore:Module already imported so cannot be rewritten; elasticrun:pytest.PytestAssertRewriteWarning"
)
#: In a stack, the first frame that is none of the test's.
_PYTESTS = "in pytest_pyfunc_call"
_CODE = """\
import os
os.chdir({folder!r})
from elasticrun.cli.fork_server import serve
from elasticrun.testing import ranks  # else each of them would import it
from elasticrun.testing.collected import collect
sys.exit(collect({arguments!r}, {files!r}, {capture!r}, serve))
"""

Found = dict[int, RankReports]  # by rank


class Runner:
    """Runs the distributed tests of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._files: list[str] | None = None  # with tests to run; None: not known yet
        self._server: Server | None = None
        self._said = os.memfd_create("elasticrun-collected", os.MFD_CLOEXEC)
        self._is_used = self._has_forked = False
        self._broken = ""  # why no rank can be forked

    @property
    def knows(self) -> bool:
        """Whether it has been told which files there are."""
        return self._files is not None

    def begin(self, file: str) -> None:
        """Start the process that forks ranks, with this file: the session has not collected all by now."""
        with contextlib.suppress(ElasticRunError):  # the first test meets it again, and tells of it
            self._start([file])

    def tell(self, files: Sequence[str]) -> None:
        """Tell it the files with tests that it may have to run. Without any it is not needed."""
        self._files = [*files]
        if self._server is not None and files:
            self._server.tell(self._files)
        elif self._server is not None:
            self._server.close(patience=0)
            self._server = None

    def open(self) -> None:
        """Start the process that forks ranks, unless it runs."""
        with contextlib.suppress(ElasticRunError):
            self._open()

    def run(self, item: pytest.Item, mark: pytest.Mark) -> list[pytest.TestReport]:
        """The reports of a test."""
        began = time.time()
        found: Found = {}
        try:
            options = _options(mark)
            timeout, backend = options.pop("timeout", TIMEOUT), options.pop("backend", BACKEND)
            server = self._open()
            restarts = options.get("max_restarts") not in (None, 0)
            self._is_used = True
            args = (id_of(item), backend, settings(self._config), restarts)
            with start(run_test, *args, preload=(), server=server, **options) as job:
                found, problem = _watched(job, timeout, timeout if restarts else GRACE)
            if job.is_abandoned:
                problem = self._epitaph(problem)
        except ElasticRunError as error:
            problem = str(error)
        reports = self._reports(item, found)
        self._has_forked |= bool(found)
        if problem:
            reports = _with_problem(reports, item, problem, began)
        _charge(reports, time.time() - began)
        return reports

    def close(self) -> None:
        """End the process that forks ranks."""
        if self._server is not None and self._is_used:
            self._server.close()
        elif self._server is not None:
            self._server.close(patience=0)  # it may be in the middle of an import, and has no launchers
        os.close(self._said)

    def _open(self) -> Server:
        if self._broken:
            raise UsageError(self._broken)
        if self._server is None or not self._server.is_alive:
            assert self._files is not None, "told before any test is run"
            self._start(self._files).tell(self._files)
        assert self._server is not None
        return self._server

    def _start(self, files: Sequence[str]) -> Server:
        folder = str(self._config.invocation_params.dir)
        arguments, capture = _arguments(self._config), self._config.getoption("capture")
        code = _CODE.format(folder=folder, arguments=arguments, files=files, capture=capture)
        os.ftruncate(self._said, 0)
        os.lseek(self._said, 0, os.SEEK_SET)  # the one before has moved it
        # What a rank prints comes through its launcher, unless pytest takes it all: that might come late.
        self._server = Server(code, output=self._said, early=capture == "fd")
        return self._server

    def _epitaph(self, problem: str) -> str:
        """The problem, with what the process that forks ranks has said before it ended."""
        assert self._server is not None
        self._server.close()
        said = read_all(self._said).decode(errors="replace").strip()
        if not said:
            return problem
        text = f"the process that collects the tests for the ranks has ended; it said:\n{said}"
        if not self._has_forked:
            self._broken = text  # it would be the same again
        return text

    def _reports(self, item: pytest.Item, found: Mapping[int, RankReports]) -> list[pytest.TestReport]:
        to_report = self._config.hook.pytest_report_from_serializable
        reports = {
            rank: [to_report(config=self._config, data=data) for data in each.reports]
            for rank, each in found.items()
        }
        failed = {rank: each.failed_at for rank, each in found.items() if each.failed_at is not None}
        merged = merge(reports, sorted(failed, key=lambda rank: failed[rank]))
        for report in merged:
            report.nodeid = item.nodeid
        return merged


def _watched(job: Job, timeout: float, grace: float) -> tuple[Found, str]:
    """What the ranks report, and what went wrong beside that; "" if nothing did.

    ``grace``: what ranks have once another has failed. With restarts, the launcher ends the round.
    """
    while not job.has_begun and not job.is_over:
        if not job.hear(COLLECTING):
            raise UsageError(f"after {COLLECTING:g} s the process that forks ranks still collects the tests")
    try:
        if why := _overdue(job, timeout, grace):
            return _stopped(job, why)
        job.wait()
    except pytest.fail.Exception as error:  # a limit of another plugin, such as pytest-timeout's
        return _stopped(job, f"still ran ({str(error).rstrip('.')})")
    except ElasticRunError as error:
        found: Found = job.answers()
        has_failed = any(each.exit_status for each in found.values())
        return found, "" if has_failed else str(error)  # else that is what the launcher has seen
    return job.answers(), ""


def _overdue(job: Job, timeout: float, grace: float) -> str:
    """Wait for the end of the ranks. Returns why they are to be stopped; "" if all have ended."""
    deadline = time.monotonic() + timeout
    while not job.is_over:
        has_failed = any(each.failed_at is not None for each in job.answers().values())
        left = min(deadline - time.monotonic(), grace if has_failed else timeout)
        if not job.hear(max(0.0, left)):
            why = "another rank had failed" if has_failed else f"{timeout:g} s"
            return f"still ran after {why}"
    return ""


def _stopped(job: Job, why: str) -> tuple[Found, str]:
    """Stop what still runs, after a look at where it stands."""
    found: Found = job.answers()
    waiting = sorted({*range(job.ranks)} - {*found})
    if not waiting:
        job.cancel(patience=GRACE)
        return found, f"all ranks had ended, but their launchers {why}"
    stacks = "\n".join(f"[rank {rank}]\n{_stack(job, rank)}" for rank in waiting)
    job.cancel(patience=GRACE)
    names = f"rank{'s' if len(waiting) > 1 else ''} {', '.join(map(str, waiting))}"
    return found, f"{names} {why}, and stood here:\n{stacks}"


def _stack(job: Job, rank: int) -> str:
    """Where a rank stands, without the frames of pytest and of what started it."""
    try:
        lines = job.stacks(rank).rstrip().split("\n")
    except ElasticRunError as error:
        return f"  (not known: {error})"
    theirs = [number for number, line in enumerate(lines) if _PYTESTS in line]
    return "\n".join(lines[: theirs[0]] if theirs else lines)


def _options(mark: pytest.Mark) -> dict[str, Any]:
    if mark.args:
        raise UsageError(f"distributed{mark.args} was given: name the arguments, as in distributed(nproc=2)")
    timeout = mark.kwargs.get("timeout", TIMEOUT)
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
        raise UsageError(f"timeout={timeout!r} was given: give seconds, as a number above 0")
    env = {"LOGLEVEL": os.environ.get("LOGLEVEL", "CRITICAL")}  # the reports say it all
    return {"shutdown_timeout": 1, "env": env, **mark.kwargs}


def _arguments(config: pytest.Config) -> list[str]:
    """The command line of this session, with which nothing is captured while tests are collected."""
    own = [
        "-s",
        f"--basetemp={temporary(config).getbasetemp() / 'ranks'}",
        f"--rootdir={config.rootpath}",
        f"--config-file={config.inipath or os.devnull}",
        f"--confcutdir={config.known_args_namespace.confcutdir}",
        f"-W{_UNHEARD}",
    ]
    if config.pluginmanager.hasplugin("xdist"):
        own.append("-n0")
    if config.pluginmanager.hasplugin("pytest_cov"):
        own.append("--no-cov")
    given = [os.fspath(each) for each in config.invocation_params.args]
    end = given.index("--") if "--" in given else len(given)  # what follows are paths
    return [*given[:end], *own, *given[end:]]


def _charge(reports: Sequence[pytest.TestReport], seconds: float) -> None:
    """Have the last phase before the teardown take what the test took beside: starts, and rounds before."""
    charged = [report for report in reports if report.when != "teardown"][-1:]
    rest = sum(report.duration for report in reports if report not in charged)
    for report in charged:
        report.duration = max(report.duration, seconds - rest)


def _with_problem(
    reports: Sequence[pytest.TestReport], item: pytest.Item, text: str, began: float
) -> list[pytest.TestReport]:
    """The reports of a test that has failed for this reason, too: it counts as one failure."""
    failed = [report for report in reports if report.failed]
    if failed:
        failed[0].longrepr = as_failure(f"{failed[0].longreprtext}\n\n{text}", failed[0])
        return [*reports]
    now = time.time()
    own = pytest.TestReport(
        item.nodeid, item.location, {}, "failed", text, "call", start=began, stop=now, duration=now - began
    )
    own.longrepr = as_failure(text, own)
    own.sections = [section for report in reports for section in report.sections]
    return [own]
