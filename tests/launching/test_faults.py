"""Faults that are placed by steps: what befalls the ranks of a launched function."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import elasticrun
from elasticrun.errors import JobFailedError, UsageError, WorkerFailed
from elasticrun.launching.launchers import End, Launchers
from elasticrun.launching.node_faults import NodeFaults, Plan
from elasticrun.launching.relay import Relay
from elasticrun.launching.server import Server
from elasticrun.testing import Fault, Freeze, Join, Kill, LoseNode, Partition, Slow


def test_a_rank_is_killed_at_its_step(capfd: pytest.CaptureFixture[str]) -> None:
    def train() -> int:
        for step in range(5):
            elasticrun.report_step(step)
            print(f"round {os.environ['ELASTICRUN_ROUND']} rank {os.environ['RANK']} step {step}", flush=True)
        return int(os.environ["ELASTICRUN_ROUND"])

    with elasticrun.start(train, max_restarts=1, faults=[Kill(rank=1, at_step=3)]) as job:
        results = job.wait()
    assert [result.value for result in results] == [1, 1]
    assert (job.rounds, job.restarts) == (2, 1)
    out = capfd.readouterr().out
    assert "round 0 rank 1 step 2\n" in out
    assert "round 0 rank 1 step 3\n" not in out
    assert "round 1 rank 1 step 4\n" in out


@pytest.mark.torch
def test_steps_of_optimizers_count() -> None:
    def train() -> int:
        import torch

        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight])
        for _ in range(3):
            optimizer.step()
        return int(os.environ["ELASTICRUN_ROUND"])

    faults = [Kill(rank=0, at_step=2)]
    results = elasticrun.launch(train, nproc=1, max_restarts=1, faults=faults, preload=["torch"])
    assert [result.value for result in results] == [1]


def test_a_rank_that_is_no_fork_meets_its_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has imported nothing of elasticrun before it is called."""
    module = tmp_path / "edited_module.py"
    monkeypatch.syspath_prepend(str(tmp_path))

    def train() -> int:
        elasticrun.report_step(1)
        return int(os.environ["ELASTICRUN_ROUND"])

    server = Server()  # whose later jobs would have no forks either
    options: Any = {"nproc": 1, "max_restarts": 1, "preload": ["edited_module"], "server": server}
    for text in ("", "edited = True\n"):
        module.write_text(text)
        with elasticrun.start(train, faults=[Kill(rank=0, at_step=1)], **options) as job:
            assert [result.value for result in job.wait()] == [1]
            assert "SIGKILL" in job.why(1)
    server.close()


def test_a_frozen_rank_is_found_by_its_silence() -> None:
    def train() -> int:
        for step in range(3):
            elasticrun.report_step(step)
        return int(os.environ["ELASTICRUN_ROUND"])

    faults = [Freeze(rank=0, at_step=1)]
    results = elasticrun.launch(train, max_restarts=1, faults=faults, hang_timeout=5)
    assert [it.value for it in results] == [1, 1]


def test_a_slow_rank_takes_longer() -> None:
    def train() -> float:
        began = time.monotonic()
        for step in range(4):
            end = time.monotonic() + 0.02
            while time.monotonic() < end:
                pass
            elasticrun.report_step(step)
        return time.monotonic() - began

    slow, _ = (it.value for it in elasticrun.launch(train, faults=[Slow(rank=0, factor=20)]))
    assert slow >= 4 * 0.02 * 20, "it is never quicker, however busy the machine is"


def test_faults_of_two_rounds() -> None:
    def train() -> int:
        for step in range(3):
            elasticrun.report_step(step)
        return int(os.environ["ELASTICRUN_ROUND"])

    faults: list[Fault] = [Kill(rank=0, at_step=1), Kill(rank=1, at_step=0, round=1)]
    with elasticrun.start(train, max_restarts=2, faults=faults) as job:
        assert [it.value for it in job.wait()] == [2, 2]
    assert (job.rounds, job.restarts) == (3, 2)


