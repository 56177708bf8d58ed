"""One master process, or several after each other, over one state directory."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun import __version__
from elasticrun.config import Endpoint, JobConfig, TaskRole
from elasticrun.core.job.events import (
    Attached,
    Beat,
    Detached,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.membership.quorum import Quorum
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Failure,
    FailureKind,
    Heartbeat,
    Hello,
    JournalCopy,
    Leave,
    NodeInfo,
    Report,
    StartRound,
    Vote,
    World,
)
from elasticrun.core.protocol.orders import DrainNode, ScaleJob, ScaleRole
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.errors import EndpointTakenError, NameInUseError, UsageError
from elasticrun.master.feed import Feed
from elasticrun.master.journal import Entry, create_journal, read_journal, resume_journal
from elasticrun.master.loop import MasterLoop
from elasticrun.master.service import (
    JOURNAL_NAME,
    MasterConfig,
    SteppedDownError,
    adopt,
    first_epoch,
    recover,
    serve,
)
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.security.tickets import Tickets
from tests.master.journals import append
from tests.support.processes import DEADLINE

JOB = JobConfig(job_id="job", min_nodes=1, max_nodes=2, last_call_timeout=0.5)
T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, DEADLINE))


FAILURE = Failure("a", "host", 0, 0, "default", 1, FailureKind.EXIT, 1)


def info(node: str, incarnation: str = "i") -> NodeInfo:
    return NodeInfo(node, f"{node}-{incarnation}", "host", "address", 1)


def status(sequence: int, phase: AgentPhase, round_: int = -1, failed: bool = False) -> AgentStatus:
    return AgentStatus(sequence, phase, round_, (FAILURE,) if failed else (), 1234)


def hello(node: str, state: AgentStatus, incarnation: str = "i", epoch: int = -1) -> Hello:
    return Hello("job", __version__, info(node, incarnation), state, epoch)


def plain(value: object) -> Any:
    """A machine, or any part of one, as values that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "_due"):
        return dict(value._due)
    if type(value).__module__.startswith("elasticrun.core") and hasattr(value, "__dict__"):
        return {key: plain(item) for key, item in vars(value).items() if key != "_effects"}
    return value


# -- replay

STEPS = (
    "attach",
    "restart agent",
    "report",
    "beat",
    "leave",
    "detach",
    "drain",
    "scale",
    "scale role",
    "wait",
    "master",
)
#: Of a TensorFlow job: no other node than the first makes a cluster alone.
ROLES = ((TaskRole.CHIEF, TaskRole.WORKER, TaskRole.PS), (TaskRole.WORKER,), (TaskRole.EVALUATOR,))
Step = tuple[str, int, AgentPhase, int, bool, float]
steps = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.integers(0, 2),
        st.sampled_from(AgentPhase),
        st.integers(-1, 1),  # how far the agent's round is from the newest one
        st.booleans(),
        st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]),
    ),
    max_size=40,
)


class Life:
    """Three agents that do anything, of a TensorFlow job or none, a live master, and its journal."""

    def __init__(self, path: Path, config: JobConfig, is_tensorflow: bool) -> None:
        self.is_tensorflow = is_tensorflow
        self.machine = JobMachine(config)
        self.journal = create_journal(path, config)
        self.now = 0.0
        self.sessions = 0
        self.sequence = 0
        self.lives = [0, 0, 0]
        self.last_session = [0, 0, 0]
        self.feed(MasterStarted(1))

    def feed(self, event: JobEvent) -> None:
        if not isinstance(event, Beat):
            append(self.journal, Entry(self.now, event))
        self.machine.handle(event, self.now)

    def step(self, step: Step) -> None:
        what, which, phase, lag, failed, seconds = step
        self.now += seconds
        while due := self.machine.due(self.now):
            for event in due:
                self.feed(event)
        self.sequence += 1
        state = status(self.sequence, phase, max(-1, self.machine.state.round + lag), failed)
        if self.is_tensorflow:
            reports = (TaskReport(0, 0), TaskReport(2, which, failed, FAILURE if failed else None))
            state = replace(state, ports=(1, 2, 3, 4, 5), tasks=reports, failures=())
        session = self.last_session[which]
        if what == "restart agent":
            self.lives[which] += 1
        if what in ("attach", "restart agent"):
            self.sessions += 1
            self.last_session[which] = self.sessions
            said = hello("abc"[which], state, str(self.lives[which]))
            roles = ROLES[which] if self.is_tensorflow else ()
            self.feed(Attached(self.sessions, replace(said, info=replace(said.info, roles=roles))))
        elif what == "master":
            self.feed(MasterStarted(self.machine.state.epoch + 1))
        elif what != "wait":
            kinds: dict[str, Callable[[], JobEvent]] = {
                "report": lambda: Reported(session, state),
                "beat": lambda: Beat(session),
                "leave": lambda: Left(session, "told to"),
                "detach": lambda: Detached(session, "broke"),
                "drain": lambda: DrainNode("abc"[which], "an order"),
                "scale": lambda: ScaleJob(1, 1 + which),
                "scale role": lambda: ScaleRole(TaskRole.PS if failed else TaskRole.WORKER, 1 + which),
            }
            self.feed(kinds[what]())


