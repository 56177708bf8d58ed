"""The master's loop: the only interpreter of the job machine's effects.

Each message of a stream, and each deadline, becomes an event and is handed to the machine at once, all on one
thread. Its effects are held back: the events of one turn of the event loop are a batch. The lines of a batch
go to the journal in one write, and to its copies; then its effects are carried out, in order. So the
journal's order is the order in which things were decided, and nobody hears of a decision that a restarted
master would not know of. With many agents a turn has many events; a batch that reaches its bounds ends before
the turn does, so that memory and delay stay bounded too.

The master outlives the agent that started it as long as another agent is attached: a crash of that
agent must not take the control plane from nodes that train. It ends when the job has ended and the last
agent has gone, or when its host's agent is gone and nobody is attached.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.clock import Clock
from elasticrun.core.job.describe import describe, describe_briefly, mark_now
from elasticrun.core.job.events import (
    Answered,
    Attached,
    Beat,
    DataAsked,
    DataOpened,
    Decided,
    Detached,
    Drop,
    Ended,
    JobEffect,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
    Send,
    StepDown,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.orders import in_full
from elasticrun.core.protocol.messages import (
    AskData,
    AttachedMessage,
    Heartbeat,
    Hello,
    Leave,
    NodeAnswer,
    OpenData,
    RejectCode,
    Rejected,
    Report,
)
from elasticrun.master.copies import Copies
from elasticrun.master.feed import Feed, until
from elasticrun.master.figures import Figures
from elasticrun.master.journal import Entry, Journal
from elasticrun.master.progress_log import ProgressLog
from elasticrun.master.statuses import heed, repeats

if TYPE_CHECKING:
    from elasticrun.core.protocol.orders import AwaitStatus, ControlReply, ControlRequest, Order, ShowStatus
    from elasticrun.core.protocol.usage import TaskUsage
    from elasticrun.master.event_log import Chronicle
    from elasticrun.master.listed import Listed
    from elasticrun.master.questions import Questions
    from elasticrun.rpc.session import Session

logger = logging.getLogger(__name__)

#: Seconds that agents have, once the job has ended, to fetch the news and go.
FAREWELL_TIMEOUT = 30.0
#: Bounds of a batch: bytes for the journal, events and effects.
BATCH_BYTES = 512 << 10
BATCH_EVENTS = 1024
BATCH_EFFECTS = 8192


class MasterLoop:
    """Feeds the machine and carries out its effects; a ``SessionHandler`` for the server."""

    def __init__(
        self,
        machine: JobMachine,
        journal: Journal,
        clock: Clock,
        listed: Listed | None = None,
        chronicle: Chronicle | None = None,
        feed: Feed | None = None,
    ) -> None:
        """``listed``: None if nobody else may become the master's host. ``chronicle``: hears what happens;
        ``feed``: has what it wrote lately.
        """
        self.done: asyncio.Event = asyncio.Event()  # nothing is left to do
        self._machine = machine
        self._journal = journal
        self._clock = clock
        self.stepped_down = ""  # why this master ends although there is a job
        self._copies = Copies(journal, lambda: machine.state.epoch)
        self._sessions: dict[int, Session] = {}
        self._usage: dict[int, tuple[TaskUsage, ...]] = {}  # the newest by session; no fact, so not journaled
        self._turn: asyncio.Handle | None = None  # the end of the batch that is being collected
        self._now = 0.0  # when it began, on the job's clock: the time of all its events
        self._events = 0  # in it
        self._effects: list[JobEffect] = []  # of it
        self._listed = listed
        self._chronicle = chronicle
        self._feed = Feed() if feed is None else feed
        self._questions: Questions | None = None  # made when the first one is asked
        self._progress = ProgressLog(machine.state, chronicle)
        self._figures = Figures()
        self._keepers: list[tuple[int, Session]] = []  # agents of listed hosts that came in it, by position
        self._holders: dict[int, int] = {}  # the session that has a copy, by position: one for each
        self._lookups: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the timer comes, on the job's clock
        self.is_orphan = False  # the agent that started this master is gone
        self._last_words = ""
        self._answers: list[Answered] = []  # to the order that is being judged

    def start(self, epoch: int, key: str = "", host: str = "") -> None:
        """Take up the job as the master of ``epoch``, started by the agent of the incarnation ``host``.

        ``key`` is for a journal that has none yet.
        """
        self._feed.name = epoch
        self._handle(MasterStarted(epoch, key, host))
        self.flush()

    def flush(self) -> None:
        """End the batch now: write its events down, then let its effects leave."""
        if self._turn is None:
            return
        self._turn.cancel()
        self._turn = None
        self._events = 0
        effects, self._effects = self._effects, []
        self._commit()
        if self._chronicle is not None:
            self._chronicle.commit()
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:  # a bug; the effects after this one are for other agents
                logger.exception("internal error; please report this traceback")
        self._begin_copies()
        self._arm()
        if self._journal.is_long:  # later: first write what waits for agents
            asyncio.get_running_loop().call_soon(self._compact)

    def host_gone(self) -> None:
        """The agent that started this master is gone: stay only for agents that are attached."""
        self.is_orphan = True
        self._finish_if_idle()

    # -- SessionHandler

    def attached(self, session: Session, hello: Hello) -> None:
        """A stream was admitted."""
        self._sessions[session.id] = session
        state, listed = self._machine.state, self._listed
        own, cautious = state.quorum.position, state.config.cautious
        if listed is not None and listed.may_keep(hello, own, cautious, state.newest >= 0):
            self._keepers.append((hello.info.position, session))
        status = heed(state, hello.info.node, hello.status)
        heeded = hello if status is hello.status else replace(hello, status=status)
        self._handle(Attached(session.id, heeded))

    def received(self, session: Session, message: AttachedMessage) -> None:
        """An attached agent said something."""
        state = self._machine.state
        node = state.members.node_of(session.id)
        name = "" if node is None else node.info.node
        match message:
            case Report(_, status):
                status = heed(state, name, status)
                again = repeats(state, session.id, status)
                self._handle(Beat(session.id) if again else Reported(session.id, status))
            case Heartbeat(_, usage, progress, figures):
                if usage and name in state.current.assignments:
                    self._usage[session.id] = usage
                else:
                    self._usage.pop(session.id, None)
                self._figures.take(session.id, None if node is None else node.info, figures)
                self._handle(Beat(session.id))
                if progress is not None and name in state.current.assignments:
                    self._progress.take(name, progress, self._now)
            case Leave(_, reason):
                self._handle(Left(session.id, reason))
            case OpenData():
                self._handle(DataOpened(session.id, message))
            case AskData():
                self._handle(DataAsked(session.id, message))
            case NodeAnswer():
                if self._questions is not None:
                    self._questions.heard(session.id, message)

    def detached(self, session: Session, why: str) -> None:
        """A stream is over."""
        self._sessions.pop(session.id, None)
        self._usage.pop(session.id, None)
        self._figures.drop(session.id)
        self._copies.end(session.id)
        if self._questions is not None:
            self._questions.gone(session.id)
        self._handle(Detached(session.id, why))
        self._finish_if_idle()

    # -- ControlHandler

    async def answer(self, request: ControlRequest) -> ControlReply:
        """Answer an operator, who may wait for what happens next."""
        from elasticrun.core.protocol.orders import (
            AwaitStatus,
            ControlReply,
            ListRanks,
            ReadLog,
            ShowStacks,
            WatchEvents,
        )

        if isinstance(request, AwaitStatus):
            await until(self._feed, lambda: mark_now(self._machine.state) != request.after, request.wait)
            return self.order(request)
        if isinstance(request, WatchEvents):
            return ControlReply(True, "", watched=await self._feed.watch(request.after, request.wait))
        if isinstance(request, ReadLog | ShowStacks | ListRanks):
            return await self._open_questions().answer(request)
        return self.order(request)

    def order(self, request: ShowStatus | AwaitStatus | Order) -> ControlReply:
        """Carry out the order of an operator who may give one, if the machine agrees."""
        from elasticrun.core.protocol.orders import AwaitStatus, ControlReply, ShowStatus

        state = self._machine.state
        if isinstance(request, ShowStatus | AwaitStatus):
            is_brief = isinstance(request, AwaitStatus)
            nodes = self._figures.newest
            status = describe_briefly(state) if is_brief else describe(state, self._usage, nodes)
            status = self._figures.added(status)
            if self._chronicle is not None:
                status = self._chronicle.accounted(status, self._clock.now())
            return ControlReply(True, "", status=status)
        self._handle(in_full(request, state.members.nodes, state.cordoned))
        self.flush()  # the answer is an effect, too
        answer = self._answers.pop()  # each order has one
        return ControlReply(answer.ok, answer.text)

    def _open_questions(self) -> Questions:
        if self._questions is None:
            from elasticrun.master.questions import Questions  # most jobs are never asked

            self._questions = Questions(self._machine.state, self._sessions)
        return self._questions

    # -- the loop

    def _handle(self, event: JobEvent) -> None:
        if self._turn is None:
            self._now = self._clock.now()
            self._turn = asyncio.get_running_loop().call_soon(self.flush)
        if not isinstance(event, Beat):
            self._journal.add(Entry(self._now, event))
            self._progress.before(event)
        effects = self._machine.handle(event, self._now)
        self._effects += effects
        if self._chronicle is not None:
            self._chronicle.heard(event, self._machine.state, effects, self._now)
        self._events += 1
        if (
            self._events >= BATCH_EVENTS
            or len(self._effects) >= BATCH_EFFECTS
            or self._journal.pending >= BATCH_BYTES
        ):
            self.flush()

    def _commit(self) -> None:
        if not self._journal.pending:
            return
        try:
            self._journal.commit()
            self._copies.spread()
        except OSError as error:
            logger.error(
                "cannot write the journal %s (%s): the job goes on, but a master that restarts will not"
                " remember it; free some space before the next job",
                self._journal.path,
                error.strerror,
            )

    def _compact(self) -> None:
        self.flush()
        if not self._journal.is_long:
            return
        try:
            self._journal.compact(self._machine.state, self._clock.now())
        except OSError as error:
            logger.warning(
                "the journal %s cannot be compacted (%s) and grows on", self._journal.path, error.strerror
            )
        except Exception:  # a bug; the journal is as good as it was
            logger.exception("internal error; please report this traceback")
        else:
            self._copies.restart()

    def _begin_copies(self) -> None:
        keepers, self._keepers = self._keepers, []
        for position, session in keepers:
            lookup = asyncio.get_running_loop().create_task(self._begin_copy(position, session))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    async def _begin_copy(self, position: int, session: Session) -> None:
        assert self._listed is not None
        is_there = await self._listed.is_at(position, session.peer)
        state = self._machine.state
        node = state.members.node_of(session.id)
        if not is_there or node is None:  # None: it was not welcomed, or has gone
            return
        if not state.config.cautious:
            self._copies.end(self._holders.get(position, 0))
            self._holders[position] = session.id
            self._copies.begin(session)
        elif self._listed.is_first(position, node.info.incarnation):
            self._copies.introduce(session, state)

    def _carry_out(self, effect: JobEffect) -> None:
        match effect:
            case Send(session, message):
                if session in self._sessions:
                    self._sessions[session].send(message)
            case Drop(number, farewell):
                session_ = self._sessions.get(number)
                if session_ is not None:
                    if farewell is not None:
                        session_.send(farewell)
                    session_.close()
            case Decided():
                self._log_decision(effect)
            case StepDown(reason):
                logger.warning("this host's master steps down: %s", reason)
                self.stepped_down = reason
                self.done.set()
            case Answered():
                self._answers.append(effect)
            case Ended():
                asyncio.get_running_loop().call_later(FAREWELL_TIMEOUT, self.done.set)

    def _log_decision(self, made: Decided) -> None:
        """Log it with the number by which ``elastic-ctl replay`` shows its cause, unless it repeats."""
        if made.text != self._last_words:
            logger.info("event %d, round %d, %s: %s", made.event, made.round, made.phase.value, made.text)
        self._last_words = made.text

    def _arm(self) -> None:
        """See that the timer comes by the next deadline; one that comes early does no harm."""
        deadline = self._machine.next_deadline()
        if deadline is None:
            return
        if self._timer is not None:
            if self._due <= deadline:
                return
            self._timer.cancel()
        self._due = deadline
        delay = max(0.0, deadline - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.flush()  # else what expires now would get the time at which the batch began
        now = self._clock.now()
        while expired := self._machine.due(now):
            for event in expired:
                self._handle(event)
        self.flush()
        self._arm()

    def _finish_if_idle(self) -> None:
        if not self._sessions and (self.is_orphan or self._machine.state.ended):
            self.flush()
            self.done.set()


def admit(hello: Hello, job_id: str) -> Rejected | None:
    """The refusal of an agent of another job; None admits it. Version and token were checked before."""
    if hello.job_id != job_id:
        return Rejected(
            RejectCode.WRONG_JOB,
            f"the master serves the job {job_id!r}, not {hello.job_id!r};"
            " give every node the same --rdzv-id, or this job an endpoint of its own",
        )
    return None
