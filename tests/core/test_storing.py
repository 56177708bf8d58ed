"""What the master knows of a commit that is being written to the storage."""

from __future__ import annotations

from elasticrun.core.protocol.commits import MAX_PARTS, CommitId
from elasticrun.core.protocol.storing import StoreOrder, StorePart, StoreReport, StoreStage
from elasticrun.core.state.storing import Step, Storing

STEP = CommitId(0, 7)
KINDS = {0: "x", 1: "x", 2: "", 3: "y"}
OWN = {0: ["a"], 1: ["b"], 2: ["c"], 3: ["d"]}


def report(order: StoreOrder | None, stage: StoreStage = StoreStage.WRITTEN, **other: object) -> StoreReport:
    assert order is not None
    values = {"number": order.number, "run": order.run, "stage": stage} | other
    return StoreReport(**values)  # type: ignore[arg-type]


def begun(kinds: dict[int, str] | None = None, size: int = 4) -> Storing:
    made = Storing()
    made.begin(STEP, "run7", KINDS if kinds is None else kinds, size)
    assert made.check() == []
    return made


def wrote(made: Storing, *nodes: str) -> list[Step]:
    steps = [made.hear(node, report(made.order(node))) for node in nodes]
    assert made.check() == []
    return steps


def test_each_node_writes_its_part_and_one_finishes() -> None:
    made = begun()
    assert made.assign(OWN) == (["a", "b", "c", "d"], "")
    assert made.check() == []
    assert made.order("a") == StoreOrder(1, "run7", STEP, (StorePart(0, 0, 0, 2),), 4)
    assert made.order("b") == StoreOrder(2, "run7", STEP, (StorePart(1, 1, 1, 2),), 4)
    assert made.order("c") == StoreOrder(3, "run7", STEP, (StorePart(2, 2),), 4)
    assert wrote(made, "b", "a", "d") == [Step.WRITTEN] * 3
    before = made.may_finish
    assert wrote(made, "c") == [Step.WRITTEN]
    assert (before, made.may_finish) == (False, True)
    made.finish("a")
    assert made.order("a") == StoreOrder(5, "run7", STEP, (), 4)
    assert (made.may_finish, made.durable) == (False, None)
    assert wrote(made, "a") == [Step.FINISHED]
    assert made.end() == STEP
    assert (made.durable, made.commit, made.considered, made.involved) == (STEP, None, STEP, [])


def test_a_part_that_is_lost_and_not_needed_is_left_out() -> None:
    made = begun({0: "x", 2: "x"}, 3)
    made.assign({0: ["a"], 2: ["c"]})
    assert made.order("c") == StoreOrder(2, "run7", STEP, (StorePart(2, 1, 1, 2),), 2, partial=True)


def test_a_part_goes_to_whoever_has_it_and_is_free() -> None:
    made = begun({0: "", 1: ""}, 2)
    assert made.assign({0: ["a", "b"], 1: ["a", "b"]}) == (["a"], ""), "both parts in one order"
    assert len((made.order("a") or StoreOrder(0, "", STEP)).parts) == 2
    made.lose("a")
    assert made.check() == []
    assert made.needs_writers
    assert made.assign({0: ["b"], 1: ["b"]}) == (["b"], "")
    made.lose("c")  # had nothing to write
    assert made.involved == ["b"]


def test_an_order_has_no_more_parts_than_the_protocol_allows() -> None:
    made = begun(dict.fromkeys(range(MAX_PARTS + 1), ""), MAX_PARTS + 1)
    holders = {rank: ["a"] for rank in range(MAX_PARTS + 1)}
    assert made.assign(holders) == (["a"], "")
    assert made.assign(holders) == ([], ""), "it is not free"
    assert wrote(made, "a") == [Step.WRITTEN]
    assert made.needs_writers
    assert made.assign(holders) == (["a"], "")
    assert not made.needs_writers


def test_a_part_that_nobody_has_any_more_ends_the_commit() -> None:
    made = begun()
    made.assign(OWN)
    made.lose("c")
    ordered, problem = made.assign({2: []})
    assert (ordered, problem) == ([], "nobody here has part 2 of it any more")
    assert made.end(problem) == STEP
    assert (made.durable, made.problem, made.is_under_way) == (None, problem, False)


def test_only_what_a_node_says_of_its_order_counts() -> None:
    made = begun()
    made.assign(OWN)
    order = made.order("a")
    assert made.hear("a", None) is Step.NOTHING
    assert made.hear("e", report(order)) is Step.NOTHING
    assert made.hear("a", report(order, number=99)) is Step.NOTHING
    assert made.hear("a", report(order, run="run6")) is Step.NOTHING
    assert made.hear("a", report(order, StoreStage.WRITING)) is Step.NOTHING
    assert made.hear("a", report(order, StoreStage.FAILED)) is Step.FAILED
    assert made.order("a") == order
    assert wrote(made, "a") == [Step.WRITTEN]
    assert made.hear("a", report(order)) is Step.NOTHING, "once"


def test_who_finishes_may_be_lost() -> None:
    made = begun({0: ""}, 1)
    made.assign({0: ["a"]})
    wrote(made, "a")
    made.finish("a")
    made.lose("a")
    assert made.may_finish
    assert made.involved == []
    made.finish("b")
    assert wrote(made, "b") == [Step.FINISHED]
