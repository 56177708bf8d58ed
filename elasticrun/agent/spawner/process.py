"""The spawner: the process between the agent and its workers.

Theory. Whatever must happen between fork and exec (a death signal, a session, an affinity) is only safe
in a process with one thread, and the agent has many. And whatever runs below a worker must be found
again however it hides: double-forked, in a session of its own, its environment wiped. So the agent
forks this small process before anything else; it starts every worker and, as a *child subreaper*,
inherits every orphan below it.

Invariants.

- A signal is sent only to a process that this one has not reaped yet, so never to a reused pid.
- The end of a worker that was started *alone* is reported only once its process group has ended
  (``groups.py``); descendants of others live on until the sweep.
- Once a sweep is answered, nothing is alive below the spawner. It kills its direct children only: the
  children of a child that died are already ours when its SIGCHLD comes. So each one is killed by its exact
  pid, and its end triggers the next look; nothing is polled.
- Every sweep but the last one spares warm parents that are not forking, and what the agent named.
- After a good end, what workers have left behind is spared (``detached.py``).
- The agent's end (end of file on the control socket, or its pidfd) causes a last sweep, then exit, even if
  the spawner was stopped (``resuming.py``). Its own end kills the workers by their parent-death signal.
- An agent that ends in good order closes one direction of the control socket and waits for that exit. If
  it was killed, both are closed; then the spawner clears its temporary directories, as nobody else will.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import gc
import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Collection
from typing import NoReturn

from elasticrun.agent.spawner.descriptors import close_files, is_open, open_null
from elasticrun.agent.spawner.detached import Detached
from elasticrun.agent.spawner.exec import (
    PR_SET_CHILD_SUBREAPER,
    Prctl,
    Preloaded,
    fork_program,
    load_prctl,
)
from elasticrun.agent.spawner.groups import GroupEnds, Rest, kill_group
from elasticrun.agent.spawner.poll import Poller
from elasticrun.agent.spawner.process_tree import children_of, has_ended, kill
from elasticrun.agent.spawner.proctitle import set_title
from elasticrun.agent.spawner.resuming import resume_with_death_of_parent
from elasticrun.agent.spawner.warm_parents import WarmParents
from elasticrun.agent.spawner.wire import STD_FDS, Frames, Message, encode, receive

_SPAWNER_CRASHED = 70  # EX_SOFTWARE
#: Terminal and group signals are the agent's business; a lost reader must not kill the spawner.
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGTSTP,
)


def spawner_main(
    agent_end: socket.socket, control: socket.socket, agent_pid: int, preloaded: Preloaded | None
) -> NoReturn:
    """Be the spawner, in a child just forked with all signals blocked; never return."""
    status = _SPAWNER_CRASHED
    try:
        agent_end.close()
        own_end = _isolate(control, frozenset() if preloaded is None else preloaded.keeps)
        loop = SpawnerLoop(own_end, agent_pid, load_prctl(), preloaded)
        loop.run()
        if (loop.temporary or loop.doomed) and _is_lost(own_end, agent_pid):
            _clear(loop.temporary, loop.doomed)
        status = 0
    except BaseException:  # noqa: BLE001 the frames below belong to the agent: report, then leave without unwinding
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _is_lost(control: socket.socket, agent_pid: int) -> bool:
    """Whether the agent was killed. Its files are closed just before its children get another parent."""
    poll = select.poll()
    poll.register(control, 0)
    return os.getppid() != agent_pid or any(events & select.POLLHUP for _, events in poll.poll(0))


def _clear(temporary: str, doomed: str) -> None:
    import shutil  # imported only once the agent is gone
    from pathlib import Path

    from elasticrun.agent.logs.dirs import clear

    if temporary:
        clear(Path(temporary))
    if doomed:
        shutil.rmtree(doomed, ignore_errors=True)


def _isolate(control: socket.socket, keeps: frozenset[int]) -> socket.socket:
    """Leave the agent's session, terminal and files; return the control socket under its new number."""
    gc.freeze()  # a collection would copy every page shared with the agent
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    set_title("elastic-run: spawner")
    moved = socket.socket(fileno=fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, STD_FDS))
    control.detach()
    close_files(keep={2, moved.fileno(), *keeps})  # stderr is for the spawner's own errors
    for number in range(STD_FDS):
        if number != 2 or not is_open(2):
            open_null(number)
    return moved


class _Worker:
    """A worker that is not reaped yet."""

    __slots__ = ("error_pipe", "pid", "told", "worker")

    def __init__(self, worker: int, pid: int, error_pipe: int) -> None:
        self.worker = worker
        self.pid = pid
        self.told: set[int] = set()  # signals that were sent while it lived
        self.error_pipe = error_pipe  # -1 once the exec is known to have succeeded


