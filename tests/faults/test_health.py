"""The health check of real agents: who is named, who is excluded, and who trains.

Faults are drills (``elasticrun/probe/drill.py``) in the environment of one agent. Probes import torch only
where a test is about that; otherwise they multiply in plain Python and meet by TCP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cgroups import Cgroup, NoCgroupError, cgroup
from tests.support.cluster import Cluster
from tests.support.launcher import MODULE, ROOT, Launcher
from tests.support.processes import TORCH_DEADLINE

#: Probes of one host wait for one another, so tests of them do not run side by side.
pytestmark = pytest.mark.xdist_group("probes")

#: For worlds that have to be formed of everybody who was launched.
UNHURRIED = "--last-call-timeout=60"
CHECK = "--health-check=auto"
CHECK_ONLY = "--health-check-only"
#: A node that is silent holds its partners up for most of a step. Long enough for a good one, the first one
#: where it meets only nodes about which nothing else is known.
PATIENT = "--health-check-timeout=30"
SHORT = "--health-check-timeout=20"
FAULTY = 13
UNHEALTHY = 16

NO_TORCH = """raise ModuleNotFoundError("No module named 'torch'", name="torch")\n"""


class Nodes:
    """Launchers whose probes find no torch."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.director = cluster.director
        self.director.deadline = TORCH_DEADLINE
        modules = folder / "modules"
        modules.mkdir()
        (modules / "torch.py").write_text(NO_TORCH)
        self.env = {"PYTHONPATH": f"{modules}:{ROOT}", "LOGLEVEL": "INFO"}

    def add(self, nnodes: str, *args: str, fault: str = "", **rest: object) -> Launcher:
        """A node that trains if it may."""
        env = {**self.env, "ELASTICRUN_PROBE_FAULT": fault}
        return self.cluster.node(nnodes, UNHURRIED, *args, env=env, **rest)

    def check(self, nnodes: str, *args: str, fault: str = "", **rest: object) -> Launcher:
        """A node that is checked and no more."""
        env = {**self.env, "ELASTICRUN_PROBE_FAULT": fault}
        options = self.cluster.options(nnodes)
        return self.cluster.launch(*options, CHECK_ONLY, *args, env=env, **rest)


@pytest.fixture
def nodes(cluster: Cluster, tmp_path: Path) -> Nodes:
    return Nodes(cluster, tmp_path)


def name(launcher: Launcher) -> str:
    """The node's name, as the others know it."""
    return launcher.wait_line(r"^elastic-run\[(\S+)\]: checking this node")[1]


def master_says(nodes: Nodes) -> str:
    return "\n".join(
        line
        for launcher in nodes.cluster.launchers
        for line in launcher.err.splitlines()
        if "master: " in line
    )


def train(nodes: Nodes, good: list[Launcher]) -> None:
    """The good ones form the first world, nobody else ever does, and all end well."""
    workers = nodes.director.round(0, len(good))
    for worker in workers:
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"
        worker.tell("exit 0")
    for launcher in good:
        assert launcher.wait(TORCH_DEADLINE) == 0, launcher.story()
    assert nodes.director.last_round == 0


def is_excluded(nodes: Nodes, launcher: Launcher, reason: str) -> None:
    """It ended with 13 and a sentence, which the master's log has as well, under its name."""
    assert launcher.wait(TORCH_DEADLINE) == FAULTY, launcher.story()
    (last,) = re.findall(r"^elastic-run\[\S+\]: (this node was excluded.*)", launcher.err, re.MULTILINE)
    assert re.search(f"^this node was excluded from the job: {reason}", last), last
    assert re.search(f"{re.escape(name(launcher))} excluded: {reason}", master_says(nodes))
    assert "Traceback" not in launcher.err


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("compute", "its self test failed: the CPU computes wrong results"),
        pytest.param(
            "network",
            "no all-gather with it worked, also not with .*, which are good",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_of_three_is_faulty_and_the_others_train(nodes: Nodes, fault: str, reason: str) -> None:
    good = [nodes.add("2:3", CHECK, PATIENT) for _ in range(2)]
    bad = nodes.add("2:3", CHECK, PATIENT, fault=fault)
    train(nodes, good)
    is_excluded(nodes, bad, reason)


def test_one_of_four_sends_damaged_data_and_the_others_train(nodes: Nodes) -> None:
    bad = nodes.add("2:4", CHECK, PATIENT, fault="wrong")
    good = [nodes.add("2:4", CHECK, PATIENT) for _ in range(3)]
    train(nodes, good)
    is_excluded(nodes, bad, "no all-gather with it worked, also not with .*, which are good: ")


def test_a_spare_takes_the_place_of_a_node_whose_probe_crashes(nodes: Nodes) -> None:
    first = nodes.add("2", CHECK, SHORT)
    bad = nodes.add("2", CHECK, SHORT, fault="crash")
    is_excluded(nodes, bad, r"its self test failed: .*SIGSEGV")
    assert not nodes.director.workers, "one node is not enough"
    spare = nodes.add("2", CHECK, SHORT)
    train(nodes, [first, spare])


def test_one_of_two_computes_wrongly_and_the_other_trains_alone(nodes: Nodes) -> None:
    good = nodes.add("1:2", CHECK, SHORT)
    bad = nodes.add("1:2", CHECK, SHORT, fault="compute")
    train(nodes, [good])
    is_excluded(nodes, bad, "its self test failed")


@pytest.mark.slow
def test_two_that_do_not_reach_each_other_are_both_named_and_so_is_the_link(nodes: Nodes) -> None:
    both = [nodes.add("1:2", CHECK, SHORT, fault=fault) for fault in ("", "network")]
    names = [re.escape(name(launcher)) for launcher in both]
    for launcher in both:
        assert launcher.wait() == UNHEALTHY, launcher.story()
        last = launcher.err.splitlines()[-1]
        found = re.search(
            r"; (\S+): its self test .* it is at fault, or (\S+), or the link between them", last
        )
        assert found is not None, launcher.story()
        assert sorted(map(re.escape, found.groups())) == sorted(names)
        assert "Traceback" not in launcher.err
    assert not nodes.director.workers


# -- checking only


def table(launcher: Launcher) -> dict[str, list[str]]:
    """The rows of the table, by the names of the nodes."""
    lines = launcher.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("node "))
    return {row[0]: row[1:] for row in map(str.split, lines[start + 1 :])}


