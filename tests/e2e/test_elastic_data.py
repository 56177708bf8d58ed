"""Each sample is in the final model's history once, whoever was killed, in a world of any size.

The workers write down what they train on. The history of the final model is what its steps took that were
committed: those of a round until the step from which a later round went on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from elasticrun.core.data.audit import Commit, audit, lineage
from elasticrun.core.data.order import Order, Source
from elasticrun.core.data.record import from_state
from elasticrun.core.protocol.commits import CommitId
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT, Launcher

pytestmark = pytest.mark.torch

READER = ROOT / "tests" / "support" / "reader.py"
SAMPLES, EPOCHS, SIZE = 37, 3, 8
STEPS = 5  # of an epoch
UNHURRIED = "--last-call-timeout=60"


@pytest.fixture
def brief() -> Iterator[dict[str, str]]:
    """A folder for temporary files with a short path.

    The processes of a loader have sockets below it, and a socket's path has at most 107 bytes.
    """
    with TemporaryDirectory(prefix="elastic-") as folder:
        yield {"TMPDIR": folder}


@dataclass
class Diary:
    """What all ranks wrote down."""

    starts: dict[int, int]  # by round: the step that it went on from
    saved: dict[int, list[set[int]]]  # by round: the steps that each rank could copy
    steps: dict[int, dict[int, list[dict[str, Any]]]]  # by round and step: the lines of its ranks

    @classmethod
    def read(cls, folder: Path) -> Diary:
        starts, steps = dict[int, int](), dict[int, dict[int, list[dict[str, Any]]]]()
        saved = dict[int, list[set[int]]]()
        for path in sorted(folder.iterdir()):
            first, *lines = map(json.loads, path.read_text().splitlines())
            starts[first["round"]] = first["step"]
            mine = steps.setdefault(first["round"], {})
            saved.setdefault(first["round"], []).append({each["saved"] for each in lines if "saved" in each})
            for line in lines:
                if "taken" in line:
                    mine.setdefault(line["step"], []).append(line)
        return cls(starts, saved, steps)

    def least(self, round_: int) -> int:
        """The step that is committed at least when a round ends.

        A rank copies a step only once the fate of the one before is known. So when all ranks have copied
        two, the first of them is committed; of the second one nobody may have heard before a kill. Which
        steps are copied depends on how busy this box is: a save that has to wait too long is left out.
        """
        return [self.starts[round_], *sorted(set.intersection(*self.saved[round_]))][-2:][0]

    @property
    def history(self) -> list[list[dict[str, Any]]]:
        """The lines of all ranks for each step of the final model."""
        found: dict[int, list[dict[str, Any]]] = {}
        for round_ in sorted(self.steps):
            found = {step: lines for step, lines in found.items() if step <= self.starts[round_]}
            found |= self.steps[round_]
        return [found[step] for step in sorted(found)]

    @property
    def samples(self) -> list[list[int]]:
        """The samples of each step of the final model."""
        return [sorted(index for line in lines for index in line["taken"]) for lines in self.history]

    @property
    def losses(self) -> list[float]:
        return [lines[0]["loss"] for lines in self.history]

    def check(self) -> None:
        """By counting what was written down, and by the audit of the positions."""
        for epoch in range(EPOCHS):
            lines = [line for lines in self.history for line in lines if line["epoch"] == epoch]
            assert Counter(i for line in lines for i in line["taken"]) == Counter(range(SAMPLES))
        rounds = sorted(self.steps)
        restored: dict[int, CommitId | None] = {0: None}
        for before, round_ in pairwise(rounds):
            restored[round_] = CommitId(before, self.starts[round_])
        commits = {
            CommitId(round_, step): tuple(from_state(line["position"]) for line in lines)
            for round_, steps in self.steps.items()
            for step, lines in steps.items()
        }
        chain = lineage(commits, restored, CommitId(rounds[-1], EPOCHS * STEPS))
        found = audit([Commit(each, commits[each]) for each in chain])
        assert found.is_exact, found
        assert [each.samples for each in found.epochs] == [SAMPLES] * EPOCHS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "diary"
    path.mkdir()
    return path


def expected() -> list[list[int]]:
    """The samples of each step, by the order alone."""
    return [
        sorted(Order(Source(SAMPLES, 0, True), epoch).indices(range(SAMPLES)[at : at + SIZE]))
        for epoch in range(EPOCHS)
        for at in range(0, SAMPLES, SIZE)
    ]


def audited(folder: Path) -> None:
    """``elastic-ctl audit`` proves it from the records alone, and finds a copy of what was taken before."""
    run = Path(f"{folder}-run")
    done = CliRunner().invoke(group, ["audit", str(run), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["data"]["loader"]
    assert [each["samples"] for each in found["epochs"]] == [SAMPLES] * EPOCHS
    for path in (run / "data").glob("round_1_*"):
        path.write_text(path.read_text().replace('"resumed":', '"resumed":0,"was":'))
    done = CliRunner().invoke(group, ["audit", str(run), "--json"])
    assert done.exit_code == 1
    epochs = json.loads(done.stdout)["data"]["loader"]["epochs"]
    assert any(each["repeated"]["count"] for each in epochs)


def test_workers_killed_in_the_middle_of_an_epoch_lose_and_repeat_nothing(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    launcher = cluster.launch(
        *("--standalone", "--nproc-per-node=2", "--max-restarts=3"),
        *(READER, folder, "kill=0:1:4", "kill=1:0:8"),
        env=brief,
    )
    assert launcher.wait() == 0
    diary = Diary.read(folder)
    assert len(diary.starts) == 3
    assert diary.least(0) <= diary.starts[1] < 4, "the step that was not saved is trained on again"
    assert diary.least(1) <= diary.starts[2] < 8
    diary.check()
    audited(folder)
    assert diary.samples == expected()


def undisturbed(cluster: Cluster, folder: Path, ranks: int, brief: dict[str, str]) -> Diary:
    """A training without faults on one node."""
    folder.mkdir()
    calm = cluster.launch("--standalone", f"--nproc-per-node={ranks}", READER, folder, env=brief)
    assert calm.wait() == 0
    return Diary.read(folder)


def test_the_curve_is_the_same_for_any_world_and_for_one_that_changes(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    """1, 2 and 3 ranks; and nodes that come and are lost: worlds of 1, 2, 1, 2 and 3."""
    stops = (2, 5, 8, 11)  # in the middle of an epoch and at its end
    plan: tuple[str | Path, ...] = (
        READER,
        folder,
        *(f"wait={round_}:{step}" for round_, step in enumerate(stops)),
    )
    nodes: list[Launcher] = []

    def join(round_: int, *options: str) -> None:
        nodes.append(cluster.node("1:3", *options, *plan, env=brief))
        for node in nodes:
            node.wait_line(f"round {round_} rank \\d waits after step")

    join(0, "--last-call-timeout=0.01")
    join(1)
    nodes.pop().kill_node()
    nodes[0].wait_line("round 2 rank 0 waits after step")
    join(3)
    nodes.append(cluster.node("1:3", *plan, env=brief))
    assert [node.wait() for node in nodes] == [0, 0, 0]
    diary = Diary.read(folder)
    worlds = [len(lines) for lines in diary.history]
    starts = [diary.starts[round_] for round_ in range(5)] + [EPOCHS * STEPS]
    lengths = [later - earlier for earlier, later in pairwise(starts)]
    sizes = zip((1, 2, 1, 2, 3), lengths, strict=True)
    assert worlds == [size for size, steps in sizes for _ in range(steps)]
    assert min(lengths) > 0
    diary.check()
    audited(folder)
    calm = [undisturbed(cluster, folder.with_name(f"calm{ranks}"), ranks, brief) for ranks in (1, 2, 3)]
    for each in (diary, *calm):
        assert each.samples == expected()
        assert each.losses == pytest.approx(calm[0].losses, rel=1e-9)
    assert calm[0].losses[-1] < calm[0].losses[0] / 2


def test_the_check_finds_a_sample_that_counts_twice_or_never(
    cluster: Cluster, folder: Path, brief: dict[str, str]
) -> None:
    assert cluster.launch("--standalone", "--nproc-per-node=1", READER, folder, env=brief).wait() == 0
    diary = Diary.read(folder)
    diary.check()
    for change in (lambda taken: taken[0], lambda taken: None):
        spoilt = Diary.read(folder)
        taken = spoilt.steps[0][6][0]["taken"]
        taken[1:2] = [each for each in [change(taken)] if each is not None]
        with pytest.raises(AssertionError):
            spoilt.check()
    spoilt = Diary.read(folder)
    for steps in range(7, EPOCHS * STEPS + 1):
        spoilt.steps[0][steps][0]["position"]["resumed"] = 50
    with pytest.raises(AssertionError, match="missing"):
        spoilt.check()