@settings(deadline=None, max_examples=300)
@given(steps, st.integers(1, 2), st.integers(0, 2), st.booleans())
def test_a_replay_gives_the_state_of_the_living(
    some: list[Step], low: int, restarts: int, is_tensorflow: bool
) -> None:
    config = JobConfig("job", low, 2, max_restarts=restarts, last_call_timeout=0.5, join_timeout=20.0)
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory, JOURNAL_NAME), config, is_tensorflow)
        for step in some:
            life.step(step)
        life.journal.close()
        machine, journal, clock, _ = recover(Path(directory, JOURNAL_NAME), config, resume=True)
        journal.close()
        assert clock.now() >= (read_journal(Path(directory, JOURNAL_NAME)) or (config, []))[1][-1].at
    # Heartbeats are not in the journal; a master that starts forgets whose was due when.
    for each in (machine, life.machine):
        each.handle(MasterStarted(life.machine.state.epoch + 1), life.now)
    assert plain(machine.state) == plain(life.machine.state)


# -- recovery


def test_three_restarts_grow_the_epoch_and_the_clock(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    at = 0.0
    for epoch in range(1, 5):
        machine, journal, clock, _ = recover(path, JOB, resume=False)
        assert machine.state.epoch == epoch - 1
        assert clock.now() >= at
        at = clock.now() + 1000.0
        machine.handle(MasterStarted(machine.state.epoch + 1), at)
        append(journal, Entry(at, MasterStarted(machine.state.epoch)))
        journal.close()


def ended_job(path: Path, config: JobConfig) -> None:
    """Leave the journal of a job that has succeeded, after a thousand seconds."""
    journal = create_journal(path, config)
    for event in (
        MasterStarted(1),
        Attached(1, hello("a", status(0, AgentPhase.READY))),
        Reported(1, status(1, AgentPhase.RUNNING, 0)),
        Reported(1, status(2, AgentPhase.FINISHED, 0)),
    ):
        append(journal, Entry(1000.0, event))
    journal.close()


ONE_NODE = JobConfig(job_id="job")


def test_who_watches_a_new_job_hears_nothing_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    ended_job(path, ONE_NODE)
    feed = Feed()
    _, journal, _, chronicle = recover(path, ONE_NODE, resume=False, feed=feed)
    assert asyncio.run(feed.watch("", 0.0)).lines == ()
    chronicle.close()
    journal.close()


def test_a_job_that_has_ended_is_resumed_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    ended_job(path, ONE_NODE)
    machine, journal, _, _ = recover(path, ONE_NODE, resume=True)
    journal.close()
    assert machine.state.phase is JobPhase.SUCCEEDED
    machine, journal, clock, _ = recover(path, ONE_NODE, resume=False)
    journal.close()
    assert (machine.state.phase, machine.state.epoch) == (JobPhase.GATHERING, 0)
    assert clock.now() < 1000.0
    assert read_journal(path) == (ONE_NODE, [])


def test_an_event_log_may_lie_beside_other_logs_and_gets_what_the_journal_tells(tmp_path: Path) -> None:
    path, run_dir = tmp_path / "state" / JOURNAL_NAME, tmp_path / "run"
    path.parent.mkdir()
    run_dir.mkdir()
    ended_job(path, ONE_NODE)
    _, journal, _, chronicle = recover(path, ONE_NODE, resume=True, log_path=run_dir / "events.jsonl")
    journal.close()
    chronicle.close()
    assert "job_ended" in (run_dir / "events.jsonl").read_text()
    assert [each.name for each in path.parent.iterdir()] == [JOURNAL_NAME]


def another(**changes: object) -> JobConfig:
    return dataclasses.replace(JOB, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "resume", "anew"),
    [
        (another(max_restarts=5), False, False),
        (another(job_id="another"), False, False),
        (another(job_id="another"), True, False),
        (JOB, False, True),
    ],
)
def test_another_job_starts_anew(tmp_path: Path, other: JobConfig, resume: bool, anew: bool) -> None:
    path = tmp_path / JOURNAL_NAME
    append(create_journal(path, JOB), Entry(1.0, MasterStarted(7)))
    machine, journal, _, _ = recover(path, other, resume, anew)
    journal.close()
    assert (machine.state.config, machine.state.epoch) == (other, 0)
    assert read_journal(tmp_path / "journal.1.jsonl") == (JOB, [Entry(1.0, MasterStarted(7))])


