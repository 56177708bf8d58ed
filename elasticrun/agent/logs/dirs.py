"""Where a job's logs and error files lie.

    <log_dir>/<job id>_<random>/attempt_<round>/<local rank>/{stdout.log,stderr.log,error.json}
                                               /filtered_{stdout,stderr}.log
    <log_dir>/latest -> the newest run's directory

A round's number is never reused, so no directory is ever written twice and no log is ever deleted. A task
that is started again within a round continues its logs, but has an error file of its own (``error_1.json``
and so on): what an earlier attempt recorded is never taken for its error.

Without a log directory the same tree lies in a private temporary directory. After a good end it stays only
if it holds something never shown (logs or the stacks of hangs), and the agent names it again. It keeps the
stacks and error files of at most the newest ``ROUNDS_KEPT`` rounds that have any, however often a job hangs
or fails. Each worker gets a directory for an error file, which few write; so the empty directories of a
round are removed once the workers of the next round have been started, which need not wait for that. The
spawner outlives a killed agent, and clears the temporary directory in its place.

``latest`` is replaced by a rename, and only where no file or directory of somebody else has that name. A run
without it, because it cannot be made, is none the worse.

A wrong --log-dir is an error before anything starts. A later fault in it (a full disk) costs at most the
logs, never the job.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

logger = logging.getLogger(__name__)

ROUNDS_KEPT = 20  # rounds whose stacks and error files stay in a temporary directory
ERRORS = "error*.json"
STACKS = "stacks_*.txt"
LATEST = "latest"
_ID_LIMIT = 64  # characters of the job id in a directory's name


@dataclass(frozen=True, slots=True)
class WorkerPaths:
    """The files of one worker in one round; "" where there can be none."""

    stdout: str = ""
    stderr: str = ""
    error_file: str = ""


@dataclass(frozen=True, slots=True)
class RoundDirs:
    """The files of one round on this node."""

    round: int
    directory: str  # "" if none could be made
    workers: tuple[WorkerPaths, ...]  # by local rank

    @property
    def filtered_stdout(self) -> str:
        return self._file("filtered_stdout.log")

    @property
    def filtered_stderr(self) -> str:
        return self._file("filtered_stderr.log")

    def _file(self, name: str) -> str:
        return str(Path(self.directory, name)) if self.directory else ""


def open_worker(dirs: RoundDirs, local_rank: int, attempt: int) -> WorkerPaths:
    """Make the directory of one attempt of a task; return its files. Never fails: at worst there are none,
    with a warning.
    """
    if not dirs.directory:
        return WorkerPaths()
    directory = Path(dirs.directory, str(local_rank))
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        logger.warning(
            "the log directory %s cannot be made (%s); its output goes to the console",
            directory,
            error.strerror,
        )
        return WorkerPaths()
    return _paths(directory, f"error_{attempt}.json" if attempt else "error.json")


class LogDirs:
    """The directories of one job on this node."""

    def __init__(
        self,
        log_dir: str | None,
        job_id: str,
        on_temporary: Callable[[str], object] | None = None,
        run_dir: str | None = None,
    ) -> None:
        """Make the job's directory; UsageError if ``log_dir`` cannot hold one.

        ``/dev/null`` as the log directory means as in torchrun: no file at all. ``on_temporary`` is called
        with the path of a temporary directory once there is one. ``run_dir``: of ``make_run_dir``, if made.
        """
        self._job_id = job_id
        self._on_temporary = on_temporary
        self._kept: deque[Path] = deque()  # of rounds with stacks or error files, in the temporary directory
        self._newest: Path | None = None  # the directory of the newest round
        self._over: list[Path] = []  # of earlier rounds, in the temporary directory, to be tidied up
        self._root: Path | None = None  # None: nothing is kept
        self._temporary: Path | None = None
        if log_dir == os.devnull:
            return
        if log_dir:
            self._root = Path(run_dir or make_run_dir(log_dir, job_id))
            _link_latest(self._root)
        else:
            self._root = self._temporary_root()

    @property
    def root(self) -> str:
        """The job's directory, "" if there is none."""
        return str(self._root) if self._root else ""

    def open_round(self, number: int, local_world_size: int) -> RoundDirs:
        """Make the directories of a round. Never fails: at worst the round has no files, with a warning."""
        before = self._newest
        opened = self._open(number, local_world_size)
        self._newest = Path(opened.directory) if opened.directory else None
        if before is not None and self._temporary in before.parents:
            self._over.append(before)
        return opened

    def tidy_up(self) -> None:
        """Clean up after earlier rounds, if they lie in the temporary directory. Never fails."""
        while self._over:
            with suppress(OSError):  # something stays that nobody needs
                self._tidy_up(self._over.pop(0))

    def close(self, failed: bool) -> str:
        """End the job's logs; return the directory worth naming to the user, "" if there is none.

        The temporary directory is removed unless it holds a log or stacks, or the job failed and it holds
        anything.
        """
        if self._temporary is not None and not clear(self._temporary, failed) and self._is_temporary:
            self._root = None
        return self.root

    @property
    def kept(self) -> str:
        """The temporary directory, if it is still there, else ""."""
        return self.root if self._is_temporary else ""

    @property
    def _is_temporary(self) -> bool:
        return self._root is not None and self._temporary in self._root.parents

    def _tidy_up(self, before: Path) -> None:
        _remove_empty(before)
        if not _found(before):  # mostly there is not even the directory
            return
        self._kept.append(before)
        if len(self._kept) > ROUNDS_KEPT:
            oldest = self._kept.popleft()
            for path in _found(oldest):
                path.unlink(missing_ok=True)
            _remove_empty(oldest)

    def _open(self, number: int, local_world_size: int) -> RoundDirs:
        if self._root is None:
            return _without_files(number, local_world_size)
        try:
            return _make_round(self._root, number, local_world_size)
        except OSError as error:
            return self._open_elsewhere(number, local_world_size, error)

    def _temporary_root(self) -> Path | None:
        try:
            if self._temporary is None:
                self._temporary = Path(tempfile.mkdtemp(prefix="elasticrun_")).absolute()
                if self._on_temporary is not None:
                    self._on_temporary(str(self._temporary))
            return _job_directory(self._temporary, self._job_id)
        except OSError as error:
            logger.warning("no temporary directory can be made (%s); workers leave no error files", error)
            return None

    def _open_elsewhere(self, number: int, local_world_size: int, error: OSError) -> RoundDirs:
        root = self._temporary_root()
        logger.warning(
            "the log directory of round %d cannot be made in %s (%s); %s",
            number,
            self.root,
            error.strerror,
            f"its logs go to {root}" if root else "its output goes to the console",
        )
        if root is not None:
            try:
                return _make_round(root, number, local_world_size)
            except OSError as second:
                logger.warning("nor can it be made in %s (%s)", root, second.strerror)
        return _without_files(number, local_world_size)


