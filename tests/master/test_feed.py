"""The feed: what a watcher gets, what a slow one misses, and what waiting costs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from elasticrun.core.protocol.bounds import MAX_TOKEN
from elasticrun.core.protocol.chronicle import MAX_NAMES, EntriesLost, RoundStarted, RoundStopped
from elasticrun.core.protocol.orders import MAX_LINE, MAX_LINES, ControlReply, Watched
from elasticrun.master import feed as feed_module
from elasticrun.master.event_log import EventLog
from elasticrun.master.feed import Feed, until
from elasticrun.rpc.codec.control import decode_reply, encode_reply
from elasticrun.rpc.event_lines import from_line
from tests.support.processes import DEADLINE

END = '{"kind":"job_ended"}'
Result = TypeVar("Result")


def run(work: Coroutine[object, object, Result]) -> Result:
    async def bounded() -> Result:
        return await asyncio.wait_for(work, DEADLINE)

    return asyncio.run(bounded())


def feed_of(*lines: str, name: int = 5) -> Feed:
    feed = Feed()
    feed.name = name
    for line in lines:
        feed.add(line)
    return feed


def test_a_watcher_reads_on_where_it_was() -> None:
    async def main() -> None:
        feed = feed_of("a", "b")
        first = await feed.watch("", 0.0)
        assert first == Watched("5:2", ("a", "b"), missed=False, more=False)
        feed.add("c")
        assert await feed.watch(first.upto, 0.0) == Watched("5:3", ("c",), missed=False, more=False)
        assert await feed.watch("5:3", 0.0) == Watched("5:3", (), missed=False, more=False)

    run(main())


@pytest.mark.parametrize("after", ["4:2", "5:", "5:x", "5:-1", "nonsense", "5:²"])
def test_a_place_of_another_master_or_of_nobody_is_the_beginning(after: str) -> None:
    assert run(feed_of("a", "b").watch(after, 0.0)) == Watched("5:2", ("a", "b"), missed=True, more=False)


def test_who_came_before_the_first_line_has_missed_none() -> None:
    feed = feed_of()
    place = run(feed.watch("", 0.0)).upto
    feed.add("a")
    assert run(feed.watch(place, 0.0)) == Watched("5:1", ("a",), missed=False, more=False)


def test_a_place_that_is_not_yet_is_the_end() -> None:
    assert run(feed_of("a").watch("5:" + 40 * "9", 0.0)) == Watched("5:1", (), missed=False, more=False)


def test_all_who_wait_are_woken_together() -> None:
    async def main() -> None:
        feed = feed_of("a")
        waiting = [asyncio.ensure_future(feed.watch("5:1", DEADLINE)) for _ in range(3)]
        gone = asyncio.ensure_future(feed.watch("5:1", DEADLINE))
        turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(turn.set)
        await turn.wait()
        gone.cancel()
        feed.add("b")
        feed.wake()
        feed.wake()
        assert await asyncio.gather(*waiting) == 3 * [Watched("5:2", ("b",), missed=False, more=False)]

    run(main())


async def begun(feed: Feed, after: str) -> asyncio.Task[Watched]:
    """A watcher that waits already."""
    task = asyncio.create_task(feed.watch(after, DEADLINE))
    await asyncio.wait({task}, timeout=0.0)
    return task


def test_news_settle_before_they_are_told_but_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "SETTLE", 10 * DEADLINE)

    async def main() -> None:
        feed = feed_of("a")
        waiting = await begun(feed, "5:1")
        feed.add("b")
        feed.wake()
        told, _ = await asyncio.wait({waiting}, timeout=0.1)  # on a slow host it may be too short, and passes
        assert not told
        feed.add(END)
        feed.wake()
        assert (await waiting).lines == ("b", END)

    run(main())


def test_only_a_master_that_goes_lets_nobody_wait() -> None:
    async def main() -> None:
        feed = feed_of("a", END)  # it says goodbye to its agents for a while
        waiting = await begun(feed, "5:2")
        assert not waiting.done()
        feed.close()
        assert (await waiting).lines == ()
        assert (await feed.watch("5:2", DEADLINE)).lines == ()

    run(main())


def test_who_has_read_the_news_waits_on_when_the_others_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "SETTLE", 0.02)

    async def main() -> None:
        feed = feed_of("a")
        late = await begun(feed, "5:1")
        feed.add("b")
        feed.wake()
        early = asyncio.ensure_future(feed.watch("5:2", DEADLINE))
        assert (await late).lines == ("b",)
        feed.add("c")
        feed.wake()
        assert (await early).lines == ("c",)

    run(main())


def test_who_waits_in_vain_gets_nothing() -> None:
    assert run(feed_of("a").watch("5:1", 0.01)) == Watched("5:1", (), missed=False, more=False)


def test_a_slow_watcher_misses_lines_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "KEPT_LINES", 3)
    feed = feed_of(*"abcde")
    assert run(feed.watch("5:1", 0.0)) == Watched("5:5", ("c", "d", "e"), missed=True, more=False)
    assert run(feed.watch("5:2", 0.0)) == Watched("5:5", ("c", "d", "e"), missed=False, more=False)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "KEPT_BYTES", 10)
    feed = feed_of(*(20 * ["four"]))
    assert run(feed.watch("", 0.0)).lines == ("four", "four")


def test_an_answer_is_bounded_in_lines_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_of(*(str(each) for each in range(MAX_LINES + 1)))
    assert run(feed.watch("", 0.0)).more
    assert run(feed.watch(f"5:{MAX_LINES}", 0.0)).lines == (str(MAX_LINES),)
    monkeypatch.setattr(feed_module, "ANSWER_BYTES", 9)
    long = feed_of("a line that alone is longer", "b", "c")
    assert run(long.watch("", 0.0)) == Watched(
        "5:1", ("a line that alone is longer",), missed=False, more=True
    )
    assert run(long.watch("5:1", 0.0)).lines == ("b", "c")


def test_an_answer_fits_the_wire_however_long_its_lines_are() -> None:
    feed = feed_of(*(MAX_LINES * [1500 * "x"]), MAX_LINE * "y")
    upto, lines = "", 0
    while lines <= MAX_LINES:
        watched = run(feed.watch(upto, 0.0))
        decoded = decode_reply(encode_reply(ControlReply(True, "", b"p" * MAX_TOKEN, watched=watched)))
        assert decoded.watched == watched
        upto, lines = watched.upto, lines + len(watched.lines)


def test_a_line_that_no_answer_has_room_for_is_told_to_be_missing(tmp_path: Path) -> None:
    feed = Feed()
    names = tuple(f"{number}" + 500 * "\u6211" for number in range(MAX_NAMES))
    log = EventLog(tmp_path / "events.jsonl", lambda: 1.0, feed)
    log.add(1, 1.0, [RoundStarted(0, MAX_NAMES, MAX_NAMES, names, 0, None, ""), RoundStopped(0)])
    log.close()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write("damag\u00e9\n".encode())
    again = Feed()
    EventLog(tmp_path / "events.jsonl", lambda: 1.0, again).close()
    for each in (feed, again):
        told = [from_line(line) for line in run(each.watch("", 0.0)).lines]
        assert [entry.told for entry in told if entry is not None] == [EntriesLost(1), RoundStopped(0)]


def test_who_waits_for_something_else_looks_again_at_all_news() -> None:
    async def main() -> None:
        feed, looks, loop = feed_of(), [0], asyncio.get_running_loop()

        def is_so(least: int) -> bool:
            looks[0] += 1
            loop.call_soon(feed._wake_now)
            return looks[0] >= least

        await until(feed, lambda: is_so(3), DEADLINE)
        assert looks == [3]
        await until(feed, lambda: is_so(9), 0.0)
        assert looks == [4]
        feed.close()
        await until(feed, lambda: is_so(9), DEADLINE)
        assert looks == [5]

    run(main())
