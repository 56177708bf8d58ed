"""The agent's loop: the only interpreter of the agent machine's effects.

Whatever happens (a directive, a worker's end, a signal, a deadline) becomes an event; events are handled
one after the other, each with all its effects, even if an effect causes the next event at once. Nothing
here decides, and nothing here completes an event from the machine's state: an event says what happened to
what.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from elasticrun import __version__
from elasticrun.agent.events import EventLog
from elasticrun.agent.link import Link
from elasticrun.agent.logs.router import LogRouter
from elasticrun.agent.master_host.hosting import MasterHost
from elasticrun.agent.memory.peering import Peering
from elasticrun.agent.memory.relay import DataRelay
from elasticrun.agent.processes import Processes
from elasticrun.agent.recorder import Recorder
from elasticrun.agent.services import Services
from elasticrun.agent.shutdown_report import ShowCheckup, ShutdownReport
from elasticrun.agent.signals import SignalInbox
from elasticrun.agent.spawner.client import SpawnerHandle
from elasticrun.agent.workers.group import CpuPlan
from elasticrun.clock import MonotonicClock
from elasticrun.config import JobConfig, LaunchConfig
from elasticrun.core.agent.events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTick,
    Broken,
    Directed,
    DumpStacks,
    Finish,
    HoldingsChanged,
    ImportsSeen,
    Level,
    PassJudgement,
    Preempted,
    RunProbe,
    Say,
    SignalTask,
    SignalWorkers,
    StallSeen,
    StartTask,
    StartWorkers,
    StopSignal,
    Store,
    SweepWorkers,
    Transmit,
)
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    Leave,
    NodeInfo,
    Report,
    StartRound,
    Waiting,
)
from elasticrun.errors import ExitCode

if TYPE_CHECKING:
    from elasticrun.agent.answers import NodeAnswers
    from elasticrun.agent.face import Face
    from elasticrun.agent.memory.storage_access import StorageAccess, Writers
    from elasticrun.agent.observer_host import ObserverHost
    from elasticrun.core.agent.state import AgentState

logger = logging.getLogger(__name__)

#: Makes a status line for an agent's state, and for what tells the newest step of its workers.
OpenFace = Callable[["AgentState", Callable[[], int]], "Face"]


class Witness(Protocol):
    """Hears of an agent what a launch from Python tells its caller."""

    def started(self, start: StartRound) -> None:
        """A round starts, as the master says; it may say so more than once."""

    def finished(self, finish: Finish) -> None:
        """How it ended, before anything is closed."""


LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING}


def _terms(config: LaunchConfig) -> AgentTerms:
    return AgentTerms(
        config.workers.shutdown_timeout,
        master_timeout=config.rendezvous.master_timeout,
        drain_signal=config.workers.drain_signal,
        join_timeout=config.job.join_timeout,
        endpoints=config.job.endpoints,
        flush_timeout=config.job.state_flush_timeout if config.job.state_storage else 0.0,
    )


def _peering(config: LaunchConfig) -> Peering | None:
    if not config.job.state_copies:
        return None
    address, rate = config.rendezvous.local_addr or "", config.workers.state_copy_rate
    return Peering(address, rate, expects_others=config.job.max_nodes > 1)


def _storage(job: JobConfig, writers: Callable[[], Writers]) -> StorageAccess | None:
    """How this node writes to the job's storage; None: there is none."""
    url = job.state_storage
    if not url:
        return None
    from elasticrun.agent.memory.storage_access import StorageAccess

    place = url if "://" in url or "::" in url else os.path.abspath(url)
    return StorageAccess(place, job.state_keep, job.state_keep_for or None, writers)


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
        open_face: OpenFace | None = None,
        observer: ObserverHost | None = None,
        witness: Witness | None = None,
    ) -> None:
        """``open_face``: makes the status line of a terminal; None: there is none."""
        self._config = config
        self._host = host
        self._router = router
        self._show_checkup = show_checkup
        self._observer = observer
        self._witness = witness
        self._loop = asyncio.get_running_loop()
        self._clock = MonotonicClock()
        self._began = self._clock.now()
        self._events: deque[AgentEvent] = deque()
        self._handling = False
        self._is_running = self._is_broken = False  # workers run, as was last told; a bug showed
        self._timer: asyncio.TimerHandle | None = None
        self._finished: asyncio.Future[Finish] = self._loop.create_future()
        self._machine = AgentMachine(config.job.job_id, __version__, node, _terms(config))
        self._relay = DataRelay(node.incarnation, lambda ask: self._link.send(ask))
        self._services = Services(
            config.workers,
            lambda: self._processes.group.pids,
            lambda: self._machine.state.phase.value,
            lambda round_, stall: self._post(StallSeen(round_, stall)),
            lambda *stock: self._post(HoldingsChanged(*stock)),
            _peering(config),
            self._relay,
            _storage(config.job, lambda: self._processes.writers),
            lambda: self._link.tell_progress(),
        )
        spared = self._spared
        self._processes = Processes(config, node, spawner, router, cpus, self._services, self._post, spared)
        self._face = open_face(self._machine.state, self._services.step) if open_face is not None else None
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
            self._relay,
            self._services.progress,
            self._services.figures,
            open_answers=lambda: self._open_answers(node.incarnation),
        )

    def _open_answers(self, incarnation: str) -> NodeAnswers:
        from elasticrun.agent.answers import NodeAnswers  # most agents are never asked

        kept, watch = self._router.kept, self._services.watch
        return NodeAnswers(incarnation, kept, watch, lambda answer: self._link.send(answer))

    async def run(self, inbox: SignalInbox) -> int:
        """Work until the job, or this node's part in it, is over. Returns the exit status."""
        self._loop.set_exception_handler(self._on_bug)
        inbox.attach(self._on_signal)
        # A guess until the spawner reports; posted before any wait, as it must precede that report.
        self._post(ImportsSeen(self._processes.group.is_warm))
        await self._services.start()
        self._processes.prepare()
        self._services.look_out(lambda reason: self._post(Preempted(reason)))
        if self._observer is not None:
            self._observer.start(self._tell_url)
        finish = await self._finished
        if self._witness is not None:
            self._witness.finished(finish)
        await self._close(finish, is_told=self._witness is not None)
        if self._observer is not None:
            await self._observer.close()
        inbox.detach()
        return finish.exit_status

    def _tell_url(self, url: str) -> None:
        """Whoever asks for a page wants to know where it is, at any log level."""
        self._router.stderr.write(f"elastic-run: web page: {url}\n".encode(errors="replace"))

    def _spared(self) -> tuple[int, ...]:
        """Children of ours that are no worker's."""
        return (*self._host.pids, *(() if self._observer is None else self._observer.pids))

    # -- events in

    def _post(self, event: AgentEvent) -> None:
        """Handle an event, after those that are being handled."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        waiting = ""
        try:
            while self._events:
                event = self._events.popleft()
                match event:
                    case Directed(Waiting(text=text)):
                        waiting = text
                    case Directed(StartRound() as start) if self._witness is not None:
                        self._witness.started(start)
                for effect in self._machine.handle(event, self._clock.now()):
                    self._carry_out_or_break(effect)
        finally:
            self._handling = False
        if self._face is not None:
            self._face.changed(waiting)
        self._arm()

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGWINCH:
            self._router.window_changed()
            if self._face is not None:
                self._face.resized()
        elif signum == signal.SIGCHLD:  # only as init: see ``orphans.py``
            self._processes.reap_strangers()
        elif signum == self._config.workers.notice_signal:
            name = signal.Signals(signum).name
            self._post(Preempted(f"{name}, the platform's notice that it takes this node away"))
        else:
            logger.warning("received %s", signal.Signals(signum).name)
            self._post(StopSignal(signum))
            self._host.hurry()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback is ours; anything else that asyncio reports is only logged."""
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
        except Exception:  # nothing may keep the agent from ending
            logger.exception("internal error")
            self._finish(Finish(ExitCode.INTERNAL, reason))

    # -- effects out

    def _carry_out_or_break(self, effect: AgentEffect) -> None:
        try:
            self._carry_out(effect)
        except Exception as error:  # a bug; a later effect may be the one that stops the workers
            logger.exception("internal error")
            self._break(error)

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Transmit(message):
                self._tell_progress_before(message)
                self._link.send(message)
                if isinstance(message, Report):
                    self._recorder.reported(message.status, self._machine.state.assignment)
            case StartWorkers(assignment):
                self._processes.start_workers(assignment)
            case StartTask(assignment, local_rank):
                self._processes.start_task(assignment, local_rank)
            case SignalWorkers(signum, drain, spared):
                self._processes.group.signal(signum, drain, spared)
            case SignalTask(local_rank, signum):
                self._processes.group.signal_task(local_rank, signum)
            case SweepWorkers():
                self._processes.sweep(effect)
            case RunProbe():
                self._processes.run_probe(effect)
            case DumpStacks():
                self._services.save_stacks()
            case PassJudgement(verdict):
                if self._services.memory is not None:
                    self._services.memory.judge(verdict)
            case Store(order):
                if self._services.memory is not None:
                    self._services.memory.store(order)
            case Say(level, text):
                logger.log(LEVELS[level], "%s", text)
            case Finish():
                self._finish(effect)

    def _tell_progress_before(self, message: AgentMessage) -> None:
        """The last step of a round is told before its end is: then it counts."""
        was_running = self._is_running
        if isinstance(message, Report):
            self._is_running = message.status.phase is AgentPhase.RUNNING
        if was_running and (isinstance(message, Leave) or not self._is_running):
            self._link.tell_progress()

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

    async def _close(self, finish: Finish, is_told: bool) -> None:
        """Close everything. Each step has its own bound, and a bug in one does not stop the others."""
        if self._face is not None:
            self._face.close()
        last, lasted = self._machine.state.assignment, self._clock.now() - self._began
        is_seen = self._router.stderr.is_terminal
        report = ShutdownReport(self._config, finish, self._show_checkup, last, lasted, is_seen, is_told)

        async def report_shutdown() -> None:
            report.say(self._router.stderr.write, self._processes.dirs)

        async def leave_master() -> None:
            await self._host.close(report.patience)

        for step in (
            self._link.end_answers,
            self._link.close,
            self._processes.close,
            self._end_services,
            report_shutdown,
            leave_master,
            self._router.close,
        ):
            try:
                await step()
            except Exception:  # the exit status is decided, and the rest has to be closed
                logger.exception("internal error at the end; please report this traceback")

    async def _end_services(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._services.close()
