"""One master process, from its start to its end."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elasticrun.clock import MonotonicClock
from elasticrun.config import Endpoint, JobConfig, SecurityConfig
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import JobState
from elasticrun.core.membership.quorum import next_epoch
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, EndpointTakenError, ExitCode, UsageError
from elasticrun.master.event_log import NAME as LOG_NAME
from elasticrun.master.event_log import Chronicle, EventLog, set_aside
from elasticrun.master.feed import Feed
from elasticrun.master.journal import (
    Journal,
    create_journal,
    keep_aside,
    read_journal,
    replay,
    resume_journal,
)
from elasticrun.master.loop import MasterLoop, admit
from elasticrun.rpc.text import clean

if TYPE_CHECKING:
    from elasticrun.core.protocol.orders import ControlReply, ControlRequest
    from elasticrun.master.listed import Listed
    from elasticrun.rpc.local import LocalServer
    from elasticrun.rpc.nearby_server import NearbyServer
    from elasticrun.rpc.server import MasterServer

    _Order = Callable[[ControlRequest], Awaitable[ControlReply]]

logger = logging.getLogger(__name__)

#: Seconds that streams have to write what is queued when the master ends.
STOP_GRACE = 2.0
#: Seconds in which those who follow the event log on this host may take its last entries.
NEWS_GRACE = 1.0
JOURNAL_NAME = "journal.jsonl"
_KEY_SIZE = 32


@dataclass(frozen=True, slots=True)
class MasterConfig:
    """What a master is started with."""

    job: JobConfig
    host: str  # the address to listen on
    port: int  # 0: any free one
    state_dir: str
    event_dir: str = ""  # where the event log goes; "": beside the journal
    log_level: str = "WARNING"
    temporary: bool = False  # the state directory is removed with the job; it may hold an earlier one's
    resume: bool = False  # the agent has been part of the job: take it up, even if it has ended
    position: int = 0  # of this host in the list of endpoints
    hosts: tuple[str, ...] = ()  # of the list of endpoints; () unless there are several
    copy: str = ""  # path of a copy of another host's journal, if one may be there
    security: SecurityConfig = field(default_factory=SecurityConfig)  # never written to a file
    incarnation: str = ""  # of the agent that starts this master
    channel: int = -1  # descriptor of the stream to the only agent there is; -1: agents come to the port
    reached_as: str = ""  # the host of the endpoint, as the user wrote it
    launcher: int = 0  # the pid of the agent that starts this master


async def serve(
    config: MasterConfig, ready: Callable[[int], None], watch_host: Callable[[MasterLoop], None]
) -> None:
    """Run a master until it has nothing left to do.

    ``ready`` hears the port once agents can connect; ``watch_host`` arranges that the loop hears of the
    end of the agent that started this process. A lock on the state directory, which the kernel drops
    with the process, keeps a second master from writing the same journal.

    Raises:
        EndpointTakenError: the port or the state directory is in use.
        UsageError: the address is none of this host, or the journal cannot be read or written.
        SteppedDownError: another master leads, or may.
    """
    with contextlib.ExitStack() as held:
        held.callback(os.close, _lock(Path(config.state_dir)))
        path = Path(config.state_dir) / JOURNAL_NAME
        anew = config.temporary and not config.resume
        log_path = Path(config.event_dir or config.state_dir) / LOG_NAME
        is_adopted = config.copy != "" and config.resume and adopt(Path(config.copy), path, log_path)
        feed = Feed()
        machine, journal, clock, chronicle = recover(path, config.job, config.resume, anew, feed, log_path)
        held.callback(journal.close)
        held.callback(chronicle.close)
        chronicle.begin(machine.state, clock.now())
        loop = MasterLoop(machine, journal, clock, _listed(config), chronicle, feed)
        is_own, is_new = machine.state.epoch > 0 and not is_adopted, machine.state.epoch == 0
        epoch = first_epoch(machine.state.epoch, is_own, machine.state.config.endpoints, config.position)
        loop.start(epoch, "" if machine.state.key else os.urandom(_KEY_SIZE).hex(), config.incarnation)
        server = _server(loop, config, machine.state.key)
        try:
            port = await _listen(server, config)
            nearby = await _open_nearby(loop, config, port, is_new=is_new)
            held.callback(nearby.stop)
            ready(port)
            _note_openness(config)
            watch_host(loop)
            await loop.done.wait()
            feed.close()
            if machine.state.ended:
                await nearby.finish(NEWS_GRACE)
        finally:
            await server.stop(STOP_GRACE)
            loop.flush()
            # With several listed hosts the agent may outlive this master, and keep a copy there.
            if config.temporary and loop.is_orphan and not config.copy:
                shutil.rmtree(config.state_dir, ignore_errors=True)
        if loop.stepped_down:
            raise SteppedDownError(f"this host's master steps down: {loop.stepped_down}")


class SteppedDownError(ElasticRunError):
    """The master cannot lead; its agents look for another one."""

    exit_code = ExitCode.MASTER_LOST  # tells the agent that started it


def first_epoch(last: int, is_own: bool, endpoints: int, position: int) -> int:
    """The epoch of a master that starts with a journal whose last epoch was ``last``.

    ``is_own`` says that the journal is this host's own, so that no master here ever had a later one. If not,
    an epoch is drawn at random, since worlds of two masters must never have the same name.
    """
    jump = endpoints * int.from_bytes(os.urandom(2), "big") if endpoints > 1 and not is_own else 0
    return next_epoch(last + jump, endpoints, position)


def adopt(copy: Path, path: Path, log_path: Path | None = None) -> bool:
    """Replace our journal by the copy of another host's if that is newer: all of it, or nothing.

    ``log_path``: of the event log, which is set aside then; None: beside the journal.

    A journal in which the job has not begun is of a master that nobody followed, so it is older than any.
    """
    draft = path.with_suffix(".new")
    try:
        theirs, ours = _replayed(copy), _replayed(path)
        if theirs is None or (ours is not None and ours.newest >= 0 and theirs.epoch <= ours.epoch):
            return False
        draft.unlink(missing_ok=True)
        draft.touch(0o600)
        shutil.copyfile(copy, draft)
        keep_aside(path)
        set_aside(log_path or path.with_name(LOG_NAME))  # it is of another history
        draft.replace(path)
    except (UsageError, OSError) as error:
        logger.warning("the copy %s of the master's journal cannot be used: %s", copy, error)
        with contextlib.suppress(OSError):
            draft.unlink()
        return False
    return True


def _replayed(path: Path) -> JobState | None:
    found = read_journal(path)
    return None if found is None else replay(path, *found).state


def _listed(config: MasterConfig) -> Listed | None:
    """The listed hosts; None if there is only one. Imports their module only if needed."""
    if not config.hosts:
        return None
    from elasticrun.master.listed import Listed

    return Listed(config.hosts, config.security.token is not None)


def _server(loop: MasterLoop, config: MasterConfig, key: str) -> MasterServer | LocalServer:
    """The server for the streams; imports only what carries them."""
    if config.channel >= 0:
        from elasticrun.rpc.local import LocalServer

        return LocalServer(loop, socket.socket(fileno=config.channel))
    from elasticrun.rpc.server import MasterServer, Orders

    job_id = clean(config.job.job_id)  # as it arrives from agents, if UTF-8 cannot express it
    return MasterServer(
        loop,
        lambda hello: admit(hello, job_id),
        security=config.security,
        orders=Orders(loop, job_id),
        key=bytes.fromhex(key),
    )


async def _open_nearby(loop: MasterLoop, config: MasterConfig, port: int, is_new: bool) -> NearbyServer:
    """Let this user on this host ask and steer the job without a token."""
    from elasticrun.rpc.nearby import Whereabouts
    from elasticrun.rpc.nearby_server import NearbyServer

    endpoint = str(Endpoint(config.reached_as or config.host, port)) if port else ""
    since = time.time() if is_new and not config.resume else None  # a resumed one has begun before
    order = loop.answer if port else _without_others(loop.answer)
    nearby = NearbyServer(order, Whereabouts(endpoint, since, config.launcher))
    try:
        await nearby.start()
    except OSError as error:
        logger.info("elastic-ctl ps will not find this job: %s", error.strerror)
    return nearby


def _without_others(order: _Order) -> _Order:
    """Refuses to wait for nodes that could never come, as there is no port; the rest is for ``order``."""
    from elasticrun.core.protocol.orders import ControlReply, ScaleJob, ScaleOut

    async def judged(request: ControlRequest) -> ControlReply:
        wanted = 1
        match request:
            case ScaleJob(min_nodes=wanted):
                pass
            case ScaleOut(count):
                wanted += count
        if wanted > 1:
            text = (
                f"no other node can reach this job, so it cannot have {wanted}:"
                " start it with --nnodes MIN:MAX and --rdzv-endpoint"
            )
            return ControlReply(False, text)
        return await order(request)

    return judged


def _note_openness(config: MasterConfig) -> None:
    """Warn of a job without a token: once, not for each node, and not again by a master that resumes."""
    if config.security.token is None and config.job.max_nodes > 1 and not config.resume:
        logger.warning(
            "the job has no token: anybody who reaches %s port %s can join it, and elastic-ctl steers it"
            " from this host only; set --token-file or ELASTICRUN_TOKEN, or run elastic-ctl token create",
            config.host,
            config.port,
        )


async def _listen(server: MasterServer | LocalServer, config: MasterConfig) -> int:
    try:
        return await server.start(config.host, config.port)
    except OSError as error:
        raise UsageError(
            f"the master cannot listen on {config.host} port {config.port}: {error.strerror or error}"
        ) from error


class Recovered(NamedTuple):
    """A job to go on with, or to begin."""

    machine: JobMachine
    journal: Journal
    clock: MonotonicClock
    chronicle: Chronicle


def recover(
    path: Path,
    job: JobConfig,
    resume: bool,
    anew: bool = False,
    feed: Feed | None = None,
    log_path: Path | None = None,
) -> Recovered:
    """The job as its journal left it, or a new one. The event log gets what it lacks.

    ``log_path``: where that is; None: beside the journal.

    A new one if ``anew``, if there is no journal, or if that is of another job: with ``resume`` one of
    another id, else one with another configuration or one that has ended. An agent that resumes may have
    been started with other options than the one whose master wrote the journal; the job keeps its own.
    """
    config, entries = (None if anew else read_journal(path)) or (None, [])
    log_path = log_path or path.with_name(LOG_NAME)
    if config is not None and (config == job or (resume and config.job_id == job.job_id)):
        log = EventLog(log_path, feed=feed)
        chronicle = Chronicle(log, JobState.new(config))
        machine = replay(path, config, entries, chronicle)
        if resume or not machine.state.ended:
            at = entries[-1].at if entries else 0.0
            return Recovered(machine, resume_journal(path), MonotonicClock(at), chronicle)
        chronicle.close()
        if feed is not None:
            feed.clear()
    set_aside(log_path)  # first: entries of that job must not be taken for those of this one
    machine, journal = JobMachine(job), create_journal(path, job)
    return Recovered(
        machine, journal, MonotonicClock(), Chronicle(EventLog(log_path, feed=feed), machine.state)
    )


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot use the state directory {directory}: {error.strerror}; name a writable --state-dir"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise EndpointTakenError(
            f"the state directory {directory} is in use by another master; give each job its own --state-dir"
        ) from error
    except OSError as error:
        os.close(fd)
        raise UsageError(
            f"the state directory {directory} cannot be locked ({error.strerror});"
            " put --state-dir on a local disk"
        ) from error
    return fd
