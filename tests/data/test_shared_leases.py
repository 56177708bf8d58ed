"""The ledger of the master as ranks see it: what is asked for ahead, what is told, what ends it.

The ranks are threads; what answers them is the master's own rule, without a wire.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from elasticrun.core.data import leases as leases_module  # noqa: E402
from elasticrun.core.data.desk import Desks  # noqa: E402
from elasticrun.core.data.leases import Progress  # noqa: E402
from elasticrun.core.protocol.data import MAX_FAILED, AskData, DataAnswer, OpenData  # noqa: E402
from elasticrun.data import Plan, Shard, ShardedDataset  # noqa: E402
from elasticrun.data.lease_source import LocalLeases  # noqa: E402
from elasticrun.data.shared_leases import SharedLeases  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402
from elasticrun.rpc.records import from_json, to_json  # noqa: E402
from tests.support.processes import DEADLINE  # noqa: E402

pytestmark = pytest.mark.torch
FILES: dict[str, int | None] = {"a": 9, "b": 4, "c": 6}
ALL = Counter((name, n) for name, length in FILES.items() for n in range(length or 0))
PLAN = Plan.of_files(FILES, 4, seed=1)


class Master:
    """Answers all ranks of one round."""

    def __init__(self) -> None:
        self.desks = Desks()
        self.lines: dict[int, Line] = {}
        self.asked: list[OpenData | AskData] = []
        self.change: Callable[[DataAnswer], DataAnswer] = lambda answer: answer
        self._lock = threading.Lock()

    def connect(self, rank: int) -> Callable[[float], Any]:
        def connect(_: float) -> Any:
            self.lines[rank] = Line(self, rank)
            return self.lines[rank]

        return connect

    def hear(self, rank: int, ask: OpenData | AskData) -> None:
        with self._lock:
            self.asked.append(ask)
            told = self.desks.open(rank, ask) if isinstance(ask, OpenData) else self.desks.ask(rank, ask, 0.0)
            for to, answer in told:
                self.lines[to].answers.put(to_json(self.change(answer)))


class Line:
    """Takes the place of a connection to the agent."""

    def __init__(self, master: Master, rank: int) -> None:
        self.answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._master, self._rank = master, rank

    def ask(self, kind: str, body: dict[str, Any]) -> None:
        kinds: Any = {"OpenData": OpenData, "AskData": AskData}
        found = from_json(kinds[kind], {**body, "incarnation": "i"})
        self._master.hear(self._rank, found)

    @property
    def has_answer(self) -> bool:
        return not self.answers.empty()

    def answer(self) -> dict[str, Any]:
        return self.answers.get(timeout=DEADLINE)

    def close(self) -> None:
        pass


def sources(count: int, plan: Plan = PLAN) -> tuple[Master, list[SharedLeases]]:
    master = Master()
    return master, [SharedLeases(plan, "data", count, connect=master.connect(rank)) for rank in range(count)]


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Each rank does its part."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(DEADLINE) for each in [pool.submit(call) for call in calls]]


def states(ranks: list[Any]) -> list[Any]:
    return [json.loads(json.dumps(each)) for each in together([rank.state for rank in ranks])]


def read(shard: Shard) -> list[tuple[str, int]]:
    return [(shard.name, n) for n in range(shard.start, min(shard.stop, FILES[shard.name] or 0))]


def dataset(source: Any, plan: Plan = PLAN, **options: Any) -> ShardedDataset:
    return ShardedDataset(
        options.pop("read", read), plan, 2, collate_fn=list, source=source, in_step=False, **options
    )


def test_all_ranks_together_read_each_record_once() -> None:
    _, ranks = sources(3)
    found = together([lambda it=each: [r for batch in dataset(it) for r in batch] for each in ranks])  # type: ignore[misc]
    assert Counter(record for mine in found for record in mine) == ALL


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_state_is_for_a_world_of_any_size(world: int) -> None:
    _, ranks = sources(2)
    before = [dataset(each) for each in ranks]
    taken = [record for each in before for batch in islice(each, 2) for record in batch]
    state, other = (json.loads(json.dumps(each)) for each in together([it.state_dict for it in before]))
    assert state == other
    after = [LocalLeases(PLAN)] if world == 1 else sources(world)[1]
    loops = [dataset(each) for each in after]
    for each in loops:
        each.load_state_dict(state)
    found = together([lambda it=each: [r for batch in it for r in batch] for each in loops])  # type: ignore[misc]
    assert Counter([*taken, *(record for mine in found for record in mine)]) == ALL


def test_a_local_state_goes_on_with_more_ranks() -> None:
    alone = dataset(LocalLeases(PLAN))
    taken = [record for batch in islice(alone, 3) for record in batch]
    state = alone.state_dict()
    loops = [dataset(each) for each in sources(2)[1]]
    for each in loops:
        each.load_state_dict(state)
    found = together([lambda it=each: [r for batch in it for r in batch] for each in loops])  # type: ignore[misc]
    assert Counter([*taken, *(record for mine in found for record in mine)]) == ALL


def test_the_next_leases_are_asked_for_ahead() -> None:
    master, [it] = sources(1, Plan.of_samples(400, 1, shuffle=False))
    taken = [it.take(0)[0].shard.start for _ in range(3)]
    asked = [each for each in master.asked if isinstance(each, AskData)]
    assert taken == [0, 1, 2]
    assert len(asked) >= 2, "one was asked for while there was one left"
    assert [*taken, *(lease.shard.start for _ in range(397) for lease in it.take(0))] == [*range(400)]
    assert it.take(0) == ()
    assert len(it.take(1)) == 1


@pytest.mark.parametrize("world", [1, 2, 40])
def test_ranks_that_wait_for_each_answer_can_save_and_end_together(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask for ever more ahead, and go in step: each trains on one lease before any has the next one."""
    monkeypatch.setattr(Line, "has_answer", False)
    plan = Plan.of_samples(600 * world, 1, shuffle=False)
    _, ranks = sources(world, plan)
    steps, most = 0, 0
    while any(taken := [rank.take(0) for rank in ranks]):
        steps += 1
        for rank, leases in zip(ranks, taken, strict=True):
            rank.consume({lease.id: Progress(lease.shard.stop) for lease in leases})
        if steps == 300:
            [state, *others] = states(ranks)
            assert all(each == state for each in others)
        most = max(most, *(len(rank._ready) for rank in ranks))
    assert steps <= 602, "nobody reads on alone for long"
    assert world > 1 or most > 100


