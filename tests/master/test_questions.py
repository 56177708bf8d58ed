"""Questions to agents: who is asked, which answers count, and that each question ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from elasticrun.config import JobConfig
from elasticrun.core.protocol.messages import AskNode, NodeAnswer
from elasticrun.core.protocol.orders import ControlReply
from elasticrun.core.protocol.questions import (
    MAX_PIECE,
    Found,
    ListRanks,
    LogPiece,
    LogPlace,
    LogQuestion,
    LogStream,
    Question,
    RankAnswer,
    RankRange,
    ReadLog,
    ShowStacks,
)
from elasticrun.master import questions as module
from elasticrun.master.questions import MOST_EACH
from tests.master.test_loop import TWO, Bench, run

PLACES = (LogPlace(LogStream.OUT),)
PIECE = LogPiece(LogStream.OUT, "place", b"hello\n", 0)
LOG, STACKS = RankAnswer((PIECE,)), RankAnswer(stacks="Thread 1")


class Desk:
    """A job of two nodes of one worker each, asked by operators."""

    def __init__(self, folder: Path, config: JobConfig = TWO) -> None:
        self.bench = Bench(folder, config)
        self.agents = [self.bench.attach("a"), self.bench.attach("b")]

    def ask(self, question: Question) -> asyncio.Task[ControlReply]:
        return asyncio.get_running_loop().create_task(self.bench.loop.answer(question))

    async def asked(self, agent: int, count: int = 1) -> AskNode:
        """What an agent was asked as its so manyth question."""
        session = self.agents[agent]
        while len(found := [it for it in session.sent if isinstance(it, AskNode)]) < count:
            session.told.clear()
            await session.told.wait()
        return found[count - 1]

    def say(self, agent: int, answer: NodeAnswer) -> None:
        self.bench.hear(self.agents[agent], answer)

    @property
    def waiting(self) -> int:
        questions = self.bench.loop._questions
        return 0 if questions is None else len(questions._pending)


def test_an_operator_gets_the_answer_of_the_node_that_runs_the_rank(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        given = desk.ask(ReadLog(1, PLACES, 5, 2.5))
        asked = await desk.asked(1)
        assert (asked.epoch, asked.local_rank, asked.log) == (1, 0, LogQuestion(PLACES, 5, 2.5))
        desk.say(1, NodeAnswer("b-1", asked.id, answer=LOG))
        assert await given == ControlReply(True, "", found=Found(answer=LOG))
        given = desk.ask(ShowStacks(0))
        asked = await desk.asked(0)
        assert asked.log is None
        desk.say(0, NodeAnswer("a-1", asked.id, answer=STACKS))
        assert await given == ControlReply(True, "", found=Found(answer=STACKS))
        assert desk.waiting == 0

    run(main())


def test_the_master_itself_says_which_ranks_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        assert await desk.ask(ListRanks()) == ControlReply(True, "", found=Found((RankRange(0, 2),)))
        nowhere = await desk.ask(ShowStacks(7))
        assert nowhere == ControlReply(False, "there is no rank 7 now; there are ranks 0 to 1")

    run(main())


def test_what_an_agent_declines_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        given = desk.ask(ShowStacks(1))
        desk.say(1, NodeAnswer("b-1", (await desk.asked(1)).id, refused="it has not started yet"))
        assert await given == ControlReply(False, "rank 1 is on b: it has not started yet")

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        NodeAnswer("b-1", 3, answer=LOG),
        NodeAnswer("b-1", 0),
        NodeAnswer("b-1", 0, answer=STACKS),
        NodeAnswer("b-1", 0, answer=RankAnswer((PIECE,), "and stacks")),
        NodeAnswer("b-1", 0, answer=RankAnswer()),
        NodeAnswer("b-1", 0, answer=RankAnswer((LogPiece(LogStream.OUT, "", b"x" * (MAX_PIECE + 1)),))),
        NodeAnswer("b-1", 0, answer=RankAnswer((PIECE,) * 3)),
    ],
)
def test_an_answer_that_does_not_fit_is_dropped(tmp_path: Path, wrong: NodeAnswer) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        given = desk.ask(ReadLog(1, PLACES))
        number = (await desk.asked(1)).id
        desk.say(1, NodeAnswer(wrong.incarnation, number + wrong.id, wrong.refused, wrong.answer))
        desk.say(1, NodeAnswer("b-1", number, answer=LOG))
        assert await given == ControlReply(True, "", found=Found(answer=LOG))

    run(main())


def test_an_answer_of_another_session_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        given = desk.ask(ShowStacks(1))
        number = (await desk.asked(1)).id
        desk.say(0, NodeAnswer("a-1", number, answer=RankAnswer(stacks="not mine")))
        desk.say(1, NodeAnswer("b-1", number, answer=STACKS))
        assert (await given).found == Found(answer=STACKS)

    run(main())


def test_the_first_of_two_answers_counts_and_a_late_one_harms_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        given = desk.ask(ShowStacks(1))
        number = (await desk.asked(1)).id
        desk.say(1, NodeAnswer("b-1", number, answer=STACKS))
        desk.say(1, NodeAnswer("b-1", number, answer=RankAnswer(stacks="another")))
        assert (await given).found == Found(answer=STACKS)
        desk.say(1, NodeAnswer("b-1", number, answer=STACKS))
        assert desk.waiting == 0

    run(main())


def test_a_lost_agent_ends_its_questions_at_once_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        lost, kept = desk.ask(ShowStacks(1)), desk.ask(ShowStacks(0))
        await desk.asked(1)
        number = (await desk.asked(0)).id
        desk.bench.lose(desk.agents[1])
        why = "rank 1 is on b: its agent is gone, or its connection to the master is lost"
        assert await lost == ControlReply(False, why)
        desk.say(0, NodeAnswer("a-1", number, answer=STACKS))
        assert (await kept).ok

    run(main())


def test_an_agent_that_is_away_is_not_asked(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        number = desk.bench.machine.state.members.nodes["b"].session
        assert number is not None
        desk.bench.loop._sessions.pop(number)
        away = "rank 1 is on b: its agent is not connected to the master now: try again"
        assert await desk.ask(ShowStacks(1)) == ControlReply(False, away)
        desk.bench.machine.state.members.detach_all()
        assert await desk.ask(ShowStacks(1)) == ControlReply(False, away)

    run(main())


def test_an_agent_that_never_answers_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STACKS_PATIENCE", 0.01)
    monkeypatch.setattr(module, "LOG_PATIENCE", 0.01)

    async def main() -> None:
        desk = Desk(tmp_path)
        silent = "rank 1 is on b: its agent did not answer within 0.01 s"
        assert await desk.ask(ShowStacks(1)) == ControlReply(False, silent)
        assert await desk.ask(ReadLog(1, PLACES)) == ControlReply(False, silent)
        assert desk.waiting == 0
        number = (await desk.asked(1)).id
        desk.say(1, NodeAnswer("b-1", number, answer=STACKS))

    run(main())


def test_questions_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        waiting = [desk.ask(ShowStacks(1)) for _ in range(MOST_EACH)]
        await desk.asked(1, MOST_EACH)
        one_more = await desk.ask(ShowStacks(1))
        assert f"its agent is being asked {MOST_EACH} questions already: try again" in one_more.text
        monkeypatch.setattr(module, "MOST", MOST_EACH + 1)
        other = desk.ask(ShowStacks(0))
        await desk.asked(0)
        full = await desk.ask(ShowStacks(0))
        assert f"answers to {MOST_EACH + 1} questions already: try again" in full.text
        for session in desk.agents:
            desk.bench.lose(session)
        assert not any(reply.ok for reply in await asyncio.gather(*waiting, other))
        assert desk.waiting == 0

    run(main())


def test_an_operator_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        given = desk.ask(ShowStacks(1))
        await desk.asked(1)
        given.cancel()
        await asyncio.wait([given])
        assert (given.cancelled(), desk.waiting) == (True, 0)

    run(main())


def test_questions_do_not_go_to_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        before = len(desk.bench.journaled)
        given = desk.ask(ShowStacks(1))
        desk.say(1, NodeAnswer("b-1", (await desk.asked(1)).id, answer=STACKS))
        await given
        assert len(desk.bench.journaled) == before

    run(main())
