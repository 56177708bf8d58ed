"""What a failure was, what is done about it, and how the job says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cgroups import Cgroup, NoCgroupError, cgroup
from tests.support.cluster import Cluster
from tests.support.launcher import MODULE, ROOT, Launcher

FAILING = ROOT / "tests" / "support" / "failing.py"
INFO = {"LOGLEVEL": "INFO"}
REPEATED = 12
FAULTY = 13
MANY = "--max-restarts=10"
#: A round in which nothing but a failure happens, however busy the machine is.
FAST = "fast_failure: 60"


def words(text: str) -> str:
    """What was wrapped at the end of a line, in one line again."""
    return " ".join(text.split())


def summary(launcher: Launcher) -> tuple[str, str]:
    """Why the job ended, and what its first failure was."""
    assert "Traceback" not in launcher.err.partition(" FAILED\n")[0].partition("=====")[2]
    reason, _, cause = launcher.err.partition(" FAILED\n")[2].partition("Root Cause")
    return words(reason), cause


def rounds(launcher: Launcher) -> int:
    """How many rounds this node took part in."""
    return len(re.findall(r"^elastic-run\S*: round \d+: node ", launcher.err, re.MULTILINE))


def policy(folder: Path, *lines: str) -> str:
    path = folder / "policy.yaml"
    path.write_text("\n".join(lines) + "\n")
    return f"--policy={path}"


# -- the same error again


@pytest.mark.parametrize(
    ("step", "where"), [(3, "at step 2"), (0, "before any step")], ids=["after steps", "at once"]
)
def test_the_same_error_at_the_same_step_ends_the_job(cluster: Cluster, step: int, where: str) -> None:
    what = [f"raise:{step}"] * 4
    launcher = cluster.launch("--standalone", "--nproc-per-node=2", MANY, FAILING, *what, env=INFO)
    assert launcher.wait() == REPEATED
    assert rounds(launcher) == 3
    reason, cause = summary(launcher)
    assert f"3 rounds in a row failed {where} with the same error and no progress in between" in reason
    assert "ValueError: no such layer: 7 at failing.py" in reason
    assert "Traceback (most recent call last)" in cause
    assert "ValueError: no such layer: 7" in cause
    assert "in raise_after" in cause


def test_progress_in_between_does_not(cluster: Cluster) -> None:
    what = ["raise:3", "raise:3", "raise:4", "raise:4"]
    launcher = cluster.launch("--standalone", MANY, FAILING, *what, env=INFO)
    assert launcher.wait() == 0, launcher.story()
    assert rounds(launcher) == 5


def test_every_node_is_told_of_the_error_that_came_back(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2", f"--node-rank={rank}", MANY)
    for number in range(3):
        cluster.director.round(number, 2)[1].tell("raise seven bananas")
    cluster.wait_all(REPEATED)
    for launcher in cluster.launchers:
        reason, cause = summary(launcher)
        assert "3 rounds in a row" in reason, launcher.story()
        assert "rank      : 1 (local_rank: 0)" in cause
        assert "RuntimeError: seven bananas" in cause


# -- the file


def test_the_policy_may_never_end_a_job_for_the_same_error(cluster: Cluster, tmp_path: Path) -> None:
    rules = policy(tmp_path, "same_error_rounds: 0", "backoff: {first: 0}")
    what = ["raise:1"] * 4
    launcher = cluster.launch("--standalone", rules, MANY, FAILING, *what, env=INFO)
    assert launcher.wait() == 0, launcher.story()
    assert rounds(launcher) == 5


def test_the_policy_may_give_up_at_once(cluster: Cluster, tmp_path: Path) -> None:
    rules = policy(tmp_path, "actions: {user_error: give_up}")
    launcher = cluster.launch("--standalone", rules, MANY, FAILING, "raise:1", env=INFO)
    assert launcher.wait() == 1
    assert rounds(launcher) == 1
    reason, cause = summary(launcher)
    assert "diagnosis user_error (stderr: 'ValueError: no such layer: 7'): the job ends" in reason
    assert "ValueError: no such layer: 7" in cause


@pytest.mark.parametrize(
    ("line", "words_"),
    [
        (
            "same_eror_rounds: 3",
            "the key 'same_eror_rounds' is unknown (did you mean same_error_rounds?); give",
        ),
        (
            "actions: {user_error: shrug}",
            "actions.user_error is 'shrug'; give restart, recheck, leave, give_up",
        ),
    ],
)
def test_a_policy_with_a_mistake_starts_nothing(
    cluster: Cluster, tmp_path: Path, line: str, words_: str
) -> None:
    launcher = cluster.alone(policy(tmp_path, line))
    assert launcher.wait() == 2
    assert words_ in words(launcher.err)
    assert str(tmp_path / "policy.yaml") in launcher.err
    assert "Traceback" not in launcher.err
    assert not cluster.director.workers


# -- backing off


def test_the_third_fast_failure_in_a_row_makes_the_job_wait(cluster: Cluster, tmp_path: Path) -> None:
    rules = policy(tmp_path, f"backoff: {{{FAST}, first: 0.5}}")
    what = ["exit:3"] * 4
    launcher = cluster.launch("--standalone", rules, MANY, FAILING, *what, env=INFO)
    assert launcher.wait() == 0, launcher.story()
    waits = re.findall(
        r"master: event \d+, round (\d+), .* before the first step: the next one starts in (\S+) s",
        launcher.err,
    )
    assert waits == [("2", "0.5"), ("3", "1")]


# -- what it was


def test_a_node_with_broken_hardware_leaves_and_the_other_goes_on(cluster: Cluster) -> None:
    nodes = [cluster.node("1:2", "--last-call-timeout=60", "--role", f"r{rank}") for rank in (0, 1)]
    victim = cluster.director.round(0, 2)[1]
    ecc = "CUDA error: uncorrectable ECC error encountered"
    victim.tell(f"raise {ecc}")
    broken = nodes[int(victim.env["ROLE_NAME"][1:])]
    stay = next(launcher for launcher in nodes if launcher is not broken)
    assert broken.wait() == FAULTY
    last = words(broken.err)
    assert "this node was excluded from the job" in last
    assert f"diagnosis hardware (stderr: 'RuntimeError: {ecc}')" in last
    assert "the node leaves" in last
    (alone,) = cluster.director.round(1, 1)
    assert alone.env["TORCHELASTIC_RESTART_COUNT"] == "0", "a broken node is not the program's fault"
    alone.tell("exit 0")
    assert stay.wait() == 0, stay.story()


@pytest.fixture
def little_memory() -> Iterator[Cgroup]:
    """A control group with room for a launcher, and for nothing greedy."""
    try:
        with cgroup("memory") as made:
            made.limit_memory(400 << 20)
            yield made
    except NoCgroupError as error:
        pytest.skip(str(error))


@pytest.mark.root
def test_a_kill_at_the_containers_limit_of_memory_is_named(cluster: Cluster, little_memory: Cgroup) -> None:
    launcher = cluster.launch("--standalone", FAILING, "eat", command=(*little_memory.enter, *MODULE))
    assert launcher.wait() == 1
    reason, cause = summary(launcher)
    assert "diagnosis cgroup_oom" in reason, launcher.story()
    assert "(SIGKILL)" in cause