def test_an_agent_with_other_options_resumes_the_job_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    append(create_journal(path, JOB), Entry(1.0, MasterStarted(7)))
    machine, journal, _, _ = recover(path, another(max_restarts=5), resume=True)
    journal.close()
    assert (machine.state.config, machine.state.epoch) == (JOB, 7)


# -- serving


class Master:
    """A master in this process, and the switch that ends it."""

    def __init__(self, directory: Path, job: JobConfig = JOB, port: int = 0, resume: bool = False) -> None:
        self.loop: MasterLoop | None = None
        running = asyncio.get_running_loop()
        self._ready: asyncio.Future[int] = running.create_future()
        config = MasterConfig(job, "127.0.0.1", port, str(directory), resume=resume)
        self.task = running.create_task(serve(config, self._ready.set_result, self._watch))

    def _watch(self, loop: MasterLoop) -> None:
        self.loop = loop

    async def endpoint(self) -> Endpoint:
        await asyncio.wait((self._ready, self.task), return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            self.task.result()
        return Endpoint("127.0.0.1", self._ready.result())

    async def host_leaves(self) -> None:
        assert self.loop is not None
        self.loop.host_gone()
        await self.task


async def next_round(stream: MasterStream) -> StartRound:
    while not isinstance(message := await anext(stream), StartRound):
        pass
    return message


def test_a_job_from_hello_to_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        master = Master(tmp_path, ONE_NODE)
        stream = await MasterStream.open(
            await master.endpoint(), hello("a", status(0, AgentPhase.READY)), DEADLINE
        )
        assert stream.welcome.epoch == 1
        round_ = await next_round(stream)
        stream.send(Heartbeat("a-i"))
        stream.send(Report("a-i", status(1, AgentPhase.RUNNING, round_.assignment.round)))
        stream.send(Report("a-i", status(2, AgentPhase.FINISHED, round_.assignment.round)))
        ended = await anext(stream)
        assert getattr(ended, "outcome", None) is not None
        await stream.close()
        await master.task  # nobody is left, although the host never left

    run(main())


def test_a_job_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    async def main() -> None:
        master = Master(tmp_path, JobConfig(job_id="caf\udce9"))
        said = dataclasses.replace(hello("a", status(0, AgentPhase.READY)), job_id="caf\udce9")
        async with await MasterStream.open(await master.endpoint(), said, DEADLINE):
            pass
        await master.host_leaves()

    run(main())


def test_a_master_that_is_started_again_takes_its_agents_back(tmp_path: Path) -> None:
    async def main() -> None:
        first = Master(tmp_path / "first", ONE_NODE)
        tickets = Tickets()
        greeting = hello("a", status(0, AgentPhase.READY))
        stream = await MasterStream.open(await first.endpoint(), greeting, DEADLINE, tickets=tickets)
        round_ = await next_round(stream)
        # What a master leaves that is killed now: it writes before it speaks, and nothing at the end.
        shutil.copy(tmp_path / "first" / JOURNAL_NAME, tmp_path)
        await stream.close()
        await first.host_leaves()

        second = Master(tmp_path, ONE_NODE)
        again = hello("a", status(1, AgentPhase.RUNNING, round_.assignment.round), epoch=round_.epoch)
        endpoint = await second.endpoint()
        with pytest.raises(NameInUseError):
            await MasterStream.open(endpoint, again, DEADLINE)
        stream = await MasterStream.open(endpoint, again, DEADLINE, tickets=tickets, needs_proof=True)
        assert stream.welcome.epoch == 2
        assert (await next_round(stream)).assignment == round_.assignment
        await stream.close()
        await second.host_leaves()

    run(main())


def test_the_master_outlives_its_host_for_another_agent(tmp_path: Path) -> None:
    async def main() -> None:
        master = Master(tmp_path)
        endpoint = await master.endpoint()
        stream = await MasterStream.open(endpoint, hello("a", status(0, AgentPhase.READY)), DEADLINE)
        assert master.loop is not None
        master.loop.host_gone()
        await next_round(stream)
        stream.send(Leave("a-i", "told to"))
        await stream.close()
        await master.task

    run(main())


def test_a_host_that_leaves_before_anybody_came_ends_the_master(tmp_path: Path) -> None:
    async def main() -> None:
        master = Master(tmp_path)
        await master.endpoint()
        await master.host_leaves()

    run(main())


def test_a_state_directory_has_one_master(tmp_path: Path) -> None:
    async def main() -> None:
        first = Master(tmp_path)
        await first.endpoint()
        with pytest.raises(EndpointTakenError, match="in use by another master; give each job its own"):
            await Master(tmp_path).endpoint()
        await first.host_leaves()
        third = Master(tmp_path)  # the lock went with the first
        await third.endpoint()
        await third.host_leaves()

    run(main())


def test_a_port_in_use_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
            with pytest.raises(EndpointTakenError, match=f"127.0.0.1:{port} is in use"):
                await Master(tmp_path, port=port).endpoint()
        again = Master(tmp_path, port=port)  # neither lock nor port stayed behind
        await again.endpoint()
        await again.host_leaves()

    run(main())


def test_an_address_of_another_host_is_refused_in_a_sentence(tmp_path: Path) -> None:
    config = MasterConfig(JOB, "192.0.2.1", 29400, str(tmp_path))
    with pytest.raises(UsageError, match=r"the master cannot listen on 192\.0\.2\.1 port 29400: "):
        run(serve(config, lambda port: None, lambda loop: None))


def test_a_state_directory_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    config = MasterConfig(JOB, "127.0.0.1", 0, str(tmp_path / "state"))
    with pytest.raises(UsageError, match=r"cannot use the state directory .*; name a writable --state-dir"):
        run(serve(config, lambda port: None, lambda loop: None))


def test_a_disk_without_locks_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    config = MasterConfig(JOB, "127.0.0.1", 0, str(tmp_path))
    with pytest.raises(UsageError, match=r"cannot be locked \(No locks available\); put --state-dir on a"):
        run(serve(config, lambda port: None, lambda loop: None))


def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(b"no json\n")
    with pytest.raises(UsageError, match=r"line 1 of the master's journal .* is damaged"):
        run(serve(MasterConfig(JOB, "127.0.0.1", 0, str(tmp_path)), lambda port: None, lambda loop: None))
    assert path.read_bytes() == b"no json\n"


# -- several hosts


def written(path: Path, *epochs: int) -> Path:
    journal = create_journal(path, JOB)
    for epoch in epochs:
        append(journal, Entry(0.0, MasterStarted(epoch)))
    journal.close()
    return path


def test_a_newer_copy_takes_the_place_of_the_journal(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", 3)
    assert adopt(written(tmp_path / "copy.jsonl", 2, 4), path)
    assert read_journal(path) == read_journal(tmp_path / "copy.jsonl")
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.glob("journal.*.jsonl"))) == 1, "what was there is kept"


