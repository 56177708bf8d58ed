"""All runs of all cases: in each round every launcher once, in turn, so that all meet the same machine."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.benchmarks.cases import Case
from scripts.benchmarks.figures import Sample
from scripts.benchmarks.launchers import Launcher
from scripts.benchmarks.machine import load
from scripts.benchmarks.run import MARK_OF_ALL, RunFailed, opened
from tests.support.processes import kill_marked


def measure(cases: Sequence[Case], launchers: Sequence[Launcher], runs: int) -> Iterator[Sample]:
    """Every sample, as soon as there is one. The folders of runs that failed are kept, and named."""
    folder = Path(tempfile.mkdtemp(prefix="elasticrun-bench-"))
    try:
        for case in cases:
            for number in range(case.rounds(runs)):
                for launcher in launchers:
                    if number < case.runs_of(launcher.name, runs):
                        yield _sample(
                            case, launcher, number, folder / f"{case.name}-{launcher.name}-{number}"
                        )
    finally:
        kill_marked(f"{MARK_OF_ALL}={folder}")  # a signal may have come while a run was being closed
        if any(folder.iterdir()):
            print(f"what failed runs left is in {folder}", file=sys.stderr)
        else:
            folder.rmdir()


def _sample(case: Case, launcher: Launcher, number: int, folder: Path) -> Sample:
    folder.mkdir()
    before = load()
    with opened(launcher, folder, number) as run:
        try:
            figures, failure, log = case.drive(run), "", ""
        except RunFailed as error:
            figures, failure, log = error.figures, str(error), run.story()
        except (AssertionError, OSError) as error:  # a process that was to be looked at is not there
            figures, failure, log = {}, str(error) or repr(error), run.story()
    if not failure:
        shutil.rmtree(folder, ignore_errors=True)
    return Sample(case.name, launcher.name, number, figures, failure, before, log)
