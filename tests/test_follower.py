"""A job followed live: each entry once, through masters that go away, and come back with another memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import pytest

from elasticrun import follower as module
from elasticrun.clock import pause
from elasticrun.control import JobControl
from elasticrun.core.protocol.chronicle import (
    EntriesLost,
    Happening,
    JobEnded,
    LogEntry,
    MasterStarted,
    NodeJoined,
    RoundStarted,
    StepsDone,
)
from elasticrun.core.protocol.orders import Watched
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.errors import (
    ElasticRunError,
    MasterUnreachableError,
    OrderDeclinedError,
    UnauthenticatedError,
    UsageError,
    WrongJobError,
    WrongVersionError,
)
from elasticrun.follower import Follower
from elasticrun.rpc.event_lines import to_line
from elasticrun.rpc.nearby import GoneError

T = TypeVar("T")
AWAY = MasterUnreachableError("nothing answers")
STATUS = JobStatus("job", JobPhase.RUNNING, 0, 1, 1, 0, 3)

STORY: tuple[tuple[int, float, Happening], ...] = (
    (1, 0.0, MasterStarted(1, is_first=True)),
    (2, 1.0, NodeJoined("a", "host", 1, returns=False)),
    (3, 2.0, RoundStarted(0, 1, 1, ("a",), 0, None, "all are ready")),
    (3, 3.0, StepsDone(0, 5, 1.0)),
)
END = (9, 9.0, JobEnded("succeeded", "all workers ended with 0"))


def line(event: int, at: float, told: Happening, wall: float = 1000.0) -> str:
    return to_line(LogEntry(event, at, wall + at, told))


LINES = tuple(line(*each) for each in STORY)
LAST = line(*END)


class Master:
    """Gives one answer after the other; an exception is raised instead."""

    def __init__(self, *answers: Watched | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, float]] = []
        self.connections = 0
        self.is_followed = False
        self.refused = asyncio.Event()

    async def connect(self) -> JobControl:
        self.connections += 1
        return cast(JobControl, self)

    async def watch(self, after: str, wait: float) -> Watched:
        self.asked.append((after, wait))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            self.refused.set()
            raise answer
        return answer

    @property
    def following(self) -> Master:
        return self

    async def follow(self, after: str, wait: float) -> Watched:
        self.is_followed = True
        return await self.watch(after, wait)

    def close(self) -> None:
        self.is_followed = False

    async def status(self) -> JobStatus:
        return STATUS


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def followed(master: Master, patience: float = 60.0) -> Follower:
    async def follow() -> Follower:
        made = Follower(master.connect, patience=patience)
        await made.run()
        return made

    return run(follow())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 0.0)


def test_each_answer_is_taken_and_the_next_one_is_asked_for_after_it() -> None:
    master = Master(Watched("1:2", LINES[:2]), Watched("1:4", LINES[2:]), Watched("1:5", (LAST,)))
    batches: list[tuple[Sequence[LogEntry], Sequence[str]]] = []

    async def follow() -> Follower:
        made = Follower(master.connect, lambda *batch: batches.append(batch))
        await made.run()
        return made

    found = run(follow())
    assert not master.is_followed, "it has hung up"
    assert [after for after, _ in master.asked] == ["", "1:2", "1:4"]
    assert [lines for _, lines in batches] == [list(LINES[:2]), list(LINES[2:]), [LAST]]
    assert [entry.event for entries, _ in batches for entry in entries] == [1, 2, 3, 3, 9]
    assert found.history.outcome == "succeeded" and found.now == 9.0 and not found.history.missed


def test_the_clock_goes_on_while_nothing_happens() -> None:
    master = Master(Watched("1:4", LINES))

    async def follow() -> None:
        made = Follower(master.connect)
        await made.catch_up()
        before = made.now
        moved = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, moved.set)
        await moved.wait()
        assert made.now > before >= 3.0

    run(follow())


def test_the_age_of_what_happened_before_we_came_counts() -> None:
    master = Master(Watched("1:4", LINES), Watched("1:4"))

    async def follow() -> None:
        made = Follower(master.connect, wall_clock=lambda: 1000.0 + 3.0 + 50.0)
        await made.catch_up()
        assert made.now >= 53.0
        await made.catch_up()

    run(follow())


def test_to_catch_up_takes_all_there_is_and_waits_for_nothing() -> None:
    master = Master(Watched("1:2", LINES[:2], more=True), Watched("1:4", LINES[2:]))

    async def follow() -> Follower:
        made = Follower(master.connect)
        await made.catch_up()
        return made

    found = run(follow())
    assert master.asked == [("", 0.0), ("1:2", 0.0)]
    assert found.history.current is not None and found.history.current.step == 5


def test_lines_that_make_no_sense_are_passed_over() -> None:
    other = '{"v": 9, "event": 4, "at": 1.0, "time": 1.0, "kind": "new"}'
    assert followed(Master(Watched("1:9", ("{", other, *LINES, LAST)))).history.restarts == 0
    master = Master(Watched("1:1", ("{",)), Watched("1:2", (LAST,)))
    assert followed(master).history.outcome


def test_a_job_of_which_nobody_is_left_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = GoneError("nobody is there")
    monkeypatch.setattr(module, "GONE_PATIENCE", 1e-9)
    with pytest.raises(GoneError):
        followed(Master(Watched("1:2", LINES[:2]), gone, gone, gone))


def test_who_finds_nobody_waits_anew_after_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that was frozen is killed in the end: its successor is about to come."""
    gone = GoneError("nobody is there")
    monkeypatch.setattr(module, "GONE_PATIENCE", 0.02)

    class Frozen(Master):
        async def watch(self, after: str, wait: float) -> Watched:
            if self.answers[0] is gone:
                await pause(0.05)
            return await super().watch(after, wait)

    answers = (Watched("1:2", LINES[:2]), gone, Watched("1:3", LINES[2:3]), gone, AWAY, gone)
    found = followed(Frozen(*answers, Watched("1:5", (*LINES[3:], LAST))))
    assert found.history.outcome == "succeeded"


