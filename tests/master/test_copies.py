"""Copies of a real journal for sessions that only note what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from elasticrun.config import JobConfig
from elasticrun.core.job.events import Left
from elasticrun.core.protocol.messages import JournalCopy, MasterMessage
from elasticrun.master import copies as module
from elasticrun.master.copies import Copies
from elasticrun.master.journal import Entry, Journal, create_journal
from elasticrun.rpc.codec import MAX_MESSAGE_BYTES, encode_master
from elasticrun.rpc.server import Limits, Session
from tests.master.journals import append
from tests.support.processes import DEADLINE


class Holder:
    """A session whose agent keeps a copy."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.peer = f"host{number}:1"
        self.got = b""
        self.sizes: list[int] = []
        self.news = asyncio.Event()

    def send(self, message: MasterMessage) -> None:
        assert isinstance(message, JournalCopy)
        assert message.first == self.got.count(b"\n"), "no gap, no repetition"
        self.got += "".join(f"{line}\n" for line in message.lines).encode()
        self.sizes.append(sum(map(len, message.lines)))
        self.news.set()

    async def has(self, wanted: bytes) -> None:
        while self.got != wanted:
            self.news.clear()
            await self.news.wait()


class Bench:
    def __init__(self, folder: Path) -> None:
        self.journal: Journal = create_journal(folder / "journal.jsonl", JobConfig())
        self.copies = Copies(self.journal, lambda: 2)

    def write(self, reason: str = "because") -> None:
        append(self.journal, Entry(0.0, Left(1, reason)))
        self.copies.spread()

    def hold(self, number: int = 1) -> Holder:
        holder = Holder(number)
        self.copies.begin(cast("Session", holder))
        return holder


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE))


def test_a_holder_has_each_line_as_soon_as_it_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        bench.write()
        early, late = bench.hold(), None
        for number in range(5):
            bench.write(str(number))
            assert early.got == bench.journal.path.read_bytes()
        late = bench.hold(2)
        assert late.got == early.got
        bench.copies.end(1)
        bench.copies.end(1)
        bench.write()
        assert late.got == bench.journal.path.read_bytes() != early.got

    run(main())


def test_a_long_journal_is_sent_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE", 0.001)

    async def main() -> None:
        bench = Bench(tmp_path)
        for _ in range(300):
            bench.write("x" * 1000)
        holder, gone = bench.hold(1), bench.hold(2)
        bench.copies.end(2)
        bench.write("while pieces are under way")
        await holder.has(bench.journal.path.read_bytes())
        assert len(holder.sizes) > 4
        assert max(holder.sizes) <= module.PIECE
        assert len(gone.sizes) == 1

    run(main())


@pytest.mark.parametrize("size", [1000, 500_000])
def test_a_flood_does_not_fill_the_queue_of_a_session(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACE", 0.001)

    async def main() -> None:
        bench = Bench(tmp_path)
        holder = bench.hold()
        for number in range(0, 5 * MAX_MESSAGE_BYTES, size):  # all in one turn: nothing can be sent meanwhile
            bench.write("x" * size)
            if number < module.BURST // 2:
                assert holder.got == bench.journal.path.read_bytes()
        assert sum(holder.sizes) < 2 * MAX_MESSAGE_BYTES < Limits().max_queued_bytes
        await holder.has(bench.journal.path.read_bytes())
        bench.write("one more")
        await holder.has(bench.journal.path.read_bytes())

    run(main())


def test_a_line_longer_than_a_piece_is_sent_whole(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        bench.write("x" * 3 * module.PIECE)
        bench.write("y")
        await bench.hold().has(bench.journal.path.read_bytes())

    run(main())


def test_a_copy_ends_before_a_line_that_no_message_can_carry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        bench.write("as long as a message allows" * 10)
        holder = bench.hold()
        before = holder.got
        bench.write("\0" * (MAX_MESSAGE_BYTES // 6))
        bench.write("after")
        assert holder.got == before != b""
        assert len(caplog.messages) == 1
        assert "line 3 of the journal" in caplog.text and "ends before it" in caplog.text

    run(main())


def test_the_longest_line_that_is_copied_fits_a_message() -> None:
    copy = JournalCopy(2**62, 2**62, ("x" * module.LONGEST_LINE,))
    assert len(encode_master(copy)) <= MAX_MESSAGE_BYTES


def test_a_journal_that_is_gone_is_copied_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        bench.journal.path.unlink()
        assert bench.hold().sizes == []

    run(main())
