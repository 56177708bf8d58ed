"""The link with a scripted master, and once with a real one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from elasticrun import __version__, clock
from elasticrun.agent import link as module
from elasticrun.agent.link import Link
from elasticrun.agent.master_host.hosting import MasterHost, MasterRefusedError, SteppedDownError
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.agent.events import Broken, Directed, HelloSent, LinkDown, LinkUp
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    AgentStatus,
    DataAnswer,
    Heartbeat,
    Hello,
    JournalCopy,
    Leave,
    MasterMessage,
    NodeInfo,
    RejectCode,
    Rejected,
    Waiting,
    Welcome,
)
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    ExitCode,
    MasterUnreachableError,
    NameInUseError,
    ProtocolError,
    SupersededError,
    WrongJobError,
    WrongVersionError,
)
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.security.tickets import Tickets
from elasticrun.rpc.server import MasterServer, Session
from elasticrun.rpc.stream import StreamBrokenError
from tests.support.processes import DEADLINE

ENDPOINT = Endpoint("127.0.0.1", 29400)
LIST = (ENDPOINT, Endpoint("127.0.0.1", 29401))
SECURITY = SecurityConfig("the token of a test")
Event = LinkUp | LinkDown | Directed | Broken
BROKEN = StreamBrokenError("it broke")
UNREACHABLE = MasterUnreachableError("cannot connect to 127.0.0.1:29400: Connection refused")


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE))


class FakeHost:
    """Knows where the master is, or why not."""

    def __init__(self) -> None:
        self.resume = False
        self.trouble = ""
        self.problems: list[Exception] = []
        self.endpoints = self
        self.are_several = False
        self.others: tuple[Endpoint, ...] = ()
        self.turns = 0
        self.visited: list[Endpoint] = []
        self.copies: list[JournalCopy] = []

    async def endpoint(self) -> Endpoint:
        if self.problems:
            raise self.problems.pop(0)
        return LIST[self.turns % 2] if self.are_several else ENDPOINT

    def take_channel(self) -> None:
        return None

    def advance(self) -> None:
        self.turns += 1

    def followed(self, endpoint: Endpoint) -> None:
        self.visited.append(endpoint)

    def keep_copy(self, message: JournalCopy) -> None:
        self.copies.append(message)


class FakeMachine:
    """Says a Hello whose sequence counts the calls."""

    def __init__(self) -> None:
        self.hellos = 0
        self.phase = AgentPhase.READY
        self.works = False

    def hello(self) -> Hello:
        self.hellos += 1
        info = NodeInfo("a", "i", "host", "address", 1)
        return Hello("job", __version__, info, AgentStatus(self.hellos, self.phase))


class FakeStream:
    """An attached stream that says what a test puts in."""

    def __init__(self, heartbeat_interval: float = 3600.0) -> None:
        self.welcome = Welcome(7, heartbeat_interval)
        self.said: asyncio.Queue[MasterMessage | ElasticRunError] = asyncio.Queue()
        self.sent: list[AgentMessage] = []
        self.heard = asyncio.Event()
        self.closed: list[float] = []

    def send(self, message: AgentMessage) -> None:
        self.sent.append(message)
        self.heard.set()

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> MasterMessage:
        item = await self.said.get()
        if isinstance(item, ElasticRunError):
            raise item
        return item

    async def close(self, timeout: float = 2.0) -> None:
        self.closed.append(timeout)


class Bench:
    """A link whose attempts end as scripted; the last result holds for all that follow."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *results: FakeStream | Exception,
        connect_timeout: float = 60.0,
        on_event: Callable[[Event], None] | None = None,
        host: FakeHost | None = None,
        usage: Callable[[], tuple[TaskUsage, ...]] = tuple,
        relay: Any = None,
    ) -> None:
        self.host = host or FakeHost()
        self.machine = FakeMachine()
        self.events: list[Event] = []
        self.attempts: list[float] = []
        self.asked: list[Endpoint] = []
        self.hellos: list[Hello] = []
        self.told: list[HelloSent] = []  # to the machine, before it is so
        self.wanted_proofs: list[bool] = []
        self.tickets: list[Tickets] = []
        self._results = list(results)
        self._changed = asyncio.Event()
        self._on_event = on_event
        monkeypatch.setattr(module, "FIRST_DELAY", 0.001)
        monkeypatch.setattr(module, "LONGEST_DELAY", 0.002)
        monkeypatch.setattr(MasterStream, "open", self._open)
        self.link = Link(
            *(cast("MasterHost", self.host), self.machine, "i", connect_timeout, self._hear, SECURITY),
            usage,
            relay,
        )

    async def _open(
        self,
        endpoint: Endpoint,
        hello: Hello,
        timeout: float,
        security: SecurityConfig,
        tickets: Tickets,
        needs_proof: bool,
    ) -> FakeStream:
        assert endpoint in LIST
        self.wanted_proofs.append(needs_proof)
        self.tickets.append(tickets)
        assert security == SECURITY
        self.asked.append(endpoint)
        self.attempts.append(timeout)
        self.hellos.append(hello)
        assert [told.status for told in self.told] == [said.status for said in self.hellos]
        self._changed.set()
        result = self._results[0] if len(self._results) == 1 else self._results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def _hear(self, event: Event | HelloSent) -> None:
        if isinstance(event, HelloSent):
            self.told.append(event)
            return
        self.events.append(event)
        self._changed.set()
        if self._on_event is not None:
            self._on_event(event)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def events_until(self, count: int) -> list[Event]:
        await self.until(lambda: len(self.events) >= count)
        return self.events