def test_an_older_copy_and_none_at_all_change_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", 5)
    assert not adopt(tmp_path / "copy.jsonl", path)
    running = Attached(1, hello("a", status(1, AgentPhase.RUNNING, 0)))
    append(resume_journal(path), Entry(0.0, running))
    before = path.read_bytes()
    assert not adopt(written(tmp_path / "copy.jsonl", 2, 4), path)
    assert path.read_bytes() == before


def test_a_journal_without_a_round_is_older_than_any_copy(tmp_path: Path) -> None:
    """Its epoch was drawn at random by a master that nobody could follow."""
    path = written(tmp_path / "journal.jsonl", 5)
    append(resume_journal(path), Entry(0.0, Attached(1, hello("a", status(1, AgentPhase.READY)))))
    assert adopt(written(tmp_path / "copy.jsonl", 2), path)


def test_a_damaged_copy_is_of_no_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_text("nonsense\n")
    assert not adopt(copy, tmp_path / "journal.jsonl")
    assert "cannot be used" in caplog.text


def test_a_disk_that_is_full_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, copy = written(tmp_path / "journal.jsonl", 3), written(tmp_path / "copy.jsonl", 2, 4)
    before = path.read_bytes()

    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:-10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        assert not adopt(copy, path)
    assert "No space left on device" in caplog.text
    assert path.read_bytes() == before
    assert set(tmp_path.iterdir()) == {path, copy}
    assert adopt(copy, path), "later there is room again"
    assert path.read_bytes() == copy.read_bytes()


