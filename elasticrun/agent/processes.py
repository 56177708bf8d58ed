"""The processes of one node: carries out the machine's effects on them, and posts what happens to them.

Workers, the probe and the store server all run below the spawner, which reports on each of them by its
number. Each event that is passed on names the round under which its process was started, or, for a sweep, the
round of the request. The agent's machine decides whether that round still matters; its fence works only if
nobody fills in the current round instead.

Invariant: the spawner answers each sweep once, in the order of the requests.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from elasticrun.agent.logs.dirs import LogDirs
from elasticrun.agent.logs.router import LogRouter
from elasticrun.agent.services import Services
from elasticrun.agent.shutdown_report import report
from elasticrun.agent.spawner.client import (
    Exited,
    Imports,
    LeftAlone,
    Spawner,
    SpawnerDied,
    SpawnerEvent,
    SpawnerHandle,
    SpawnFailed,
    Started,
    Swept,
    WarmNews,
)
from elasticrun.agent.spawner.orphans import adopt_orphans, kill_orphans, reap_strangers
from elasticrun.agent.workers.error_reader import ErrorReader
from elasticrun.agent.workers.group import CpuPlan, WorkerGroup
from elasticrun.agent.workers.ports import NodePorts
from elasticrun.agent.workers.probe import ProbeRunner
from elasticrun.agent.workers.store import RoundStore
from elasticrun.config import LaunchConfig
from elasticrun.core.agent.events import (
    AgentEvent,
    Broken,
    GroupGone,
    ImportsSeen,
    PortsOffered,
    Prepared,
    ProbeEnded,
    RunProbe,
    SweepWorkers,
)
from elasticrun.core.protocol.messages import Assignment, NodeInfo
from elasticrun.errors import ElasticRunError, ExitCode

if TYPE_CHECKING:
    from elasticrun.agent.workers.ps_backup_dirs import PsBackupDirs
    from elasticrun.agent.workers.storage_writers import StorageWriters

logger = logging.getLogger(__name__)

#: Seconds that the spawner has to kill what is left of the workers.
KILL_TIMEOUT = 30.0


class Processes:
    """Everything that this agent starts. Made inside the running loop; ``post`` takes events."""

    def __init__(
        self,
        config: LaunchConfig,
        node: NodeInfo,
        spawner: SpawnerHandle,
        router: LogRouter,
        cpus: CpuPlan,
        services: Services,
        post: Callable[[AgentEvent], None],
        spared: Callable[[], Collection[int]],
    ) -> None:
        """``spared``: pids of other children of this process, which outlive the spawner."""
        workers, master = config.workers, config.rendezvous.master
        self._services = services
        self._post = post
        self._spared = spared
        self._round = -1  # under which something was started last
        self._sweeps: deque[int] = deque()  # the rounds of those not answered yet
        given = master.port if master is not None else 0
        self._ports = NodePorts(random.Random(node.incarnation), workers.roles, given)
        self._spawner = Spawner(spawner, self._hear)
        self.dirs = LogDirs(
            workers.logs.log_dir, config.job.job_id, self._spawner.inherit, workers.logs.run_dir
        )
        self._errors = ErrorReader()
        self._backup_dirs = _open_backup_dirs(config, lambda path: self._spawner.inherit(path, whole=True))
        self.group = WorkerGroup(
            workers,
            config.job.job_id,
            node,
            self._spawner,
            router,
            self.dirs,
            cpus,
            post,
            services.watch,
            services.memory,
            self._backup_dirs,
            self._errors.read,
        )
        self._store = RoundStore(workers, node, self._spawner, post)
        self._writers: StorageWriters | None = None
        self._config = workers
        self._probe = ProbeRunner(workers, node, self._spawner, lambda report: post(ProbeEnded(report)))

    @property
    def writers(self) -> StorageWriters:
        """Whoever starts the processes that write saved states; most jobs have none."""
        if self._writers is None:
            from elasticrun.agent.workers.storage_writers import StorageWriters

            self._writers = StorageWriters(self._config, self._spawner)
        return self._writers

    # -- requests

    def prepare(self) -> None:
        """Get ready for the first round."""
        try:
            self._post(Prepared(*self._ports.prepare(), self._store.is_able))
        except OSError as error:
            self._post(_no_port(error))

    def start_workers(self, assignment: Assignment) -> None:
        """Start the workers of a round; post Broken if not all can be started."""
        self._round = assignment.round
        self._ports.take(assignment.tasks, [task.local_rank for task in assignment.tasks])
        try:
            if assignment.store_hosted and assignment.group_rank == 0:
                listener = self._ports.listen(assignment.store_port)
                self.group.start(assignment)
                self._store.start(assignment, listener)  # after the workers, which start more slowly
            else:
                self._ports.release()
                self.group.start(assignment)
            adopt_orphans()  # here, while the spawner works and nothing waits
            self.dirs.tidy_up()
        except Exception as error:
            self._sweep(assignment.round)  # some may have started; the others will never report an end
            if not isinstance(error, OSError | ElasticRunError):
                raise
            self._post(Broken(ExitCode.NODE_FAULT, f"cannot start workers: {error}"))
        self._offer_ports()

    def start_task(self, assignment: Assignment, local_rank: int) -> None:
        """Start one task of the running round."""
        self._ports.take(assignment.tasks, [local_rank])
        self.group.start_task(assignment, local_rank)
        self._offer_ports()

    def run_probe(self, effect: RunProbe) -> None:
        """Start a probe of this node's health."""
        self._round = effect.round
        if effect.start.groups:
            self._ports.release()  # this probe's all-gathers may meet at the port
        self._probe.start(effect.start)

    def sweep(self, effect: SweepWorkers) -> None:
        """Kill what is left of a round, or a probe."""
        self._probe.cancel()
        self._sweep(effect.round, effect.spares_detached)

    def _sweep(self, round_: int, spares_detached: bool = False) -> None:
        self._sweeps.append(round_)
        spared = self._writers.numbers if self._writers is not None else ()
        self.group.sweep(spares_detached, (*self._store.end_round(), *spared))

    def _offer_ports(self) -> None:
        ports = self._ports.news()
        if ports is not None:
            self._post(PortsOffered(ports))

    # -- reports

    def _hear(self, event: SpawnerEvent) -> None:
        match event:
            case Started():
                if not self._store.on_started(event):
                    self.group.on_started(event)
            case SpawnFailed():
                others = self._store, self._writers, self._probe
                if not any(other.on_spawn_failed(event) for other in others if other is not None):
                    self.group.on_spawn_failed(event)
            case Exited(worker):
                parts = self._store, self._writers, self._probe
                if not any(part.on_exited(event) for part in parts if part is not None):
                    self._services.forget(self.group.pid_of(worker))
                    self.group.on_exited(event)
            case Swept(_, left) if self._sweeps:  # otherwise it is from the spawner's own end, in ``close``
                round_ = self._sweeps.popleft()
                self._errors.when_idle(lambda: self._swept(round_, left))
            case WarmNews():
                report(event)
                self._store.on_warm_news(event)
                if self._writers is not None:
                    self._writers.on_warm_news(event)
            case LeftAlone():
                report(event)
            case Imports(under_way):
                self._post(ImportsSeen(under_way))
            case SpawnerDied():
                self._spawner_died()

    def _swept(self, round_: int, left: int) -> None:
        if left:
            logger.warning(
                "%d processes that workers started as another user are still running; they are not killed",
                left,
            )
        self.group.close_round()
        try:
            port, ports = self._ports.prepare()
        except OSError as error:
            self._post(_no_port(error))
            port, ports = 0, ()
        self._post(GroupGone(round_, port, ports, self._store.is_able))

    def reap_strangers(self) -> None:
        """Reap what others have left to us, the first process of a container."""
        reap_strangers((self._spawner.pid, *self._spared()))

    def _spawner_died(self) -> None:
        reason = "the spawner process was killed, and the workers with it; this node cannot go on"
        self._post(Broken(ExitCode.NODE_FAULT, reason))
        kill_orphans(self._spared())
        self._probe.cancel()
        self.group.close_round()
        self._post(GroupGone(self._round, 0))  # the spawner cannot report it

    # -- the end

    async def close(self) -> None:
        """Let the spawner kill what is left, for a bounded time."""
        self._ports.close()
        self._store.close()
        if self._writers is not None:
            self._writers.close()
        try:
            await asyncio.wait_for(self._spawner.close(), KILL_TIMEOUT)
        except asyncio.TimeoutError:
            logger.error("worker processes are still alive %g s after SIGKILL", KILL_TIMEOUT)
        self.group.close()
        if self._backup_dirs is not None:
            self._backup_dirs.close()


def _no_port(error: OSError) -> Broken:
    return Broken(ExitCode.NODE_FAULT, f"this node has no port for its workers: {error}")


def _open_backup_dirs(config: LaunchConfig, on_made: Callable[[str], object]) -> PsBackupDirs | None:
    """Where parameter servers keep copies of their variables; None without roles."""
    if not config.workers.roles:
        return None
    from elasticrun.agent.workers.ps_backup_dirs import PsBackupDirs

    return PsBackupDirs(on_made)
