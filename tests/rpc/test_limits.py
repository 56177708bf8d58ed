"""What strangers may cost: the decisions by themselves, then on a real loopback."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from elasticrun.config import Endpoint
from elasticrun.core.protocol.bounds import MAX_FAILURE_TEXT
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Failure,
    FailureKind,
    Heartbeat,
    RejectCode,
    Rejected,
    Report,
)
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.errors import MasterUnreachableError, TooManyError, UnauthenticatedError
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.security.limits import Allowance, Bucket, Gate, Guest, Limits, key_of
from elasticrun.rpc.transport import rejected_in
from tests.rpc.harness import DEADLINE, LOCKED, OPEN, hello, raw_calls, run, serving

HOST = "10.0.0.1"


def let_in(gate: Gate, host: str = HOST, now: float = 0.0) -> Guest:
    guest = gate.enter(host, now)
    assert isinstance(guest, Guest), guest
    return guest


def refused(gate: Gate, host: str = HOST, now: float = 0.0) -> str:
    refusal = gate.enter(host, now)
    assert isinstance(refusal, str)
    return refusal


# The bucket


def test_a_bucket_fills_again_but_not_above_its_room() -> None:
    bucket = Bucket.full(10.0, 2.0, 100.0)
    assert bucket.take(100.0, 10.0)
    assert not bucket.take(100.4, 1.0)
    assert bucket.take(100.5, 1.0)
    assert not bucket.take(1000.0, 10.5)
    assert bucket.take(1000.0, 10.0)


def test_a_bucket_owes_what_is_spilled_but_no_more_than_its_room() -> None:
    bucket = Bucket.full(10.0, 1.0, 0.0)
    bucket.spill(0.0, 12.0)
    assert not bucket.take(2.9, 1.0)
    assert bucket.take(3.0, 1.0)
    bucket.spill(3.0, 1000.0)
    assert not bucket.take(13.9, 1.0)
    assert bucket.take(14.0, 1.0)


def test_time_that_goes_back_gives_a_bucket_nothing() -> None:
    bucket = Bucket.full(1.0, 1.0, 10.0)
    assert bucket.take(10.0, 1.0)
    assert not bucket.take(5.0, 0.5)
    assert not bucket.take(10.4, 0.5)
    assert bucket.take(10.5, 0.5)


# The gate


def test_streams_of_one_address_are_limited_and_others_are_not_touched() -> None:
    gate = Gate(Limits(streams_per_address=3))
    guests = [let_in(gate) for _ in range(3)]
    for guest in guests:
        guest.attached()
    assert "3 streams open, which is the most" in refused(gate)
    let_in(gate, "10.0.0.2")
    guests[1].leave()
    let_in(gate)
    refused(gate)


def test_streams_without_a_hello_are_limited_by_address_and_in_all() -> None:
    gate = Gate(Limits(pending_per_address=2, pending=3))
    first, _ = let_in(gate), let_in(gate)
    assert "that have not joined yet" in refused(gate)
    let_in(gate, "10.0.0.2")
    assert "3 connections are open" in refused(gate, "10.0.0.3")
    first.attached()
    let_in(gate, "10.0.0.3")
    refused(gate)  # all places are taken again


def test_few_of_the_pending_are_read_and_the_others_take_turns() -> None:
    gate = Gate(Limits(readers_per_address=2))
    guests = [let_in(gate) for _ in range(5)]
    heard: list[int] = []
    for number, guest in enumerate(guests):
        guest.when_reading(lambda number=number: heard.append(number))  # type: ignore[misc]
    assert heard == [0, 1] == [number for number, guest in enumerate(guests) if guest.reading]
    guests[0].attached()
    assert heard == [0, 1, 2]
    guests[3].leave()  # while it waits
    guests[1].leave()
    assert heard == [0, 1, 2, 4]
    assert let_in(gate).reading is False
    guests[2].leave()
    assert heard == [0, 1, 2, 4] and gate.addresses == 1


def test_addresses_take_turns() -> None:
    gate = Gate(Limits(readers_per_address=3, readers=4))
    crowd = [let_in(gate, "10.0.0.1") for _ in range(50)]
    first, second = let_in(gate, "10.0.0.2"), let_in(gate, "10.0.0.2")
    other = let_in(gate, "10.0.0.3")
    assert [guest.reading for guest in (first, second, other)] == [True, False, False]
    for guest in crowd[:2]:
        guest.leave()
    assert second.reading and other.reading, "they came last, and the crowd had its turns"
    assert sum(guest.reading for guest in crowd[2:]) == 1


def test_the_gate_keeps_count_whatever_happens() -> None:
    """Guests come, are attached and leave in any order; at each moment the rules hold, and all are served."""
    chance = random.Random(11)
    limits = Limits(readers_per_address=3, readers=7, pending_per_address=9, pending=30)
    gate = Gate(limits)
    guests: list[tuple[str, Guest]] = []
    attached: list[Guest] = []
    for _ in range(20_000):
        host = f"10.0.0.{chance.randrange(8)}"
        match chance.randrange(5):
            case 0 | 1:
                if isinstance(guest := gate.enter(host, 0.0), Guest):
                    guests.append((host, guest))
            case 2 | 3 if guests:
                _, guest = guests.pop(chance.randrange(len(guests)))
                guest.leave()
            case 4 if ready := [each for each in guests if each[1].reading]:
                guests.remove(picked := chance.choice(ready))
                picked[1].attached()
                attached.append(picked[1])
                if len(attached) > 20:
                    attached.pop(0).leave()
        reading = Counter(host for host, guest in guests if guest.reading)
        waiting = {host for host, guest in guests if not guest.reading}
        assert reading.total() <= 7 and max(reading.values(), default=0) <= 3
        assert len(guests) <= 30
        if reading.total() < 7:  # nobody waits who could be read
            assert all(reading[host] == 3 for host in waiting)
    for guest in [*attached, *(guest for _, guest in guests)]:
        guest.leave()
    assert let_in(gate).reading


def test_every_end_of_a_stream_counts_once() -> None:
    gate = Gate(Limits(streams_per_address=2, pending_per_address=2, pending=2))
    for how in ("attached, left", "left", "left twice", "attached twice, left"):
        guest = let_in(gate)
        for _ in range(how.count("attached") + how.count("attached twice")):
            guest.attached()
        for _ in range(1 + how.count("left twice")):
            guest.leave()
    let_in(gate), let_in(gate)
    refused(gate)


def test_joins_are_limited_and_waiting_helps() -> None:
    gate = Gate(Limits(join_burst=5.0, joins_per_second=2.0))
    for _ in range(5):
        let_in(gate).leave()
    assert f"too fast from {HOST}" in refused(gate)
    let_in(gate, "10.0.0.2")
    for _ in range(100):  # hammering prolongs nothing
        refused(gate, now=0.4)
    let_in(gate, now=0.5).leave()
    refused(gate, now=0.5)


def test_failures_are_dear() -> None:
    gate = Gate(Limits(join_burst=100.0, joins_per_second=10.0, failure_cost=19.0))
    for _ in range(5):
        guest = let_in(gate)
        guest.fail(0.0)
        guest.leave()
    refused(gate)
    guesses = 0
    for tick in range(1000):  # 100 seconds
        guest_or_not = gate.enter(HOST, tick / 10)
        if isinstance(guest_or_not, Guest):
            guest_or_not.fail(tick / 10)
            guest_or_not.leave()
            guesses += 1
    assert guesses == 50  # of 1000 joins


def test_complaints_are_few() -> None:
    gate = Gate(Limits(complaint_burst=3.0, complaints_per_second=0.5))
    guest = let_in(gate)
    assert [guest.fail(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not guest.fail(1.9)
    assert guest.fail(2.0)


def test_a_cluster_behind_one_address_comes_at_once_and_comes_back() -> None:
    gate = Gate(Limits())
    for _ in range(2):
        guests = []
        for _ in range(2000):
            guest = let_in(gate)
            guest.attached()
            guests.append(guest)
        for guest in guests:
            guest.leave()


def test_the_gate_remembers_a_bounded_number_of_addresses() -> None:
    gate = Gate(Limits(idle_addresses=100))
    chance = random.Random(3)
    open_guests = []
    for number in range(10_000):
        guest = let_in(gate, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        if chance.random() < 0.5:
            guest.fail(0.0)
        if chance.random() < 0.01:
            guest.attached()
            open_guests.append(guest)
        else:
            guest.leave()
        assert gate.addresses <= 100 + len(open_guests) + 1
    for guest in open_guests:
        guest.leave()
    assert gate.addresses == 100


def test_a_refused_address_is_remembered_as_idle() -> None:
    gate = Gate(Limits(join_burst=1.0, joins_per_second=0.0))
    let_in(gate).leave()
    for _ in range(10):
        refused(gate)
        assert gate.addresses == 1


def test_an_address_with_an_open_stream_is_never_forgotten() -> None:
    gate = Gate(Limits(idle_addresses=1, streams_per_address=1))
    let_in(gate)
    for number in range(50):
        let_in(gate, f"10.0.1.{number}").leave()
    refused(gate)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::1", "127.0.0.1", False),
        ("what is this", "what is that", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (key_of(one) == key_of(other)) is same
    assert len(key_of("x" * 1000)) <= 64


# On the wire


async def let_in_at_last(endpoint: Endpoint) -> MasterStream:
    """A place is free once the server has ended a stream, a moment after it is detached."""
    while True:
        try:
            return await MasterStream.open(endpoint, hello(), DEADLINE)
        except TooManyError:
            continue


def test_too_many_streams_are_a_typed_refusal_and_the_attached_stay() -> None:
    async def main() -> None:
        async with serving(Limits(streams_per_address=2)) as (recorder, endpoint):
            streams = [await MasterStream.open(endpoint, hello(), DEADLINE) for _ in range(2)]
            for _ in range(20):
                with pytest.raises(TooManyError, match="2 streams open"):
                    await MasterStream.open(endpoint, hello(), DEADLINE)
            streams[0].send(Heartbeat("i0"))
            await recorder.until(lambda: recorder.messages == [Heartbeat("i0")])
            await streams.pop().close()
            streams.append(await let_in_at_last(endpoint))
            assert len(recorder.sessions) == 3
            for stream in streams:
                await stream.close()

    run(main())


def test_streams_that_say_nothing_keep_others_out_only_as_long_as_they_may() -> None:
    limits = Limits(pending_per_address=3, hello_timeout=4.0)

    async def main() -> None:
        async with serving(limits) as (_, endpoint), raw_calls(endpoint) as opened:
            calls = [opened().call for _ in range(3)]
            for call in calls:
                await call.initial_metadata()
            with pytest.raises(TooManyError, match="that have not joined yet"):
                await MasterStream.open(endpoint, hello(), DEADLINE)
            for call in calls:
                answer = await call.read()
                assert isinstance(answer, bytes) and b"no Hello within 4 s" in answer
                assert await call.read() == codec.GOODBYE
                await call.done_writing()
            stream = await let_in_at_last(endpoint)
            await stream.close()

    run(main())


def test_a_stream_waits_for_its_turn() -> None:
    limits = Limits(readers_per_address=1, hello_timeout=3.0, flush_timeout=0.1)

    async def main() -> None:
        async with serving(limits) as (recorder, endpoint), raw_calls(endpoint) as opened:
            silent = opened().call
            await silent.initial_metadata()
            async with await let_in_at_last(endpoint):
                assert len(recorder.sessions) == 1
            silent.cancel()

    run(main())


def test_a_stream_whose_turn_does_not_come_is_refused() -> None:
    limits = Limits(readers_per_address=1, hello_timeout=3.0, flush_timeout=DEADLINE)

    async def main() -> None:
        async with serving(limits) as (_, endpoint), raw_calls(endpoint) as opened:
            silent = opened().call  # is rejected, but does not end its half
            await silent.initial_metadata()
            with pytest.raises(TooManyError, match="could not read this one within"):
                await MasterStream.open(endpoint, hello(), DEADLINE)
            silent.cancel()
            async with await let_in_at_last(endpoint):
                pass

    run(main())


def test_a_stream_that_is_gone_while_it_waits_takes_no_turn() -> None:
    async def main() -> None:
        async with serving(Limits(readers_per_address=1)) as (_, endpoint), raw_calls(endpoint) as opened:
            silent = opened().call
            await silent.initial_metadata()
            with pytest.raises(MasterUnreachableError, match="did not answer Hello"):
                await MasterStream.open(endpoint, hello(), 4.0)
            silent.cancel()
            async with await MasterStream.open(endpoint, hello(), DEADLINE):
                pass

    run(main())


def test_an_address_that_guesses_is_refused_before_its_guess_is_read() -> None:
    limits = Limits(join_burst=100.0, joins_per_second=0.001)

    async def main() -> None:
        async with serving(limits, LOCKED) as (recorder, endpoint):
            errors: list[type[Exception]] = []
            for _ in range(8):
                with pytest.raises((UnauthenticatedError, TooManyError)) as caught:
                    await MasterStream.open(endpoint, hello(), DEADLINE, OPEN)
                errors.append(caught.type)
            assert errors == [UnauthenticatedError] * 5 + [TooManyError] * 3
            assert recorder.sessions == []

    run(main())


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("elasticrun-rejected-bin", b"\xff"),),
        (("elasticrun-rejected-bin", codec.GOODBYE),),
        (("other", "x"),),
    ],
)
def test_what_is_no_refusal_is_not_taken_for_one(metadata: tuple[tuple[str, str | bytes], ...]) -> None:
    assert rejected_in(metadata) is None


def test_a_refusal_in_the_metadata_is_found() -> None:
    given = Rejected(RejectCode.TOO_MANY, "enough")
    assert rejected_in([("elasticrun-rejected-bin", codec.encode_master(given))]) == given


def test_an_agent_that_says_too_much_is_read_more_slowly() -> None:
    limits = Limits(message_burst=10, messages_per_second=5, bytes_burst=1000, bytes_per_second=100)
    said = Allowance(limits, 0.0)
    assert [said.delay(0.0, 10) for _ in range(10)] == [0.0] * 10
    assert said.delay(0.0, 10) == 0.2
    assert said.delay(100.0, 1000) == 0.0
    assert said.delay(100.0, 50) == 0.5


def test_a_long_hello_costs_joins() -> None:
    gate = Gate(Limits(join_burst=10, joins_per_second=1, hello_bytes=100))
    guest = gate.enter("192.0.2.1", 0.0)
    assert isinstance(guest, Guest)
    guest.weigh(0.0, 99)
    assert isinstance(gate.enter("192.0.2.1", 0.0), Guest)
    guest.weigh(0.0, 800)
    assert isinstance(gate.enter("192.0.2.1", 0.0), str)


def test_many_tasks_that_fail_at_once_are_told_without_delay() -> None:
    """Each of them is told in a status of all: the worst honest burst, twice within a minute."""
    text = "x" * MAX_FAILURE_TEXT
    failed = [
        Failure("n", "h", rank, rank, "worker", 1, FailureKind.EXIT, 1, text, text, text)
        for rank in range(100)
    ]
    told = tuple(TaskReport(rank, 1, True, failure) for rank, failure in enumerate(failed))
    said, sizes = Allowance(Limits(), 0.0), []
    for ended in range(1, len(told) + 1):
        status = AgentStatus(ended, AgentPhase.RUNNING, 0, tasks=told[:ended])
        sizes.append(len(codec.encode_agent(Report("i", status))))
    assert [said.delay(now, size) for now in (0.0, 60.0) for size in sizes] == [0.0] * 200