class FakeRelay:
    """Counts streams, and keeps answers."""

    def __init__(self) -> None:
        self.streams = 0
        self.answers: list[DataAnswer] = []

    def attached(self) -> None:
        self.streams += 1

    def answered(self, answer: DataAnswer) -> None:
        self.answers.append(answer)


def test_answers_about_data_go_to_the_relay_which_hears_of_each_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        first, second, relay = FakeStream(), FakeStream(), FakeRelay()
        bench = Bench(monkeypatch, first, second, relay=relay)
        answer = DataAnswer(7, 0, "reader", 1)
        first.said.put_nowait(answer)
        first.said.put_nowait(BROKEN)
        assert await bench.events_until(3) == [LinkUp(7), LinkDown("it broke"), LinkUp(7)]
        assert (relay.streams, relay.answers) == (2, [answer])
        await bench.link.close()
        unheard = FakeStream()
        unheard.said.put_nowait(answer)
        unheard.said.put_nowait(BROKEN)
        alone = Bench(monkeypatch, unheard, FakeStream())
        await alone.events_until(3)
        await alone.link.close()

    run(main())


def test_up_down_and_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first, second = FakeStream(), FakeStream()
        bench = Bench(monkeypatch, first, UNREACHABLE, second)
        first.said.put_nowait(Waiting(7, "wait"))
        first.said.put_nowait(BROKEN)
        assert await bench.events_until(4) == [
            LinkUp(7),
            Directed(Waiting(7, "wait")),
            LinkDown("it broke"),
            LinkUp(7),
        ]
        assert first.closed == [0.0]
        assert [hello.status.sequence for hello in bench.hellos] == [1, 2, 3]  # of the moment, each
        assert bench.host.resume
        await bench.link.close()
        assert second.closed == [2.0]

    run(main())


def listed(*others: Endpoint) -> FakeHost:
    """A host with two endpoints on its list."""
    host = FakeHost()
    host.are_several, host.others = True, others
    return host


def test_an_endpoint_that_does_not_answer_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEOVER_DELAY", 0.02)

    async def main() -> None:
        first, second = FakeStream(), FakeStream()
        silence = [UNREACHABLE] * 30
        bench = Bench(monkeypatch, first, *silence, second, host=listed())
        first.said.put_nowait(BROKEN)
        await bench.events_until(3)
        assert bench.host.turns > 0
        assert set(bench.asked) == set(LIST), "and after the last one comes the first again"
        assert bench.asked[1] == LIST[0], "its own master comes first"
        assert max(bench.attempts[1:]) <= 0.02
        assert len(bench.host.visited) == 2
        await bench.link.close()

    run(main())


