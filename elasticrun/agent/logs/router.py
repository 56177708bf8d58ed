"""Where the workers' output goes: for each worker of a round, the two descriptors to start it with.

    nothing asked            stdout: the agent's own. stderr: through the agent, unchanged and at once, so
                             that its tail is at hand when the worker fails; a pty where the agent's stderr is
                             a terminal, so that progress bars behave
    redirect                 the log file itself; a failure's tail is read from there. A full disk is then
                             the worker's own affair, as with any file
    tee                      through the agent into the log file and, line by line with a prefix, the console
    duplicate filters        through the agent, whatever else is asked: matching lines of every worker are
                             also put, with the prefix, into the round's filtered log
    rank prefix              through the agent, line by line with the prefix, to the console
    local_ranks_filter       other ranks are not shown; files, filters and tails are the same

Order of calls, for each round::

    logs = router.open_round(dirs, first_rank)
    spawn(..., *logs.fds(local_rank)); logs.started(local_rank)     # once the spawner holds copies
    logs.stderr_tail(local_rank)                                    # a worker has failed
    logs.reopen(local_rank, paths, ...); spawn(...); logs.started(local_rank)    # a task starts (again)
    logs.close()                                                    # all have ended and were swept
    await router.close(timeout)                                     # before the agent ends

What can be read again later is remembered in ``router.kept``: log files, and the end of what has none.

Nothing raises because of a disk or a console: each failure is reported once, in one sentence.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from elasticrun.agent.logs.console import Console, open_consoles
from elasticrun.agent.logs.dirs import RoundDirs, WorkerPaths
from elasticrun.agent.logs.files import LogFile, open_log
from elasticrun.agent.logs.kept import FileOutput, KeptOutput, MemoryTail, Nothing, Output
from elasticrun.agent.logs.lines import TAIL_LIMIT, line_prefix, tail_text
from elasticrun.agent.logs.stream import Destinations, Filter, Relay, Source, encode_filters
from elasticrun.agent.tasks import log_name
from elasticrun.config import LogConfig, Std, StdByRank
from elasticrun.core.protocol.questions import LogStream
from elasticrun.core.protocol.tasks import Task

logger = logging.getLogger(__name__)

_PASSED = (
    "its {} goes past its agent, straight to where elastic-run's goes, so nothing is kept: start the job with"
    " --rank-prefix, or with --tee 3 or -r 3"
)
_NOT_SHOWN = "its {} is not shown, because of --local-ranks-filter, and goes to no file: nothing is kept"


class WorkerFds(NamedTuple):
    """What a worker's descriptors 1 and 2 are to be copies of."""

    stdout: int
    stderr: int


@dataclass(slots=True)
class _Stream:
    """One stream of one worker: what it writes to, and the relay or file that carries it, if any."""

    fd: int
    output: Output  # what can be read of it later
    relay: Relay | None = None
    file: LogFile | None = None  # handed to the worker itself
    closing: list[int] = field(default_factory=list)  # our copies, to be closed once it has started
    is_terminal: bool = False  # the worker has a terminal of ours itself