def test_where_a_copy_may_be_without_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert adopt(written(tmp_path / "copy.jsonl", 2), path)
    assert recover(path, JOB, resume=True)[0].state.epoch == 2


def test_the_epochs_of_a_host_are_its_own_and_without_its_own_journal_drawn_anew() -> None:
    assert first_epoch(0, False, 1, 0) == 1
    assert first_epoch(4, True, 2, 0) == 6
    drawn = {first_epoch(4, False, 3, 1) for _ in range(8)}
    assert {epoch % 3 for epoch in drawn} == {1}
    assert len(drawn) > 1
    assert min(drawn) > 4


def test_a_master_that_cannot_lead_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows of a world whose nodes do not come."""
    monkeypatch.setattr(Quorum, "patience", 3.0)  # long enough for the node to come, as it then begins anew
    job = dataclasses.replace(JOB, endpoints=2)
    vote = Vote(World(0, 2, 3), None)
    state = dataclasses.replace(status(0, AgentPhase.READY, 0), votes=(vote,))
    config = MasterConfig(job, "127.0.0.1", 0, str(tmp_path), position=1)

    async def main() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(serve(config, port.set_result, lambda loop: None))
        stream = await MasterStream.open(Endpoint("127.0.0.1", await port), hello("a", state), DEADLINE)
        assert stream.welcome.epoch % 2 == 1
        with pytest.raises(SteppedDownError, match="1 of 3 nodes of the last world is here"):
            await serving
        await stream.close(0.0)

    run(main())


def test_agents_of_other_listed_hosts_get_copies(tmp_path: Path) -> None:
    job = dataclasses.replace(JOB, endpoints=2)
    config = MasterConfig(job, "127.0.0.1", 0, str(tmp_path), hosts=("127.0.0.1", "127.0.0.1"))

    async def main() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(serve(config, port.set_result, lambda loop: None))
        endpoint, state = Endpoint("127.0.0.1", await port), status(0, AgentPhase.READY)
        streams = []
        for position, node in enumerate("abc"):
            said = hello(node, state)
            who = dataclasses.replace(said.info, position=position if position < 2 else -1)
            streams.append(await MasterStream.open(endpoint, dataclasses.replace(said, info=who), DEADLINE))
        while not isinstance(first := await anext(aiter(streams[1])), JournalCopy):
            pass
        assert first.first == 0
        written = (tmp_path / JOURNAL_NAME).read_text().splitlines()
        assert list(first.lines) == written[: len(first.lines)]
        for stream in streams:
            await stream.close(0.0)
        serving.cancel()
        await asyncio.wait((serving,))

    run(main())
