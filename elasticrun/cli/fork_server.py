"""The fork server of ``elasticrun.launch``: it imports once, and each launcher is a fork of it.

Theory. A launcher takes 0.15 s to import itself, and its workers seconds to import torch. A caller that
launches many jobs starts one process that has done both, and asks it for launchers. Such a launcher is a fork
of this process; its spawner is a fork of that, and its workers are forks of the spawner (``Preloaded``), so
that nobody imports anything. A launcher whose job went well takes the next one (``forked_launcher.py``). The
caller itself is never forked, whatever it has loaded, and whichever threads or devices it uses.

The caller asks with one message and descriptors: the request as a memory file, a file for the outcome, the
launcher's stdin, stdout and stderr, and a channel. On the channel the caller names signals for the launcher,
and hears its pid and its exit status. A channel that the caller closes ends the launcher at once. A launcher
that was asked to be early tells by itself that all went well, before it tidies up: its caller lets it go.

Invariants. This process has one thread and runs nothing of a job. It signals a launcher only while it has not
reaped it, and has not heard that its job is over. An order that a waiting launcher did not live to take goes
to another one. Once the caller has ended, however that was, all launchers are killed; those that were let go
have a moment to end before. Their spawners see to it that nothing of theirs is left. What cannot be imported
beforehand is left to the workers, which tell of it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
import weakref
from importlib import import_module
from typing import TYPE_CHECKING

from elasticrun.agent.spawner.descriptors import is_open, open_files
from elasticrun.cli.forked_launcher import (
    DONE,
    FDS,
    LET_GO,
    TAKEN,
    Fork,
    asked,
    received,
    rehearse,
    tell,
)
from elasticrun.dataclass import prepare
from elasticrun.errors import ExitCode
from elasticrun.worker import warm_imports
from elasticrun.worker.target import LATER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_ASK = b"+"
#: How many launchers wait for an order at most: while the last job's still tidies up, another one begins.
_IDLE = 2
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
        self._forks: dict[int, Fork] = {}  # by pid
        self._idle: list[Fork] = []  # those that wait for an order
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
        for fork in self._forks.values():
            fork.control.close()  # so that none waits for an order
        deadline = time.monotonic() + _LAST
        for fork in sorted(self._forks.values(), key=lambda each: each.is_let_go):
            if fork.is_let_go:
                poll = select.poll()
                poll.register(fork.pidfd, select.POLLIN)
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            os.kill(fork.pid, signal.SIGKILL)
            os.waitpid(fork.pid, 0)

    def _serves(self) -> bool:
        """Handle what comes next; whether anybody is left to serve."""
        for key, _ in self._selector.select():
            if not self._is_over:
                key.data()
        return not self._is_over

    def _abandoned(self) -> None:
        self._is_over = True

    def _asked(self) -> None:
        words, fds = received(self._control, len(_ASK))
        if words != _ASK:
            self._is_over = True
            return
        if len(fds) != FDS:  # this process has too many files open: the caller hears that nobody answers
            for fd in fds:
                os.close(fd)
            return
        request = asked(fds)
        self._import(request["preload"], request["path"])
        # Workers import for themselves what was edited since, or what no fork can use.
        is_fit = warm_imports.are_as(self._files) and not self._uses_cuda
        self._start(fds, is_fit, socket.socket(fileno=fds[-1]))

    def _import(self, names: Sequence[str], path: Sequence[str]) -> None:
        """Import what the job's workers need, as far as that can be done and forked afterwards.

        ``path``: where workers look for modules; a launcher looks there last.
        """
        new = [name for name in names if name not in self._imported]
        if new:
            self._dismiss_idle()
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

    def _start(self, fds: list[int], is_fit: bool, channel: socket.socket) -> None:
        """Have a launcher carry out a request: one that waits for it, or else a new one."""
        fork = None
        try:
            fork = self._idle.pop() if self._idle else self._fork()
            fork.order(fds, is_fit)
        except OSError as error:
            tell(channel, f"problem cannot start a launcher: {error.strerror}")
            channel.close()
            for fd in fds[:-1]:
                os.close(fd)
            if fork is not None:
                self._free(fork)
            return
        fork.channel = channel
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._told(fork, channel))

    def _fork(self) -> Fork:
        """Fork a launcher. Raises OSError."""
        fork = Fork(self._kept, len(self._imported))
        self._forks[fork.pid] = fork
        self._selector.register(fork.pidfd, selectors.EVENT_READ, lambda: self._ended(fork))
        self._selector.register(fork.control, selectors.EVENT_READ, lambda: self._heard(fork))
        return fork

    def _told(self, fork: Fork, channel: socket.socket) -> None:
        """The caller wants a signal sent; or it has hung up, and wants nothing more of this launcher."""
        if fork.channel is not channel:
            return  # the job has ended just now, and another one may have begun
        try:
            words = channel.recv(_WORDS)
        except ConnectionError:
            words = b""
        if not words or words == LET_GO:
            self._selector.unregister(channel)
        if words == LET_GO:
            fork.is_let_go = True
            fork.hang_up()
            return
        with contextlib.suppress(OSError, ValueError):  # there is no such signal
            fork.signal(int(words or signal.SIGKILL))

    def _heard(self, fork: Fork) -> bool:
        """A launcher has taken its order, has done its job, or is about to end. False: it said nothing."""
        if fork.pid not in self._forks:
            return False  # it has ended just now
        words = fork.hear()
        if words == TAKEN:
            fork.taken()
            if fork.channel is not None:
                tell(fork.channel, f"pid {fork.pid}")
        elif words == DONE:
            self._hang_up(fork, int(ExitCode.OK))
            self._free(fork)
        else:
            if fork in self._idle:
                self._idle.remove(fork)
            with contextlib.suppress(KeyError):  # it was dismissed just now
                self._selector.unregister(fork.control)
        return bool(words)

    def _free(self, fork: Fork) -> None:
        """Keep a launcher for the next job, or dismiss it."""
        fork.is_let_go = False
        is_of_use = not fork.was_signalled and fork.modules == len(self._imported)
        if is_of_use and len(self._idle) < _IDLE:
            fork.has_waited = True
            self._idle.append(fork)
        else:
            self._dismiss(fork)

    def _dismiss(self, fork: Fork) -> None:
        """Let a launcher end that waits for an order."""
        self._selector.unregister(fork.control)
        with contextlib.suppress(OSError):  # it has just ended
            fork.control.shutdown(socket.SHUT_RDWR)

    def _dismiss_idle(self) -> None:
        while self._idle:
            self._dismiss(self._idle.pop())

    def _ended(self, fork: Fork) -> None:
        while self._heard(fork):
            pass  # what it said before: an order that was taken is never given to another one
        del self._forks[fork.pid]
        if fork in self._idle:
            self._idle.remove(fork)
        self._selector.unregister(fork.pidfd)
        with contextlib.suppress(KeyError):  # it said before that it would end
            self._selector.unregister(fork.control)
        _, status = os.waitpid(fork.pid, 0)
        if fork.has_waited and fork.untaken is not None and not fork.was_signalled:
            self._pass_on(fork)  # it ended while it waited
        self._hang_up(fork, os.waitstatus_to_exitcode(status))
        fork.close()

    def _pass_on(self, fork: Fork) -> None:
        """Give the order of a launcher that has ended without it to another one."""
        assert fork.untaken is not None and fork.channel is not None, "it was asked for"
        (fds, is_fit), channel = fork.untaken, fork.channel
        fork.untaken = fork.channel = None
        self._selector.unregister(channel)
        self._start(fds, is_fit, channel)

    def _hang_up(self, fork: Fork, status: int) -> None:
        """Tell the caller, unless it has let go of the launcher, how its job has ended."""
        if fork.channel is not None:
            with contextlib.suppress(KeyError):  # the caller had hung up
                self._selector.unregister(fork.channel)
            fork.hang_up(f"ended {status}")


def _kept_files() -> frozenset[int]:
    """The descriptors of this process beside stdin, stdout and stderr."""
    return frozenset(number for number in open_files() if number > 2 and is_open(number))


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
    rehearse()
    _settle()


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
