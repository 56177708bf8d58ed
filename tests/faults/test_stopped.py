"""Whoever is killed, and whoever is stopped (SIGSTOP) meanwhile: nothing is left once the agent is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

import pytest

pytest.importorskip("aiohttp", reason="needs the extra web")

from tests.e2e.test_web import observer_of
from tests.faults.test_warm import WARM, warm_parents
from tests.support.cluster import Cluster
from tests.support.launcher import Launcher
from tests.support.processes import DEADLINE, wait_end

ROLES = ("agent", "master", "observer", "spawner", "warm parent", "worker")
STOPPED = ((), *((role,) for role in ROLES), ROLES)
#: Each has another process than the agent alone, which would have cleaned up.
KILLED = (("agent", "spawner"), *((role, "agent") for role in ROLES if role != "agent"))


def processes(cluster: Cluster, launcher: Launcher) -> dict[str, int]:
    """One process of each role, and one that hides from all but the spawner; their pids."""
    (worker,) = cluster.director.round(0, 1)
    launcher.wait_line("web page: http")
    return {
        "agent": launcher.pid,
        "master": cluster.master_of(launcher),
        "observer": observer_of(launcher.pid),
        "spawner": launcher.spawner,
        "warm parent": warm_parents(launcher, [worker])[0],
        "worker": worker.pid,
        "hidden": worker.ask("child detached"),
    }


def end(
    cluster: Cluster, stopped: tuple[str, ...], killed: tuple[str, ...], is_private: bool = False
) -> None:
    """Stop some, kill some one after the other; all have to end. ``is_private``: the master has no port."""
    options = (*WARM, "--max-restarts=3", "--web", "127.0.0.1:0")
    launcher = cluster.alone(*options) if is_private else cluster.node("1", *options)
    pids = processes(cluster, launcher)
    if "spawner" in killed:
        os.kill(hidden := pids.pop("hidden"), signal.SIGKILL)
        wait_end(hidden)
    with contextlib.ExitStack() as stack:
        pidfds = {role: os.pidfd_open(pid) for role, pid in pids.items()}
        for pidfd in pidfds.values():
            stack.callback(os.close, pidfd)
        for role in stopped:
            signal.pidfd_send_signal(pidfds[role], signal.SIGSTOP)
        for role in killed:
            with contextlib.suppress(ProcessLookupError):  # the death of the one before has ended it
                signal.pidfd_send_signal(pidfds[role], signal.SIGKILL)
        over = time.monotonic() + DEADLINE
        left = [role for role, pidfd in pidfds.items() if not _ends(pidfd, over - time.monotonic())]
        assert left == []
    launcher.wait_status()
    cluster.nobody_left()


def _ends(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], max(0.0, seconds))[0])


def _names(roles: tuple[str, ...]) -> str:
    return "+".join(roles) or "nobody"


@pytest.mark.parametrize("stopped", STOPPED, ids=_names)
def test_nothing_is_left_of_a_killed_agent(cluster: Cluster, stopped: tuple[str, ...]) -> None:
    end(cluster, stopped, ("agent",))


def test_nothing_is_left_of_a_killed_agent_with_a_private_master(cluster: Cluster) -> None:
    end(cluster, ("master",), ("agent",), is_private=True)


@pytest.mark.slow
@pytest.mark.parametrize("killed", KILLED, ids=_names)
@pytest.mark.parametrize("stopped", STOPPED, ids=_names)
def test_nothing_is_left_of_two_that_are_killed(
    cluster: Cluster, stopped: tuple[str, ...], killed: tuple[str, ...]
) -> None:
    end(cluster, stopped, killed)