class LogRouter:
    """The output of all rounds of this node. Made and used inside a running event loop."""

    def __init__(
        self,
        config: LogConfig,
        role: str,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        report: Callable[[str], None] = logger.warning,
        host: str = "",
    ) -> None:
        """``report`` gets one sentence per file that could not be written; ``host``: our name."""
        self.stdout, self.stderr = open_consoles(stdout_fd, stderr_fd, report)
        self._config = _as_torchrun_with_dev_null(config)
        self._role = role
        self._host = host
        self._report = report
        self._rounds: set[RoundLogs] = set()
        self.kept = KeptOutput()

    def open_round(self, dirs: RoundDirs, first_rank: int) -> RoundLogs:
        """Open everything that the workers of a round write to. OSError only if no descriptor is left."""
        logs = RoundLogs(self, dirs, first_rank)
        self._rounds.add(logs)
        return logs

    def forget(self, logs: RoundLogs) -> None:
        """Drop ``logs``, which is closed."""
        self._rounds.discard(logs)

    def window_changed(self) -> None:
        """SIGWINCH: pass the terminal's new size on to the workers' ptys."""
        for logs in self._rounds:
            logs.copy_window_size()

    async def close(self, timeout: float = 5.0) -> None:
        """Close what is open and show the rest, waiting at most ``timeout`` seconds for a slow console."""
        for logs in list(self._rounds):
            logs.close()
        for console in {self.stdout, self.stderr}:
            if not await console.flush(timeout):
                self._report(f"{console.name} was too slow; some output of the workers was not shown there")
            console.close()

    @property
    def is_terminal_taken(self) -> bool:
        """Whether a worker may write to a terminal of ours past us."""
        return (self.stdout is not self.stderr and self.stdout.is_terminal) or any(
            logs.takes_terminal for logs in self._rounds
        )

    @property
    def config(self) -> LogConfig:
        return self._config

    @property
    def report(self) -> Callable[[str], None]:
        return self._report

    def prefix(self, rank: int, local_rank: int, task: Task | None = None) -> bytes:
        """The mark on a worker's lines; for a task its role and index, unless there is a template."""
        template = self._config.line_prefix_template
        role, number = log_name(self._role, task, local_rank)
        if self._config.rank_prefix and not template:
            name = f"rank{rank}" if task is None else f"{role}{number}"
            return f"[{name}] ".encode(errors="surrogateescape")
        return line_prefix(template, role, rank, local_rank if template else number, self._host)


class RoundLogs:
    """The output of one round's workers on this node."""

    def __init__(self, router: LogRouter, dirs: RoundDirs, first_rank: int) -> None:
        self._router = router
        self._round = dirs.round
        config, report = router.config, router.report
        self._filters: dict[Std, Filter | None] = {
            Std.OUT: _open_filter(dirs.filtered_stdout, config.duplicate_stdout_filters, report),
            Std.ERR: _open_filter(dirs.filtered_stderr, config.duplicate_stderr_filters, report),
        }
        self._streams: dict[int, dict[Std, _Stream]] = {}  # by local rank
        try:
            for local_rank, paths in enumerate(dirs.workers):
                self._open_worker(local_rank, paths, router.prefix(first_rank + local_rank, local_rank))
        except OSError:
            self.close()
            raise

    @property
    def takes_terminal(self) -> bool:
        """Whether a worker has a terminal of ours itself."""
        return any(it.is_terminal for streams in self._streams.values() for it in streams.values())

    def reopen(self, local_rank: int, paths: WorkerPaths, rank: int, task: Task) -> None:
        """Open the output of a task, new or in a further attempt; its files are continued.

        The earlier attempt has ended: take the rest of its output, and ignore processes that still hold it.
        OSError if no descriptor is left; then nothing is open for this local rank.
        """
        self._close_worker(local_rank)
        try:
            self._open_worker(local_rank, paths, self._router.prefix(rank, local_rank, task), task.attempt)
        except OSError:
            self._close_worker(local_rank)
            raise

    def fds(self, local_rank: int) -> WorkerFds:
        """What to start the worker with; valid until ``started``."""
        streams = self._streams[local_rank]
        return WorkerFds(streams[Std.OUT].fd, streams[Std.ERR].fd)

    def started(self, local_rank: int) -> None:
        """Close our copies: the worker, or the spawner for it, holds its own now."""
        for stream in self._streams.get(local_rank, {}).values():
            if stream.relay is not None:
                stream.relay.release()
            for fd in stream.closing:
                os.close(fd)
            stream.closing.clear()

    def stderr_tail(self, local_rank: int) -> str:
        """The end of what the worker has written to stderr, all of it if it is short."""
        stream = self._streams[local_rank][Std.ERR]
        if stream.relay is not None:
            stream.relay.pump()  # a worker that has ended may have left its last words in the pipe
            return stream.relay.tail.text()
        return tail_text(stream.file.tail(TAIL_LIMIT + 1)) if stream.file is not None else ""

    def close(self) -> None:
        """Take the rest of the output of the workers, which have all ended, and close this round's files.

        Does not wait; what the console has not taken yet is still shown. A grandchild that survived and still
        holds a pipe loses it here.
        """
        for local_rank in [*self._streams]:
            self._close_worker(local_rank)
        for kind, shared in self._filters.items():
            if shared is not None:
                shared.file.close()
            self._filters[kind] = None
        self._router.forget(self)

    def copy_window_size(self) -> None:
        """Pass the size of the terminal on."""
        for streams in self._streams.values():
            for stream in streams.values():
                if stream.relay is not None:
                    stream.relay.copy_window_size()

    def _open_worker(self, local_rank: int, paths: WorkerPaths, prefix: bytes, attempt: int = 0) -> None:
        streams = self._streams[local_rank] = {}
        streams[Std.OUT] = self._open(Std.OUT, local_rank, paths.stdout, prefix)
        streams[Std.ERR] = self._open(Std.ERR, local_rank, paths.stderr, prefix)
        for std, stream in streams.items():
            self._router.kept.open(local_rank, _NAMES[std], (self._round, attempt), stream.output)

    def _close_worker(self, local_rank: int) -> None:
        for stream in self._streams.get(local_rank, {}).values():
            if stream.relay is not None:
                stream.relay.drain()
        self.started(local_rank)
        for stream in self._streams.pop(local_rank, {}).values():
            if stream.file is not None:
                stream.file.close()

    def _open(self, std: Std, local_rank: int, path: str, prefix: bytes) -> _Stream:
        config, filter_ = self._router.config, self._filters[std]
        may_show = config.local_ranks_filter is None or local_rank in config.local_ranks_filter
        is_teed = bool(config.tee.of(local_rank) & std)
        is_logged = is_teed or bool(config.redirects.of(local_rank) & std)
        file = open_log(path, self._router.report) if is_logged else None
        if file is not None and not is_teed and filter_ is None:
            return _Stream(file.fd, _of_file(file, is_told=False), file=file)
        console = self._router.stdout if std is Std.OUT else self._router.stderr
        if std is Std.OUT and not is_logged and filter_ is None and not (config.rank_prefix and may_show):
            if not may_show:
                return _null_stream(std)
            return _Stream(console.fd, _nothing(_PASSED, std), is_terminal=console.is_terminal)
        to_console = may_show and (is_teed or not is_logged)
        # Output whose log cannot be opened goes to the console, even of a rank that is not shown.
        instead_of_file = is_logged and file is None
        shown = to_console or instead_of_file
        by_lines = is_logged or config.rank_prefix
        to = Destinations(console, shown, prefix, by_lines, file, filter_)
        return _relayed(to, self._router.kept.tell)


