"""What a fork of the fork server does: it carries out orders, each as one launcher of a job.

Theory. A fork of a process that has torch takes 5 ms, and copies some 2,000 pages that a launcher writes to,
which takes longer than what it does with them. So a launcher whose job went well takes the next one: it has
these pages, and its code has been run before. What a job changes of its process is put back in between:
signals, streams, files, the log, directories, the event loop. Its environment comes with the order.

Invariants. Only a launcher that has nothing left of its job takes another one: it ended well, has one thread
and no children, has imported no code of others, and nobody has sent it a signal. All others end as any
program. While it waits it holds nothing of any job. It has the modules that the server had when it was
forked; whoever imports another one lets go of it. Nothing here ever returns to the frames of the server, and
no launcher outlives that.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from dataclasses import replace
from signal import SIGKILL, SIGSTOP
from typing import TYPE_CHECKING

from elasticrun.agent.master_host.process import may_fork
from elasticrun.agent.spawner.descriptors import close_files
from elasticrun.agent.spawner.exec import PR_SET_PDEATHSIG, Preloaded, load_prctl
from elasticrun.agent.spawner.proctitle import set_title
from elasticrun.errors import ElasticRunError, ExitCode, UsageError
from elasticrun.exits import leave
from elasticrun.worker.target import FAILED, LAUNCHER, start
from elasticrun.worker.target import __file__ as PROGRAM
from elasticrun.worker.warm_imports import has_children

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any, BinaryIO, NoReturn

    from elasticrun.agent.runtime import Witness
    from elasticrun.core.agent.events import Finish
    from elasticrun.core.protocol.messages import StartRound

#: Descriptors of a request: its text, the outcome, stdin, stdout and stderr, the channel.
FDS = 6
#: What a launcher tells its caller on the channel, and what that answers.
OVER, LET_GO = b"over", b"let go"
#: What comes with the descriptors of a request: whether its workers may be forks of the launcher.
_FIT, _UNFIT = b"fit", b"unfit"
#: What a launcher tells the server: it has an order; that job is over, and it could carry out another one.
TAKEN, DONE = b"take", b"done"
_LOG = "elasticrun"  # the logger of all our modules


def received(source: socket.socket, length: int) -> tuple[bytes, list[int]]:
    """Words and descriptors from a socket; b"" once its other end is closed."""
    room = socket.CMSG_SPACE(FDS * array.array("i").itemsize)
    try:
        words, ancillary, _, _ = source.recvmsg(length, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return b"", []
    return words, array.array("i", b"".join(raw for _, _, raw in ancillary)).tolist()


def asked(fds: Sequence[int]) -> dict[str, Any]:
    """The request that was sent with these descriptors."""
    request: dict[str, Any] = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
    return request


def tell(channel: socket.socket, words: str) -> None:
    """Tell the caller, or the server, something, unless it has hung up."""
    with contextlib.suppress(OSError):
        channel.send(words.encode())


def rehearse() -> None:
    """Do once what all launchers do alike, so that what it compiles and looks up is there in each of them."""
    from elasticrun.cli.parse import parse_command_line
    from elasticrun.master.service import MasterConfig
    from elasticrun.rpc import local, records

    with contextlib.suppress(ElasticRunError):  # the environment may be wrong: a launcher tells of it
        parse_command_line(["--standalone", "--nproc-per-node=1", PROGRAM], dict(os.environ))
    local.prepare()
    records.prepare([MasterConfig])


class Fork:
    """A fork of the server, as that knows it. To be closed once it is reaped."""

    def __init__(self, kept: frozenset[int], modules: int) -> None:
        """Fork it. Raises OSError.

        ``kept``: the descriptors that belong to what was imported; ``modules``: how many were asked for.
        """
        self.modules = modules
        self.channel: socket.socket | None = None  # to the caller of its job; None: there is none any more
        self.is_let_go = False  # its caller does not wait for it
        self.has_waited = False  # for an order that came later
        self.untaken: tuple[list[int], bool] | None = None  # its order, while it may still end without it
        self.was_signalled = False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _leave_with(lambda: _carry_out_orders(theirs, kept, server))
            self.pidfd = _opened(self.pid)
        except OSError:
            self.control.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def order(self, fds: list[int], is_fit: bool) -> None:
        """Have it carry out the request with these descriptors, which are its own to close, but the last.

        ``is_fit``: its workers may be forks of it. Raises OSError if the kernel does not send them.
        """
        with contextlib.suppress(ConnectionError):  # it has ended; that is handled when it is reaped
            socket.send_fds(self.control, [_FIT if is_fit else _UNFIT], [*fds])
        self.untaken = fds, is_fit

    def taken(self) -> None:
        """It has its order, so nobody else needs that."""
        if self.untaken is not None:
            for fd in self.untaken[0][:-1]:  # the last one is the channel
                os.close(fd)
            self.untaken = None

    def hear(self) -> bytes:
        """What it has to say; b"": nothing more."""
        try:
            return self.control.recv(len(DONE), socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return b""

    def signal(self, signum: int) -> None:
        """Send it a signal; never once it is reaped. Raises OSError or ValueError."""
        self.was_signalled = True
        os.kill(self.pid, signum)

    def hang_up(self, words: str = "") -> None:
        """Have its caller hear this, if anything, and nothing more."""
        if self.channel is not None:
            if words:
                tell(self.channel, words)
            self.channel.close()
            self.channel = None

    def close(self) -> None:
        """Let go of what belongs to it."""
        self.taken()
        self.hang_up()
        self.control.close()
        os.close(self.pidfd)


def _opened(pid: int) -> int:
    """The pidfd of a child, which is killed if there can be none. Raises OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


