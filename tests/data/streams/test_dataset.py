"""``StreamDataset``: the position is what the loop has got, whatever was read ahead, and faults are named."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from elasticrun.core.data.streams import Failed, Gap, Told  # noqa: E402
from elasticrun.data import StreamDataset  # noqa: E402
from elasticrun.data.streams import prefetch  # noqa: E402
from elasticrun.data.streams.ranks import Ranks  # noqa: E402
from elasticrun.data.streams.source import Record  # noqa: E402
from elasticrun.errors import BrokerAwayError, DataError, OffsetGoneError, StreamError  # noqa: E402
from tests.data.streams.fake import Broker, FakeSource  # noqa: E402
from tests.support.processes import DEADLINE  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes datasets, and closes them; an empty read does not hold up the end of a test."""
    monkeypatch.setattr(prefetch, "WAIT", 0.01)
    monkeypatch.setattr(prefetch, "FIRST_DELAY", 0.01)
    found = list[tuple[StreamDataset, FakeSource]]()

    def make(broker: Broker, batch_size: int = 2, *, size: int = 1, **options: Any) -> StreamDataset:
        options = {"linger": 0.0, "patience": DEADLINE} | options
        source = FakeSource(broker, size)
        found.append((StreamDataset(source, batch_size, **options), source))
        return found[-1][0]

    yield make
    for data, source in found:
        data.close()
        assert source.is_closed
    assert not [each for each in threading.enumerate() if each.name == "elasticrun-stream"]


def taken(data: StreamDataset, records: int) -> list[tuple[str, int]]:
    """The places of so many records, or of a few more."""
    places = list[tuple[str, int]]()
    for batch in data:
        places += batch.places
        if len(places) >= records:
            return places
    raise AssertionError("a stream has no end")


def stated(data: StreamDataset) -> Any:
    return json.loads(json.dumps(data.state_dict()))


def all_of(**lengths: int) -> list[tuple[str, int]]:
    return [(name, n) for name, length in lengths.items() for n in range(length)]


def test_batches_have_the_samples_and_their_places(made: Any) -> None:
    data = made(Broker(a=5), 2, decode=lambda record: record.value * 10, linger=DEADLINE)
    batches = [*islice(data, 2)]
    assert [each.data.tolist() for each in batches] == [[0, 10], [20, 30]]
    assert [each.places for each in batches] == [(("a", 0), ("a", 1)), (("a", 2), ("a", 3))]
    assert data.positions == {"a": 4}
    assert data.failed == data.gaps == ()


@pytest.mark.parametrize("records", [0, 1, 2, 5, 9, 11])
def test_a_state_is_what_the_loop_has_got_however_much_was_read_ahead(made: Any, records: int) -> None:
    broker = Broker(a=7, b=5)
    first = made(broker, 1, prefetch=50)
    before = taken(first, records) if records else []
    state = stated(first)
    assert sum(state["positions"].values()) == len(before) == records
    second = made(broker, 1)
    second.load_state_dict(state)
    assert stated(second)["positions"] == state["positions"], "nothing has moved yet"
    after = taken(second, 12 - records)
    assert sorted(before + after) == all_of(a=7, b=5)


def test_a_loop_that_was_left_goes_on_and_an_older_one_is_refused(made: Any) -> None:
    data = made(Broker(a=4), 1)
    first = iter(data)
    assert next(first).places == (("a", 0),)
    second = iter(data)
    assert next(second).places == (("a", 1),)
    with pytest.raises(DataError, match="this iteration is over"):
        next(first)
    state = stated(data)
    next(second)
    data.load_state_dict(state)
    with pytest.raises(DataError, match="this iteration is over"):
        next(second)
    assert next(iter(data)).places == (("a", 2),)


