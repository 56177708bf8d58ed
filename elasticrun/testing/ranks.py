"""What a rank does: run one collected test by pytest's own protocol, within a process group.

The ranks of a test are on one host, so they meet in a file. Torch's TCPStore asks the name server what the
address that it connects to is called, and an answer that does not come costs a test 5 s.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import traceback
from datetime import timedelta
from typing import Any

import pytest

from elasticrun.agent.workers.env import ROUND_VARIABLE
from elasticrun.dataclass import dataclass
from elasticrun.testing.collected import Id, collected, no_gpu
from elasticrun.testing.counting import Settings, counted

#: A key of the group's store: this rank has joined.
_JOINED = "elasticrun/joined/{}"
_PATIENCE = 2.0  # seconds that a rank that is through gives the others for that


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
        if report.failed and "cuda" in report.longreprtext.lower() and (why := no_gpu()):
            report.sections.append(("elasticrun", why))
        if report.failed and self.failed_at is None:
            self.failed_at = time.monotonic()


def run_test(
    name: Id, backend: str | None, counts: Settings | None = None, ends_round: bool = False
) -> RankReports:
    """Run the test with this id on this rank. ``backend``: of its process group; None: it has none;
    ``counts``: what coverage counts; ``ends_round``: a failure here ends the round of all ranks.
    """
    item = collected(name)
    reports = _Reports()
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None, "the collecting process has made it"
    capture.start_global_capturing()
    _have_own_directory(item.config)
    item.config.pluginmanager.register(reports, "elasticrun-reports")
    if backend is None or _joined(item, backend, reports):
        with counted(counts):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
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


def _joined(item: pytest.Item, backend: str, reports: _Reports) -> bool:
    """Join the process group; False: that failed, and is reported as a failed setup."""
    try:
        import torch.distributed as dist

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = _meeting_point(item.config, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        store.set(_JOINED.format(rank), "")
        atexit.register(_leave, store, size, reports)  # once this rank has told its reports
    except Exception as error:  # noqa: BLE001 whatever it is, it is why this test cannot run
        advice = "; give backend=None to a test without torch" if isinstance(error, ImportError) else ""
        why = f"no process group with backend {backend} ({type(error).__name__}: {error}){advice}"
        text = f"{why}\n{traceback.format_exc()}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "setup")
        reports.pytest_runtest_logreport(report)
        return False
    return True


def _meeting_point(config: pytest.Config, size: int) -> Any:
    """The store in which the ranks of this round meet: no other job and no other round has its file."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # documented all the same

    job, number = os.environ["TORCHELASTIC_RUN_ID"], os.environ[ROUND_VARIABLE]
    file = temporary(config).getbasetemp().parent / f"group-{job}-{number}"
    return FileStore(str(file), size)


def _leave(store: Any, size: int, reports: _Reports) -> None:
    """Leave the process group, unless the test has.

    A rank that ends while another one still connects to it would make that one's test fail.

    Gloo takes 20 ms to take a group to pieces, as it waits for two ticks of a thread's. The process's end
    does it at once, so it is left to that. A rank that has failed still does it itself, so that whoever waits
    for it hears so.
    """
    import torch.distributed as dist

    with contextlib.suppress(RuntimeError):  # a peer that is gone is no failure of the test
        others = [_JOINED.format(rank) for rank in range(size)]
        store.wait(others, timedelta(seconds=_PATIENCE))
    if dist.is_initialized() and (reports.failed_at is not None or dist.get_backend() != "gloo"):
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