def test_what_is_asked_for_ahead_shrinks_when_answers_are_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, [it] = sources(1, Plan.of_samples(20_000, 1))
    with monkeypatch.context() as patched:
        patched.setattr(Line, "has_answer", False)
        for _ in range(60):
            it.take(0)
    assert it._ahead > 20
    for _ in range(5000):
        it.take(0)
    assert it._ahead == 2


def test_a_lot_of_progress_comes_in_parts() -> None:
    master, [it] = sources(1, Plan.of_samples(3000, 1, shuffle=False))
    leases = [lease for _ in range(2500) for lease in it.take(0)]
    it.consume({lease.id: Progress(lease.shard.stop) for lease in leases})
    [state] = states([it])
    told = [len(each.progress) for each in master.asked if isinstance(each, AskData) and each.progress]
    assert told == [1024, 1024, 452]
    free = sum(stop - start for _, _, start, stop in state["free"])
    assert free + 3000 - state["cursor"][1] == 500


def test_a_file_that_is_too_short_is_named() -> None:
    plan = Plan.of_files({"a": 12}, 12)
    _, [it] = sources(1, plan)
    data = dataset(it, plan)
    assert sum(len(batch) for batch in data) == 9
    data.state_dict()
    assert [(each.shard, each.reason) for each in data.failed] == [
        (Shard("a", 9, 12), "it ended at record 9")
    ]