def test_a_batch_is_handed_out_when_it_is_full_or_has_waited_long_enough(made: Any) -> None:
    broker = Broker(a=3)
    data = made(broker, 2, linger=DEADLINE)
    loop = iter(data)
    assert len(next(loop).places) == 2
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, loop)
        broker.add("a", 1)
        assert len(coming.result(DEADLINE).places) == 2, "it waited for the second record"
    short = made(Broker(a=1), 2, linger=0.0)
    assert len(next(iter(short)).places) == 1


def test_a_batch_may_be_empty_if_that_is_allowed(made: Any) -> None:
    broker = Broker(a=0)
    data = made(broker, 2, may_be_empty=True)
    batch = next(iter(data))
    assert (batch.data, batch.places) == (None, ())
    with ThreadPoolExecutor(1) as pool:
        waiting = made(broker, 2)
        coming = pool.submit(next, iter(waiting))
        broker.add("a", 7)
        assert coming.result(DEADLINE).data.tolist() == [7]


def test_the_buffer_is_bounded_by_records_and_by_bytes(made: Any) -> None:
    broker = Broker(a=1000)
    data = made(broker, 2, prefetch=3)
    loop = iter(data)
    next(loop)
    reader = data._prefetch
    with reader._changed:
        assert reader._changed.wait_for(lambda: len(reader._items) == 6, DEADLINE)
        assert reader._fetched["a"] <= 8
    heavy = made(broker, 10, size=100, max_bytes=150, linger=DEADLINE)
    assert len(next(iter(heavy)).places) >= 3, "it is not waited for what has no room"
    assert heavy._prefetch._fetched["a"] < 50


def test_where_a_training_begins(made: Any) -> None:
    broker = Broker(a=9, b=4)
    broker.told = {"a": 6}
    for start, found in [("oldest", (0, 0)), ("newest", (9, 4)), ("committed", (6, 0))]:
        data = made(broker, start=start)
        assert tuple(stated(data)["positions"].values()) == found
    old = made(Broker(a=3), 1)
    taken(old, 2)
    data = made(broker, start="newest")
    data.load_state_dict(stated(old))
    assert stated(data)["positions"] == {"a": 2, "b": 0}, (
        "nothing of a partition that was added is in the model"
    )


def test_a_partition_that_is_added_is_read_from_its_oldest_record(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "REFRESH", 0.0)
    broker = Broker(a=1)
    data = made(broker, 1, start="newest")
    assert stated(data)["positions"] == {"a": 1}
    broker.add("b", 5, 6)
    while "b" not in data.positions:
        assert "b" not in stated(data)["positions"]
        broker.add("a", 0)
        taken(data, 1)
    places = taken(data, 1)
    while [name for name, _ in places].count("b") < 2:
        broker.add("a", 0)
        places += taken(data, 1)
    assert [n for name, n in places if name == "b"] == [0, 1]
    assert stated(data)["positions"]["b"] == 2


def test_a_partition_that_is_gone_is_told(made: Any) -> None:
    data = made(Broker(a=1, b=1))
    state = stated(data)
    other = made(Broker(a=1))
    other.load_state_dict(state)
    with pytest.raises(StreamError, match="the fake has no b, in which the saved state has a position"):
        other.state_dict()
    with pytest.raises(StreamError, match="the fake has no partitions: make them first"):
        made(Broker()).state_dict()


@pytest.mark.parametrize("state", [None, {"format": 1}, {"format": 1, "positions": {"a": -1}}])
def test_a_damaged_state_is_refused(made: Any, state: Any) -> None:
    with pytest.raises(DataError, match="the saved position in the stream is"):
        made(Broker(a=1)).load_state_dict(state)


# -- records that cannot be read


def number(record: Record) -> int:
    if record.value in (3, 4):
        raise ValueError(f"{record.value} is no number")
    return int(record.value)