def test_a_master_that_comes_back_at_once_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first, second = FakeStream(), FakeStream()
        bench = Bench(monkeypatch, first, UNREACHABLE, BROKEN, second, host=listed())
        first.said.put_nowait(BROKEN)
        await bench.events_until(3)
        assert bench.host.turns == 0
        await bench.link.close()

    run(main())


def test_a_master_that_steps_down_here_loses_its_turn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        host = listed()
        host.problems = [SteppedDownError("it stepped down")]
        bench = Bench(monkeypatch, FakeStream(), host=host)
        await bench.events_until(1)
        assert bench.asked == [LIST[1]]
        await bench.link.close()

    run(main())


def test_a_new_agent_that_is_not_welcome_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, BROKEN, FakeStream(), host=listed())
        await bench.events_until(1)
        assert bench.asked == list(LIST)
        await bench.link.close()

    run(main())


def test_the_agent_of_a_listed_host_looks_for_the_job_before_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        first, second = FakeStream(), FakeStream()
        bench = Bench(monkeypatch, first, second, host=listed(LIST[1]))
        await bench.events_until(1)
        assert bench.asked == bench.host.visited == [LIST[1]]
        first.said.put_nowait(BROKEN)
        await bench.events_until(3)
        await bench.link.close()

    run(main())


def test_a_job_that_was_followed_for_long_is_not_a_long_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        loop, first = asyncio.get_running_loop(), FakeStream()
        bench = Bench(monkeypatch, first, UNREACHABLE, FakeStream(), host=listed(LIST[1]))
        await bench.events_until(1)
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 2 * module.QUIET_TIME)
        first.said.put_nowait(BROKEN)
        await bench.events_until(3)
        await bench.link.close()

    run(main())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_if_there_is_no_job_elsewhere_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, UNREACHABLE, FakeStream(), host=listed(LIST[1]))
        await bench.events_until(1)
        assert bench.asked == [LIST[1], LIST[0]]
        assert bench.attempts[0] == module.LOOK_TIMEOUT
        await bench.link.close()

    run(main())


def test_the_journal_is_for_the_host_not_for_the_agents_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stream = FakeStream()
        bench = Bench(monkeypatch, stream, host=listed())
        lines = JournalCopy(7, 0, ("{}",))
        stream.said.put_nowait(lines)
        stream.said.put_nowait(Waiting(7, "wait"))
        assert (await bench.events_until(2))[1] == Directed(Waiting(7, "wait"))
        assert bench.host.copies == [lines]
        await bench.link.close()

    run(main())


def test_messages_go_to_the_stream_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first, second = FakeStream(), FakeStream()
        bench = Bench(monkeypatch, first, second)
        bench.link.send(Heartbeat("too early"))
        await bench.events_until(1)
        bench.link.send(Heartbeat("first"))
        first.said.put_nowait(BROKEN)
        await bench.events_until(2)
        bench.link.send(Heartbeat("between"))
        await bench.events_until(3)
        bench.link.send(Heartbeat("second"))
        assert (first.sent, second.sent) == ([Heartbeat("first")], [Heartbeat("second")])
        await bench.link.close()

    run(main())


def test_heartbeats_while_attached_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first, second = FakeStream(heartbeat_interval=0.001), FakeStream(heartbeat_interval=0.001)
        bench = Bench(monkeypatch, first, second, on_event=look)
        benches.append(bench)
        await beats(first)
        first.said.put_nowait(BROKEN)
        await bench.events_until(3)
        before = len(first.sent)
        await beats(second)
        assert len(first.sent) == before
        assert set(first.sent + second.sent) == {Heartbeat("i")}
        await bench.link.close()

    benches: list[Bench] = []

    def look(event: Event) -> None:
        if isinstance(event, LinkDown):
            beat = benches[0].link._beat
            assert beat is not None
            assert beat.cancelled()

    async def beats(stream: FakeStream) -> None:
        while len(stream.sent) < 3:
            stream.heard.clear()
            await stream.heard.wait()

    run(main())


