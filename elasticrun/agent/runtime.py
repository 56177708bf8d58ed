"""The agent's loop: the only interpreter of the agent machine's effects.

Whatever happens (a directive, a worker's end, a signal, a deadline) becomes an event; events are handled
one after the other, each with all its effects, even if an effect causes the next event at once. Nothing
here decides; nothing in the machine does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticrun import __version__
from elasticrun.agent.error_reader import ErrorReader
from elasticrun.agent.events import EventLog
from elasticrun.agent.farewell import Farewell, ShowCheckup, report
from elasticrun.agent.group import CpuPlan, WorkerGroup
from elasticrun.agent.hosting import MasterHost
from elasticrun.agent.link import Link
from elasticrun.agent.log_dirs import LogDirs
from elasticrun.agent.logs import LogRouter
from elasticrun.agent.orphans import adopt_orphans, kill_orphans
from elasticrun.agent.ports import NodePorts
from elasticrun.agent.probe import ProbeRunner
from elasticrun.agent.recorder import Recorder
from elasticrun.agent.services import Services
from elasticrun.agent.signals import SignalInbox
from elasticrun.agent.spawner import (
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
from elasticrun.agent.store import RoundStore
from elasticrun.clock import MonotonicClock
from elasticrun.config import LaunchConfig
from elasticrun.core.agent import AgentMachine
from elasticrun.core.agent_events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTick,
    Broken,
    DumpStacks,
    Finish,
    GroupGone,
    ImportsSeen,
    Level,
    PortsOffered,
    Preempted,
    Prepared,
    ProbeEnded,
    RunProbe,
    Say,
    SignalTask,
    SignalWorkers,
    StallSeen,
    StartTask,
    StartWorkers,
    StopSignal,
    SweepWorkers,
    Transmit,
)
from elasticrun.core.protocol import Assignment, NodeInfo, Report
from elasticrun.errors import ElasticRunError, ExitCode

if TYPE_CHECKING:
    from elasticrun.agent.ps_homes import PsHomes

logger = logging.getLogger(__name__)

#: Seconds that the spawner has to kill what is left of the workers.
KILL_TIMEOUT = 30.0
LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING}


def _terms(config: LaunchConfig) -> AgentTerms:
    return AgentTerms(
        config.workers.shutdown_timeout,
        master_timeout=config.rendezvous.master_timeout,
        drain_signal=config.workers.drain_signal,
        join_timeout=config.job.join_timeout,
        endpoints=config.job.endpoints,
    )


class Agent:
    """One agent from the first event to Finish. Made inside the running loop."""

    def __init__(
        self,
        config: LaunchConfig,
        node: NodeInfo,
        spawner: SpawnerHandle,
        host: MasterHost,
        router: LogRouter,
        cpus: CpuPlan,
        show_checkup: ShowCheckup | None = None,
    ) -> None:
        workers = config.workers
        self._config = config
        self._host = host
        self._router = router
        self._show_checkup = show_checkup
        self._loop = asyncio.get_running_loop()
        self._clock = MonotonicClock()
        self._events: deque[AgentEvent] = deque()
        self._handling = False
        self._is_broken = False  # a bug showed; the agent is leaving because of it
        self._timer: asyncio.TimerHandle | None = None
        self._finished: asyncio.Future[Finish] = self._loop.create_future()
        self._machine = AgentMachine(config.job.job_id, __version__, node, _terms(config))
        master = config.rendezvous.master
        given = master.port if master is not None else 0
        self._ports = NodePorts(random.Random(node.incarnation), workers.roles, given)
        self._spawner = Spawner(spawner, self._on_spawner)
        self._dirs = LogDirs(workers.logs.log_dir, config.job.job_id, self._spawner.inherit)
        self._services = Services(
            workers,
            lambda: self._group.pids,
            lambda: self._machine.phase.value,
            lambda round_, stall: self._post(StallSeen(round_, stall)),
        )
        watch, job_id = self._services.watch, config.job.job_id
        self._errors = ErrorReader()
        read = self._errors.read
        self._homes = homes = _open_homes(config, lambda path: self._spawner.inherit(path, whole=True))
        self._group = WorkerGroup(
            workers, job_id, node, self._spawner, router, self._dirs, cpus, self._post, watch, homes, read
        )
        self._store = RoundStore(workers, node, self._spawner, self._post)
        self._probe = ProbeRunner(workers, node, self._spawner, lambda report: self._post(ProbeEnded(report)))
        event_log = EventLog(config.event_log_handler, router.stderr.write)
        self._recorder = Recorder(event_log, config, node)
        self._link = Link(
            host,
            self._machine,
            node.incarnation,
            config.rendezvous.connect_timeout,
            self._post,
            config.security,
            self._services.usage,
        )

    async def run(self, inbox: SignalInbox) -> int:
        """Work until the job, or this node's part in it, is over. Returns the exit status."""
        self._loop.set_exception_handler(self._on_bug)
        inbox.attach(self._on_signal)
        # As the spawner will say; before any wait, or what it says first would come before this.
        self._post(ImportsSeen(self._group.is_warm))
        await self._services.start()
        self._prepare()
        self._services.look_out(lambda reason: self._post(Preempted(reason)))
        finish = await self._finished
        await self._close(finish)
        inbox.detach()
        return finish.exit_status

    # -- events in

    def _post(self, event: AgentEvent) -> None:
        """Handle an event, after those that are being handled."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for effect in self._machine.handle(self._events.popleft(), self._clock.now()):
                    self._carry_out_or_break(effect)
        finally:
            self._handling = False
        self._arm()

    def _prepare(self) -> None:
        try:
            self._post(Prepared(*self._ports.prepare(), self._store.is_able))
        except OSError as error:
            self._post(Broken(ExitCode.NODE_FAULT, f"this node has no port for its workers: {error}"))

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGWINCH:
            self._router.window_changed()
        else:
            logger.warning("received %s", signal.Signals(signum).name)
            self._post(StopSignal(signum))
            self._host.hurry()

    def _on_spawner(self, event: SpawnerEvent) -> None:
        match event:
            case Started():
                if not self._store.on_started(event):
                    self._group.on_started(event)
            case SpawnFailed():
                if not (self._store.on_spawn_failed(event) or self._probe.on_spawn_failed(event)):
                    self._group.on_spawn_failed(event)
            case Exited(worker):
                if not (self._store.on_exited(event) or self._probe.on_exited(event)):
                    self._services.forget(self._group.pid_of(worker))
                    self._group.on_exited(event)
            case Swept(_, left):
                self._errors.when_idle(lambda: self._on_swept(left))
            case WarmNews():
                report(event)
                self._store.on_warm_news(event)
            case LeftAlone():
                report(event)
            case Imports(under_way):
                self._post(ImportsSeen(under_way))
            case SpawnerDied():
                reason = "the spawner process was killed, and the workers with it; this node cannot go on"
                self._post(Broken(ExitCode.NODE_FAULT, reason))
                kill_orphans(self._host.pids)
                self._probe.cancel()
                self._group.close_round()
                self._post(GroupGone(self._machine.round, 0))  # nobody else will say so

    def _on_swept(self, left: int) -> None:
        if left:
            logger.warning("%d processes of another user, started by workers, are left alone", left)
        self._group.close_round()
        try:
            port, ports = self._ports.prepare()
        except OSError as error:
            self._post(Broken(ExitCode.NODE_FAULT, f"this node has no port for its workers: {error}"))
            port, ports = 0, ()
        self._post(GroupGone(self._machine.round, port, ports, self._store.is_able))

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback is ours; anything else that asyncio reports is only told."""
        error = context.get("exception")
        logger.error("internal error: %s", context.get("message"), exc_info=error)
        if "handle" in context:
            self._break(error)

    def _break(self, error: object) -> None:
        """Leave in good order; if that fails as well, at once: the spawner then kills the workers."""
        reason = f"internal error: {error!r}; please report the traceback above"
        if self._is_broken:
            self._finish(Finish(ExitCode.INTERNAL, reason))
            return
        self._is_broken = True
        try:
            self._post(Broken(ExitCode.INTERNAL, reason))
        except Exception:  # whatever it is, it must not keep the agent from ending
            logger.exception("internal error")
            self._finish(Finish(ExitCode.INTERNAL, reason))

    # -- effects out

    def _carry_out_or_break(self, effect: AgentEffect) -> None:
        try:
            self._carry_out(effect)
        except Exception as error:  # a bug; the effects behind this one may be what stops the workers
            logger.exception("internal error")
            self._break(error)

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Transmit(message):
                self._link.send(message)
                if isinstance(message, Report):
                    self._recorder.reported(message.status, self._machine.assignment)
            case StartWorkers(assignment):
                self._start_workers(assignment)
            case StartTask(assignment, local_rank):
                self._start_task(assignment, local_rank)
            case SignalWorkers(signum, drain, spared):
                self._group.signal(signum, drain, spared)
            case SignalTask(local_rank, signum):
                self._group.signal_task(local_rank, signum)
            case SweepWorkers(_, spares_detached):
                self._probe.cancel()
                self._group.sweep(spares_detached, self._store.end_round())
            case RunProbe(start):
                if start.groups:
                    self._ports.release()  # this probe's all-gathers may meet at the port
                self._probe.start(start)
            case DumpStacks():
                self._services.save_stacks()
            case Say(level, text):
                logger.log(LEVELS[level], "%s", text)
            case Finish():
                self._finish(effect)

    def _start_workers(self, assignment: Assignment) -> None:
        self._ports.take(assignment.tasks, [task.local_rank for task in assignment.tasks])
        try:
            if assignment.store_hosted and assignment.group_rank == 0:
                listener = self._ports.listen(assignment.store_port)
                self._group.start(assignment)
                self._store.start(assignment, listener)  # behind them, as they take longer to get there
            else:
                self._ports.release()
                self._group.start(assignment)
            adopt_orphans()  # here, as nothing waits for it: the spawner is at work
        except Exception as error:
            # Some may have started, the others will never end.
            self._group.sweep(spare=self._store.end_round())
            if not isinstance(error, OSError | ElasticRunError):
                raise
            self._post(Broken(ExitCode.NODE_FAULT, f"cannot start workers: {error}"))
        self._offer_ports()

    def _start_task(self, assignment: Assignment, local_rank: int) -> None:
        """Unlike that of a round, a task's bad start is its own failure: the others go on."""
        self._ports.take(assignment.tasks, [local_rank])
        try:
            self._group.start_task(assignment, local_rank)
        except (OSError, ElasticRunError) as error:
            self._group.start_failed(local_rank, str(error))
        self._offer_ports()

    def _offer_ports(self) -> None:
        ports = self._ports.news()
        if ports is not None:
            self._post(PortsOffered(ports))

    def _finish(self, finish: Finish) -> None:
        if not self._finished.done():
            self._finished.set_result(finish)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._machine.next_deadline()
        if deadline is not None:
            delay = max(0.0, deadline - self._clock.now())
            self._timer = self._loop.call_later(delay, self._post, AgentTick())

    # -- beginning and end

    async def _close(self, finish: Finish) -> None:
        """Let go of everything. Each step has its own bound, and a bug in one does not keep the others."""
        farewell = Farewell(self._config, finish, self._show_checkup)

        async def say_farewell() -> None:
            farewell.say(self._router.stderr.write, self._dirs)

        async def leave_master() -> None:
            await self._host.close(farewell.patience)

        for step in (
            self._link.close,
            self._end_workers,
            self._end_services,
            say_farewell,
            leave_master,
            self._router.close,
        ):
            try:
                await step()
            except Exception:  # the exit status is decided, and the rest has to be closed
                logger.exception("internal error at the end; please report this traceback")

    async def _end_workers(self) -> None:
        self._ports.close()
        self._store.close()
        try:
            await asyncio.wait_for(self._spawner.close(), KILL_TIMEOUT)
        except asyncio.TimeoutError:
            logger.error("the workers' processes are still there after %g s of SIGKILL", KILL_TIMEOUT)
        self._group.close()
        if self._homes is not None:
            self._homes.close()

    async def _end_services(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._services.close()


def _open_homes(config: LaunchConfig, on_made: Callable[[str], object]) -> PsHomes | None:
    """Where parameter servers keep copies of their variables; None if this node can have none."""
    if not config.workers.roles:
        return None
    from elasticrun.agent.ps_homes import PsHomes

    return PsHomes(on_made)
