"""The fork server of ``elasticrun.launch``: it imports once, and each launcher is a fork of it.

Theory. A launcher takes 0.15 s to import itself, and its workers seconds to import torch. A caller that
launches many jobs starts one process that has done both, and asks it for launchers. Such a launcher is a fork
of this process; its spawner is a fork of that, and its workers are forks of the spawner (``Preloaded``), so
that nobody imports anything. The caller itself is never forked, whatever it has loaded, and whichever threads
or devices it uses.

The caller asks with one message and descriptors: the request as a memory file, a file for the outcome, the
launcher's stdin, stdout and stderr, and a channel. On the channel the caller names signals for the launcher,
and hears its pid and its exit status. A channel that the caller closes ends the launcher at once. A launcher
that was asked to be early tells by itself that all went well, before it tidies up: its caller lets it go.

Invariants. This process has one thread and runs nothing of a job. It signals a launcher only while it has not
reaped it. Once the caller has ended, however that was, all launchers are killed; those that were let go have
a moment to end before. Their spawners see to it that nothing of theirs is left. What cannot be imported
beforehand is left to the workers, which tell of it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import weakref
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elasticrun.agent.spawner.descriptors import close_files, is_open, open_files
from elasticrun.agent.spawner.exec import PR_SET_PDEATHSIG, Preloaded, load_prctl
from elasticrun.dataclass import prepare
from elasticrun.errors import ElasticRunError, ExitCode, UsageError
from elasticrun.worker import warm_imports
from elasticrun.worker.target import LATER, LAUNCHER, start
from elasticrun.worker.target import __file__ as PROGRAM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO, NoReturn

    from elasticrun.agent.runtime import Witness
    from elasticrun.core.agent.events import Finish
    from elasticrun.core.protocol.messages import StartRound

#: Descriptors of a request: its text, the outcome, stdin, stdout and stderr, the channel.
FDS = 6
_ASK = b"+"
#: What a launcher tells its caller on the channel, and what that answers.
OVER, LET_GO = b"over", b"let go"
_LAST = 5.0  # seconds that those have to end which were let go
_WORDS = 4096  # bytes of a message on a channel
#: What launchers, masters and workers of such a job import, at the top or later.
_NEEDED = (
    "asyncio",
    "cloudpickle",
    "elasticrun.agent.memory.gate",
    "elasticrun.agent.monitors.teller",
    "elasticrun.agent.runtime",
    "elasticrun.cli.keywords",
    "elasticrun.cli.logs",
    "elasticrun.cli.main",
    "elasticrun.cli.master",
    "elasticrun.cli.master_settings",
    "elasticrun.cli.parse",
    "elasticrun.cli.scrub",
    "elasticrun.core.health.stragglers",
    "elasticrun.core.job.progress_notes",
    "elasticrun.rpc.nearby_server",
)


class ForkServer:
    """Serves one caller until that is gone."""

    def __init__(self, control: socket.socket, caller: int) -> None:
        """``control``: where requests come from; ``caller``: its pid."""
        self._kept = _kept_files() - {control.fileno()}
        self._control = control
        self._caller = caller
        self._is_over = False
        #: By pid, its pidfd and its channel; None: it was let go.
        self._launchers: dict[int, tuple[int, socket.socket | None]] = {}
        self._selector = selectors.DefaultSelector()
        self._imported: set[str] = set()
        self._uses_cuda = False  # imports have begun to, so no fork of this process can
        self._files: dict[str, tuple[int, int]] = {}  # of what was imported, as they were then

    def run(self) -> None:
        """Serve; returns once the caller is gone and all launchers are dead."""
        self._selector.register(self._control, selectors.EVENT_READ, self._asked)
        with contextlib.suppress(OSError):  # the control socket's end tells as well
            self._selector.register(os.pidfd_open(self._caller), selectors.EVENT_READ, self._abandoned)
        while self._serves():
            pass
        deadline = time.monotonic() + _LAST
        for pid, (pidfd, channel) in sorted(self._launchers.items(), key=lambda it: it[1][1] is None):
            if channel is None:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _serves(self) -> bool:
        """Handle what comes next; whether anybody is left to serve."""
        for key, _ in self._selector.select():
            if not self._is_over:
                key.data()
        return not self._is_over

    def _abandoned(self) -> None:
        self._is_over = True

    def _asked(self) -> None:
        room = socket.CMSG_SPACE(FDS * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = self._control.recvmsg(len(_ASK), room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            data, ancillary = b"", []
        fds = array.array("i", b"".join(raw for _, _, raw in ancillary)).tolist()
        if data != _ASK:
            self._is_over = True
            return
        if len(fds) != FDS:  # this process has too many files open: the caller hears that nobody answers
            for fd in fds:
                os.close(fd)
            return
        channel = socket.socket(fileno=fds.pop())
        request = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
        self._import(request["preload"], request["path"])
        # Workers import for themselves what was edited since, or what no fork can use.
        is_fit = warm_imports.are_as(self._files) and not self._uses_cuda
        self._fork({**request, "preloaded": request["preloaded"] and is_fit}, fds, channel)
        for fd in fds:
            os.close(fd)

    def _import(self, names: Sequence[str], path: Sequence[str]) -> None:
        """Import what the job's workers need, as far as that can be done and forked afterwards.

        ``path``: where workers look for modules; a launcher looks there last.
        """
        new = [name for name in names if name not in self._imported]
        for name in new:
            self._imported.add(name)
            before = _kept_files()
            launchers, sys.path[:] = [*sys.path], path
            with contextlib.suppress(Exception, SystemExit):  # a script without a guard may end like this
                __import__(name)
            sys.path[:] = launchers
            self._kept |= _kept_files() - before
            self._files = {**warm_imports.files(), **self._files}
            _settle()
        if {*new} - {*LATER}:  # ranks of pytest, which have to be forks, import no other here
            with contextlib.suppress(OSError):  # a host that refuses this fork refuses the launcher too
                self._uses_cuda |= warm_imports.uses_cuda_once_forked()

    def _fork(self, request: Mapping[str, Any], fds: list[int], channel: socket.socket) -> None:
        server = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _be_launcher(request, fds, channel, self._kept, server)
            pidfd = _opened(pid)
        except OSError as error:
            _tell(channel, f"problem cannot start a launcher: {error.strerror}")
            channel.close()
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _tell(channel, f"pid {pid}")
        self._launchers[pid] = pidfd, channel
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(pid))
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._told(pid))

    def _told(self, pid: int) -> None:
        """The caller wants a signal sent; or it has hung up, and wants nothing more of this launcher."""
        if pid not in self._launchers:
            return  # it has ended just now
        pidfd, channel = self._launchers[pid]
        assert channel is not None, "it is registered"
        try:
            words = channel.recv(_WORDS)
        except ConnectionError:
            words = b""
        if not words or words == LET_GO:
            self._selector.unregister(channel)
        if words == LET_GO:
            self._launchers[pid] = pidfd, None
            channel.close()
            return
        with contextlib.suppress(OSError, ValueError):  # there is no such signal
            os.kill(pid, int(words or signal.SIGKILL))

    def _ended(self, pid: int) -> None:
        pidfd, channel = self._launchers.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if channel is None:
            return
        with contextlib.suppress(KeyError):  # the caller had hung up
            self._selector.unregister(channel)
        _tell(channel, f"ended {os.waitstatus_to_exitcode(status)}")
        channel.close()


def _opened(pid: int) -> int:
    """The pidfd of a child, which is killed if there can be none. Raises OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _kept_files() -> frozenset[int]:
    """The descriptors of this process beside stdin, stdout and stderr."""
    return frozenset(number for number in open_files() if number > 2 and is_open(number))