@pytest.mark.parametrize(
    ("fault", "nodes", "worlds", "why"),
    [
        (LoseNode(1, at_step=2), 2, [2, 1], "lost: the connection to the agent was closed"),
        (Freeze(node=1, at_step=2), 2, [2, 1], "lost: no answer for"),
        (Partition(1, at_step=2), 2, [2, 1], "lost: no answer for"),
        (Join(after_step=2), 1, [1, 2], "can join; 2 nodes of 1:2 ready"),
        (Join(after_step=2), 2, [2, 3], "can join; 3 nodes of 1:3 ready"),
    ],
)
def test_a_world_changes_at_a_step(fault: Fault, nodes: int, worlds: list[int], why: str) -> None:
    def train() -> tuple[int, int]:
        for step in range(5):
            elasticrun.report_step(step)
        return int(os.environ["ELASTICRUN_ROUND"]), int(os.environ["WORLD_SIZE"])

    with elasticrun.start(train, nproc=1, nodes=nodes, min_nodes=1, faults=[fault]) as job:
        assert [it.value for it in job.wait()] == [(1, worlds[1])] * worlds[1]
    assert (job.rounds, job.restarts) == (2, 0)
    assert f"{worlds[0]} node" in job.why(0)
    assert why in job.why(1)
    with pytest.raises(UsageError, match="round 2 was given: this job had 2 rounds"):
        job.why(2)


@pytest.mark.parametrize(
    "fault",
    [
        Freeze(rank=1, at_step=2, seconds=0.3),
        Freeze(node=1, at_step=2, seconds=0.3),
        Partition(1, at_step=2, seconds=0.3),
    ],
)
def test_what_passes_soon_enough_is_no_failure(fault: Fault) -> None:
    def train() -> float:
        times = []
        for step in range(5):
            elasticrun.report_step(step)
            times.append(time.monotonic())
        return times[2] - times[1]

    with elasticrun.start(train, nproc=1, nodes=2, faults=[fault]) as job:
        _, waited = (it.value for it in job.wait())
    assert job.rounds == 1
    assert waited >= 0.3 or isinstance(fault, Partition), "the rank was stopped for as long"


def test_faults_follow_one_another() -> None:
    """A node joins, another is lost, and a rank is killed: each in the round that it was placed in."""

    def train() -> int:
        for step in range(4):
            elasticrun.report_step(step)
        return int(os.environ["WORLD_SIZE"])

    faults: list[Fault] = [Join(after_step=1), LoseNode(2, at_step=2, round=1), Kill(0, at_step=3, round=2)]
    with elasticrun.start(train, nproc=1, nodes=2, min_nodes=1, max_restarts=1, faults=faults) as job:
        assert [it.value for it in job.wait()] == [2, 2]
    assert [job.why(number).split("; ")[-1].split(" of ")[0] for number in range(4)] == [
        "2 nodes",
        "3 nodes",
        "2 nodes",
        "2 nodes",
    ]
    assert job.restarts == 1
    assert "rank 0" in job.why(3)


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_end_of_a_node_that_has_joined_is_the_jobs_affair(has_begun: bool) -> None:
    """It may be heard before that of the others, which have the cause."""
    nothing: Any = None
    launchers = Launchers(nothing)
    faults = NodeFaults(Plan([], 1), nothing, launchers, nothing, nothing)
    faults._late.add(1)
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        os.fdopen(os.memfd_create("first")) as first,
        os.fdopen(os.memfd_create("joined")) as joined,
    ):
        if has_begun:
            os.write(joined.fileno(), b'{"round": 1, "world_size": 2, "restarts": 0, "why": ""}\n')
        launchers._outcomes = [first.fileno(), joined.fileno()]
        launchers.channels[0] = ours
        launchers.ends[1] = End(1, "it failed")
        with contextlib.nullcontext() if has_begun else pytest.raises(JobFailedError, match="it failed"):
            faults.check(1)


@pytest.mark.parametrize("fault", [Freeze(node=0, at_step=0, seconds=0.05), Join(after_step=0)])
def test_a_failure_after_a_fault_is_the_jobs(fault: Fault) -> None:
    """A node that was hit may be the only one, and one that has joined may be the first that is heard."""

    def train() -> None:
        elasticrun.report_step(0)
        raise LookupError("of the function")

    with pytest.raises(WorkerFailed, match="LookupError: of the function") as failed:
        elasticrun.launch(train, nproc=1, faults=[fault])
    assert isinstance(failed.value.__cause__, LookupError)


