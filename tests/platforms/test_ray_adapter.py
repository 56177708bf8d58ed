"""A job's replicas on Ray, with a cluster in memory in Ray's place."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from elasticrun.core.fleet.replicas import Cause, Note, Record, Shape, Start, Verdict, Wish
from elasticrun.core.protocol.chronicle import JobEnded, LogEntry, NodeDetached
from elasticrun.platforms.keeper import Keeper, Queue
from elasticrun.platforms.protocol import PlatformError
from elasticrun.platforms.ray.adapter import RayPlatform
from elasticrun.platforms.ray.places import Places, Spot
from elasticrun.platforms.ray.words import Actor, Needs, NodeLostError, Place
from tests.support.ray_fake import FakeActor, FakeCluster, host

NEEDS = Needs(cpus=2.0, memory=1 << 30)
DEADLINE = 20.0


class Job:
    """One job, kept."""

    def __init__(self, cluster: FakeCluster, shape: Shape, **more: Any) -> None:
        self.cluster = cluster
        self.notes: list[Note] = []
        wish = Wish(shape, shape.max_replicas, memory=NEEDS.memory, **more)
        self.platform = RayPlatform("job", cluster, wish, NEEDS, _request, _show, self.notes.append)
        self.queue = Queue(Keeper(self.platform).reconcile)
        self.platform.notify(self.queue.notice)

    async def until(self, holds: Callable[[], object]) -> None:
        """Let everything happen until this holds."""
        over = asyncio.get_running_loop().time() + DEADLINE
        while not holds():
            assert asyncio.get_running_loop().time() < over
            turn = asyncio.Event()
            asyncio.get_running_loop().call_soon(turn.set)
            await turn.wait()

    @property
    def running(self) -> list[FakeActor]:
        return [each for each in self.cluster.actors if each.request and not each.is_killed]

    async def turns(self, count: int) -> None:
        """Let everything happen that can."""
        left = iter(range(count))
        await self.until(lambda: next(left, None) is None)

    async def begins(self, count: int) -> list[FakeActor]:
        await self.until(lambda: len(self.running) == count)
        return self.running


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_job_runs_to_its_end() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        actors = await job.begins(2)
        assert [(each.name, each.bundle, each.request) for each in actors] == [
            ("job-0", 0, b"0@host0"),
            ("job-1", 1, b"1@host1"),
        ]
        for each in actors:
            each.ended.set_result(0)
        record = await job.platform.over
        assert record.verdict is Verdict.SUCCEEDED and all(each.is_killed for each in actors)

    run(test)


def test_nothing_asks_for_a_place_before_there_is_room_for_all_that_are_needed() -> None:
    async def test() -> None:
        job = Job(FakeCluster(places=False), Shape(2, 4, 0))
        await job.until(lambda: job.cluster.wanted)
        assert job.cluster.wanted == [(2, 1 << 30)] and job.cluster.actors == []
        job.cluster.reserved.set()
        await job.until(lambda: len(job.cluster.actors) == 4)
        assert [each.bundle for each in job.cluster.actors] == [0, 1, -1, -1]

    run(test)


def test_a_node_that_the_master_misses_is_replaced_if_its_actor_does_not_answer() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(1, 2, 0))
        first, second = await job.begins(2)
        job.platform.heard([_detached("host0/0")])
        second.is_alive = False
        job.platform.heard([_detached("host1/1")])
        await job.until(lambda: len(job.cluster.actors) == 3)
        third = job.cluster.actors[2]
        assert (third.bundle, third.avoided) == (-1, ["id1"]) and second.is_killed
        assert not first.is_killed and first.signals == []
        assert any("is lost with its host on host1" in note.text for note in job.notes)

    run(test)


def test_a_bundle_is_used_again() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        first, _ = await job.begins(2)
        first.ended.set_result(70)  # the launcher crashed
        await job.until(lambda: len(job.cluster.actors) == 3)
        assert job.cluster.actors[2].bundle == 0

    run(test)


@pytest.mark.parametrize("winner", [0, 1])
def test_after_a_loss_the_moved_bundle_is_taken_or_another_place_whichever_comes_first(winner: int) -> None:
    async def test() -> None:
        job = Job(FakeCluster(places=False), Shape(2, 2, 0))
        job.cluster.reserved.set()
        await job.until(lambda: len(job.cluster.actors) == 2)
        for number, each in enumerate(job.cluster.actors):
            each.placed.set_result(host(number))
        _, second = await job.begins(2)
        second.lose(Cause.HOST_LOST)
        await job.until(lambda: len(job.cluster.actors) == 4)
        bids = job.cluster.actors[2:]
        assert [(each.bundle, each.avoided) for each in bids] == [(-1, ["id1"]), (1, ["id1"])]
        bids[winner].placed.set_result(host(2))
        await job.until(lambda: bids[winner].request)
        assert [each.is_killed for each in bids] == [winner == 1, winner == 0]
        # The next one may have what is left.
        bids[winner].ended.set_result(70)
        await job.until(lambda: len(job.cluster.actors) > 4)
        assert 1 in [each.bundle for each in job.cluster.actors[4:]]

    run(test)


def test_one_that_ran_out_of_memory_gets_twice_as_much_in_a_place_of_its_own() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        first, second = await job.begins(2)
        first.lose(Cause.OUT_OF_MEMORY)
        await job.until(lambda: len(job.cluster.actors) == 3)
        third = job.cluster.actors[2]
        assert (third.needs.memory, third.bundle) == (2 << 30, -1)
        assert not job.cluster.released  # else Ray would end the second one
        # Nobody is left in what was reserved.
        second.ended.set_result(70)
        await job.until(lambda: len(job.cluster.actors) == 4)
        fourth = job.cluster.actors[3]
        assert (fourth.needs.memory, fourth.bundle, job.cluster.released) == (2 << 30, -1, 1)
        assert len(job.cluster.wanted) == 1

    run(test)


def test_a_job_that_begins_anew_with_more_memory_reserves_that() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        first, second = await job.begins(2)
        first.lose(Cause.OUT_OF_MEMORY)
        second.lose(Cause.OUT_OF_MEMORY)
        await job.until(lambda: len(job.cluster.actors) == 4)
        assert [(each.needs.memory, each.bundle) for each in job.cluster.actors[2:]] == [
            (2 << 30, 0),
            (2 << 30, 1),
        ]
        assert job.cluster.wanted == [(2, 1 << 30), (2, 2 << 30)] and job.cluster.released == 1

    run(test)


def test_a_bad_host_is_given_back_though_it_has_the_reserved_place() -> None:
    async def test() -> None:
        job = Job(FakeCluster(places=False), Shape(1, 1, 0))
        job.cluster.reserved.set()
        await job.until(lambda: job.cluster.actors)
        job.cluster.actors[0].placed.set_result(host(0))
        (only,) = await job.begins(1)
        only.ended.set_result(10)  # the launcher says that its host is faulty
        await job.until(lambda: len(job.cluster.actors) == 2)
        second = job.cluster.actors[1]
        assert (second.bundle, second.avoided) == (0, ["id0"])
        second.placed.set_result(host(0))  # Ray cannot leave out a host for a bundle
        await job.until(lambda: len(job.cluster.actors) == 3)
        assert second.is_killed and job.cluster.actors[2].bundle == -1

    run(test)


def test_the_end_is_asked_for_with_grace_and_then_taken() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        first, second = await job.begins(2)
        job.platform.end()
        await job.until(lambda: first.signals and second.signals)
        assert first.signals == [signal.SIGTERM] and not first.is_killed
        first.ended.set_result(143)
        await job.until(lambda: first.is_killed)
        assert not job.platform.over.done()
        job.platform.kill()
        await asyncio.wait_for(job.platform.over, DEADLINE)
        assert second.is_killed

    run(test)


def test_a_signal_after_the_verdict_has_what_lingers_leave() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        first, second = await job.begins(2)
        first.ended.set_result(0)
        await job.until(lambda: first.is_killed)
        assert second.signals == []
        job.platform.end()
        assert second.signals == [signal.SIGTERM]
        second.ended.set_result(143)
        record = await asyncio.wait_for(job.platform.over, DEADLINE)
        assert (record.verdict, job.platform.code) == (Verdict.SUCCEEDED, None)

    run(test)


def test_a_job_that_begins_again_waits_until_all_that_it_needs_have_a_place() -> None:
    async def test() -> None:
        job = Job(FakeCluster(places=False), Shape(2, 2, 0))
        job.cluster.reserved.set()
        await job.until(lambda: len(job.cluster.actors) == 2)
        first, second = job.cluster.actors
        for number, each in enumerate((first, second)):
            each.placed.set_result(host(number))
        await job.begins(2)
        for each in (first, second):
            each.ended.set_result(3)  # too few came in time
        await job.until(lambda: len(job.cluster.actors) == 4)
        third, fourth = job.cluster.actors[2:]
        third.placed.set_result(host(2))
        await job.until(lambda: third.placed.done())
        await job.turns(20)
        assert not third.request
        fourth.placed.set_result(host(3))
        await job.until(lambda: third.request and fourth.request)

    run(test)


def test_a_job_that_is_given_up_ends_though_one_still_waits_for_a_place() -> None:
    async def test() -> None:
        job = Job(FakeCluster(places=False), Shape(2, 3, 0))
        job.cluster.reserved.set()
        await job.until(lambda: len(job.cluster.actors) == 3)
        first, second, third = job.cluster.actors
        for number, each in enumerate((first, second)):
            each.placed.set_result(host(number))
        await job.begins(2)
        for each in (first, second):
            each.ended.set_result(2)  # the script is not there
        record = await asyncio.wait_for(job.platform.over, DEADLINE)
        assert (record.verdict, job.platform.code) == (Verdict.FAILED, 2)
        await job.until(lambda: third.is_killed)

    run(test)


def test_a_job_that_is_stopped_does_not_begin_anew_with_one_that_waited() -> None:
    async def test() -> None:
        job = Job(FakeCluster(places=False), Shape(1, 2, 0))
        job.cluster.reserved.set()
        await job.until(lambda: len(job.cluster.actors) == 2)
        first, second = job.cluster.actors
        first.placed.set_result(host(0))
        await job.begins(1)
        job.platform.heard([LogEntry(event=1, at=0.0, time=0.0, told=JobEnded("stopped", "as ordered"))])
        first.ended.set_result(14)
        await asyncio.wait_for(job.platform.over, DEADLINE)
        assert job.platform.code == 14 and second.is_killed and len(job.cluster.actors) == 2

    run(test)


def test_the_end_of_one_that_found_too_few_does_not_hide_why_the_job_failed() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(2, 2, 0))
        first, second = await job.begins(2)
        first.ended.set_result(3)
        await job.until(lambda: first.is_killed)
        second.ended.set_result(1)
        record = await asyncio.wait_for(job.platform.over, DEADLINE)
        assert (record.verdict, job.platform.code) == (Verdict.FAILED, 1)

    run(test)


def test_two_bids_of_one_moment_leave_nothing_behind() -> None:
    async def test() -> None:
        cluster, start = FakeCluster(), Start(1, -1, 0, (), Shape(1, 1, 0))
        places, spot = Places(cluster, NEEDS), Spot()
        await places.settle(spot, "job-0", NEEDS, start)
        places.lose(spot)
        places.release(spot)
        cluster.places = False
        looking = asyncio.create_task(places.settle(spot, "job-1", NEEDS, start))
        while len(cluster.actors) < 3:
            turn = asyncio.Event()
            asyncio.get_running_loop().call_soon(turn.set)
            await turn.wait()
        one, other = cluster.actors[1:]
        one.placed.set_exception(NodeLostError(Cause.HOST_LOST, "at once"))
        other.placed.set_result(host(1))
        assert await looking == host(1)
        assert one.is_killed and spot.actor is other

    run(test)


def test_a_reservation_that_ray_refuses_is_tried_again() -> None:
    class Refusing(FakeCluster):
        async def reserve(self, count: int, needs: Needs) -> None:
            await super().reserve(count, needs)
            if len(self.wanted) == 1:
                raise PlatformError("a worker crashed")

    async def test() -> None:
        job = Job(Refusing(), Shape(1, 1, 0))
        await job.begins(1)
        assert len(job.cluster.wanted) == 2
        assert any("a worker crashed" in note.text for note in job.notes)

    run(test)


def test_a_job_that_has_failed_says_with_what() -> None:
    async def test() -> None:
        job = Job(FakeCluster(), Shape(1, 1, 0))
        (only,) = await job.begins(1)
        only.ended.set_result(1)
        record: Record = await asyncio.wait_for(job.platform.over, DEADLINE)
        assert (record.verdict, job.platform.code) == (Verdict.FAILED, 1)

    run(test)


async def _request(start: Start, place: Place) -> bytes:
    return f"{start.index}@{place.name}".encode()


async def _show(actor: Actor, index: int, place: Place, ended: asyncio.Event) -> None:
    await ended.wait()
    assert not await actor.read(0)


def _detached(node: str) -> LogEntry:
    return LogEntry(event=1, at=0.0, time=0.0, told=NodeDetached(node, "its stream ended"))
