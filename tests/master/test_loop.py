"""The loop with a real machine, a real journal, and streams that only note what they are told."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticrun import __version__
from elasticrun.config import JobConfig, TaskRole
from elasticrun.core.job.events import (
    Attached,
    Detached,
    Expired,
    MasterStarted,
    Reported,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.membership.plausible import heeded
from elasticrun.core.protocol.data import AskData, DataAnswer, DataReader, OpenData
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    AttachedMessage,
    Failure,
    FailureKind,
    Heartbeat,
    Hello,
    JobEnded,
    JournalCopy,
    Leave,
    MasterMessage,
    NodeInfo,
    Outcome,
    ProbeReport,
    RejectCode,
    Rejected,
    Report,
    SaveStacks,
    StartRound,
    Trust,
    Vote,
    Waiting,
    Welcome,
    World,
)
from elasticrun.core.protocol.orders import (
    AwaitStatus,
    ControlReply,
    DrainNode,
    SaveAllStacks,
    ScaleJob,
    ScaleRole,
    ShowStatus,
    UncordonNode,
)
from elasticrun.core.protocol.round_progress import MAX_PEAKS, NodeFigures, UsagePeak
from elasticrun.core.protocol.status import JobPhase, JobStatus, status_in_words
from elasticrun.core.protocol.tasks import Task, TaskReport
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.master import journal as journal_module
from elasticrun.master import loop as module
from elasticrun.master.feed import Feed
from elasticrun.master.figures import Figures
from elasticrun.master.journal import create_journal, read_journal, replay
from elasticrun.master.listed import Listed
from elasticrun.master.loop import MasterLoop, admit
from elasticrun.master.snapshot import Snapshot
from elasticrun.rpc.server import Session
from elasticrun.sim.fingerprint import difference, fingerprint
from tests.support.processes import DEADLINE

HOSTS = ("localhost", "localhost")
KEY = "ab" * 32
CAUTIOUS = JobConfig(job_id="job", min_nodes=9, max_nodes=9, cautious=True)


class FakeClock:
    """The job's clock, which only moves when told; the loop's timers go by real time."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


class FakeSession:
    """A stream that notes what it is told; as the real one it never calls back."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.peer = "127.0.0.1:1"
        self.sent: list[MasterMessage] = []
        self.closed = False
        self.told = asyncio.Event()

    def send(self, message: MasterMessage) -> None:
        if not self.closed:
            self.sent.append(message)
            self.told.set()

    def close(self) -> None:
        self.closed = True
        self.told.set()

    def last(self) -> MasterMessage:
        return self.sent[-1]

    @property
    def copied(self) -> int:
        """How many lines of the journal it was sent."""
        return sum(len(message.lines) for message in self.sent if isinstance(message, JournalCopy))

    async def until(self, kind: type[MasterMessage]) -> None:
        while not any(isinstance(message, kind) for message in self.sent):
            self.told.clear()
            await self.told.wait()


class Bench:
    """A master's loop on a bench."""

    def __init__(self, directory: Path, config: JobConfig) -> None:
        self.path = directory / "journal.jsonl"
        self.clock = FakeClock()
        self.machine = JobMachine(config)
        self.journal = create_journal(self.path, config)
        self.loop = MasterLoop(self.machine, self.journal, self.clock, Listed(HOSTS, has_token=False))
        self.loop.start(1, KEY)
        self._sessions = 0

    def come(
        self,
        node: str,
        phase: AgentPhase = AgentPhase.READY,
        life: str = "1",
        position: int = -1,
        session: FakeSession | None = None,
        trust: Trust = Trust.STRANGER,
    ) -> FakeSession:
        """An agent attaches; others may do so in the same turn."""
        self._sessions += 1
        session = session or FakeSession(self._sessions)
        info = NodeInfo(node, f"{node}-{life}", "host", "address", 1, position=position)
        hello = Hello("job", __version__, info, AgentStatus(0, phase, store_port=1), trust=trust)
        self.loop.attached(session, hello)
        return session

    def attach(
        self, node: str, phase: AgentPhase = AgentPhase.READY, life: str = "1", position: int = -1
    ) -> FakeSession:
        """An agent attaches, alone in its turn."""
        session = self.come(node, phase, life, position)
        self.loop.flush()
        return session

    async def lookups(self) -> None:
        """Until it is known who may have copies."""
        await asyncio.gather(*self.loop._lookups)

    def report(self, session: FakeSession, node: str, sequence: int, phase: AgentPhase, round_: int) -> None:
        self.hear(session, Report(f"{node}-1", AgentStatus(sequence, phase, round_)))

    def hear(self, session: FakeSession, message: AttachedMessage) -> None:
        """A message that comes alone in its turn."""
        self.loop.received(session, message)
        self.loop.flush()

    def lose(self, session: FakeSession, why: str = "ended") -> None:
        """A stream that ends alone in its turn."""
        self.loop.detached(session, why)
        self.loop.flush()

    @property
    def journaled(self) -> list[object]:
        found = read_journal(self.path)
        assert found is not None
        return [entry.event for entry in found[1]]


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE))