def make_run_dir(log_dir: str, job_id: str) -> str:
    """Make the directory of one run in the user's log directory. UsageError if that cannot be done."""
    path = Path(log_dir)
    if path.exists() and not path.is_dir():
        raise UsageError(f"--log-dir {log_dir} is a file; give a directory (it is made if it is missing)")
    try:
        path.mkdir(parents=True, exist_ok=True)
        return str(_job_directory(path, job_id))
    except OSError as error:
        raise UsageError(
            f"--log-dir {log_dir} cannot be used ({error.strerror}); give a directory you may write to"
        ) from error


def _job_directory(parent: Path, job_id: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{safe_name(job_id)}_", dir=parent)).absolute()


def _link_latest(run: Path) -> None:
    """Let ``latest`` beside a run's directory lead there, unless that name is no link. Never fails."""
    link, draft = run.with_name(LATEST), run.with_name(f".{LATEST}-{os.urandom(4).hex()}")
    with suppress(OSError):
        if link.is_symlink() or not link.exists():
            draft.symlink_to(run.name)
            draft.replace(link)
    with suppress(OSError):
        draft.unlink(missing_ok=True)


def safe_name(job_id: str) -> str:
    """The job id as a part of a file's name: no separators, no surprises for a shell, not too long."""
    plain = "".join(letter if letter.isalnum() or letter in "._-=+@:," else "_" for letter in job_id)
    return plain.encode()[:_ID_LIMIT].decode(errors="ignore") or "none"


def _found(directory: Path) -> list[Path]:
    """The stacks and error files of a round."""
    return [*directory.glob(f"*/{STACKS}"), *directory.glob(f"*/{ERRORS}")]


def _remove_empty(directory: Path) -> None:
    """Remove the empty directories of a round."""
    with suppress(OSError):
        for path in [*directory.iterdir(), directory]:
            with suppress(OSError):  # a file, or one that holds something
                path.rmdir()


def _make_round(root: Path, number: int, local_world_size: int) -> RoundDirs:
    directory = root / f"attempt_{number}"
    directory.mkdir(parents=True)
    workers = tuple(_make_worker(directory / str(local_rank)) for local_rank in range(local_world_size))
    return RoundDirs(number, str(directory), workers)


def _make_worker(directory: Path) -> WorkerPaths:
    directory.mkdir()
    return _paths(directory, "error.json")


def _paths(directory: Path, error_file: str) -> WorkerPaths:
    return WorkerPaths(*(str(directory / name) for name in ("stdout.log", "stderr.log", error_file)))


def _without_files(number: int, local_world_size: int) -> RoundDirs:
    return RoundDirs(number, "", (WorkerPaths(),) * local_world_size)


def clear(temporary: Path, failed: bool = False) -> bool:
    """Remove a temporary directory unless it is worth keeping; return whether it was kept.

    It is worth keeping if it holds a log or stacks, or if the job failed and it holds anything.
    """
    try:
        kept = any(
            (failed or path.suffix == ".log" or path.match(STACKS)) and path.stat().st_size > 0
            for path in temporary.rglob("*")
            if path.is_file()
        )
    except OSError:
        kept = True  # when in doubt nothing is deleted
    if not kept:
        shutil.rmtree(temporary, ignore_errors=True)
    return kept
