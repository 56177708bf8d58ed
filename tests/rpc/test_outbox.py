"""The queue between a session and its stream: order, bound, end."""

from __future__ import annotations

import asyncio

from elasticrun.rpc.outbox import Outbox, Pool
from tests.rpc.harness import run


def test_a_full_box_says_so_and_has_room_again_once_emptied() -> None:
    async def main() -> None:
        box = Outbox(max_bytes=3000)
        for _ in range(5):
            assert box.put(b"a" * 1000) and box.put(b"b" * 1000)
            assert not box.put(b"c" * 1000)
            assert [await box.get(), await box.get()] == [b"a" * 1000, b"b" * 1000]

    run(main())


def test_many_empty_messages_fill_it_too() -> None:
    async def main() -> None:
        box = Outbox(max_bytes=3000)
        assert not all(box.put(b"") for _ in range(100))

    run(main())


def test_a_closed_box_gives_what_it_has_and_then_its_end() -> None:
    async def main() -> None:
        box = Outbox(max_bytes=3000)
        box.put(b"a")
        box.close()
        assert box.put(b"dropped")
        assert box.closed
        assert [await box.get(), await box.get(), await box.get()] == [b"a", None, None]

    run(main())


def test_the_rest_is_what_fits_in_its_order() -> None:
    async def main() -> None:
        box = Outbox(max_bytes=3000)
        for data in (b"a", b"bb", b"ccc", b"d"):
            box.put(data)
        assert await box.get() == b"a"
        assert box.rest(room=7, joint=1) == [b"bb", b"ccc"]
        assert box.rest(room=1, joint=1) == []
        assert box.rest(room=2, joint=1) == [b"d"]
        assert box.rest(room=2, joint=1) == []
        assert all(box.put(b"x" * 620) for _ in range(4)), "what was taken makes room"

    run(main())


def test_whoever_waits_is_woken() -> None:
    async def main() -> None:
        box = Outbox(max_bytes=3000)
        waiting = asyncio.create_task(box.get())
        await asyncio.wait((waiting,), timeout=0)
        box.put(b"a")
        assert await waiting == b"a"
        waiting = asyncio.create_task(box.get())
        await asyncio.wait((waiting,), timeout=0)
        box.close()
        assert await waiting is None

    run(main())


def test_all_boxes_share_one_bound_and_who_reads_least_gives_way() -> None:
    async def main() -> None:
        pool = Pool(1000, 0)
        given_up: list[str] = []
        slow = Outbox(10_000, pool, lambda: given_up.append("slow"))
        quick = Outbox(10_000, pool, lambda: given_up.append("quick"))
        for number in range(9):
            assert slow.put(bytes([number]) * 100)
        assert quick.put(b"x" * 90) and await quick.get() == b"x" * 90
        assert quick.put(b"y" * 200)
        assert (given_up, pool.held, slow.closed, quick.closed) == (["slow"], 200, True, False)
        quick.empty()
        assert pool.held == 0

    asyncio.run(main())


def test_what_many_are_told_alike_counts_once() -> None:
    async def main() -> None:
        pool, data = Pool(1000, 0), b"z" * 900
        boxes = [Outbox(10_000, pool) for _ in range(50)]
        assert all(box.put(data) for box in boxes)
        assert pool.held == 900
        for box in boxes:
            assert await box.get() == data
        assert pool.held == 0

    asyncio.run(main())
