"""The end of what a failed worker wrote, if its log files lie at hand: see ``agent/logs/dirs.py`` for where.

Theory. A report is made after the job, perhaps on another host, from files that programs of the job wrote. So
all of it is bounded: how many directories are looked at, and how much is read of how many files. Links and
what is no regular file are left alone. Several agents of a host may have a file for the same worker of
different nodes; then the one with an error file is meant, and if that does not decide, nothing is shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from elasticrun.core.protocol.plain import plain
from elasticrun.core.review.document import FailureRow

#: How many runs below a directory are looked at.
RUNS = 256
#: What is shown of a file at most.
TAIL_BYTES, TAIL_LINES = 8192, 30
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_NAMES = ("stderr.log", "filtered_stderr.log")
_BLANK = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def with_tails(rows: Iterable[FailureRow], folders: Sequence[Path]) -> tuple[FailureRow, ...]:
    """The rows, each with the end of the stderr of its first failure, if there is a file of it."""
    runs = list(_runs(folders))
    return tuple(_with_tail(row, runs) for row in rows)


def _runs(folders: Iterable[Path]) -> Iterator[Path]:
    """Directories that have rounds in them: those that were given, or are in these."""
    for folder in folders:
        yield folder
        with contextlib.suppress(OSError):
            yield from islice((each for each in sorted(folder.iterdir()) if each.is_dir()), RUNS)


def _with_tail(row: FailureRow, runs: Iterable[Path]) -> FailureRow:
    place = Path(f"attempt_{row.first_round}", str(row.first_local_rank))
    there = [run / place for run in runs if (run / place).is_dir()]
    recorded = [each for each in there if (each / "error.json").is_file()]
    likely = recorded or there
    found = [(folder / name, tail(folder / name)) for folder in likely for name in _NAMES]
    written = [(path, text) for path, text in found if text]
    if len({path.parent for path, _ in written}) != 1:
        return row
    return replace(row, tail=written[0][1], tail_from=str(written[0][0]))


def tail(path: Path) -> str:
    """The last lines of a file, as plain text; "" if there are none, or it cannot be read."""
    lines = _BLANK.sub("", _end_of(path)).splitlines()
    return plain("\n".join(lines[-TAIL_LINES:])).strip("\n")


def _end_of(path: Path) -> str:
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return ""
        file.seek(max(0, about.st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