def test_a_check_that_finds_nothing_ends_with_0_and_a_table(nodes: Nodes) -> None:
    both = [nodes.check("2"), nodes.check("2")]
    names = {name(launcher) for launcher in both}
    for launcher in both:
        assert launcher.wait(TORCH_DEADLINE) == 0, launcher.story()
        rows = table(launcher)
        assert set(rows) == names
        # Of two that share this box with others, one may well be slow.
        assert all({"good", "straggler"} & set(row) for row in rows.values())
        assert all(row[1] == "MFLOP/s" and "tcp" in row for row in rows.values())


def test_a_check_that_finds_a_fault_ends_with_16_and_a_table_that_says_why(nodes: Nodes) -> None:
    good, bad = nodes.check("2"), nodes.check("2", fault="compute")
    culprit = name(bad)
    for launcher in (good, bad):
        assert launcher.wait() == UNHEALTHY, launcher.story()
        rows = table(launcher)
        assert set(rows) == {name(good), culprit}
        assert "faulty" in rows[culprit], launcher.story()
        assert "its self test failed: the CPU computes wrong results" in launcher.output()
        assert "Traceback" not in launcher.err
    assert not nodes.director.workers


@pytest.mark.torch
@pytest.mark.slow
def test_with_torch_the_check_is_gloos_and_a_matrix_product_of_torch(cluster: Cluster) -> None:
    both = [
        cluster.launch(*cluster.options("2"), CHECK_ONLY, env={"LOGLEVEL": "INFO"}),
        cluster.launch(
            *cluster.options("2"),
            CHECK_ONLY,
            env={"LOGLEVEL": "INFO", "ELASTICRUN_PROBE_FAULT": "wrong"},
        ),
    ]
    for launcher in both:
        assert launcher.wait() == UNHEALTHY, launcher.story()
        # Who sent it sees only that the other one has hung up, and may be heard first.
        assert re.search("arrived damaged|the gloo all-gather with", launcher.output()), launcher.story()
        for row in table(launcher).values():
            assert row[1] in ("GFLOP/s", "TFLOP/s"), "plain Python makes some MFLOP/s"
            assert "torch/cpu" in row


# -- slow nodes

#: Far beyond what other work on this box does to a probe that it does not have to give way to.
SLOW = "slow=0.03"
CLEARLY = "--straggler-ratio=8"


def test_a_straggler_is_named_on_every_node_and_trains(nodes: Nodes) -> None:
    launchers = [nodes.add("2", CHECK, CLEARLY), nodes.add("2", CHECK, CLEARLY, fault=SLOW)]
    slow = name(launchers[1])
    train(nodes, launchers)
    for launcher in launchers:
        assert re.search(
            rf"health check: {re.escape(slow)} is slow: its matmul is \S+ times slower", launcher.err
        ), launcher.story()


def test_a_straggler_is_excluded_if_that_is_wanted(nodes: Nodes) -> None:
    options = ("1:2", CHECK, CLEARLY, "--exclude-stragglers")
    good, slow = nodes.add(*options), nodes.add(*options, fault=SLOW)
    train(nodes, [good])
    is_excluded(nodes, slow, r"its matmul is \S+ times slower than the median")


@pytest.fixture
def groups() -> Iterator[tuple[Cgroup, Cgroup]]:
    """Two control groups to which other work on this box gives way; the second has a quarter of a core."""
    try:
        with cgroup("cpu") as whole, cgroup("cpu") as quarter:
            for made in (whole, quarter):
                made.outweigh()
            whole.limit_cpu(1.0)  # the other core is everybody's: to starve them proves nothing
            quarter.limit_cpu(0.25)  # far from the ratio of 2, as the other core may be held up as well
            yield whole, quarter
    except NoCgroupError as error:
        pytest.skip(str(error))


@pytest.mark.root
@pytest.mark.parametrize(
    "engine", ["python", pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.slow])]
)
def test_a_node_throttled_by_a_quota_is_a_straggler(
    nodes: Nodes, groups: tuple[Cgroup, Cgroup], engine: str
) -> None:
    if engine == "torch":
        del nodes.env["PYTHONPATH"]
    fast, slow = (nodes.check("2", command=(*group.enter, *MODULE)) for group in groups)
    assert [each.wait(TORCH_DEADLINE) for each in (fast, slow)] == [0, 0], fast.story()
    for launcher in (fast, slow):
        found = dict(re.findall(r"health check: (\S+) is slow: (its matmul is .*)", launcher.err))
        print(found)
        assert set(found) == {name(slow)}, launcher.story()
    rows = table(fast)
    assert "straggler" in rows[name(slow)]
    assert "good" in rows[name(fast)]