def _tell(channel: socket.socket, words: str) -> None:
    with contextlib.suppress(OSError):  # the caller has hung up
        channel.send(words.encode())


def serve() -> NoReturn:
    """Serve the caller that started this process, and end with it.

    The program's arguments are the socket's number and the caller's pid.
    """
    number, caller = map(int, sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it would leave nobody to be reaped
    control = socket.socket(fileno=number)
    os.set_inheritable(number, False)
    _load()
    ForkServer(control, caller).run()
    os._exit(ExitCode.OK)  # what was imported has nothing to do at the end


def _load() -> None:
    """Import what launchers and workers need of ours."""
    for name in _NEEDED:
        import_module(name)
    _load_hooks()
    _rehearse()
    _settle()


def _rehearse() -> None:
    """Do once what all launchers do alike, so that what it compiles and looks up is there in each of them."""
    from elasticrun.cli.parse import parse_command_line
    from elasticrun.master.service import MasterConfig
    from elasticrun.rpc import local, records

    with contextlib.suppress(ElasticRunError):  # the environment may be wrong: a launcher tells of it
        parse_command_line(["--standalone", "--nproc-per-node=1", PROGRAM], dict(os.environ))
    local.prepare()
    records.prepare([MasterConfig])


def _settle() -> None:
    """Make this process quick to fork: no collection in a fork touches what it shares, in large pages."""
    import ctypes

    from elasticrun.worker.warm_memory import put_together

    for each in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        each.atexit = False  # torch would take itself to pieces at the end of each worker
    prepare()
    warm_imports.forget_missing_folders()
    gc.collect()
    gc.freeze()
    put_together(ctypes.CDLL(None))


def _load_hooks() -> None:
    """Load the module that has workers report their steps, as if it had come first in each of them."""
    from importlib.util import module_from_spec, spec_from_file_location

    from elasticrun.agent.programs import INJECTED

    name = "_elasticrun_sitecustomize"
    spec = spec_from_file_location(name, os.path.join(INJECTED, "sitecustomize.py"))  # noqa: PTH118
    if spec is None or spec.loader is None:
        return
    hooks = module_from_spec(spec)
    sys.modules[name] = hooks
    spec.loader.exec_module(hooks)
    hooks.load_early()


# -- in the fork


def _be_launcher(
    request: Mapping[str, Any], fds: list[int], channel: socket.socket, kept: frozenset[int], server: int
) -> NoReturn:
    """Be the launcher of a request, in a child just forked with all signals blocked; never return."""
    status = int(ExitCode.INTERNAL)
    try:
        status = _launch(request, fds, channel, kept, server)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # noqa: BLE001 the frames below are the server's: show it, then leave without unwinding
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _launch(
    request: Mapping[str, Any], fds: list[int], channel: socket.socket, kept: frozenset[int], server: int
) -> int:
    outcome = os.fdopen(os.dup(fds[1]), "wb")
    for number, fd in enumerate(fds[2:]):
        os.dup2(fd, number)
    early = {channel.fileno()} if request["early"] else set[int]()
    close_files(keep={0, 1, 2, outcome.fileno(), *early, *kept})
    os.setsid()
    load_prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(ExitCode.INTERNAL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update({**request["env"], LAUNCHER: str(os.getpid())})
    told = Outcome(outcome, channel if early else None)
    try:
        return _run(request, Preloaded(start, kept), told)
    except ElasticRunError as error:
        told.failed(error)
        return error.exit_code


class Outcome:
    """What a launcher tells its caller: a line for each round, as it starts, and one for the end."""

    def __init__(self, file: BinaryIO, channel: socket.socket | None = None) -> None:
        """``channel``: where to tell at once that all went well, and only tidying up is left."""
        self._file = file
        self._channel = channel

    def started(self, start: StartRound) -> None:
        """Tell of a round, and why there is one."""
        given = start.assignment
        why = "; ".join(filter(None, (start.after, start.reason)))
        self._tell(round=given.round, world_size=given.world_size, restarts=given.restart_count, why=why)

    def finished(self, finish: Finish) -> None:
        """Tell of the end."""
        from elasticrun.rpc.records import to_json

        self._tell(
            status=int(finish.exit_status),
            reason=finish.reason,
            failures=[to_json(each) for each in finish.failures],
        )
        if self._channel is not None and finish.exit_status == ExitCode.OK:
            _tell(self._channel, OVER.decode())

    def failed(self, error: ElasticRunError) -> None:
        """Tell why there is no end to tell of."""
        self._tell(status=int(error.exit_code), reason=str(error), failures=[])

    def _tell(self, **words: Any) -> None:
        self._file.write(json.dumps(words).encode() + b"\n")
        self._file.flush()


def _run(request: Mapping[str, Any], preloaded: Preloaded, witness: Witness) -> int:
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
    if not request["preloaded"]:
        return launch(config, argv, witness=witness)
    config = replace(config, workers=replace(config.workers, preloaded=True))
    return launch(config, argv, preloaded=preloaded, witness=witness)