ONE = JobConfig(job_id="job")
TWO = JobConfig(job_id="job", min_nodes=2, max_nodes=2)


def test_a_session_is_what_the_server_gives() -> None:
    async def main() -> None:
        session: Session = FakeSession(1)
        session.close()

    run(main())


def test_an_agent_is_welcomed_and_told_to_start(tmp_path: Path) -> None:
    async def main() -> None:
        session = Bench(tmp_path, ONE).attach("a")
        assert [type(message) for message in session.sent] == [Welcome, StartRound]

    run(main())


def test_a_master_that_replays_its_journal_knows_what_was_leased(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session = bench.attach("a")
        reader = DataReader(0, 0, "data", "x", 0)
        bench.hear(session, OpenData("a-1", reader, 1, "plan", 8, 1, 60.0))
        bench.hear(session, AskData("a-1", reader, 2, wanted=2))
        first = session.last()
        found = read_journal(bench.path)
        assert found is not None
        bench.machine = bench.loop._machine = replay(bench.path, *found)
        bench.hear(session, AskData("a-1", reader, 2, wanted=2))
        assert session.last() == first, "asked again, it says the same"
        bench.hear(session, AskData("a-1", reader, 3, wanted=9))
        answers = [each for each in session.sent if isinstance(each, DataAnswer)]
        assert [[it.piece.place for it in each.leases] for each in answers] == [[], [0, 1], [0, 1], [2, 3, 4]]

    run(main())


def test_an_event_is_on_disk_before_anybody_hears_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        seen: list[int] = []

        class Watching(FakeSession):
            def send(self, message: MasterMessage) -> None:
                seen.append(len(bench.journaled))

        info = NodeInfo("a", "a-1", "host", "address", 1)
        hello = Hello("job", __version__, info, AgentStatus(0, AgentPhase.READY))
        bench.loop.attached(Watching(1), hello)
        bench.loop.flush()
        assert seen == [2, 2]
        assert [type(event) for event in bench.journaled] == [MasterStarted, Attached]

    run(main())


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is handed to the kernel for the journal, write by write."""
    seen: list[bytes] = []
    write_all = journal_module._write_all

    def note(fd: int, data: bytes) -> None:
        seen.append(data)
        write_all(fd, data)

    monkeypatch.setattr(journal_module, "_write_all", note)
    return seen


def test_the_events_of_one_turn_are_one_write_and_then_their_effects_leave(
    tmp_path: Path, writes: list[bytes]
) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        writes.clear()
        sessions = [bench.come(name) for name in "ab"]
        bench.loop.received(sessions[0], Heartbeat("a-1"))
        assert [session.sent for session in sessions] == [[], []] and writes == []
        await sessions[1].until(StartRound)
        assert [write.count(b"\n") for write in writes] == [2]
        assert [[type(message) for message in session.sent] for session in sessions] == [
            [Welcome, StartRound],
            [Welcome, StartRound],
        ]
        bench.loop.flush()  # there is nothing left to do
        assert len(writes) == 1

    run(main())


@pytest.mark.parametrize("bound", ["BATCH_BYTES", "BATCH_EVENTS", "BATCH_EFFECTS"])
def test_a_batch_that_is_large_enough_does_not_wait_for_the_end_of_the_turn(
    tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, bound, 3)

    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", min_nodes=4, max_nodes=4))
        session = bench.come("a")
        for name in "bc":
            bench.come(name)
        assert [type(message) for message in session.sent] == [Welcome]
        assert bench.journaled[-1] is not None and len(bench.journaled) > 1

    run(main())


def test_copies_have_the_whole_batch_before_its_effects_leave(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", min_nodes=9, max_nodes=9))
        keeper = bench.attach("keeper", position=1)
        await bench.lookups()
        copied: list[int] = []

        class Watching(FakeSession):
            def send(self, message: MasterMessage) -> None:
                copied.append(keeper.copied)

        before = keeper.copied
        for number in range(100, 400):  # each asks for the name of the first
            bench.come("a", life="x" * 1000 + str(number), session=Watching(number))
        assert (copied, keeper.copied) == ([], before)
        bench.loop.flush()
        assert set(copied) == {before + 300} == {bench.path.read_bytes().count(b"\n")}

    run(main())


def test_without_a_token_nobody_gets_a_copy(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, CAUTIOUS)
        bench.attach("a")
        keeper = bench.attach("keeper", position=1)
        await bench.lookups()
        copies = [message for message in keeper.sent if isinstance(message, JournalCopy)]
        assert [len(copy.lines) for copy in copies] == [2] and copies[0].whole == 2
        path = tmp_path / "copy.jsonl"
        path.write_text("".join(f"{line}\n" for line in copies[0].lines))
        found = read_journal(path)
        assert found is not None and replay(path, *found).state.key == KEY
        bench.attach("b")
        assert keeper.copied == 2, "nobody is told what agents say"

    run(main())


@pytest.mark.parametrize(
    ("life", "trust", "begun", "given"),
    [
        ("2", Trust.STRANGER, False, False),  # another one was there first
        ("2", Trust.RETURNING, True, False),
        ("1", Trust.STRANGER, True, False),  # who says so
        ("1", Trust.RETURNING, True, True),
    ],
)
def test_without_a_token_only_the_first_agent_of_a_listed_host_gets_the_key(
    tmp_path: Path, life: str, trust: Trust, begun: bool, given: bool
) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, replace(CAUTIOUS, min_nodes=1, max_nodes=2))
        first = bench.attach("keeper", AgentPhase.PREPARING, position=1)
        await bench.lookups()
        assert first.copied == 2
        bench.lose(first)
        if begun:
            bench.attach("a")
        again = bench.come("keeper", AgentPhase.PREPARING, life, position=1, trust=trust)
        bench.loop.flush()
        await bench.lookups()
        assert again.copied == (2 if given else 0)

    run(main())


def test_after_the_first_round_the_key_is_for_nobody_new(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, replace(CAUTIOUS, min_nodes=1, max_nodes=1))
        bench.attach("a")
        late = bench.attach("keeper", position=1)
        await bench.lookups()
        assert late.copied == 0

    run(main())


def test_who_is_dropped_in_the_turn_in_which_it_came_gets_no_copy(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", min_nodes=9, max_nodes=9))
        first = bench.come("keeper", position=1)
        bench.loop.received(first, Leave("keeper-1", "so it is"))
        second = bench.come("keeper", position=1, life="2")
        bench.loop.flush()
        await bench.lookups()
        assert JournalCopy not in {type(message) for message in first.sent}
        assert JournalCopy in {type(message) for message in second.sent}

    run(main())


@pytest.mark.parametrize(
    ("position", "peer", "copies"), [(1, "127.0.0.1:1", 1), (1, "192.0.2.7:1", 0), (2, "127.0.0.1:1", 0)]
)
def test_only_listed_hosts_get_copies(tmp_path: Path, position: int, peer: str, copies: int) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", min_nodes=9, max_nodes=9))
        session = FakeSession(9)
        session.peer = peer
        bench.come("a", position=position, session=session)
        bench.loop.flush()
        await bench.lookups()
        assert [type(message) for message in session.sent] == [Welcome, *[JournalCopy] * copies]

    run(main())


def test_of_several_on_one_place_only_the_last_gets_what_follows(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", min_nodes=9, max_nodes=9))
        first = bench.attach("a", position=1)
        await bench.lookups()
        second = bench.attach("b", position=1)
        await bench.lookups()
        before = first.copied
        bench.attach("c")
        assert (first.copied, second.copied) == (before, before + 1)

    run(main())


def test_a_status_that_says_nothing_new_stays_out_of_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        session = bench.attach("a")
        for sequence in range(1, 100):
            bench.hear(session, Report("a-1", AgentStatus(sequence, AgentPhase.READY, store_port=1)))
        assert [type(event) for event in bench.journaled] == [MasterStarted, Attached]
        bench.hear(session, Report("a-1", AgentStatus(200, AgentPhase.PREPARING)))
        assert type(bench.journaled[-1]) is Reported

    run(main())


def test_a_long_journal_is_compacted_and_copied_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(journal_module, "TAIL", 5000)
        bench = Bench(tmp_path, TWO)
        keeper = bench.attach("keeper", position=1)
        await bench.lookups()
        session = bench.attach("a", AgentPhase.PREPARING)
        for sequence in range(1, 200):
            phase = AgentPhase.PREPARING if sequence % 2 else AgentPhase.CHECKING
            bench.hear(session, Report("a-1", AgentStatus(sequence, phase)))
            bench.loop._compact()
        assert bench.path.stat().st_size < 40_000
        found = read_journal(bench.path)
        assert found is not None and isinstance(found[1][0].event, Snapshot)
        restored = replay(bench.path, *found)
        assert difference(fingerprint(bench.machine.state), fingerprint(restored.state)) == ""
        copies = [message for message in keeper.sent if isinstance(message, JournalCopy)]
        starts = [number for number, message in enumerate(copies) if message.first == 0]
        assert len(starts) > 1 and copies[starts[-1]].whole == 2
        while sum(len(copy.lines) for copy in copies[starts[-1] :]) < bench.path.read_bytes().count(b"\n"):
            keeper.told.clear()
            await keeper.told.wait()
            copies = [message for message in keeper.sent if isinstance(message, JournalCopy)]

    run(main())


def test_a_disk_without_room_for_a_snapshot_leaves_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def main() -> None:
        monkeypatch.setattr(journal_module, "TAIL", 100)
        monkeypatch.setattr(Path, "replace", full)
        bench = Bench(tmp_path, TWO)
        bench.attach("a")
        bench.loop._compact()
        bench.attach("b")
        kinds = [Attached, Attached]
        assert [type(event) for event in bench.journaled if isinstance(event, Attached)] == kinds

    run(main())
    assert not list(tmp_path.glob("*.draft"))
    assert "cannot be compacted (No space left on device)" in caplog.text


def test_a_bug_with_one_agent_takes_no_effect_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeSession):
        def send(self, message: MasterMessage) -> None:
            raise RuntimeError("a bug")

    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        bench.come("a", session=Broken(100))
        session = bench.come("b")
        bench.loop.flush()
        assert [type(message) for message in session.sent] == [Welcome, StartRound]

    run(main())
    assert "RuntimeError: a bug" in caplog.text


def test_what_expires_while_a_batch_is_collected_expires_now(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", min_nodes=2, waiting_notice_interval=10.0))
        session = bench.attach("a")
        session.sent.clear()
        bench.loop.received(session, Heartbeat("a-1"))
        bench.clock.time += 25.0  # the process stood still
        bench.loop._expire()
        assert len(session.sent) == 1

    run(main())


def test_a_deadline_that_is_nearer_than_the_last_one_is_not_late(tmp_path: Path) -> None:
    async def main() -> None:
        config = JobConfig(join_timeout=1e4, heartbeat_timeout=1e4, waiting_notice_interval=1e4)
        bench = Bench(tmp_path, config)
        bench.attach("a")
        await bench.attach("spare").until(Waiting)

    run(main())


def test_heartbeats_stay_out_of_the_journal_and_move_the_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        session = bench.attach("a")
        before = bench.journaled
        bench.clock.time += 29.0
        bench.hear(session, Heartbeat("a-1"))
        bench.clock.time += 29.0
        assert Expired("heartbeat", "a") not in bench.machine.due(bench.clock.time)
        assert bench.journaled == before

    run(main())


def test_deadlines_come_one_after_the_other_and_are_journaled(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(min_nodes=2, max_nodes=2, waiting_notice_interval=0.01))
        session = bench.attach("a")
        bench.clock.time += 40.0  # past the notice and past the heartbeat, which real time never reaches
        bench.attach("b", AgentPhase.PREPARING)
        while not session.closed:
            session.told.clear()
            await session.told.wait()
        assert Expired("heartbeat", "a") in bench.journaled
        assert Expired("notice") in bench.journaled

    run(main())


def test_waiting_agents_hear_again_and_again_who_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(min_nodes=2, max_nodes=2, waiting_notice_interval=0.01))
        session = bench.attach("a")
        for _ in range(3):
            bench.clock.time += 0.02
            bench.hear(session, Heartbeat("a-1"))  # arms the timer by the clock's new time
            await session.until(Waiting)
            session.sent.clear()

    run(main())


def test_a_clock_that_lags_behind_the_timer_only_delays(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(min_nodes=2, max_nodes=2, waiting_notice_interval=0.01))
        session = bench.attach("a")
        fired = asyncio.Event()
        due = bench.machine.due

        def look(now: float) -> list[Expired]:
            found = due(now)
            bench.clock.time += 0.02
            if not found:
                fired.set()
            return found

        bench.machine.due = look  # type: ignore[method-assign]
        await fired.wait()  # the timer came, the deadline had not
        await session.until(Waiting)

    run(main())


def test_an_agent_under_a_name_in_use_hears_why_and_is_hung_up_on(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        old = bench.attach("a")
        new = bench.attach("a", life="2")
        farewell = new.last()
        assert isinstance(farewell, Rejected)
        assert farewell.code is RejectCode.NAME_IN_USE
        assert new.closed and not old.closed

    run(main())


def test_a_lost_agent_is_hung_up_on_without_a_word(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        session = bench.attach("a")
        session.sent.clear()
        bench.hear(session, Leave("a-1", "told to"))
        assert (session.sent, session.closed) == ([], True)
        bench.lose(session, "ended")
        assert bench.journaled[-1] == Detached(session.id, "ended")

    run(main())


def test_the_master_ends_when_the_job_has_and_the_last_agent_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        sessions = {node: bench.attach(node) for node in "ab"}
        for node, session in sessions.items():
            bench.report(session, node, 1, AgentPhase.RUNNING, 0)
        for node, session in sessions.items():
            bench.report(session, node, 2, AgentPhase.FINISHED, 0)
        for session in sessions.values():
            ended = session.last()
            assert isinstance(ended, JobEnded)
            assert ended.outcome is Outcome.SUCCEEDED
        assert not bench.loop.done.is_set()
        bench.lose(sessions["a"], "ended")
        assert not bench.loop.done.is_set()
        bench.lose(sessions["b"], "ended")
        assert bench.loop.done.is_set()

    run(main())


def test_an_agent_that_does_not_go_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAREWELL_TIMEOUT", 0.01)

    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session = bench.attach("a")
        bench.report(session, "a", 1, AgentPhase.RUNNING, 0)
        bench.report(session, "a", 2, AgentPhase.FINISHED, 0)
        await bench.loop.done.wait()

    run(main())


def test_the_host_may_go_while_others_are_attached(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        session = bench.attach("a")
        bench.loop.host_gone()
        assert not bench.loop.done.is_set()
        bench.lose(session, "broke")
        assert bench.loop.done.is_set()

    run(main())


def test_a_host_that_goes_alone_takes_the_master_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        bench.loop.host_gone()
        assert bench.loop.done.is_set()

    run(main())


def test_a_job_goes_on_without_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        monkeypatch.setattr(journal_module, "_write_all", full)
        session = bench.attach("a")
        bench.report(session, "a", 1, AgentPhase.RUNNING, 0)
        bench.report(session, "a", 2, AgentPhase.FINISHED, 0)
        assert isinstance(session.last(), JobEnded)

    run(main())
    complaints = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(complaints) == 1
    assert "No space left on device" in complaints[0]
    assert "the job goes on" in complaints[0]


def test_decisions_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elasticrun")

    async def main() -> None:
        Bench(tmp_path, ONE).attach("a")

    run(main())
    texts = [record.getMessage() for record in caplog.records]
    assert sum("round 0 starts with a" in text for text in texts) == 1


# -- orders


def test_an_order_is_on_disk_and_known_to_the_next_master(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", max_nodes=4))
        bench.attach("a")
        assert bench.loop.order(ScaleJob(1, 2)) == ControlReply(True, "the job now wants 1 to 2 nodes")
        assert bench.loop.order(DrainNode("a", "its disk fails")).ok
        assert {ScaleJob(1, 2), DrainNode("a", "its disk fails")} < set(bench.journaled)

    run(main())


def test_an_order_that_cannot_be_obeyed_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", max_nodes=4, node_unit=2))
        bench.attach("a")
        before = fingerprint(bench.machine.state)
        for order, words in (
            (DrainNode("b", ""), "there is no node 'b'; the nodes are: a"),
            (ScaleJob(3, 3), "no multiple of 2 (--node-unit) lies in 3:3"),
        ):
            reply = bench.loop.order(order)
            assert not reply.ok and reply.text == words
        assert difference(before, fingerprint(bench.machine.state)) == ""
        assert bench.journaled[-2:] == [DrainNode("b", ""), ScaleJob(3, 3)]

    run(main())


def test_a_cordon_is_lifted_from_the_node_that_was_named_though_it_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, JobConfig(job_id="job", max_nodes=4))
        bench.attach("gpu10")
        bench.machine.state.cordoned |= dict.fromkeys(("gpu1", "gpu10"), "cordoned")
        reply = bench.loop.order(UncordonNode("gpu1"))
        assert reply == ControlReply(True, "gpu1 may be chosen for the next world again")
        assert list(bench.machine.state.cordoned) == ["gpu10"]

    run(main())


def cluster(bench: Bench) -> tuple[FakeSession, StartRound]:
    """A node that runs a chief, a worker and two parameter servers, and what it was told to run."""
    roles = (TaskRole.CHIEF, TaskRole.WORKER, TaskRole.PS, TaskRole.PS)
    session = FakeSession(1)
    ports = tuple(range(7001, 7007))
    status = AgentStatus(0, AgentPhase.READY, store_port=1, ports=ports)
    bench.loop.attached(
        session, Hello("job", __version__, NodeInfo("a", "a-1", "host", "address", 4, roles=roles), status)
    )
    bench.loop.flush()
    start = session.last()
    assert isinstance(start, StartRound)
    running = AgentStatus(
        1, AgentPhase.RUNNING, 0, ports=ports, tasks=tuple(TaskReport(n, 0) for n in range(4))
    )
    bench.hear(session, Report("a-1", running))
    return session, start


def test_a_role_is_scaled_on_disk_and_at_the_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session, start = cluster(bench)
        reply = bench.loop.order(ScaleRole(TaskRole.PS, 3))
        assert reply == ControlReply(
            True,
            "ps: 2 -> 3: ps 2 starts now, the chief saves its state and starts again; all others go on",
        )
        assert ScaleRole(TaskRole.PS, 3) in bench.journaled
        told = session.last()
        assert isinstance(told, StartRound) and told.assignment.round == start.assignment.round
        assert Task(4, TaskRole.PS, 2, port=7005) in told.assignment.tasks
        assert dict(told.assignment.cluster)[TaskRole.PS][2] == "address:7005"

    run(main())


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (ScaleRole(TaskRole.PS, 2), "the job has ps=2 already; give another number"),
        (ScaleRole(TaskRole.PS, 9), "the nodes hold free ports for 2 more of ps: give at most ps=4"),
        (ScaleRole(TaskRole.CHIEF, 2), "a cluster has one chief at most"),
    ],
)
def test_a_role_that_cannot_be_scaled_so_changes_nothing(
    tmp_path: Path, order: ScaleRole, words: str
) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session, start = cluster(bench)
        before = fingerprint(bench.machine.state)
        reply = bench.loop.order(order)
        assert not reply.ok and reply.text.startswith(words)
        assert difference(before, fingerprint(bench.machine.state)) == ""
        assert session.last() == start

    run(main())


def shown_lines(bench: Bench) -> list[str]:
    """What an operator is shown."""
    status = bench.loop.order(ShowStatus()).status
    assert status is not None
    return status_in_words(status).splitlines()


def test_the_status_shows_the_tasks(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        cluster(bench)
        lines = shown_lines(bench)
        assert lines[1:4] == [
            "  a: node 0, running",
            "    chief 0 at address:7001: attempt 0, running",
            "    worker 0 at address:7002: attempt 0, running",
        ]

    run(main())


def test_a_brief_status_comes_once_its_mark_is_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        bench, feed = Bench(tmp_path, ONE), Feed()
        bench.loop._feed = feed

        async def ask(after: str, wait: float) -> JobStatus:
            reply = await bench.loop.answer(AwaitStatus(after, wait))
            assert reply.status is not None and reply.status.nodes == ()
            return reply.status

        session = bench.attach("a")
        first = await ask("", 25.0)
        assert (first.world, first.workers, first.unlisted, first.round) == (1, 1, 1, 0)
        assert await ask(first.mark, 0.0) == first
        waiting = asyncio.ensure_future(ask(first.mark, 25.0))

        def end() -> None:
            bench.report(session, "a", 1, AgentPhase.RUNNING, 0)
            bench.report(session, "a", 2, AgentPhase.FINISHED, 0)
            feed.wake()
            feed.close()

        asyncio.get_running_loop().call_soon(end)
        assert (await waiting).phase is JobPhase.SUCCEEDED

    run(main())


def test_the_status_shows_what_tasks_use_and_no_journal_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session, _ = cluster(bench)
        before = bench.journaled

        def shown() -> list[str]:
            lines = shown_lines(bench)
            return [line.rpartition("; ")[2] for line in lines if "cores" in line]

        for cores in (2.0, 0.5):
            bench.hear(session, Heartbeat("a-1", (TaskUsage(0, cores), TaskUsage(2, 0.25))))
        assert shown() == [
            "0.50 cores",
            "0.25 cores",
            "  chief, 1 task: 0.50 cores",
            "  ps, 1 task: 0.25 cores",
        ]
        bench.hear(session, Heartbeat("a-1"))
        assert shown() == [], "nothing is known any more"
        bench.hear(session, Heartbeat("a-1", (TaskUsage(0, 1.0),)))
        assert bench.journaled == before
        bench.lose(session)
        assert bench.loop._usage == {}

    run(main())


def test_the_status_has_the_most_that_any_node_of_a_role_used() -> None:
    figures, told = NodeFigures(1.5, 8, 3 << 30, 16 << 30, 0.0, 0.0), Figures()
    ps = NodeInfo("b", "i", "h", "a", 1, roles=(TaskRole.PS,))
    spot = NodeInfo("a", "i", "h", "a", 1, role="spot")
    for info, cpu in ((ps, 1.0), (spot, 3.0), (ps, 2.0), (spot, 0.5), (None, 9.0)):
        told.take(1, info, replace(figures, cpu=cpu))
    status = told.added(JobStatus("job", JobPhase.RUNNING, 0, 1, 1, 0, 0))
    assert {it.role: it.peak.cpu for it in status.role_peaks} == {"ps": 2.0, "spot": 3.0}
    for number in range(20):  # whoever may speak to the master may name any role
        told.take(1, replace(spot, role=f"r{number}"), figures)
    assert len(told.added(status).role_peaks) == MAX_PEAKS


def test_the_status_has_the_most_that_any_node_used(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session, _ = cluster(bench)
        figures = NodeFigures(1.5, 8, 3 << 30, 16 << 30, 0.0, 0.0)
        for each in (figures, replace(figures, cpu=0.5, memory=4 << 30)):
            bench.hear(session, Heartbeat("a-1", figures=each))
        bench.hear(session, Heartbeat("a-1"))
        bench.lose(session)
        for question in (ShowStatus(), AwaitStatus("", 0.0)):
            status = bench.loop.order(question).status
            assert status is not None and status.peak == UsagePeak(1.5, 4 << 30, 8, 16 << 30)
            assert all(node.figures is None for node in status.nodes)

    run(main())


def test_questions_are_answered_and_orders_declined_after_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, ONE)
        session = bench.attach("a")
        assert bench.loop.order(SaveAllStacks()).text.startswith("1 ")
        assert session.last() == SaveStacks(1)
        assert bench.journaled[-1] == SaveAllStacks()
        bench.report(session, "a", 1, AgentPhase.RUNNING, 0)
        bench.report(session, "a", 2, AgentPhase.FINISHED, 0)
        assert bench.loop.order(ShowStatus()).ok
        for order in (DrainNode("a", ""), ScaleJob(1, 1), SaveAllStacks()):
            reply = bench.loop.order(order)
            assert not reply.ok and reply.text.startswith("the job has ended: ")

    run(main())


HELLO = Hello("job", "1", NodeInfo("a", "i", "host", "address", 1), AgentStatus(0, AgentPhase.READY))


def test_who_is_admitted() -> None:
    assert admit(HELLO, "job") is None
    rejected = admit(HELLO, "other")
    assert rejected is not None and rejected.code is RejectCode.WRONG_JOB
    assert "serves the job 'other', not 'job'" in rejected.message


def test_strangers_cannot_make_the_master_keep_what_they_say(tmp_path: Path) -> None:
    """Whose words are of no consequence costs a few kilobytes, however much he says."""

    async def main() -> None:
        bench = Bench(tmp_path, TWO)
        said = Failure("a", "h", 0, 0, "default", 1, FailureKind.EXIT, 1, traceback="t" * 9_000)
        for number in range(100):
            stranger = bench.attach(f"n{number}", AgentPhase.PREPARING)
            votes = (Vote(World(1, 1, 64), None, tuple(f"{number}.{n}" for n in range(64))),)
            failures = tuple(replace(said, node=f"n{number}", rank=rank) for rank in range(8))
            probe = ProbeReport(number, "e" * 9_000)
            told = AgentStatus(2, AgentPhase.PREPARING, 1, failures, probe=probe, votes=votes)
            bench.hear(stranger, Report(f"n{number}-1", told))
            bench.hear(stranger, Heartbeat(f"n{number}-1", (TaskUsage(0, 1.0),)))
        kept = [node.status for node in bench.machine.state.members.nodes.values()]
        assert kept == [
            AgentStatus(2, AgentPhase.PREPARING, 1, probe=ProbeReport(number)) for number in range(100)
        ]
        assert bench.loop._usage == {}
        assert bench.path.stat().st_size < 200_000

    run(main())


def test_of_the_votes_of_a_node_outside_of_the_round_names_are_kept_as_far_as_there_is_room() -> None:
    members = [tuple(f"{number}.{n:0250}" for n in range(16)) for number in range(8)]
    votes = tuple(Vote(World(n, 1, 16), None, members) for n, members in enumerate(members))
    status = AgentStatus(1, AgentPhase.READY, 7, votes=votes)
    kept = heeded(status, in_round=False, is_probed=False, needs_votes=True).votes
    assert [vote.world for vote in kept] == [vote.world for vote in votes]
    assert [bool(vote.members) for vote in kept] == [False] * 6 + [True] * 2
    assert heeded(status, in_round=True, is_probed=False, needs_votes=True) == status
    probe = ProbeReport(3, "no GPU")
    checked = replace(status, probe=probe)
    assert heeded(checked, in_round=False, is_probed=True, needs_votes=True).probe == probe
