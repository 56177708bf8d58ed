"""Simulated jobs with a storage, and mistakes that its rules find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from elasticrun.core.job.commits import Commits
from elasticrun.core.job.storage import Storage
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import Outcome
from elasticrun.core.state.vault import Vault
from elasticrun.core.state.writing import Writing
from elasticrun.sim.draw import generate, generate_ending, generate_shrinking
from elasticrun.sim.failover import simulator
from elasticrun.sim.kernel import Violation
from elasticrun.sim.scenario import AgentCrash, AgentStarts, NodeSpec, Scenario, StorageSpec, WorkerFails
from tests.sim.test_simulation import hold_every_rule

CHUNK = 25


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_seeds_of_jobs_that_end_without_success(first: int) -> None:
    for seed in range(first, first + CHUNK):
        hold_every_rule(generate_ending(seed, 4))


def test_the_seeds_of_other_tests_have_storages_too() -> None:
    for draw, nodes in ((generate, 8), (generate_shrinking, 4)):
        cases = [draw(seed, nodes) for seed in range(200)]
        saving = [case for case in cases if case.step]
        with_storage = [case for case in saving if case.storage is not None]
        assert all(case in saving for case in cases if case.storage is not None)
        assert 0.2 < len(with_storage) / len(saving) < 0.5


def job(**storage: float) -> Scenario:
    """Two nodes save each second."""
    nodes = (NodeSpec("a"), NodeSpec("b"))
    return Scenario(0, nodes, 2, 2, quiet_from=60.0, step=1.0, storage=StorageSpec(**storage))  # type: ignore[arg-type]


def test_what_all_nodes_saved_survives_their_death() -> None:
    faults = tuple(AgentCrash(30.0, name) for name in "ab") + tuple(AgentStarts(31.0, name) for name in "ab")
    sim = simulator(replace(job(every=5.0), faults=faults))
    loaded = []
    load = sim.durability.load

    def noting(world: object) -> int:
        loaded.append(load(world))  # type: ignore[arg-type]
        return loaded[-1]

    sim.durability.load = noting  # type: ignore[method-assign]
    assert sim.run().outcome is Outcome.SUCCEEDED
    assert loaded[0] == 0
    assert loaded[-1] > 5


def test_a_storage_that_always_hangs_stops_nothing() -> None:
    case = replace(job(hangs=1.0, undying=1.0, every=1.0), faults=(WorkerFails(20.0, "a"),))
    sim = simulator(case)
    assert sim.run().outcome is Outcome.SUCCEEDED
    assert not any(folder.number for folder in sim.storage.folders.values())


def _durable_too_soon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Storage, "_go_on", _ending(Storage._go_on))


def _ending(go_on: Callable[[Storage], None]) -> Callable[[Storage], None]:
    """Calls a commit durable once its parts are written: nobody has finished it."""

    def go_on_or_end(storage: Storage) -> None:
        if storage._state.storing.may_finish:
            storage._end()
        else:
            go_on(storage)

    return go_on_or_end


def _no_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Storage, "flushes", lambda storage: False)


def _no_pins(patch: pytest.MonkeyPatch) -> None:
    """Nodes may write over what goes to the storage."""
    judge = Vault._judge
    patch.setattr(
        Vault, "_judge", lambda vault, event: judge(vault, event) if hasattr(event, "kept") else None
    )


def _older_from_memory(patch: pytest.MonkeyPatch) -> None:
    """A world restores what its members have, however old."""

    def choose(commits: Commits, members: list[str]) -> CommitId | None:
        durable, commits._state.storing.durable = commits._state.storing.durable, None
        chosen = real(commits, members)
        commits._state.storing.durable = durable
        return chosen

    real = Commits.choose
    patch.setattr(Commits, "choose", choose)


def _two_writers(patch: pytest.MonkeyPatch) -> None:
    """A writer is started although one of an earlier order has not ended."""
    start = Writing._start

    def at_once(writing: Writing) -> None:
        writing._running.clear()
        start(writing)

    patch.setattr(Writing, "_start", at_once)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (_durable_too_soon, "what is durable is finished"),
        (_no_flush, "a flush comes before"),
        (_no_pins, "what is written is still there"),
        (_older_from_memory, "who restores from the storage is told"),
        (_two_writers, "one writer of a commit runs"),
    ],
)
def test_a_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = set()
    for seed in range(150):
        try:
            simulator(generate_ending(seed, 4)).run()
        except Violation as violation:
            found.add(violation.rule)
            if rule in found:
                return
    pytest.fail(f"only these: {found}")
