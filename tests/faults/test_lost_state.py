"""A host is lost with its shards of the state: others have copies, and give them to whoever needs them.

No step is done again: the last step that was safe comes back bit for bit, in a world of another size too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support.cluster import cluster
from tests.support.hosts import Hosts, blank_hosts, network
from tests.support.launcher import Launcher, clean_environment, private_folders
from tests.support.orders import TOKEN
from tests.support.processes import DEADLINE
from tests.support.said import KEEPER, Said, digests, said

__all__ = ["blank_hosts", "cluster", "network"]

pytestmark = [pytest.mark.root, pytest.mark.torch]

INFO = {"LOGLEVEL": "INFO"}
NOTHING: Mapping[str, str] = {}


def start(
    hosts: Hosts,
    nnodes: str,
    *plan: str,
    options: tuple[str, ...] = (),
    env: Mapping[str, str] = NOTHING,
) -> Launcher:
    """One more host, with a worker that trains a sharded model."""
    index = hosts.add().index
    own = ("--last-call-timeout=60", *options)
    return hosts.node(index, nnodes, *own, script=KEEPER, words=("--sharded", *plan), env={**INFO, **env})


def waits(step: int, launchers: list[Launcher]) -> str:
    """All ranks have saved a step and wait, and it is safe. What they have, which is the same on all."""
    for launcher in launchers:
        launcher.wait_line(f"waits after step {step},")
    launchers[0].wait_line(f"step {step} of round \\d is safe: 2 hosts have each part of it")
    (whole,) = digests([each for each in said("waits", *launchers) if each.step == step])
    return whole


def starts(round_: int, launchers: list[Launcher]) -> list[Said]:
    return [each for each in said("starts", *launchers) if each.round == round_]


def ended(launchers: list[Launcher]) -> str:
    """All of them end well. What their ranks have at the end."""
    assert [launcher.wait() for launcher in launchers] == [0] * len(launchers)
    (whole,) = digests(said("ends", *launchers))
    return whole


def test_survivors_and_then_a_newcomer_have_the_shards_of_a_lost_host(blank_hosts: Hosts) -> None:
    plan = ("wait=0:3", "wait=1:6")
    before = [start(blank_hosts, "2:3", *plan) for _ in range(3)]
    third = waits(3, before)
    blank_hosts.kill(2)
    survivors = before[:2]
    sixth = waits(6, survivors)
    newcomer = start(blank_hosts, "2:3", *plan)
    after = [*survivors, newcomer]
    ended(after)
    assert starts(1, after) == [Said(1, rank, 3, 12, third) for rank in range(2)]
    assert starts(2, after) == [Said(2, rank, 6, 24, sixth) for rank in range(3)]


def test_a_newcomer_takes_the_place_of_a_lost_host(blank_hosts: Hosts) -> None:
    """The survivor gives it all that the lost host had: the end is that of a training without a fault."""
    before = [start(blank_hosts, "2", "wait=0:3") for _ in range(2)]
    third = waits(3, before)
    blank_hosts.kill(1)
    after = [before[0], start(blank_hosts, "2", "wait=0:3")]
    end = ended(after)
    assert starts(1, after) == [Said(1, rank, 3, 12, third) for rank in range(2)]
    calm = blank_hosts.cluster.launch("--standalone", "--nproc-per-node=2", KEEPER, "--sharded")
    assert ended([calm]) == end


def test_a_host_that_leaves_by_an_order_sends_its_shards_to_those_who_stay(blank_hosts: Hosts) -> None:
    """Each part is on two of three hosts, so the one that stays lacks one."""
    token = {"ELASTICRUN_TOKEN": TOKEN}
    launchers = [start(blank_hosts, "1:3", "wait=0:3", env=token) for _ in range(3)]
    third = waits(3, launchers)
    command = (sys.executable, "-m", "elasticrun.cli.ctl", "scale", "1:1")
    target = ("--endpoint", blank_hosts.endpoint, "--rdzv-id", "job")
    folder = {"TMPDIR": str(blank_hosts[0].folder)}
    env = clean_environment(**folder, **private_folders(blank_hosts[0].folder / "nowhere"), **token)
    argv = [*blank_hosts[0].namespace.enter, *command, *target]
    ordered = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ordered.returncode == 0, ordered
    ended(launchers)
    assert starts(1, launchers) == [Said(1, 0, 3, 12, third)]
    assert "parts of step 3 of round 0 go to the next world's members first" in launchers[0].err


def test_without_copies_what_a_lost_host_had_is_lost(blank_hosts: Hosts) -> None:
    before = [start(blank_hosts, "1:2", "wait=0:3", options=("--state-copies=0",)) for _ in range(2)]
    for launcher in before:
        launcher.wait_line("waits after step 3,")
    blank_hosts.kill(1)
    survivor = before[0]
    ended([survivor])
    assert "step 3 of round 0 is lost: nobody here has 1 of its 2 parts" in survivor.err
    assert [each.step for each in starts(1, [survivor])] == [0]