def test_each_heartbeat_tells_what_tasks_use_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stream = FakeStream(heartbeat_interval=0.001)
        looks = iter(range(1000))
        bench = Bench(monkeypatch, stream, usage=lambda: (TaskUsage(0, memory=next(looks)),))
        while len(stream.sent) < 2:
            stream.heard.clear()
            await stream.heard.wait()
        assert stream.sent[:2] == [Heartbeat("i", (TaskUsage(0, memory=look),)) for look in (0, 1)]
        await bench.link.close()

    run(main())


def time_by_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes in the link's pauses only, so that a busy machine takes none of its patience."""
    loop = asyncio.get_running_loop()
    now = loop.time()

    async def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        await clock.pause(0.0)

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(module, "pause", pause)


def test_an_unreachable_master_is_tried_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        time_by_pauses(monkeypatch)
        bench = Bench(monkeypatch, UNREACHABLE, connect_timeout=0.1)
        (broken,) = await bench.events_until(1)
        assert isinstance(broken, Broken)
        assert broken.exit_status == ExitCode.MASTER_UNREACHABLE
        assert str(UNREACHABLE) in broken.reason
        assert "tried for 0 s: check --rdzv-endpoint" in broken.reason
        assert len(bench.attempts) > 1
        assert max(bench.attempts) <= 0.1
        await bench.link.close()
        assert bench.events == [broken]

    run(main())


def test_an_attempt_is_no_longer_than_the_patience_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        up = FakeStream()
        bench = Bench(monkeypatch, UNREACHABLE, up, UNREACHABLE, connect_timeout=5.0)
        await bench.events_until(1)
        up.said.put_nowait(BROKEN)
        await bench.until(lambda: len(bench.attempts) >= 3)
        assert bench.attempts[0] <= 5.0
        assert bench.attempts[2] == module.ATTEMPT_TIMEOUT  # once it was up, the machine decides when to end
        await bench.link.close()

    run(main())


def test_why_our_own_master_does_not_serve_is_part_of_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, UNREACHABLE, connect_timeout=0.0)
        bench.host.trouble = "the state directory is in use"
        (broken,) = await bench.events_until(1)
        assert isinstance(broken, Broken)
        assert broken.reason.endswith("the state directory is in use")
        await bench.link.close()

    run(main())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WrongJobError("another job"), ExitCode.WRONG_JOB),
        (WrongVersionError("another version"), ExitCode.WRONG_VERSION),
        (SupersededError("another agent"), ExitCode.SUPERSEDED),
        (ProtocolError("nonsense"), ExitCode.PROTOCOL),
        (MasterRefusedError("no disk"), ExitCode.USAGE),
    ],
)
def test_what_no_attempt_can_mend_is_final_at_first(
    monkeypatch: pytest.MonkeyPatch, error: ElasticRunError, status: ExitCode
) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, error)
        assert await bench.events_until(1) == [Broken(status, str(error))]
        await bench.link.close()
        assert len(bench.attempts) == 1

    run(main())


def test_the_hosts_problems_count_as_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, FakeStream())
        bench.host.problems = [UNREACHABLE, UNREACHABLE]
        assert await bench.events_until(1) == [LinkUp(7)]
        await bench.link.close()

    run(main())


def test_a_foreign_program_may_be_a_master_that_comes_or_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = EndpointTakenError("held by a foreign program")

    async def main() -> None:
        bench = Bench(monkeypatch, foreign, foreign, FakeStream())
        assert await bench.events_until(1) == [LinkUp(7)]
        await bench.link.close()
        monkeypatch.setattr(module, "FOREIGN_TIME", 0.01)
        bench = Bench(monkeypatch, foreign)
        assert await bench.events_until(1) == [Broken(ExitCode.ENDPOINT_TAKEN, str(foreign))]
        await bench.link.close()

    run(main())