#: What the streams are called where they are asked for.
_NAMES = {Std.OUT: LogStream.OUT, Std.ERR: LogStream.ERR}


def _nothing(why: str, std: Std) -> Nothing:
    return Nothing(why.format(_NAMES[std].value))


def _of_file(file: LogFile, is_told: bool) -> FileOutput:
    return FileOutput(file.path, file.fd, is_told)


def _relayed(to: Destinations, tell: Callable[[], None]) -> _Stream:
    is_console_like = to.shown and not to.by_lines and to.console.is_terminal
    try:
        source = _open_source(to.console if is_console_like else None)
    except OSError:
        if to.file is not None:
            to.file.close()
        raise
    if to.file is not None:
        return _Stream(source.worker_fd, _of_file(to.file, is_told=True), Relay(source, to, lambda _: tell()))
    tail = MemoryTail()

    def take(data: bytes) -> None:
        tail.add(data)
        tell()

    return _Stream(source.worker_fd, tail, Relay(source, to, take))


def _open_source(terminal: Console | None) -> Source:
    if terminal is not None:
        try:
            return Source(terminal)
        except OSError:
            pass  # no pty to be had: a pipe carries the same bytes
    return Source(None)


def _null_stream(std: Std) -> _Stream:
    fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return _Stream(fd, _nothing(_NOT_SHOWN, std), closing=[fd])


def _open_filter(path: str, needles: tuple[str, ...], report: Callable[[str], None]) -> Filter | None:
    file = open_log(path, report) if needles else None
    return Filter(file, encode_filters(needles)) if file is not None else None


def _as_torchrun_with_dev_null(config: LogConfig) -> LogConfig:
    """With ``--log-dir /dev/null`` there is no file to redirect or tee to: all is shown as it is."""
    if config.log_dir != os.devnull:
        return config
    none = StdByRank()
    return replace(config, redirects=none, tee=none, duplicate_stdout_filters=(), duplicate_stderr_filters=())