# -- in the fork


class _Own:
    """What a launcher has while it carries out no order, and gets back afterwards."""

    def __init__(self) -> None:
        self._std = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in range(3)]
        log = logging.getLogger(_LOG)
        self._log = [*log.handlers], log.level, log.propagate
        #: A loop's policy that was set by an import keeps what a job has done with it.
        self._has_usual_loops = sys.version_info >= (3, 14) or (
            type(asyncio.get_event_loop_policy()) is asyncio.DefaultEventLoopPolicy
        )
        self._modules = {*sys.modules}
        self._temporary = tempfile.tempdir  # where temporary files go, as far as that was looked up
        known = {signum: signal.getsignal(signum) for signum in signal.valid_signals() - {SIGKILL, SIGSTOP}}
        self._signals = {signum: handler for signum, handler in known.items() if handler is not None}

    @property
    def files(self) -> set[int]:
        """The descriptors that an order must not close."""
        return {*self._std}

    def can_be_restored(self) -> bool:
        """Whether it is known what an order has changed of this process. If modules were imported that are
        neither ours nor Python's, it is not.
        """
        new = {name.partition(".")[0] for name in sys.modules.keys() - self._modules}
        return self._has_usual_loops and new <= {_LOG, *sys.stdlib_module_names}

    def restore(self, keep: Collection[int]) -> None:
        """Put back what an order has changed of this process, and close its files but those in ``keep``."""
        for signum, handler in self._signals.items():
            signal.signal(signum, handler)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, fd in enumerate(self._std):
            os.dup2(fd, number)
        close_files(keep={0, 1, 2, *self._std, *keep})
        tempfile.tempdir = self._temporary
        if sys.version_info < (3, 14):  # where a thread gets a loop by asking for it, unless it has had one
            asyncio.set_event_loop_policy(None)
        log = logging.getLogger(_LOG)
        log.handlers[:], level, log.propagate = self._log
        log.setLevel(level)
        os.chdir("/")
        set_title("elastic-run: waits for a job")


