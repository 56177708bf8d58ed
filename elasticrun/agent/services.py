"""What an agent keeps open beside its workers: the watch over their steps, the memory for their state; on
request the watchdog's FIFO, the health check's port, the look-out for a preemption notice, and the figures of
tasks.

None of it is worth a job: a service that cannot be opened is reported in a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from elasticrun.agent.monitors.progress import HangWatch
from elasticrun.config import EntrypointKind, WorkerConfig
from elasticrun.core.progress.silence import HangTerms
from elasticrun.core.protocol.messages import Stall

if TYPE_CHECKING:
    from elasticrun.agent.memory.gate import MemoryGate, ShutGate
    from elasticrun.agent.memory.peering import OnStock, Peering
    from elasticrun.agent.memory.relay import DataRelay
    from elasticrun.agent.memory.storage_access import StorageAccess
    from elasticrun.agent.monitors.liveness import HealthServer
    from elasticrun.agent.monitors.node_figures import NodeSampler
    from elasticrun.agent.monitors.notice import PreemptionNotice
    from elasticrun.agent.monitors.teller import Teller
    from elasticrun.agent.monitors.timer import FileTimer
    from elasticrun.agent.monitors.usage import UsageSampler
    from elasticrun.core.protocol.round_progress import NodeFigures, RoundProgress
    from elasticrun.core.protocol.usage import TaskUsage

logger = logging.getLogger(__name__)


class Services:
    """Made inside the running loop; a service is imported only if an option asks for it."""

    def __init__(
        self,
        config: WorkerConfig,
        pids: Callable[[], Mapping[int, int]],
        phase: Callable[[], str],
        on_stall: Callable[[int, Stall | None], None],
        on_stock: OnStock,
        peering: Peering | None = None,
        relay: DataRelay | None = None,
        storage: StorageAccess | None = None,
        on_progress: Callable[[], object] = bool,
    ) -> None:
        """``pids``: of workers that run, by local rank. ``phase``: what the health check answers.

        ``peering``: how copies of saved states are exchanged; None: not at all. ``relay``: for
        what workers ask about shared data. ``storage``: where the saved states are written; None: nowhere.
        ``on_progress``: the workers have reached a milestone, see ``progress``.
        """
        self.watch = _open_watch(config, on_stall)
        self._on_progress = on_progress
        self._teller: Teller | None = None  # made when a worker rings, or the first heartbeat is due
        if self.watch is not None:
            asyncio.get_running_loop().add_reader(self.watch.page.bell, self._open_teller)
        self.memory = _open_memory(config, on_stock, peering, relay, storage)
        #: What the tasks use, for the next heartbeat; nothing is measured without roles.
        self.usage: Callable[[], tuple[TaskUsage, ...]] = (
            _open_sampler(pids, self.watch).sample if config.roles else tuple
        )
        self._pids = pids
        self._sampler: NodeSampler | None = None  # made when the first figures are due
        self._preemption_file = config.preemption_file
        self._notice: PreemptionNotice | None = None
        self._timer = _open_timer(config.file_timer, lambda: pids().values())
        self._health = _open_health(config.health_check_port, phase)

    async def start(self) -> None:
        """Listen for health checks; warn if that fails."""
        if self._health is not None:
            await self._health.start()

    def look_out(self, on_notice: Callable[[str], None]) -> None:
        """Call ``on_notice`` with a reason, once, when this node is to be taken away."""
        if self._preemption_file is not None:
            from elasticrun.agent.monitors.notice import PreemptionNotice

            self._notice = PreemptionNotice(self._preemption_file, on_notice)

    def forget(self, pid: int | None) -> None:
        """Drop the timers of a worker that has ended."""
        if self._timer is not None and pid is not None:
            self._timer.forget(pid)

    def progress(self) -> RoundProgress | None:
        """How far the workers are; None: nobody reports."""
        teller = self._open_teller()
        return None if teller is None else teller.progress()

    def _open_teller(self) -> Teller | None:
        if self._teller is None and self.watch is not None:
            from elasticrun.agent.monitors.teller import Teller

            self._teller = Teller(self.watch, self._on_progress)  # hears the bell instead of this
        return self._teller

    def step(self) -> int:
        """The last step that all workers here have reported; -1: not all of them report steps."""
        paces = [
            self.watch.page.pace(local_rank) if self.watch is not None else None
            for local_rank in self._pids()
        ]
        return min((-1 if pace is None else pace.step for pace in paces), default=-1)

    def figures(self) -> NodeFigures | None:
        """What the node's workers use; None while none runs, and the first time."""
        if not self._pids():
            return None
        if self._sampler is None:
            from elasticrun.agent.monitors.node_figures import NodeSampler

            self._sampler = NodeSampler(self._pids, asyncio.get_running_loop().time)
        return self._sampler.sample()

    def save_stacks(self) -> None:
        """Save the stacks of all workers beside their logs."""
        if self.watch is not None:
            self.watch.save_stacks()

    async def close(self) -> None:
        """Close all services."""
        if self._notice is not None:
            self._notice.close()
        if self._teller is not None:
            self._teller.close()
        elif self.watch is not None:
            asyncio.get_running_loop().remove_reader(self.watch.page.bell)
        if self.watch is not None:
            await self.watch.close()
        if self.memory is not None:
            self.memory.close()
        if self._timer is not None:
            self._timer.close()
        if self._health is not None:
            await self._health.close()