class SpawnerLoop:
    """Carries out the agent's requests one after the other; the only owner of the children."""

    def __init__(
        self, control: socket.socket, agent_pid: int, prctl: Prctl, preloaded: Preloaded | None = None
    ) -> None:
        self.temporary = ""  # the agent's temporary directory
        self.doomed = ""  # another directory, removed whole once the agent is gone
        self._control = control
        self._prctl = prctl
        self._preloaded = preloaded
        self._frames = Frames()
        self._batches: deque[list[int]] = deque()  # file descriptors, one list for each spawn request
        self._requests: deque[Message] = deque()
        self._workers: dict[int, _Worker] = {}  # by pid
        self._pids: dict[int, int] = {}  # worker -> pid
        self._alone: set[int] = set()  # workers whose process group ends with them
        self.poller = Poller()
        self._groups = GroupEnds(self.poller)
        self._warm = WarmParents(self, prctl)
        self._agent_gone = False
        self._sweeping = False
        self._reaped = 0  # children that ended during this sweep
        self._killed: set[int] = set()
        self._spared: set[int] = set()  # by this sweep
        self._forbidden: set[int] = set()  # another user's: we may not kill them
        self._detached = Detached()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        resume_with_death_of_parent(prctl)
        self._listen(agent_pid)

    def run(self) -> None:
        """Serve until the agent is gone and nothing is left below."""
        while self._sweeping or not self._agent_gone:
            times = (self._warm.time_left(), self._detached.time_left())
            self.poller.wait(min((left for left in times if left is not None), default=None))
            self._warm.expire()
            if self._detached.time_left() == 0.0:
                self._reap()

    def _listen(self, agent_pid: int) -> None:
        wakeup, self._sigchld = socket.socketpair()
        wakeup.setblocking(False)
        self._sigchld.setblocking(False)
        signal.set_wakeup_fd(wakeup.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        self.poller.watch(self._sigchld.fileno(), self._child_ended)
        self.poller.watch(self._control.fileno(), self._read)
        try:
            self.poller.watch(os.pidfd_open(agent_pid), self._agent_ended)
        except (AttributeError, OSError):
            return  # an old kernel; the control socket's end of file tells as well

    # -- requests ------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            data, fds, lost = receive(self._control)
        except ConnectionError:
            data = b""
        if not data:
            self._agent_ended()
            return
        if fds or lost:  # lost: this process has too many files open; the spawn will say so
            self._batches.append(fds)
        self._requests.extend(self._frames.feed(data))
        self._serve()

    def _serve(self) -> None:
        """Carry out the requests that have come; each sweep finishes before the next one starts."""
        while self._requests and not self._sweeping:
            request = self._requests.popleft()
            if request["op"] == "spawn":
                self._spawn(request, self._batches.popleft())
            elif request["op"] == "prepare":
                self._warm.prepare(request, self._batches.popleft())
            elif request["op"] == "inherit":
                if request["whole"]:
                    self.doomed = request["path"]
                else:
                    self.temporary = request["path"]
            elif request["op"] == "signal":
                self.signal(request["worker"], request["signum"])
            else:
                self._detached.are_spared = request.get("spares", False)
                self._begin_sweep(request.get("spare", ()))

    def _agent_ended(self) -> None:
        self.poller.forget(self._read, self._agent_ended)
        if self._agent_gone:
            return
        self._agent_gone = True
        self._requests.clear()
        if self._sweeping:
            self._spared.clear()
            self._warm.stop(for_good=True)  # the sweep goes on as they end
        else:
            self._begin_sweep()

    def report(self, **event: object) -> None:
        try:
            self._control.sendall(encode(event))
        except OSError:  # nobody listens any more
            self._agent_ended()

    def signal(self, worker: int, signum: int) -> None:
        """Signal a worker's process group, unless the worker has ended."""
        pid = self._pids.get(worker)
        if pid is None:
            self._warm.signal(worker, signum)
            return
        if not has_ended(pid):  # else the signal is not why it ended
            self._workers[pid].told.add(signum)
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:  # between its fork and its setsid; it has all signals blocked
            kill(pid, signum)
        except PermissionError:
            return  # every process of the group belongs to another user by now

    # -- starting ------------------------------------------------------------------------------

    def _spawn(self, request: Message, fds: list[int]) -> None:
        self._detached.are_spared = False
        if request["alone"]:
            self._alone.add(request["worker"])
        if len(fds) != STD_FDS or not self._warm.take(request, fds):
            self.start_cold(request, fds)

    def start_cold(self, request: Message, fds: list[int]) -> None:
        """Execute the program of a request; ``fds`` are closed."""
        try:
            if len(fds) != STD_FDS:
                raise OSError(errno.EMFILE, "too many open files to pass the standard streams")
            preloaded = self._preloaded if request["preloaded"] else None
            pid, error_pipe = fork_program(request, fds, self._prctl, preloaded)
            worker = self._add(request["worker"], pid, error_pipe)
            self.poller.watch(error_pipe, lambda: self._executed(worker))
        except OSError as error:
            self.report_failure(request["worker"], error.errno or 0, error.strerror or str(error))
        finally:
            for fd in fds:
                os.close(fd)

    def forked(self, worker: int, pid: int) -> None:
        """A warm parent has forked a worker, which is our child by now."""
        self._add(worker, pid, error_pipe=-1)
        self.report(event="started", worker=worker, pid=pid)

    def _add(self, worker: int, pid: int, error_pipe: int) -> _Worker:
        self._workers[pid] = made = _Worker(worker, pid, error_pipe)
        self._detached.sessions.add(pid)
        self._pids[worker] = pid
        return made

    def _executed(self, worker: _Worker) -> None:
        """The error pipe ended: empty if the program runs, else it says why not."""
        self.poller.unwatch(worker.error_pipe)
        with open(worker.error_pipe, "rb") as file:
            problem = file.read()
        worker.error_pipe = -1
        if problem:
            del self._pids[worker.worker]
            self.report_failure(worker.worker, **json.loads(problem))
        else:
            self.report(event="started", worker=worker.worker, pid=worker.pid)

    def report_failure(self, worker: int, code: int, text: str) -> None:
        self.report(event="spawn_failed", worker=worker, errno=code, message=text)

    # -- ending --------------------------------------------------------------------------------

    def _child_ended(self) -> None:
        while True:
            try:
                if not self._sigchld.recv(4096):
                    break
            except BlockingIOError:
                break
        self._reap()

    def _reap(self) -> None:
        """Collect every child that has ended; while sweeping, look for the next ones to kill."""
        alive = True
        while alive:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                alive = False
                break
            if ended is None:
                break
            rest = self._kill_rest(ended.si_pid)
            with contextlib.suppress(ChildProcessError):  # the agent is gone: the last sweep reaped it
                _, status = os.waitpid(ended.si_pid, 0)
                self._buried(ended.si_pid, os.waitstatus_to_exitcode(status), rest)
        if self._sweeping:
            self._sweep_on(alive)

    def _kill_rest(self, pid: int) -> Rest:
        """Kill the group of an ended worker that was alone. Not in a sweep, which kills everything."""
        if not self._alone or self._sweeping:
            return frozenset()
        if pid not in self._workers:
            self._warm.listen()
        worker = self._workers.get(pid)
        return kill_group(pid) if worker is not None and worker.worker in self._alone else frozenset()

    def _buried(self, pid: int, exit_code: int, rest: Rest) -> None:
        self._reaped += self._sweeping
        self._killed.discard(pid)
        self._forbidden.discard(pid)
        self._spared.discard(pid)
        if pid not in self._workers:
            self._warm.buried(pid, exit_code)  # a warm parent, or a worker whose answer is unread
        worker = self._workers.pop(pid, None)
        if worker is None:
            return  # a warm parent, or an orphan that we inherited
        self._alone.discard(worker.worker)
        if exit_code == 0 and not worker.told:
            self._detached.sessions.discard(pid)
        if worker.error_pipe >= 0:
            self._executed(worker)  # it ended before its start was reported
        if self._pids.pop(worker.worker, None) is not None:
            ending = {"worker": worker.worker, "exit_code": exit_code, "told": sorted(worker.told)}
            self._groups.wait(rest, functools.partial(self.report, event="exited", **ending))

    def _begin_sweep(self, spare: Collection[int] = ()) -> None:
        self._sweeping = True
        self._reaped = 0
        self._warm.stop(for_good=self._agent_gone)
        spare = () if self._agent_gone else spare  # what was just reported may have shown that it is gone
        self._spared = {pid for worker, pid in self._pids.items() if worker in spare}
        for worker in [worker for worker in self._pids if worker not in spare]:
            self.signal(worker, signal.SIGKILL)
        self._reap()

    def _sweep_on(self, alive: bool) -> None:
        children = set(children_of(os.getpid())) - self._warm.pids - self._spared if alive else set()
        children -= self._detached.among(children - self._killed)
        for pid in children - self._killed - self._forbidden:
            (self._killed if kill(pid, signal.SIGKILL) else self._forbidden).add(pid)
        if children <= self._forbidden and not self._detached.may_leave():
            self._sweeping = False
            self._groups.conclude()
            if told := self._detached.take():
                self.report(event="left_alone", processes=told)
            self.report(event="swept", count=self._reaped, left=len(children))
            self._serve()
