"""The master's process, seen from the agent that hosts it.

This agent decides whether to host each time a master is needed: if the endpoint is an address of this host
and its port is free, it starts a master, and the first to bind the port *is* the master. So two agents of
one host need not agree beforehand. Any agent of the host restarts a master that died; the new one finds the
journal in the same state directory: unless the user names one, it is a temporary directory that the agents of
one user on one host derive from the endpoint.

Of a list of endpoints this agent serves at most one, and only in its turn: the link walks along the list and
asks for the endpoint whose turn it is. An agent that follows another master lets its own go. A master that
cannot lead ends by itself; its exit status says so.

A *private* master serves a node that is alone: nobody else could find its port, so it has none, and speaks
over a channel that it inherits. The channel carries one stream; a new stream takes a new master.

A temporary state directory is removed once the master that used it has ended, never before: a master
that outlives this agent removes it itself, and one that another agent started holds its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from elasticrun.agent.master_host.addressing import Place, Survey, own_position, survey
from elasticrun.agent.master_host.alone import check_endpoint, claim_master_port, in_use
from elasticrun.agent.master_host.endpoints import Endpoints
from elasticrun.agent.master_host.journal_copy import WITHOUT_COPY, KeptCopy
from elasticrun.agent.master_host.process import MasterProcess, execute, fork, may_fork
from elasticrun.clock import MonotonicClock
from elasticrun.config import Endpoint, RendezvousConfig
from elasticrun.core.protocol.messages import JournalCopy
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, ExitCode, MasterUnreachableError, NodeFaultError, UsageError

logger = logging.getLogger(__name__)

#: Seconds to wait for a master to say whether it serves; it goes on starting after that.
ANSWER_TIMEOUT = 15.0
#: Seconds to wait for the end of a master that nobody needs.
_END_TIMEOUT = 2.0
#: Seconds to wait for a host's name to become known, and between two lookups.
NAMES_TIMEOUT = 30.0
LOOK_AGAIN = 0.5
_PREFIX = "elasticrun_master_"
COPY_NAME = "copy.jsonl"


@dataclass(frozen=True, slots=True)
class MasterCommand:
    """How to start a master; made by the composition root, as agents know nothing of masters."""

    argv: Sequence[str]
    settings: Callable[[str, int, str], dict[str, object]]  # listening host, port, state directory
    main: Callable[[], int] | None = None  # what argv runs; may be forked while this process has one thread


class MasterHost:
    """Starts the master's process if it is this agent's turn.

    With ``is_private`` only this agent attaches to the master, and not through a port.
    """

    def __init__(self, config: RendezvousConfig, command: MasterCommand, is_private: bool = False) -> None:
        self._config = config
        self._command = command
        self._is_private = is_private
        self._has_channel = False  # the running private master's stream is not taken yet
        self.endpoints = Endpoints(config)
        self._copy: KeptCopy | None = None
        self._process: MasterProcess | None = None
        self._temporary: str | None = None
        self._attention: asyncio.Event | None = None
        self.incarnation = os.urandom(8).hex()  # of this agent, by which its own master knows it
        self.found = Survey(Place.UNKNOWN)
        self.resume = False  # the job has begun: a master started from now on takes it up again
        self.trouble = ""  # why the last master started here does not serve
        self.store_address = ""  # MASTER_ADDR of a node that is alone, if the user gave its port
        self._claim: socket.socket | None = None  # to that port

    @property
    def hosts(self) -> bool:
        """A master that this agent started is alive."""
        return self._process is not None and self._process.is_alive

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that belong to the master, not to this node's workers."""
        return (self._process.process.pid,) if self._process is not None else ()

    def begin(self, is_stopped: Callable[[float], bool] = lambda seconds: True) -> None:
        """Start a master at once if one is needed here. Blocks for the lookups of names.

        The place on a list is fixed for the agent's lifetime, and a host's own name may become known only
        after its agent has started. So names of a list are looked up again for ``NAMES_TIMEOUT`` seconds,
        or until ``is_stopped``, which may wait for the seconds it is given, returns True.

        Raises:
            UsageError: the endpoint's port may not be bound, or there is no room for the journal.
            EndpointTakenError: this node is alone, and its port is in use.
            NodeFaultError: no process can be started.
        """
        endpoints = self.endpoints
        if self._config.master is not None:
            self.store_address, self._claim = claim_master_port(self._config.master)
        if not endpoints.are_several:
            self._take_turn(self._survey(), is_first=True)
            return
        clock = MonotonicClock()
        over = clock.now() + NAMES_TIMEOUT
        endpoints.position, self.found = own_position(endpoints.all, self._config.is_host)
        while self.found.place is Place.UNKNOWN and clock.now() < over and not is_stopped(LOOK_AGAIN):
            endpoints.position, self.found = own_position(endpoints.all, self._config.is_host)
        if endpoints.is_ours:
            self._take_turn(self.found, is_first=True)

    def followed(self, endpoint: Endpoint) -> None:
        """Follow the master at ``endpoint``; let go of a master started here if it is not that one."""
        self.endpoints.follow(endpoint)
        if self._process is not None and not self.endpoints.is_ours:
            self._process.let_go()

    def keep_copy(self, message: JournalCopy) -> None:
        """Keep lines of the journal, in case this host has to take over; warn if that fails."""
        if self._copy is None and message.first == 0:
            try:
                self._copy = KeptCopy(Path(self._state_dir()) / COPY_NAME)
            except UsageError as error:
                logger.warning("%s; %s", error, WITHOUT_COPY)
        if self._copy is not None:
            self._copy.take(message)

    async def endpoint(self) -> Endpoint:
        """Where to reach the master. Waits until our own master serves, unless it is private.

        Raises:
            MasterRefusedError: our master cannot serve, and says why.
            MasterCrashedError: our master ended without an answer.
            MasterUnreachableError: our master was killed, or takes very long to start.
            SteppedDownError: our master could not lead.
        """
        if not self.endpoints.is_ours or self._has_channel:
            return self.endpoints.current
        if self._process is not None and self._is_private:
            await self._explain(self._process)
            await self._process.end()  # its only stream is over
        if self._process is None or (self._process.answered and not self._process.is_alive):
            self._notice_step_down()
            loop = asyncio.get_running_loop()
            # In a thread, as it looks up names. It changes nothing, so it may be abandoned at any time.
            found = self._survey() if self._is_private else await loop.run_in_executor(None, self._survey)
            self._take_turn(found)
        # A private one may be spoken to before it serves. If it never does, the stream breaks.
        if self._process is not None and not self._has_channel:
            await self._explain(self._process)
        return self.endpoints.current

    def take_channel(self) -> socket.socket | None:
        """The one stream to a private master; None if masters are reached through their endpoint."""
        self._has_channel = False
        return self._process.take_channel() if self._process is not None else None

    async def close(self, timeout: float) -> None:
        """Let go of the master: it ends unless other agents need it. Waits ``timeout`` seconds for that."""
        process = self._process
        if process is not None:
            process.let_go()
            self._attention = asyncio.Event()
            if not await process.ended(timeout, self._attention):
                return
        self._clean_up()

    def hurry(self) -> None:
        """End the wait of a ``close`` that is under way."""
        if self._attention is not None:
            self._attention.set()

    def abandon(self) -> None:
        """As ``close``, where there is no loop. Blocks for a moment."""
        process = self._process
        if process is not None:
            process.let_go()
            if not process.ends_within(_END_TIMEOUT):
                return
        self._clean_up()

    def _survey(self) -> Survey:
        if self._is_private:
            return Survey(Place.HERE, is_local=True)
        return survey(self.endpoints.current, True if self._config.standalone else self._config.is_host)

    def _notice_step_down(self) -> None:
        process = self._process
        if process is not None and process.answered and process.process.returncode == ExitCode.MASTER_LOST:
            self._reap()
            raise SteppedDownError("the master on this host stepped down")

    def _take_turn(self, found: Survey, is_first: bool = False) -> None:
        self._reap()
        if self._config.standalone and is_first:
            check_endpoint(self._config.endpoint, found)
        if found.place is Place.OCCUPIED and self._config.standalone and not self._config.endpoint.port:
            # The port was taken while our master was away. Nobody else knows it, so another one will do.
            self.endpoints.current = self._config.endpoint
            found = survey(self.endpoints.current, None)
        self.found = found
        if found.place is Place.HERE:
            self._launch(is_first)

    def _launch(self, is_first: bool) -> None:
        directory = self._state_dir()
        settings = {
            **self._command.settings(self.found.listen_host, self.endpoints.current.port, directory),
            "incarnation": self.incarnation,
            "launcher": os.getpid(),
            "reached_as": self.endpoints.current.host,
            "resume": self.resume,
            "temporary": self._temporary is not None,
            "position": max(self.endpoints.position, 0),
            "hosts": [each.host for each in self.endpoints.all] if self.endpoints.are_several else [],
            "copy": str(Path(directory) / COPY_NAME) if self.endpoints.are_several else "",
        }
        command = self._command
        try:
            if is_first and command.main is not None and may_fork():
                self._process = fork(command.main, settings, self._is_private)
            else:
                self._process = execute(command.argv, settings, self._is_private)
        except OSError as error:
            raise NodeFaultError(f"cannot start the master's process: {error.strerror}") from error
        self._has_channel = self._is_private

    def _state_dir(self) -> str:
        if self._config.state_dir is not None:
            return self._config.state_dir
        if self._temporary is None:
            try:
                self._temporary = _temporary_directory(self.endpoints.own)
            except OSError as error:
                raise UsageError(
                    f"no temporary directory for the master's journal can be made ({error.strerror});"
                    " name a writable --state-dir"
                ) from error
        return self._temporary

    async def _explain(self, process: MasterProcess) -> None:
        """Wait until the master says whether it serves, unless it has said so."""
        if process.answered:
            return
        try:
            answer = await asyncio.wait_for(process.hear(), ANSWER_TIMEOUT)
        except asyncio.TimeoutError:
            self.trouble = "the master that was started on this host has not begun to serve"
            raise MasterUnreachableError(f"{self.trouble} within {ANSWER_TIMEOUT:g} s") from None
        self.trouble = answer.get("taken", "")
        if "port" in answer:
            self.endpoints.current = Endpoint(self.endpoints.current.host, answer["port"])
        elif "error" in answer:
            raise MasterRefusedError(answer["error"])
        elif self.trouble and self._is_private:
            raise MasterUnreachableError("this node's master could not start to serve")
        elif self.trouble and self._config.standalone and not self.resume:
            raise in_use(self._config.endpoint)
        elif not answer:
            self._explain_silence(process.process.wait())
        # Otherwise the port was taken in between: the agent attaches to its holder.

    def _explain_silence(self, status: int) -> None:
        if status >= 0:
            raise MasterCrashedError(
                f"the master's process ended with exit code {status} before it served; see its output above"
            )
        self.trouble = f"the master that was started on this host was killed by signal {-status}"
        raise MasterUnreachableError(self.trouble)

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _clean_up(self) -> None:
        self._reap()
        if self._claim is not None:
            self._claim.close()
        if self._copy is not None:
            self._copy.close()
        if self._temporary is not None:
            _remove_unless_locked(self._temporary)
            self._temporary = None