def test_what_cannot_be_read_is_tried_again_then_reported() -> None:
    def broken(shard: Shard) -> Any:
        for name, n in read(shard):
            if (name, n) == ("b", 1):
                raise OSError("no such sector")
            yield name, n

    _, [it] = sources(1)
    data = dataset(it, read=broken)
    found = Counter(record for batch in data for record in batch)
    assert ALL - found == Counter([("b", 1), ("b", 2), ("b", 3)])
    assert not data.failed
    data.state_dict()
    assert [(each.shard, each.reason) for each in data.failed] == [(Shard("b", 1, 4), "b: no such sector")]
    assert data.audit_trail()["left_out"] == [[0, "b", 1, 4, "b: no such sector"]]
    assert data.state_dict() == data.state_dict()
    assert "left_out" not in data.audit_trail()


def test_a_state_with_much_that_was_left_out_goes_on_with_the_newest() -> None:
    count = MAX_FAILED + 9
    plan = Plan.of_samples(count, 1, shuffle=False)
    master, [it] = sources(1, plan)
    failed = [[[0, n, n, n + 1], "gone"] for n in range(count)]
    it.load({"format": 1, "plan": plan.identity, "cursor": [1, 0], "free": [], "failed": failed})
    assert it.take(1)
    assert len(it.failed) == MAX_FAILED
    assert it.news() == ()
    [opened] = [each for each in master.asked if isinstance(each, OpenData) and each.left is not None]
    assert opened.left is not None
    assert opened.left.failed[0].piece.place == 9


def test_data_that_are_in_no_state_are_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MAX_OPEN", 8)
    _, [it, other] = sources(2)
    loops = [dataset(each, saved=False) for each in (it, other)]

    def evaluate(loop: ShardedDataset) -> list[Any]:
        return [record for batch in loop for record in batch]

    for _ in range(6):
        found = together([partial(evaluate, each) for each in loops])
        assert Counter(record for mine in found for record in mine) == ALL
    assert not it._held.keys() - it._over.keys(), "it has told of what is over"


def test_who_forgets_to_save_is_told_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MAX_OPEN", 4)
    _, [it] = sources(1)
    with pytest.raises(DataError, match=r"the leases of data are lost: rank 0 has 4 .* needs saved=False"):
        list(dataset(it))


def test_a_refusal_is_for_good() -> None:
    master, [it] = sources(1)
    it.take(0)
    master.desks.stop("rank 7 was killed")
    with pytest.raises(DataError, match="the leases of data are lost: rank 7 was killed"):
        it.state()
    for call in (it.state, lambda: it.take(0), lambda: it.consume({}), lambda: it.load({})):
        with pytest.raises(DataError, match="this rank has no say about data any more: rank 7 was killed"):
            call()


def test_an_answer_without_what_is_left_is_refused() -> None:
    master, [it] = sources(1)
    master.change = lambda answer: replace(answer, left=None)
    with pytest.raises(DataError, match="has answered without what is left"):
        it.state()


def test_a_save_that_is_broken_off_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that comes later would lack what was told with the one that never came."""
    master, [it] = sources(1)
    it.take(0)

    def interrupt(self: Line) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        it._hear()
        patched.setattr(Line, "answer", interrupt)
        it.state()
    with pytest.raises(DataError, match="its last attempt to save a state was given up"):
        it.state()
    assert master.asked


@pytest.mark.parametrize("free", [[0, 0, 9, 12], [0, 1, 3, 9], [0, 90, 0, 1]])
def test_a_state_with_pieces_that_cannot_be_is_refused(free: list[int]) -> None:
    _, [it] = sources(1)
    state = {"format": 1, "plan": PLAN.identity, "cursor": [1, 0], "free": [free], "failed": []}
    with pytest.raises(DataError, match="is no piece of a shard"):
        it.load(state)