def test_a_record_that_cannot_be_decoded_is_left_out_and_reported(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(a=7)
    data = made(broker, 1, decode=number)
    assert [n for _, n in taken(data, 5)] == [0, 1, 2, 5, 6]
    failed = (Failed("a", 3, "ValueError: 3 is no number"), Failed("a", 4, "ValueError: 4 is no number"))
    assert data.failed == failed
    told = [each.getMessage() for each in caplog.records]
    assert "record <3> of a is left out: ValueError: 3 is no number" in told
    other = made(broker, 1, decode=number)
    other.load_state_dict(stated(data))
    assert other.failed == failed, "it is never read again, so the state remembers it"
    assert other.positions == {}


def test_what_was_read_ahead_is_not_reported_yet(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = made(Broker(a=7), 1, decode=number, prefetch=50)
    taken(data, 2)
    reader = data._prefetch
    with reader._changed:
        assert reader._changed.wait_for(lambda: len(reader._items) == 5, DEADLINE)
    assert data.failed == ()
    assert stated(data)["positions"] == {"a": 2}
    assert not caplog.records


def test_a_record_that_is_too_large_is_left_out(made: Any) -> None:
    data = made(Broker(a=1), size=11, max_bytes=10, may_be_empty=True, linger=DEADLINE, batch_size=1)
    assert next(iter(data)).places == ()
    assert data.failed == (Failed("a", 0, "it has 11 bytes, at most 10 are read (max_bytes)"),)
    assert data.positions == {"a": 1}


def test_too_many_faulty_records_are_an_error_that_moves_nothing(made: Any) -> None:
    data = made(Broker(a=7), 1, decode=number, max_failed=1)
    loop = iter(data)
    assert [n for batch in islice(loop, 3) for _, n in batch.places] == [0, 1, 2]
    with pytest.raises(
        DataError, match=r"more than 1 records .* \(max_failed\), the last one: record <4> of a"
    ):
        next(loop)
    assert data.positions == {"a": 4}
    with pytest.raises(DataError, match="more than 1 records"):
        next(iter(data))


def test_what_was_read_when_a_batch_could_not_be_made_is_read_again(made: Any) -> None:
    attempts = list[int]()

    def collate(samples: list[int]) -> list[int]:
        attempts.append(1)
        if len(attempts) == 2:
            raise RuntimeError("no memory")
        return samples

    data = made(Broker(a=4), 1, collate_fn=collate)
    assert taken(data, 1) == [("a", 0)]
    with pytest.raises(RuntimeError, match="no memory"):
        taken(data, 1)
    assert stated(data)["positions"] == {"a": 1}
    assert taken(data, 3) == [("a", 1), ("a", 2), ("a", 3)]


# -- brokers that fail


def test_records_that_were_removed_are_refused(made: Any) -> None:
    broker = Broker(a=9)
    first = made(broker, 1)
    taken(first, 2)
    state = stated(first)
    broker.oldest["a"] = 5
    data = made(broker, 1)
    data.load_state_dict(state)
    with pytest.raises(OffsetGoneError) as found:
        next(iter(data))
    assert str(found.value).startswith(
        "a of the fake was to go on at offset <2>, but the oldest that is left is <5>"
    )
    assert (found.value.partition, found.value.wanted, found.value.oldest) == ("a", 2, 5)
    assert data.positions == {"a": 2}


def test_or_left_out_and_reported(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(a=9, b=2)
    first = made(broker, 1)
    state = stated(first)
    broker.oldest["a"] = 5
    data = made(broker, 1, on_gap="oldest")
    data.load_state_dict(state)
    assert sorted(taken(data, 6)) == [*[("a", n) for n in range(5, 9)], ("b", 0), ("b", 1)]
    assert data.gaps == (Gap("a", 0, 5),)
    assert "records <0> to <5> of a were removed" in caplog.text
    other = made(broker, 1)
    other.load_state_dict(stated(data))
    assert other.gaps == (Gap("a", 0, 5),)


def test_a_broker_that_is_away_is_waited_for(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(a=2)
    broker.is_away = True
    data = made(broker, 2, linger=DEADLINE)

    class Back(logging.Handler):
        """The broker is back as soon as the training says that it waits."""

        def emit(self, record: logging.LogRecord) -> None:
            if "waits for it" in record.getMessage():
                broker.set()

    handler = Back()
    logging.getLogger("elasticrun").addHandler(handler)
    try:
        assert len(next(iter(data)).places) == 2
        broker.set(is_away=True)
        broker.records["a"] += [2, 3]
        assert len(next(iter(data)).places) == 2, "the thread that reads waits as well"
    finally:
        logging.getLogger("elasticrun").removeHandler(handler)
    assert "the fake does not answer; the training waits for it, up to 60 s" in caplog.text
    assert caplog.text.count("the broker answers again") == 2


def test_but_not_for_ever(made: Any) -> None:
    broker = Broker(a=4)
    data = made(broker, 1, patience=0.0, prefetch=1)
    loop = iter(data)
    next(loop)
    broker.set(is_away=True)
    with pytest.raises(BrokerAwayError, match="the fake does not answer; it was away for 0 s"):
        for _ in range(4):
            next(loop)
    broker.set()
    at = data.positions["a"]
    broker.add("a", 0)
    assert taken(data, 1) == [("a", at)], "whoever goes on reads again"
    gone = Broker(a=1)
    gone.is_away = True
    with pytest.raises(BrokerAwayError):
        made(gone, patience=0.0).state_dict()


def test_any_other_fault_is_raised_after_what_was_read_before_it(made: Any) -> None:
    broker = Broker(a=2)
    data = made(broker, 2, linger=DEADLINE)
    loop = iter(data)
    assert len(next(loop).places) == 2
    broker.set(fault=StreamError("no permission"))
    with pytest.raises(StreamError, match="no permission"):
        next(loop)


# -- what the broker is told


def test_the_broker_is_told_what_a_storage_has(made: Any) -> None:
    broker = Broker(a=9)
    data = made(broker, 1)
    for step in (1, 2, 3):
        taken(data, 1)
        data.state_dict()
        data.saved(step)
    taken(data, 1)
    assert broker.told == {}
    assert data.durable(2)
    assert broker.told == {"a": 2}
    assert data.durable(1)
    assert data.durable(2)
    assert broker.told == {"a": 2}
    broker.is_away = True
    assert not data.durable(3), "a broker that is away never touches the training"
    assert broker.told == {"a": 2}
    broker.is_away = False
    assert data.durable(1), "and hears of it with the next call"
    assert broker.told == {"a": 3}


def test_a_restored_step_is_told_too_and_one_of_a_lost_round_is_not(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(a=9)
    first = made(broker, 1)
    taken(first, 2)
    state = stated(first)
    monkeypatch.setenv("ELASTICRUN_ROUND", "1")
    data = made(broker, 1)
    data.restored(0)  # there is none
    data.load_state_dict(state)
    data.restored(7)
    assert not data.durable(7, round=0), "it does not know its partitions yet"
    taken(data, 3)
    data.state_dict()
    data.saved(8)
    assert data.durable(9, round=0)
    assert broker.told == {"a": 2}
    assert data.durable(8)
    assert broker.told == {"a": 5}


def test_who_never_says_what_was_saved_is_told_once(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = made(Broker(a=1))
    with pytest.raises(DataError, match="step 3 has no position: save a state with the StreamDataset first"):
        data.saved(3)
    data.state_dict()
    assert data.durable(3)
    assert data.durable(4)
    assert caplog.text.count("the broker is not told of step 3 of round 0: call saved(step)") == 1
    assert "step 4" not in caplog.text


# -- what is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size is a number from 1 on, got 0"),
        ({"prefetch": 1.5}, "prefetch is a number from 1 on, got 1.5"),
        ({"max_bytes": 0}, "max_bytes is a number from 1 on"),
        ({"max_failed": -1}, "max_failed is a number from 0 on"),
        ({"linger": -1}, "linger is a number of seconds from 0 on, got -1"),
        ({"patience": float("nan")}, "patience is a number of seconds"),
        ({"on_gap": "skip"}, "on_gap is 'refuse' or 'oldest', got 'skip'"),
        ({"start": "now"}, "start is 'oldest', 'newest' or 'committed', got 'now'"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        StreamDataset(FakeSource(Broker(a=1)), **options)


def test_ranks_have_to_be_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DataError, match="the 2 ranks of a StreamDataset have to be connected"):
        StreamDataset(FakeSource(Broker(a=1)))


def test_a_loader_around_it(made: Any) -> None:
    data = made(Broker(a=4), 2, linger=DEADLINE)
    loader: Any = DataLoader(data, batch_size=None)
    assert next(iter(loader)).data.tolist() == [0, 1]
    workers: Any = DataLoader(made(Broker(a=4)), batch_size=None, num_workers=1)
    with pytest.raises(DataError, match="a StreamDataset reads ahead in a thread of its own"):
        next(iter(workers))


# -- several ranks


class Meeting(Ranks):
    """One of several ranks whose exchanges meet in this process."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, told: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._told = rank, size, barrier, told

    def tell(self, mine: Told) -> list[Told]:
        self._told[self.rank] = mine
        self._barrier.wait(DEADLINE)
        found = list(self._told)
        self._barrier.wait(DEADLINE)
        return found


def joined(world: list[StreamDataset]) -> list[StreamDataset]:
    """These datasets as the ranks of one world."""
    barrier, told = threading.Barrier(len(world)), [None] * len(world)
    for rank, each in enumerate(world):
        each._ranks = Meeting(rank, len(world), barrier, told)
    return world


def ranks(made: Any, broker: Broker, size: int, **options: Any) -> list[StreamDataset]:
    return joined([made(broker, 1, **options) for _ in range(size)])


def together(function: Any, *data: StreamDataset) -> list[Any]:
    with ThreadPoolExecutor(len(data)) as pool:
        return [each.result(DEADLINE) for each in [pool.submit(function, one) for one in data]]


def test_the_world_changes_and_each_record_counts_once(made: Any) -> None:
    broker = Broker(a=8, b=8, c=8)
    taken_by, state = list[tuple[str, int]](), None
    for size in (2, 3, 1):
        world = ranks(made, broker, size)
        for each in world:
            if state is not None:
                each.load_state_dict(json.loads(json.dumps(state)))
        for places in together(lambda each: taken(each, 4), *world):
            taken_by += places
        states = together(stated, *world)
        assert all(each == states[0] for each in states)
        state = states[0]
        assert sum(state["positions"].values()) == len(taken_by)
    assert len(set(taken_by)) == len(taken_by) == 24


def test_a_rank_may_have_no_partition(made: Any) -> None:
    broker = Broker(a=2)
    with pytest.raises(DataError, match="the fake has 1 partitions for 2 ranks, so some would have nothing"):
        together(lambda each: next(iter(each)), *ranks(made, broker, 2))
    world = ranks(made, broker, 2, may_be_empty=True, linger=0.05)
    found = together(lambda each: [*islice(each, 3)], *world)
    assert sorted(place for batches in found for each in batches for place in each.places) == all_of(a=2)
    assert world[1].positions == {}


def test_a_partition_that_is_added_goes_to_one_rank_even_one_that_had_none(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "REFRESH", 0.0)
    broker = Broker(a=2)
    world = ranks(made, broker, 2, may_be_empty=True)
    together(stated, *world)
    broker.add("b", 7, 8)
    while "b" not in world[1].positions:
        together(stated, *world)
    assert world[0].positions.keys() == {"a"}
    assert taken(world[1], 2) == [("b", 0), ("b", 1)]
    assert together(stated, *world)[0]["positions"]["b"] == 2


def test_ranks_that_see_different_partitions_begin_with_what_all_see(made: Any) -> None:
    first, second = Broker(a=2, b=2, c=2), Broker(a=2, c=2)
    world = joined([made(broker, 1) for broker in (first, second)])
    together(stated, *world)
    assert [[*each.positions] for each in world] == [["a"], ["c"]]
