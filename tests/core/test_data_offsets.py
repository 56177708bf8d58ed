"""What a broker may be told: never more than a storage has, whatever comes late, twice or in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.data.offsets import MAX_SAVES, OffsetLog
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import DataError


def at(step: int, round_: int = 0) -> CommitId:
    return CommitId(round_, step)


def log(*steps: int) -> OffsetLog:
    """Each step reads ten records of ``a`` and one of ``b``."""
    made = OffsetLog()
    for step in steps:
        made.saved(at(step), {"a": 10 * step, "b": step})
    return made


def tell(made: OffsetLog, commit: CommitId) -> dict[str, int]:
    offsets = made.durable(commit)
    made.told(offsets)
    return offsets


def test_the_newest_saved_step_that_is_not_beyond_the_durable_one() -> None:
    made = log(5, 10, 15)
    assert not made.is_empty
    assert tell(made, at(12)) == {"a": 100, "b": 10}
    assert tell(made, at(15)) == {"a": 150, "b": 15}


def test_a_call_that_comes_early_late_or_twice_tells_nothing_more() -> None:
    made = log(5, 10)
    assert tell(made, at(4)) == {}
    assert tell(made, at(10)) == {"a": 100, "b": 10}
    assert tell(made, at(10)) == tell(made, at(5)) == tell(made, at(99)) == {}
    assert OffsetLog().durable(at(3)) == {}
    assert OffsetLog().is_empty


def test_what_the_broker_did_not_take_is_told_again_and_what_did_not_move_is_not() -> None:
    made = log(5)
    assert made.durable(at(5)) == made.durable(at(2)) == {"a": 50, "b": 5}
    made.told({"a": 50})
    assert made.durable(at(5)) == {"b": 5}
    made.told({"b": 5})
    made.told({"b": 1})  # an answer to an older call
    made.saved(at(6), {"a": 50, "b": 6})
    assert made.durable(at(6)) == {"b": 6}


def test_an_offset_goes_back_only_by_a_restore() -> None:
    made = log(5)
    with pytest.raises(DataError, match="offset of a went back from 50 to 49 at step 6 of round 0"):
        made.saved(at(6), {"a": 49, "b": 6})
    made.saved(at(5), {"a": 51, "b": 5})  # the same step once more
    assert tell(made, at(5)) == {"a": 51, "b": 5}
    made.restored(at(3), {"a": 30, "b": 3})
    assert tell(made, at(3)) == {"a": 30, "b": 3}, "the broker goes back as well"
    made.saved(at(4, 1), {"a": 44, "b": 3, "c": 7})
    assert tell(made, at(4, 1)) == {"a": 44, "c": 7}


def test_steps_that_were_given_up_are_never_told() -> None:
    """Round 0 saved step 7, round 1 went on from step 5 and saves step 7 anew: others may be its records."""
    made = log(5, 7)
    made.restored(at(5), {"a": 50, "b": 5})
    made.saved(at(7, 1), {"a": 50, "b": 27})
    assert tell(made, at(7, 0)) == {"a": 50, "b": 5}
    assert tell(made, at(6, 1)) == {}
    assert tell(made, at(7, 1)) == {"b": 27}
    made.saved(at(6, 1), {"a": 60, "b": 20})  # the loop went back by itself
    assert tell(made, at(9, 1)) == {"a": 60}


def test_a_storage_that_never_answers_costs_no_more_memory() -> None:
    steps = 2 * MAX_SAVES
    made = log(*range(steps))
    assert len(made._saves) <= MAX_SAVES
    assert tell(made, at(steps)) == {"a": 10 * (steps - 1), "b": steps - 1}
    made = log(*range(steps))
    found = tell(made, at(steps // 2))
    assert 0 < found["b"] <= steps // 2


STEPS = st.integers(0, 12)


@given(st.lists(st.tuples(st.sampled_from(["save", "durable", "lost", "restore"]), STEPS)))
def test_the_broker_never_knows_more_than_is_durable(acts: list[tuple[str, int]]) -> None:
    """Whatever happens, and in whatever order the storage's words come."""
    made, step, round_, read, broker = OffsetLog(), 0, 0, 0, 0
    states, durable = {at(0): 0}, [at(0)]
    for act, number in acts:
        match act:
            case "save":
                step, read = step + 1, read + number
                made.saved(at(step, round_), {"a": read})
                states[at(step, round_)] = read
            case "durable" | "lost":
                commit = sorted(states, key=lambda it: it.age)[number % len(states)]
                durable.append(commit)
                found = made.durable(commit)
                if act == "durable":
                    made.told(found)
                    broker = found.get("a", broker)
            case "restore":
                least = max(each.age for each in durable)
                held = [each for each in sorted(states, key=lambda it: it.age) if each.age >= least]
                chosen = held[number % len(held)]
                states = {each: it for each, it in states.items() if each.age <= chosen.age}
                step, read, round_ = chosen.step, states[chosen], round_ + 1
                made.restored(chosen, {"a": read})
                broker = min(broker, read)
        assert broker <= max(states[each] for each in durable)