def test_a_foreign_program_has_no_more_time_than_a_master_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = EndpointTakenError("held by a foreign program")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bench = Bench(monkeypatch, foreign, foreign, FakeStream())
        await bench.until(lambda: len(bench.attempts) == 1)
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + module.FOREIGN_TIME)
        assert await bench.events_until(1) == [Broken(ExitCode.ENDPOINT_TAKEN, str(foreign))]
        await bench.link.close()

    run(main())


def test_once_it_was_up_nothing_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [
        WrongJobError(""),
        WrongVersionError(""),
        ProtocolError(""),
        EndpointTakenError(""),
        UNREACHABLE,
        MasterRefusedError(""),
        BROKEN,
    ]

    async def main() -> None:
        first, last = FakeStream(), FakeStream()
        monkeypatch.setattr(module, "FOREIGN_TIME", 0.0)
        bench = Bench(monkeypatch, first, *problems, last, connect_timeout=0.0)
        first.said.put_nowait(BROKEN)
        assert await bench.events_until(3) == [LinkUp(7), LinkDown("it broke"), LinkUp(7)]
        assert len(bench.attempts) == len(problems) + 2
        await bench.link.close()

    run(main())


def test_a_place_that_is_taken_is_final_always(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first = FakeStream()
        bench = Bench(monkeypatch, first, SupersededError("another agent"))
        first.said.put_nowait(BROKEN)
        events = await bench.events_until(3)
        assert events[2] == Broken(ExitCode.SUPERSEDED, "another agent")
        await bench.link.close()

    run(main())


def test_after_a_rejection_there_is_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = Rejected(RejectCode.SUPERSEDED, "another agent")

    async def main() -> None:
        stream = FakeStream()
        bench = Bench(monkeypatch, stream)
        stream.said.put_nowait(rejected)
        stream.said.put_nowait(BROKEN)
        await asyncio.wait((bench.link._task,))
        assert bench.events == [LinkUp(7), Directed(rejected), LinkDown("it broke")]
        assert stream.closed == [0.0]
        assert len(bench.attempts) == 1
        await bench.link.close()

    run(main())


def test_after_leaving_there_is_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stream = FakeStream()
        bench = Bench(monkeypatch, stream)
        await bench.events_until(1)
        bench.link.send(Leave("i", "told to"))
        stream.said.put_nowait(BROKEN)
        await asyncio.wait((bench.link._task,))
        assert len(bench.attempts) == 1
        await bench.link.close()

    run(main())


def test_a_pause_that_is_cancelled_in_the_moment_of_its_end() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        errors: list[object] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        task = asyncio.create_task(clock.pause(0.0))
        # One turn later, so that the cancellation stands right before the timer in the loop's queue.
        loop.call_soon(lambda: loop.call_soon(task.cancel))
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert errors == []

    run(main())


@pytest.mark.parametrize(("works", "several"), [(True, False), (True, True), (False, False), (False, True)])
def test_workers_that_can_go_on_need_a_proof_of_their_master(
    monkeypatch: pytest.MonkeyPatch, works: bool, several: bool
) -> None:
    async def main() -> None:
        stream = FakeStream()
        bench = Bench(monkeypatch, UNREACHABLE, stream)
        bench.machine.works = works
        bench.host.are_several = several
        await bench.until(lambda: len(bench.wanted_proofs) == 2)
        assert bench.wanted_proofs == [works, works]
        assert bench.tickets[0] is bench.tickets[1]
        await bench.link.close()

    run(main())


def test_a_name_in_use_is_waited_for_as_long_as_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        time_by_pauses(monkeypatch)
        bench = Bench(monkeypatch, NameInUseError("another agent"), connect_timeout=0.05)
        (event,) = await bench.events_until(1)
        assert event == Broken(ExitCode.SUPERSEDED, "another agent")
        assert len(bench.hellos) > 1

    run(main())


def test_a_stream_that_always_breaks_at_once_is_not_opened_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        stream = FakeStream()
        pauses: list[float] = []
        real = clock.pause

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await real(seconds)

        monkeypatch.setattr(module, "pause", pause)
        bench = Bench(monkeypatch, stream)
        for _ in range(10):
            stream.said.put_nowait(BROKEN)
        await bench.until(lambda: len(bench.attempts) >= 10)
        assert len(pauses) >= 9
        await bench.link.close()

    run(main())


def test_the_user_hears_once_of_a_long_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        monkeypatch.setattr(module, "QUIET_TIME", 0.0)
        bench = Bench(monkeypatch, UNREACHABLE)
        await bench.until(lambda: len(bench.attempts) >= 10)
        await bench.link.close()

    run(main())
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"{UNREACHABLE}; still trying after 0 s"]