def test_a_master_that_is_away_is_found_again() -> None:
    master = Master(Watched("1:2", LINES[:2]), AWAY, AWAY, Watched("1:5", (*LINES[2:], LAST)))
    troubles: list[str] = []

    async def follow() -> Follower:
        made: Follower

        async def connect() -> JobControl:
            troubles.append(made.trouble)
            return await master.connect()

        made = Follower(connect)
        await made.run()
        return made

    found = run(follow())
    assert troubles == ["", "nothing answers", "nothing answers"]
    assert found.trouble == "" and found.history.restarts == 0


def test_one_that_somebody_else_has_heard_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 3600.0)
    master = Master(Watched("1:4", LINES), AWAY, Watched("1:5", (LAST,)))

    async def follow() -> None:
        made = Follower(master.connect)
        following = asyncio.ensure_future(made.run())
        await master.refused.wait()
        await made.catch_up_soon(60.0)
        assert made.history.outcome == "succeeded"
        await following

    run(follow())


def test_one_that_stays_away_is_given_up() -> None:
    with pytest.raises(MasterUnreachableError):
        followed(Master(AWAY, AWAY), patience=0.0)


def test_a_refusal_is_passed_on_at_once() -> None:
    for answers in ((), (Watched("1:2", LINES[:2]),)):
        with pytest.raises(OrderDeclinedError):
            followed(Master(*answers, OrderDeclinedError("no")))


OTHERS = (WrongJobError, WrongVersionError, UnauthenticatedError, UsageError)


@pytest.mark.parametrize("error", OTHERS)
def test_a_job_that_was_heard_is_waited_for_whoever_answers_in_its_place(
    error: type[ElasticRunError],
) -> None:
    other = error("it is another one")
    found = followed(Master(Watched("1:4", LINES), other, AWAY, other, Watched("1:5", (LAST,))))
    assert found.history.outcome == "succeeded" and found.trouble == ""
    with pytest.raises(error):
        followed(Master(Watched("1:4", LINES), other, other), patience=0.0)
    with pytest.raises(error):
        followed(Master(other))


@pytest.mark.parametrize("wall", [1000.0, 5000.0], ids=["from its log", "from its journal"])
def test_what_another_master_tells_again_is_passed_over(wall: float) -> None:
    again = [line(*each, wall) for each in STORY]
    new = line(4, 5.0, MasterStarted(2, is_first=False))
    master = Master(Watched("1:4", LINES), AWAY, Watched("2:6", (*again, new, LAST), missed=True))
    found = followed(master)
    assert found.history.epoch == 2 and len(found.history.rounds) == 1 and len(found.history.steps) == 1
    assert not found.history.missed, "what it told again joins what was known"


def test_even_in_several_answers() -> None:
    master = Master(
        Watched("1:4", LINES),
        Watched("2:2", LINES[:2], missed=True, more=True),
        Watched("2:3", LINES[2:3], more=True),
        Watched("2:5", (LINES[3], LAST)),
    )
    found = followed(master)
    assert len(found.history.rounds) == 1 and len(found.history.steps) == 1 and not found.history.missed


def test_what_is_older_than_all_that_is_known_is_passed_over() -> None:
    master = Master(Watched("1:4", LINES[2:]), Watched("2:5", (*LINES, LAST), missed=True))
    assert len(followed(master).history.rounds) == 1


def test_a_journal_that_lost_events_hides_nothing() -> None:
    """The new master numbers its events from an earlier one on."""
    lost, joined = line(2, 4.0, EntriesLost(0)), line(3, 5.0, NodeJoined("b", "host", 1, returns=False))
    master = Master(Watched("1:4", LINES), Watched("2:5", (*LINES[:2], lost, joined, LAST), missed=True))
    found = followed(master)
    assert set(found.history.nodes) == {"a", "b"} and found.history.missed


def test_another_master_without_a_memory_of_before_has_missed_some() -> None:
    master = Master(Watched("1:4", LINES), Watched("2:1", (line(7, 7.0, STORY[3][2]), LAST), missed=True))
    found = followed(master)
    assert found.history.missed and len(found.history.steps) == 2


def test_a_gap_is_told() -> None:
    assert followed(Master(Watched("1:9", (LAST,), missed=True))).history.missed


def test_another_master_before_anything_was_known() -> None:
    assert len(followed(Master(Watched("1:0"), Watched("2:5", (*LINES, LAST)))).history.rounds) == 1


def test_the_status_is_asked_for() -> None:
    async def ask(answer: Callable[[Follower], Awaitable[JobStatus]]) -> None:
        made = Follower(Master().connect)
        assert made.status is None
        assert await answer(made) == STATUS == made.status

    run(ask(lambda made: made.refresh()))