def _open_watch(config: WorkerConfig, on_stall: Callable[[int, Stall | None], None]) -> HangWatch | None:
    auto = config.auto_progress and config.entrypoint.kind is not EntrypointKind.BINARY
    path = dict(config.env).get("PATH")
    try:
        return HangWatch(config.local_world_size, hang_terms(config), path, on_stall, auto)
    except OSError as error:
        logger.warning(
            "hang detection is off: the page for the workers' steps cannot be made (%s)", error.strerror
        )
        return None


def _open_memory(
    config: WorkerConfig,
    on_stock: OnStock,
    peering: Peering | None,
    relay: DataRelay | None,
    storage: StorageAccess | None,
) -> MemoryGate | ShutGate | None:
    """Where workers save their state; None for tasks of TensorFlow, which save by themselves."""
    if config.roles:
        return None
    from elasticrun.agent.memory.gate import MemoryGate, ShutGate

    try:
        return MemoryGate(config.local_world_size, on_stock, peering, relay, storage)
    except OSError as error:
        logger.warning(
            "workers cannot save their state in memory: no socket can be made (%s)", error.strerror
        )
        return ShutGate()


def hang_terms(config: WorkerConfig) -> HangTerms:
    """When silence is a hang. With roles only the user's timeout counts: the rule would learn little from the
    steps of a reporter if other tasks compute them, restart beside it, and save for it.
    """
    if config.roles and config.hang_timeout is None:
        return HangTerms(0.0)
    return HangTerms(config.hang_timeout)


def _open_sampler(pids: Callable[[], Mapping[int, int]], watch: HangWatch | None) -> UsageSampler:
    from elasticrun.agent.monitors.usage import UsageSampler

    pace = watch.page.pace if watch is not None else _unknown
    return UsageSampler(pids, pace, asyncio.get_running_loop().time)


def _unknown(local_rank: int) -> None:
    """Nobody can report steps."""


def _open_timer(path: str | None, pids: Callable[[], Collection[int]]) -> FileTimer | None:
    if path is None:
        return None
    from elasticrun.agent.monitors.timer import FileTimer

    try:
        return FileTimer(path, pids)
    except OSError as error:
        logger.warning("no watchdog: the FIFO %s cannot be made (%s)", path, error.strerror)
        return None


def _open_health(port: int | None, phase: Callable[[], str]) -> HealthServer | None:
    if port is None:
        return None
    from elasticrun.agent.monitors.liveness import HealthServer

    return HealthServer(port, phase)