@pytest.mark.parametrize("results", [[UNREACHABLE], [FakeStream]])
def test_closing_at_any_moment(monkeypatch: pytest.MonkeyPatch, results: list[Any]) -> None:
    async def main() -> None:
        for turns in range(12):
            made = [result() if isinstance(result, type) else result for result in results]
            bench = Bench(monkeypatch, *made)
            for _ in range(turns):
                await asyncio.wait((bench.link._task,), timeout=0)
            await bench.link.close()
            assert bench.link._task.done()
            await bench.link.close()

    run(main())


def test_a_lost_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCEL_TIME", 0.01)

    async def main() -> None:
        bench = Bench(monkeypatch, FakeStream())
        swallowed = asyncio.Event()

        async def deaf() -> Endpoint:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.set()  # as asyncio.wait_for may
            return ENDPOINT

        monkeypatch.setattr(bench.host, "endpoint", deaf)
        await asyncio.wait((bench.link._task,), timeout=0)
        await bench.link.close()
        assert swallowed.is_set()
        assert bench.link._task.done()

    run(main())


def test_a_bug_in_an_attempt_ends_the_agent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, ZeroDivisionError("oops"))
        (broken,) = await bench.events_until(1)
        assert isinstance(broken, Broken)
        assert broken.exit_status == ExitCode.INTERNAL
        assert "ZeroDivisionError('oops')" in broken.reason
        await bench.link.close()

    run(main())
    assert caplog.records[-1].exc_info is not None


def test_a_bug_in_the_agent_ends_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def hear(event: Event) -> None:
        if isinstance(event, Directed):
            raise KeyError("bug")

    async def main() -> None:
        stream = FakeStream()
        bench = Bench(monkeypatch, stream, on_event=hear)
        stream.said.put_nowait(Waiting(7, "wait"))
        events = await bench.events_until(3)
        assert isinstance(events[2], Broken)
        bench.link.send(Leave("i", "a bug"))
        await bench.link.close()
        assert stream.sent == [Leave("i", "a bug")]  # the stream is still there for the last words
        assert stream.closed == [2.0]

    run(main())


# -- a real master


class Welcoming:
    """The least that a master does."""

    def __init__(self) -> None:
        self.heard: list[AgentMessage] = []
        self.gone = asyncio.Event()

    def attached(self, session: Session, hello: Hello) -> None:
        session.send(Welcome(1, 3600.0))

    def received(self, session: Session, message: AgentMessage) -> None:
        self.heard.append(message)

    def detached(self, session: Session, why: str) -> None:
        self.gone.set()


def test_last_words_reach_a_real_master(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        handler = Welcoming()
        server = MasterServer(handler, lambda hello: None)
        port = await server.start("127.0.0.1", 0)
        host = FakeHost()
        monkeypatch.setattr(host, "endpoint", lambda: _at(port))
        up = asyncio.Event()

        def hear(event: object) -> None:
            if isinstance(event, LinkUp):
                up.set()

        link = Link(cast("MasterHost", host), FakeMachine(), "i", 60.0, hear, SecurityConfig())
        await up.wait()
        link.send(Leave("i", "told to"))
        await link.close()
        await handler.gone.wait()
        assert handler.heard == [Leave("i", "told to")]
        await server.stop(1.0)

    run(main())


async def _at(port: int) -> Endpoint:
    return Endpoint("127.0.0.1", port)