def _leave_with(work: Callable[[], int]) -> NoReturn:
    """End this process with the exit status that ``work`` returns; never return."""
    status = int(ExitCode.INTERNAL)
    try:
        status = work()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # noqa: BLE001 the frames below are the server's: show it, then leave without unwinding
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _be_worker(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Run the caller's function, and end as a program of its own would."""
    status = FAILED
    try:
        status = start(argv, env)
    finally:
        leave(status)


def _carry_out_orders(control: socket.socket, kept: frozenset[int], server: int) -> int:
    """Be launchers, one after the other, in a child just forked with all signals blocked.

    Returns the exit status of the last one.
    """
    keep = {control.fileno(), *kept}
    close_files(keep={0, 1, 2, *keep})
    os.setsid()
    load_prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        return ExitCode.INTERNAL
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    own = _Own()
    while True:
        words, fds = received(control, len(_UNFIT))
        if not words:  # the server has ended, or has no use for it
            return ExitCode.OK
        if len(fds) != FDS:  # too many files are open here: the caller hears that it ended without a word
            return ExitCode.NODE_FAULT
        tell(control, TAKEN.decode())
        status, went_well = _carry_out(fds, words == _FIT, kept, keep | own.files)
        if not went_well or not may_fork() or has_children() or not own.can_be_restored():
            return status
        own.restore(keep)
        tell(control, DONE.decode())


def _carry_out(
    fds: Sequence[int], is_fit: bool, kept: frozenset[int], keep: Collection[int]
) -> tuple[int, bool]:
    """Run the job that was asked for.

    Returns the launcher's exit status, and whether the job went well. ``keep``: descriptors to leave open.
    """
    request = asked(fds)
    channel = socket.socket(fileno=fds[-1])
    outcome = os.fdopen(os.dup(fds[1]), "wb")
    for number, fd in enumerate(fds[2:-1]):
        os.dup2(fd, number)
    early = {channel.fileno()} if request["early"] else set[int]()
    close_files(keep={0, 1, 2, outcome.fileno(), *early, *keep})
    os.environ.clear()
    os.environ.update({**request["env"], LAUNCHER: str(os.getpid())})
    told = Outcome(outcome, channel if early else None)
    preloaded = Preloaded(_be_worker, kept) if request["preloaded"] and is_fit else None
    try:
        status = _run(request, preloaded, told)
    except ElasticRunError as error:
        told.failed(error)
        status = error.exit_code
    told.close()
    channel.detach()
    return status, told.went_well and status == ExitCode.OK


class Outcome:
    """What a launcher tells its caller: a line for each round, as it starts, and one for the end."""

    def __init__(self, file: BinaryIO, channel: socket.socket | None = None) -> None:
        """``channel``: where to tell at once that all went well, and only tidying up is left."""
        self._file = file
        self._channel = channel
        self.went_well = False

    def started(self, start: StartRound) -> None:
        """Tell of a round, and why there is one."""
        given = start.assignment
        why = "; ".join(filter(None, (start.after, start.reason)))
        self._tell(round=given.round, world_size=given.world_size, restarts=given.restart_count, why=why)

    def finished(self, finish: Finish) -> None:
        """Tell of the end."""
        from elasticrun.rpc.records import to_json

        self.went_well = finish.exit_status == ExitCode.OK
        self._tell(
            status=int(finish.exit_status),
            reason=finish.reason,
            failures=[to_json(each) for each in finish.failures],
        )
        if self._channel is not None and self.went_well:
            tell(self._channel, OVER.decode())

    def failed(self, error: ElasticRunError) -> None:
        """Tell why there is no end to tell of."""
        self._tell(status=int(error.exit_code), reason=str(error), failures=[])

    def close(self) -> None:
        """Close the file; there is nothing more to tell."""
        self._file.close()

    def _tell(self, **words: Any) -> None:
        self._file.write(json.dumps(words).encode() + b"\n")
        self._file.flush()


def _run(request: Mapping[str, Any], preloaded: Preloaded | None, witness: Witness) -> int:
    from elasticrun.cli.keywords import command_line
    from elasticrun.cli.main import launch
    from elasticrun.cli.parse import parse_command_line
    from elasticrun.cli.scrub import take_environment

    try:
        os.chdir(request["cwd"])
    except OSError as error:
        raise UsageError(
            f"the working directory {request['cwd']} cannot be entered: {error.strerror}"
        ) from None
    argv = [*request["place"], *command_line(request["options"]), *request["command"]]
    config = parse_command_line(argv, take_environment())
    config = replace(config, workers=replace(config.workers, preloaded=preloaded is not None))
    return launch(config, argv, preloaded=preloaded, witness=witness)