class MasterRefusedError(UsageError):
    """The master that this agent started cannot serve; the sentence is the master's."""


class SteppedDownError(MasterUnreachableError):
    """The master that this agent started cannot lead: another endpoint's turn."""


class MasterCrashedError(ElasticRunError):
    """The master that this agent started ended without saying why."""

    exit_code = ExitCode.INTERNAL


def _temporary_directory(endpoint: Endpoint) -> str:
    """Where the journal goes: the same for all agents of this user and host that share an endpoint."""
    if endpoint.port == 0:
        return tempfile.mkdtemp(prefix=_PREFIX)
    name = re.sub(r"[^\w.-]", "_", f"{_PREFIX}{os.getuid()}_{endpoint}")[:200]
    shared = os.path.join(tempfile.gettempdir(), name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(shared, 0o700)
    found = os.lstat(shared)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    if is_ours:
        return shared
    logger.warning(
        "elastic-run: %s is not a directory of user %s alone, so no other agent of this host can take up the"
        " master's journal: remove it, or name a --state-dir",
        shared,
        os.getuid(),
    )
    return tempfile.mkdtemp(prefix=_PREFIX)


def _remove_unless_locked(directory: str) -> None:
    try:
        lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no master has used it
        shutil.rmtree(directory, ignore_errors=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        return  # another agent's master uses it
    finally:
        os.close(lock)