def test_a_job_that_loses_all_nodes_has_failed() -> None:
    def train() -> None:
        for step in range(3):
            elasticrun.report_step(step)
        select.select([], [], [])

    faults = [LoseNode(1, at_step=1), LoseNode(0, at_step=2, round=1)]
    with pytest.raises(JobFailedError, match="no node is left"):
        elasticrun.launch(train, nproc=1, nodes=2, min_nodes=1, faults=faults)


def test_nobody_waits_for_a_node_that_the_job_did_without() -> None:
    """It comes back long after the job is over, and would look for its master then."""

    def train() -> str:
        for step in range(3):
            elasticrun.report_step(step)
        return os.environ["WORLD_SIZE"]

    faults = [Freeze(node=1, at_step=1, seconds=3600)]
    with elasticrun.start(train, nproc=1, nodes=2, min_nodes=1, faults=faults) as job:
        assert [it.value for it in job.wait(timeout=120)] == ["1"]
        assert [it.value for it in job.wait()] == ["1"]
    assert job.rounds == 2


@pytest.mark.parametrize("seconds", [None, 3600])
def test_a_frozen_node_leaves_no_descriptors_behind(seconds: float | None) -> None:
    def train() -> None:
        elasticrun.report_step(0)
        select.select([], [], [])

    elasticrun.launch(print, nproc=1)  # so that there is a fork server
    before = {*Path("/proc/self/fd").iterdir()}
    faults = [Freeze(node=1, at_step=0, seconds=seconds)]
    with elasticrun.start(train, nproc=1, nodes=2, min_nodes=1, faults=faults) as job:
        assert job._faults is not None
        while job._faults._left:
            job.hear(None)
        job.close()
    assert {*Path("/proc/self/fd").iterdir()} == before


def test_a_node_that_cannot_join_ends_the_job() -> None:
    """Ranks wait for it: else they would for ever."""

    def train() -> None:
        for step in range(4):
            elasticrun.report_step(step)

    with (
        elasticrun.start(train, nproc=1, nodes=2, faults=[Join(after_step=1)]) as job,
        pytest.raises(UsageError, match="launch has no option no_such"),
    ):
        assert job._faults is not None
        job._faults._joiners[0] = {**job._faults._joiners[0], "options": {"no_such": 1}}
        job.wait()


def test_a_ring_of_somebody_else_is_nothing() -> None:
    """Pids and numbers come from ranks: what makes no sense brings about nothing."""

    def train() -> None:
        from elasticrun.worker import target

        (call,) = [each for each in gc.get_objects() if isinstance(each, target.Call)]
        place, name = call.terms["bell"]
        with call._open(place, name, "wb") as bell:
            for number, pid in ((0, 1), (7, int(os.environ["ELASTICRUN_LAUNCHER"])), (-5, -1)):
                bell.write(target.BELL.pack(number, pid, 1))
            bell.write(b"half")

    with elasticrun.start(train, nodes=2, nproc=1, faults=[Freeze(rank=1, at_step=5, seconds=1)]) as job:
        job.wait()
    assert job.rounds == 1


def test_a_relay_loses_nothing_of_what_it_holds_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        relay = Relay(master.getsockname()[1])
        try:
            with socket.create_connection(("127.0.0.1", relay.port)) as node:
                far, _ = master.accept()
                node.sendall(b"before ")
                assert far.recv(100) == b"before "
                relay.cut()
                node.sendall(b"meanwhile")
                assert select.select([far], [], [], 0.05)[0] == []
                relay.mend()
                assert far.recv(100) == b"meanwhile"
                far.sendall(b"an answer")
                far.close()
                assert node.recv(100) == b"an answer"
                assert node.recv(100) == b""
        finally:
            relay.close()
        relay.close()


def test_a_relay_goes_on_after_a_connection_was_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        relay = Relay(master.getsockname()[1])
        try:
            for _ in range(3):  # the relay gets the same descriptors again
                with socket.create_connection(("127.0.0.1", relay.port)) as node:
                    node.settimeout(60)
                    far, _ = master.accept()
                    far.sendall(b"hello")
                    assert node.recv(100) == b"hello"
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    far.close()
                    with pytest.raises(ConnectionResetError):
                        node.recv(100)
        finally:
            relay.close()


