"""An agent's answers: when they come, what is refused, and what they may cost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from elasticrun.agent import answers as module
from elasticrun.agent.answers import BURST, MOST, NodeAnswers
from elasticrun.agent.logs import file_news
from elasticrun.agent.logs.files import LogFile
from elasticrun.agent.logs.kept import FileOutput, KeptOutput, MemoryTail
from elasticrun.agent.monitors.stacks import Taken
from elasticrun.core.protocol.questions import (
    AskNode,
    LogPiece,
    LogPlace,
    LogQuestion,
    LogStream,
    NodeAnswer,
)
from tests.support.processes import DEADLINE

OUT, ERR = LogStream
LONG = 20.0  # seconds; no test waits for them to pass


class Watch:
    """Takes pretended stacks."""

    def __init__(self) -> None:
        self.taken = {0: Taken("Thread 1"), 1: Taken("", "py-spy is not installed")}

    async def take(self, local_ranks: tuple[int, ...]) -> dict[int, Taken]:
        return {rank: self.taken[rank] for rank in local_ranks if rank in self.taken}


class Node:
    """Answers about one worker that prints to memory; one that writes a file may be added."""

    def __init__(self, watch: Any = None) -> None:
        self.kept = KeptOutput()
        self.tail = MemoryTail()
        self.kept.open(0, OUT, (0, 0), self.tail)
        self.said: asyncio.Queue[NodeAnswer] = asyncio.Queue()
        self.answers = NodeAnswers("me", self.kept, watch, self.said.put_nowait)

    def print(self, data: bytes) -> None:
        self.tail.add(data)
        self.kept.tell()

    def ask(self, number: int = 1, after: str = "", wait: float = LONG, stream: LogStream = OUT) -> None:
        log = LogQuestion((LogPlace(stream, after),), 10, wait)
        self.answers.ask(AskNode(1, number, 0, log))

    async def piece(self) -> Any:
        answer = (await self.said.get()).answer
        assert answer is not None
        (piece,) = answer.pieces
        return piece

    async def turns(self) -> None:
        """Let the tasks that are ready run."""
        loop = asyncio.get_running_loop()
        for _ in range(5):
            turn = loop.create_future()
            loop.call_soon(turn.set_result, None)
            await turn


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE))


def test_what_is_there_is_answered_at_once() -> None:
    async def main() -> None:
        node = Node()
        node.print(b"hello\n")
        node.ask()
        assert (await node.piece()).data == b"hello\n"
        node.ask(after="", wait=0.0)
        assert (await node.piece()).data == b"hello\n"
        await node.answers.close()

    run(main())


def test_an_answer_waits_for_output() -> None:
    async def main() -> None:
        node = Node()
        node.ask(wait=0.0)
        place = (await node.piece()).place
        node.ask(after=place)
        await node.turns()
        assert node.said.empty()
        node.kept.tell()  # of another worker
        await node.turns()
        assert node.said.empty()
        node.print(b"news\n")
        assert (await node.piece()).data == b"news\n"
        assert not node.kept._hearers
        await node.answers.close()

    run(main())


def test_many_lines_at_once_are_one_answer() -> None:
    async def main() -> None:
        node = Node()
        node.ask(wait=0.0)
        place = (await node.piece()).place
        node.ask(after=place)
        await node.turns()
        for _ in range(3):
            node.print(b"line\n")
            await node.turns()
        assert (await node.piece()).data == b"line\n" * 3
        await node.answers.close()

    run(main())


def test_news_of_others_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER", LONG)
    looks: list[object] = []

    async def main() -> None:
        node = Node()
        node.ask(wait=0.0)
        place = (await node.piece()).place
        read = node.kept.read

        def look(*asked: Any) -> LogPiece:
            looks.append(asked)
            return read(*asked)

        monkeypatch.setattr(node.kept, "read", look)
        node.ask(after=place)
        for _ in range(50):
            await node.turns()
            node.kept.tell()
        assert len(looks) == 2, "once before it waits, and once it does"
        await node.answers.close()

    run(main())


def test_a_wait_without_output_ends() -> None:
    async def main() -> None:
        node = Node()
        node.ask(wait=0.0)
        place = (await node.piece()).place
        node.ask(after=place, wait=0.01)
        piece = await node.piece()
        assert (piece.data, piece.place) == (b"", place)
        await node.answers.close()

    run(main())


def test_a_worker_that_starts_again_is_news() -> None:
    async def main() -> None:
        node = Node()
        node.print(b"x")
        node.ask()
        place = (await node.piece()).place
        node.ask(after=place)
        await node.turns()
        node.kept.open(0, OUT, (1, 0), MemoryTail())
        piece = await node.piece()
        assert (piece.round, piece.begins) == (1, True)
        await node.answers.close()

    run(main())


def test_a_file_that_the_worker_writes_by_itself_is_news(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node()
        file = LogFile(str(tmp_path / "log"), print)
        node.kept.open(0, ERR, (0, 0), FileOutput(file.path, file.fd, is_told=False))
        node.ask(wait=0.0, stream=ERR)
        place = (await node.piece()).place
        for text in (b"one", b"two"):
            node.ask(after=place, stream=ERR)
            node.ask(after=place, stream=ERR)
            await node.turns()
            assert node.said.empty()
            file.write(text)
            piece = await node.piece()
            assert piece.data == text
            assert (await node.piece()).data == text
            place = piece.place
        file.close()
        await node.answers.close()

    run(main())


@pytest.mark.parametrize("broken", ["inotify_init1", "inotify_add_watch"])
def test_a_kernel_that_watches_no_more_files_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    real = file_news._libc()

    class Libc:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: -1) if name == broken else getattr(real, name)

    monkeypatch.setattr(file_news, "_libc", Libc)
    monkeypatch.setattr(module, "BLIND_WAIT", 0.01)

    async def main() -> None:
        node = Node()
        file = LogFile(str(tmp_path / "log"), print)
        node.kept.open(0, ERR, (0, 0), FileOutput(file.path, file.fd, is_told=False))
        node.ask(wait=0.0, stream=ERR)
        node.ask(after=(await node.piece()).place, stream=ERR)
        assert (await node.piece()).data == b""
        file.close()
        await node.answers.close()

    run(main())


def test_what_cannot_be_answered_is_refused() -> None:
    async def main() -> None:
        node = Node(Watch())
        for local_rank, log in ((5, LogQuestion((LogPlace(OUT),), 1, LONG)), (5, None), (1, None)):
            node.answers.ask(AskNode(1, 7, local_rank, log))
        told = sorted([(await node.said.get()).refused for _ in range(3)])
        assert told == [
            "it does not run now, so it has no stacks",
            "it has not started yet",
            "no stack available: py-spy is not installed",
        ]
        await node.answers.close()

    run(main())


def test_stacks_are_answered() -> None:
    async def main() -> None:
        node = Node(Watch())
        node.answers.ask(AskNode(1, 7, 0))
        answer = await node.said.get()
        assert (answer.incarnation, answer.id, answer.refused) == ("me", 7, "")
        assert answer.answer is not None and answer.answer.stacks == "Thread 1"
        blind = Node(None)
        blind.answers.ask(AskNode(1, 7, 0))
        assert "does not run" in (await blind.said.get()).refused
        await node.answers.close()

    run(main())


def test_the_stacks_of_a_worker_are_taken_once_at_a_time() -> None:
    class Slow(Watch):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[tuple[int, ...]] = []
            self.go_on = asyncio.Event()

        async def take(self, local_ranks: tuple[int, ...]) -> dict[int, Taken]:
            self.asked.append(local_ranks)
            await self.go_on.wait()
            return await super().take(local_ranks)

    async def main() -> None:
        watch = Slow()
        node = Node(watch)
        for number in range(MOST):
            node.answers.ask(AskNode(1, number, number % 2))
        await node.turns()
        assert watch.asked == [(0,), (1,)]
        node.answers.attached()  # who asked is gone, and others ask over the new stream
        await node.turns()
        node.answers.ask(AskNode(1, MOST, 0))
        await node.turns()
        assert watch.asked == [(0,), (1,)]
        watch.go_on.set()
        answer = (await node.said.get()).answer
        assert answer is not None and answer.stacks == "Thread 1"
        await node.turns()
        node.answers.ask(AskNode(1, MOST + 1, 0))
        await node.said.get()
        assert watch.asked == [(0,), (1,), (0,)]
        await node.answers.close()

    run(main())


def test_a_bug_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        node = Node(object())
        node.answers.ask(AskNode(1, 7, 0))
        assert "internal error" in (await node.said.get()).refused
        await node.answers.close()

    run(main())
    assert "please report this traceback" in caplog.text


def test_only_so_many_questions_wait() -> None:
    async def main() -> None:
        node = Node()
        node.print(b"x")
        node.ask()
        place = (await node.piece()).place
        await node.turns()
        for number in range(MOST + 1):
            node.ask(number, after=place)
        refused = await node.said.get()
        assert (refused.id, refused.refused) == (MOST, f"it answers {MOST} questions already: try again")
        await node.turns()
        for number in (0, 1):  # those who asked first may have hung up since
            node.ask(MOST + number, after=place)
            ended = await node.said.get()
            assert ended.id == number and ended.answer is not None
            assert [piece.data for piece in ended.answer.pieces] == [b""]
        await node.turns()
        assert node.said.empty() and len(node.answers._tasks) == MOST
        node.answers.attached()  # a new stream: nobody waits for those any more
        await node.turns()
        node.print(b"y")
        node.ask(99)
        assert (await node.said.get()).id == 99
        await node.answers.close()
        assert node.said.empty()

    run(main())


def test_who_ends_answers_with_what_there_is() -> None:
    async def main() -> None:
        node = Node()
        node.print(b"x")
        node.ask()
        place = (await node.piece()).place
        node.ask(after=place)
        await node.turns()
        node.tail.add(b"last words")
        await node.answers.close()
        assert (await node.piece()).data == b"last words"

    run(main())


def test_answers_leave_room_for_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = Node()
        node.answers._credit = 10.0 - BURST / 1e6
        monkeypatch.setattr(module, "BYTES_PER_SECOND", 1.0)
        node.print(b"x" * 1000)
        node.ask()
        await node.turns()
        assert node.said.empty(), "it would take minutes"
        await node.answers.close()  # does not wait for them
        assert len((await node.piece()).data) == 1000

    run(main())
