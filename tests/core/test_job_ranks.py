"""Where ranks run."""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.job.events import Detached
from elasticrun.core.job.ranks import RankIndex, RankPlace, no_rank, rank_ranges
from elasticrun.core.job.ranks import find_rank as scan
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.messages import AgentPhase, Assignment
from elasticrun.core.protocol.questions import MAX_RANGES, RankRange
from elasticrun.core.protocol.ranks import global_rank
from tests.core.build import Job, running
from tests.core.lines import lines_of
from tests.core.tf_build import SERVED, TfJob


def find_rank(job: JobState, rank: int) -> RankPlace | None:
    """Where it runs, whether one looks through all nodes or in an index, and that again."""
    index = RankIndex(job)
    (found,) = {scan(job, rank), index.find(rank), index.find(rank)}
    return found


def of(sizes: dict[str, int]) -> JobState:
    """A job whose round runs on nodes of these sizes, in this order."""
    job = Job(min_nodes=len(sizes), max_nodes=len(sizes))
    for name, size in sizes.items():
        job.attach(name, local_world_size=size)
    job.pass_time(1.0)
    return job.machine.state


def test_a_rank_is_on_the_node_whose_assignment_holds_it() -> None:
    state = of({"a": 2, "b": 2})
    found = [find_rank(state, rank) for rank in range(4)]
    assert found == [RankPlace("a", 0), RankPlace("a", 1), RankPlace("b", 0), RankPlace("b", 1)]
    assert (find_rank(state, 4), find_rank(state, -1)) == (None, None)
    assert rank_ranges(state) == (RankRange(0, 4),)
    assert no_rank(state, 9) == "there is no rank 9 now; there are ranks 0 to 3"


def test_ranks_of_a_node_that_has_gone_are_nowhere() -> None:
    state = of({"a": 1, "b": 2, "c": 1})
    state.members.remove("b")
    assert find_rank(state, 1) is None
    assert rank_ranges(state) == (RankRange(0, 1), RankRange(3, 1))
    assert no_rank(state, 1) == "there is no rank 1 now; there are ranks 0, 3"


def test_the_index_is_of_the_round_that_runs() -> None:
    job = running("ab")
    index = RankIndex(job.machine.state)
    assert index.find(1) == RankPlace("b", 0)
    job.do(Detached(job.sessions["a"], "reset"))
    assert index.find(0) is None
    job.attach("c")
    job.report("b", AgentPhase.READY, 0)
    assert job.machine.state.round == 1
    assert [index.find(rank) for rank in range(3)] == [RankPlace("b", 0), RankPlace("c", 0), None]


def test_a_rank_is_found_as_fast_among_many_nodes() -> None:
    def cost(nodes: int) -> int:
        state = of({f"n{number}": 1 for number in range(nodes)})
        index = RankIndex(state)
        assert index.find(nodes - 1) is not None
        return lines_of(lambda: index.find(nodes - 1))

    assert cost(300) == cost(30)


def test_before_the_first_round_there_are_none() -> None:
    state = Job(min_nodes=2, max_nodes=2).machine.state
    assert (find_rank(state, 0), rank_ranges(state)) == (None, ())
    assert no_rank(state, 0) == "there is no rank 0: no round runs, or its nodes have gone"


def test_between_two_rounds_the_newest_one_counts() -> None:
    job = running("ab")
    job.report("a", AgentPhase.FAILED, 0)
    assert find_rank(job.machine.state, 1) == RankPlace("b", 0)


def test_many_runs_of_ranks_are_named_in_short() -> None:
    state = of({f"n{number:02}": 1 for number in range(20)})
    for number in range(1, 20, 2):
        state.members.remove(f"n{number:02}")
    assert no_rank(state, 1).endswith("there are ranks 0, 2, 4, 6, 8, 10, 12, 14 and others")
    assert len(rank_ranges(state)) == 10 <= MAX_RANGES


def test_tasks_have_ranks_of_their_own() -> None:
    state = TfJob(SERVED).run().machine.state
    ranks = {rank for each in rank_ranges(state) for rank in range(each.first, each.first + each.count)}
    assert ranks == {0, 1, 2, 3, 4}
    assert [find_rank(state, rank) for rank in sorted(ranks)] == [
        *(RankPlace("a", 0), RankPlace("a", 1), RankPlace("b", 0), RankPlace("b", 1)),
        RankPlace("c", 0),
    ]
    assert find_rank(state, 17) is None


def test_an_added_task_has_a_rank_that_no_other_node_gives() -> None:
    first = Assignment(0, 0, 2, 0, 4, 0, 4, "h", 1, 0, 0)
    second = replace(first, group_rank=1, first_rank=2)
    assert [global_rank(first, 2, local) for local in range(4)] == [0, 1, 4, 6]
    assert [global_rank(second, 2, local) for local in range(4)] == [2, 3, 5, 7]