def test_a_relay_says_that_no_master_is_there() -> None:
    """A node tries again for long then, but not where another program holds the port."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    relay = Relay(port)
    try:
        with socket.create_connection(("127.0.0.1", relay.port)) as node, pytest.raises(ConnectionResetError):
            node.recv(100)
    finally:
        relay.close()


def test_a_fork_leaves_the_relays_of_its_parent_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        relay = Relay(master.getsockname()[1])
        try:
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    relay.close()
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            with socket.create_connection(("127.0.0.1", relay.port)) as node:
                far, _ = master.accept()
                with far:
                    node.sendall(b"it goes on")
                    assert far.recv(100) == b"it goes on"
        finally:
            relay.close()


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([Kill(rank="1", at_step=0)], "give numbers from 0 on, and whole ones for rank"),  # type: ignore[arg-type]
        ([Kill(rank=1, at_step=-1)], "give numbers from 0 on"),
        ([Slow(rank=1, factor="much")], "give a number as its factor"),  # type: ignore[arg-type]
        ([Kill(rank=2, at_step=0)], "names no rank of this job: give one from 0 to 1"),
        ([LoseNode(1, at_step=0)], "names no node of this job: give one from 0 to 0"),
        ([Kill(None, at_step=0)], "give numbers from 0 on"),  # type: ignore[arg-type]
        ([LoseNode(None, at_step=0)], "give numbers from 0 on"),  # type: ignore[arg-type]
        ([Kill([1], at_step=0)], "give numbers from 0 on"),  # type: ignore[arg-type]
        ([LoseNode(1, at_step=0), Join(after_step=0)], "leaves no node"),
        ([LoseNode(0, at_step=0)], "leaves no node: give nodes=2 and min_nodes=1"),
        ([Freeze(at_step=1)], "give a rank or a node"),
        ([Freeze(rank=0, at_step=1, seconds=0)], "give seconds as a number above 0"),
        ([Join(after_step=1), Partition(0, at_step=1, seconds=1)], "the node that has the master"),
        ([Join(after_step=1), Join(after_step=2)], "2 nodes join in round 0.*: give the second round=1"),
        ([Join(after_step=1)] * 101, "give at most 100"),
        (["kill"], "give a list of Kill, Freeze, Slow, LoseNode, Join and Partition"),
        (Kill(0, 0), "give a list of Kill, Freeze, Slow, LoseNode, Join and Partition"),
    ],
)
def test_wrong_faults_are_refused(faults: list[Fault], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        elasticrun.launch(print, faults=faults)


def test_a_node_that_has_joined_may_be_lost_again() -> None:
    def train() -> str:
        for step in range(3):
            elasticrun.report_step(step)
        return os.environ["WORLD_SIZE"]

    faults: list[Fault] = [Join(after_step=1), LoseNode(1, at_step=1, round=1)]
    assert [it.value for it in elasticrun.launch(train, nproc=1, faults=faults)] == ["1"]


def test_times_may_be_longer_than_the_kernel_waits() -> None:
    def train() -> None:
        elasticrun.report_step(0)

    faults: list[Fault] = [Freeze(rank=1, at_step=0, seconds=1e300), Slow(rank=0, factor=1e300)]
    with elasticrun.start(train, faults=faults, hang_timeout=1) as job:
        with pytest.raises(TimeoutError):
            job.wait(timeout=0.0)
        with pytest.raises(WorkerFailed, match="rank"):
            job.wait(timeout=float("inf"))


def test_one_thread_may_wait_while_another_asks() -> None:
    """To ask the master is to hear what has been told meanwhile."""

    def train() -> int:
        for step in range(60):
            elasticrun.report_step(step)
        return 1

    found: list[elasticrun.Result] = []
    faults = [Freeze(rank=1, at_step=step, seconds=0.01) for step in range(60)]
    with elasticrun.start(train, nproc=1, nodes=2, faults=faults) as job:
        waits = threading.Thread(target=lambda: found.extend(job.wait()))
        waits.start()
        while waits.is_alive():
            job.hear(0.0)
        waits.join()
    assert [it.value for it in found] == [1, 1]


def test_scripts_meet_none() -> None:
    with pytest.raises(UsageError, match="they befall functions only"):
        elasticrun.launch("script.py", faults=[Kill(0, 0)])
