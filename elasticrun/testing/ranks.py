"""What a rank does: run one collected test by pytest's own protocol, within a process group."""

from __future__ import annotations

import os
import time
import traceback
from typing import Any

import pytest

from elasticrun.dataclass import dataclass
from elasticrun.testing.collected import session
from elasticrun.testing.counting import Settings, counted


@dataclass(frozen=True, slots=True)
class RankReports:
    """The reports of a rank, as pytest serialises them, and when the first failure came."""

    reports: tuple[dict[str, Any], ...]
    failed_at: float | None  # on this host's monotonic clock, in seconds; None: nothing failed
    exit_status: int = 0  # of this rank


class _Reports:
    """Keeps what pytest reports of the test."""

    def __init__(self) -> None:
        self.found: list[pytest.TestReport] = []
        self.failed_at: float | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found.append(report)
        if report.failed and self.failed_at is None:
            self.failed_at = time.monotonic()


def run_test(
    nodeid: str, backend: str | None, counts: Settings | None = None, ends_round: bool = False
) -> RankReports:
    """Run the test with this id on this rank. ``backend``: of its process group; None: it has none;
    ``counts``: what coverage counts; ``ends_round``: a failure here ends the round of all ranks.
    """
    item = next((it for it in session().items if it.nodeid == nodeid), None)
    if item is None:
        raise LookupError(
            f"the process that collects the tests for the ranks has not found {nodeid}: give its parameters "
            "the same names, in the same order, each time that they are collected"
        )
    reports = _Reports()
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None, "the collecting process has made it"
    capture.start_global_capturing()
    _have_own_directory(item.config)
    item.config.pluginmanager.register(reports, "elasticrun-reports")
    if _joined(item, backend, reports):
        with counted(counts):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        _leave(backend)
    to_data = item.config.hook.pytest_report_to_serializable
    found = tuple(to_data(config=item.config, report=each) for each in reports.found)
    return RankReports(found, reports.failed_at, int(ends_round and reports.failed_at is not None))


def temporary(config: pytest.Config) -> pytest.TempPathFactory:
    """What makes the temporary directories of a session."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory


def _have_own_directory(config: pytest.Config) -> None:
    """Have this rank's temporary directories in one of its own: all ranks name them alike."""
    factory = temporary(config)
    own = factory.getbasetemp() / f"rank{os.environ['RANK']}"
    own.mkdir(exist_ok=True)
    factory._basetemp = own


def _joined(item: pytest.Item, backend: str | None, reports: _Reports) -> bool:
    """Join the process group; False: that failed, and is reported as a failed setup."""
    if backend is None:
        return True
    try:
        import torch.distributed

        torch.distributed.init_process_group(backend)
    except Exception as error:  # noqa: BLE001 whatever it is, it is why this test cannot run
        advice = "; give backend=None to a test without torch" if isinstance(error, ImportError) else ""
        why = f"no process group with backend {backend} ({type(error).__name__}: {error}){advice}"
        text = f"{why}\n{traceback.format_exc()}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "setup")
        reports.pytest_runtest_logreport(report)
        return False
    return True


def _leave(backend: str | None) -> None:
    """Leave the process group, unless the test has; a peer that is gone is no failure of the test."""
    if backend is None:
        return
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
