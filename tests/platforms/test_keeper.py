"""The keeper and its queue, on the reference platform."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from elasticrun.core.fleet.figures import DONE, FAILED, FAULTY, Figures
from elasticrun.core.fleet.replicas import Cause, Decision, Phase, Remove, Shape, Start, Wish
from elasticrun.platforms import keeper
from elasticrun.platforms.fake import FakePlatform
from elasticrun.platforms.keeper import REFUSED_AGAIN, Keeper, Queue
from elasticrun.platforms.protocol import PlatformError, Sight

WISH = Wish(Shape(2, 4), 3, memory=1 << 20)


def kept(platform: FakePlatform, now: float = 1000.0) -> float | None:
    """What one pass gives."""
    return asyncio.run(Keeper(platform, lambda: now).reconcile("job"))


def test_a_pass_starts_what_is_missing_and_the_next_does_nothing() -> None:
    platform = FakePlatform(WISH)
    assert kept(platform) is None
    assert [start.index for start in platform.starts] == [0, 1, 2]
    kept(platform)
    kept(platform)
    assert len(platform.starts) == 3
    assert platform.decision is not None
    assert platform.decision.phase == "Running"
    assert [note.text for note in platform.notes] == ["replicas 0, 1, 2"]


def test_a_pass_says_when_to_look_again() -> None:
    platform = FakePlatform(WISH)
    kept(platform)
    kept(platform)
    platform.end(0, 0)
    assert kept(platform, 1000.0) == pytest.approx(120.0)


def test_what_is_not_wanted_is_removed() -> None:
    platform = FakePlatform(WISH)
    kept(platform)
    platform.wish = replace(WISH, suspended=True)
    kept(platform)
    assert platform.seen == {}


def test_a_job_that_is_not_there_is_left_alone() -> None:
    platform = FakePlatform(WISH)
    assert asyncio.run(Keeper(platform).reconcile("another")) is None
    assert platform.decision is None


class Raced(FakePlatform):
    """Another keeper is always a little faster, as often as is said."""

    def __init__(self, wish: Wish, times: int) -> None:
        super().__init__(wish)
        self.times = times

    async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
        if self.times:
            self.times -= 1
            other = Keeper(self)
            again, self.times = self.times, 0
            await other.reconcile(job)
            self.times = again
        return await super().keep(job, sight, decision)


def test_two_keepers_beside_each_other_start_nothing_twice() -> None:
    platform = Raced(WISH, 3)
    kept(platform)
    kept(platform)
    assert [start.index for start in platform.starts] == [0, 1, 2]


def test_a_job_that_is_changed_all_the_time_does_not_keep_others_waiting() -> None:
    class Restless(FakePlatform):
        async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
            return False

    with pytest.raises(PlatformError, match="somebody else has changed it"):
        kept(Restless(WISH))


class Away(FakePlatform):
    """Answers nothing once it was asked to act."""

    calls = 0

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        self.calls += 1
        raise PlatformError("the platform does not answer")


def test_a_pass_does_not_try_everything_on_a_platform_that_is_away() -> None:
    platform = Away(Wish(Shape(2, 1000), 1000))
    kept(platform)
    assert platform.calls == 8


class Dying(FakePlatform):
    """Whoever keeps it dies after the record was kept, before it has started anything."""

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        raise SystemExit


def test_a_keeper_that_dies_leaves_its_work_to_the_next() -> None:
    dying = Dying(WISH)
    with pytest.raises(SystemExit):
        kept(dying)
    platform = FakePlatform(WISH)
    platform.record, platform.version = dying.record, dying.version
    kept(platform)
    assert [start.index for start in platform.starts] == [0, 1, 2]


def test_a_refusal_is_shown_and_tried_again() -> None:
    platform = FakePlatform(WISH)
    platform.is_full = True
    keeper = Keeper(platform, lambda: 1000.0)

    async def work() -> None:
        assert await keeper.reconcile("job") == 0.0
        assert await keeper.reconcile("job") == REFUSED_AGAIN
        assert platform.decision is not None
        hindered = next(it for it in platform.decision.conditions if it.kind == "Hindered")
        assert (hindered.holds, hindered.reason, hindered.text) == (True, "Refused", "the quota is spent")
        platform.is_full = False
        assert await keeper.reconcile("job") is None
        await keeper.reconcile("job")

    asyncio.run(work())
    assert [start.index for start in platform.starts] == [0, 1, 2]
    assert platform.decision is not None
    assert not any(it.holds for it in platform.decision.conditions if it.kind == "Hindered")


def test_a_refusal_in_other_words_each_time_is_shown_once() -> None:
    class Wordy(FakePlatform):
        ports = 48322

        async def start(self, job: str, sight: Sight, start: Start) -> None:
            self.ports += 1
            raise PlatformError(f"failed calling webhook: 10.0.0.3:{self.ports}: refused")

    platform, shown = Wordy(WISH), list[str]()
    keeper = Keeper(platform, lambda: 1000.0)

    async def work() -> None:
        for _ in range(4):
            await keeper.reconcile("job")
            assert platform.decision is not None
            shown.extend(it.text for it in platform.decision.conditions if it.kind == "Hindered")

    asyncio.run(work())
    assert shown == ["", *["failed calling webhook: 10.0.0.3:48323: refused"] * 3]


# -- the queue


def queued(
    work: Callable[[str], Awaitable[float | None]], script: Callable[[Queue], Awaitable[None]]
) -> None:
    async def run() -> None:
        queue = Queue(work)
        try:
            await asyncio.wait_for(script(queue), 30.0)
        finally:
            await queue.close()

    asyncio.run(run())


def test_notices_of_one_job_are_taken_one_after_the_other_and_together() -> None:
    runs, now, most, gate = 0, 0, 0, asyncio.Event()
    second = asyncio.Event()

    async def work(job: str) -> None:
        nonlocal runs, now, most
        runs, now = runs + 1, now + 1
        most = max(most, now)
        if runs == 2:
            second.set()
        await gate.wait()
        now -= 1

    async def script(queue: Queue) -> None:
        for _ in range(5):
            queue.notice("job")
        await asyncio.wait_for(_turn(), 5.0)
        for _ in range(5):
            queue.notice("job")
        gate.set()
        await second.wait()

    queued(work, script)
    assert (runs, most) == (2, 1)


async def _turn() -> None:
    """Let what is ready run."""
    for _ in range(5):
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(done.set_result, None)
        await done


def test_a_pass_that_fails_is_tried_again() -> None:
    tries = 0
    done = asyncio.Event()

    async def work(job: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise PlatformError("it is away")
        done.set()

    async def script(queue: Queue) -> None:
        queue.notice("job")
        await done.wait()

    queued(work, script)
    assert tries == 2


def test_a_fault_in_a_pass_is_told_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()

    async def work(job: str) -> None:
        if job == "broken":
            raise ZeroDivisionError
        done.set()

    async def script(queue: Queue) -> None:
        queue.notice("broken")
        queue.notice("job")
        await done.wait()

    queued(work, script)
    assert "broken: a fault of this program" in caplog.text


def test_passes_count_by_how_they_end_and_jobs_while_they_wait_for_one() -> None:
    figures, gate, begun = Figures(), asyncio.Event(), asyncio.Event()
    ends = {"failing": PlatformError("it is away"), "broken": ZeroDivisionError()}

    async def work(job: str) -> None:
        begun.set()
        await gate.wait()
        if job in ends:
            raise ends[job]

    async def main() -> None:
        queue = Queue(work, at_a_time=1, figures=figures)
        for job in ("job", *ends):
            queue.notice(job)
            queue.notice(job)
        await begun.wait()
        assert figures.waiting == 2
        gate.set()
        await _until(lambda: all(sum(it.counts) for it in figures.passes.values()))
        await queue.close()

    asyncio.run(asyncio.wait_for(main(), 30.0))
    assert [sum(figures.passes[it].counts) for it in (FAILED, FAULTY)] == [1, 1]
    assert figures.waiting == 0
    assert sum(figures.waits.counts) == sum(sum(it.counts) for it in figures.passes.values())
    assert figures.passes[DONE].seconds <= figures.waits.seconds, "the others waited for the first one"


def test_a_job_waits_from_a_notice_in_the_midst_of_its_pass_on(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, gate, begun = Figures(), asyncio.Event(), asyncio.Event()
    now = 0.0
    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: now))

    async def work(job: str) -> None:
        begun.set()
        await gate.wait()

    async def main() -> None:
        nonlocal now
        queue = Queue(work, at_a_time=1, figures=figures)
        queue.notice("job")
        await begun.wait()
        assert figures.waiting == 0
        queue.notice("job")
        queue.notice("job")
        assert figures.waiting == 1
        now = 7.0
        gate.set()
        await _until(lambda: sum(figures.waits.counts) == 2)
        assert figures.waits.seconds == 7.0
        queue.notice("job")
        queue.notice("another")
        await queue.close()
        assert figures.waiting == 0

    asyncio.run(asyncio.wait_for(main(), 30.0))


def test_jobs_are_kept_until_they_are_gone() -> None:
    platform, figures = FakePlatform(WISH), Figures(jobs={"another"})
    keeper = Keeper(platform, lambda: 1000.0, figures)
    for job in ("job", "another"):
        asyncio.run(keeper.reconcile(job))
    assert figures.jobs == {"job"}


def test_a_pass_that_asks_for_another_look_gets_it() -> None:
    looks = 0
    done = asyncio.Event()

    async def work(job: str) -> float | None:
        nonlocal looks
        looks += 1
        if looks == 2:
            done.set()
            return None
        return 0.0

    async def script(queue: Queue) -> None:
        queue.notice("job")
        await done.wait()

    queued(work, script)
    assert looks == 2


def test_the_whole_from_notice_to_replacement() -> None:
    platform = FakePlatform(WISH)

    async def script(queue: Queue) -> None:
        platform.notify(queue.notice)
        await _until(lambda: len(platform.record.live) == 3 and all(it.seen for it in platform.record.live))
        platform.seen[1] = replace(
            platform.seen[1], phase=Phase.ENDED, exit_code=137, cause=Cause.OUT_OF_MEMORY
        )
        queue.notice("job")
        await _until(lambda: 3 in platform.seen)
        await platform.remove("job", Remove(0, "by somebody"))
        await _until(lambda: 4 in platform.seen)

    queued(Keeper(platform, lambda: 1000.0).reconcile, script)
    assert platform.seen[3].memory == 2 << 20


async def _until(holds: Callable[[], bool]) -> None:
    """Let the loop run until something holds: each turn is one of its own events."""
    while not holds():
        await _turn()
