"""The launcher is asked to stop: by every signal, once or twice, at any moment."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from tests.support.cluster import Cluster
from tests.support.director import Worker

#: No test may have to wait for it: whoever needs it to end a test hangs.
FOREVER = "--shutdown-timeout=3600"
STOPPERS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]

#: An elastic-run that gets a signal exactly when it first looks for a certain module.
SIGNALLED_IMPORT = """
import importlib.abc, os, sys
class Trap(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {signum})
sys.meta_path.insert(0, Trap())
from elasticrun.cli.main import main
sys.exit(main())
"""


def note(worker: Worker, *signums: int) -> None:
    worker.ask("note " + " ".join(str(int(signum)) for signum in signums))


def ignore(worker: Worker, *signums: int) -> None:
    worker.ask("ignore " + " ".join(str(int(signum)) for signum in signums))


@pytest.mark.parametrize("signum", STOPPERS)
def test_a_signal_reaches_the_workers_and_is_the_exit_status(cluster: Cluster, signum: int) -> None:
    launcher = cluster.alone("--nproc-per-node=2", FOREVER)
    workers = cluster.director.round(0, 2)
    for worker in workers:
        note(worker, *STOPPERS)
    launcher.signal(signum)
    for worker in workers:
        assert worker.answer() == {"signal": signum}
        worker.tell("exit 0")
    assert launcher.wait() == 128 + signum
    assert f"received {signal.Signals(signum).name}" in launcher.err
    assert "FAILED" not in launcher.err, "being stopped is no failure"


@pytest.mark.parametrize("signum", STOPPERS)
def test_a_second_signal_kills_at_once(cluster: Cluster, signum: int) -> None:
    launcher = cluster.alone("--nproc-per-node=2", FOREVER)
    workers = cluster.director.round(0, 2)
    for worker in workers:
        ignore(worker, *STOPPERS)
        worker.ask("child detached")
    launcher.signal(signum)
    again = "Ctrl-C again" if signum == signal.SIGINT else "a second signal"
    launcher.wait_line(rf"stopping 2 workers \(up to 3600 s; {again} kills them\)")
    launcher.signal(signum)
    assert launcher.wait() == 128 + signum
    cluster.nobody_left()


def test_the_grace_period_ends_workers_that_do_not_listen(cluster: Cluster) -> None:
    launcher = cluster.alone("--shutdown-timeout=0.3")
    (worker,) = cluster.director.round(0, 1)
    ignore(worker, signal.SIGTERM)
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    assert "killing the workers that are still alive" in launcher.err


def test_the_grace_period_holds_for_restarts(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--shutdown-timeout=5", "--max-restarts=1")
    stubborn, failing = cluster.director.round(0, 2)
    note(stubborn, signal.SIGTERM)
    failing.tell("exit 1")
    assert stubborn.answer() == {"signal": signal.SIGTERM}
    for worker in cluster.director.round(1, 2):
        assert stubborn.gone
        worker.tell("exit 0")
    assert launcher.wait() == 0


def test_the_grace_period_holds_for_membership_changes(cluster: Cluster) -> None:
    for rank in (0, 1):
        cluster.node("2:3", f"--node-rank={rank}", "--shutdown-timeout=0.3", "--last-call-timeout=0")
    before = cluster.director.round(0, 2)
    for worker in before:
        ignore(worker, signal.SIGTERM)
    cluster.node("2:3", "--node-rank=2")
    for worker in cluster.director.round(1, 3):
        assert all(old.gone for old in before)
        worker.tell("exit 0")
    cluster.wait_all()


def test_grandchildren_die_before_the_next_round(cluster: Cluster) -> None:
    launcher = cluster.alone("--max-restarts=1")
    (worker,) = cluster.director.round(0, 1)
    children = [worker.ask("child"), worker.ask("child detached")]
    watched = [os.pidfd_open(child) for child in children]
    worker.tell("exit 1")
    (again,) = cluster.director.round(1, 1)
    for pidfd in watched:
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, 0)
        os.close(pidfd)
    again.tell("exit 0")
    assert launcher.wait() == 0


def test_a_stop_while_the_launcher_waits_for_nodes(cluster: Cluster) -> None:
    launcher = cluster.node("2", "--waiting-notice-interval=0.2")
    launcher.wait_line("1 missing")
    launcher.signal(signal.SIGINT)
    assert launcher.wait() == 128 + signal.SIGINT
    assert "Traceback" not in launcher.err


def test_a_stop_while_nobody_answers_at_the_endpoint(cluster: Cluster) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"--rdzv-endpoint=127.0.0.1:{silent.getsockname()[1]}"
        launcher = cluster.node("2", endpoint, "--rdzv-conf=read_timeout=3600")
        peer, _ = silent.accept()
        with peer:  # connected, and waiting for a word
            launcher.signal(signal.SIGTERM)
            assert launcher.wait() == 128 + signal.SIGTERM


def test_a_stop_while_the_endpoint_refuses(cluster: Cluster) -> None:
    launcher = cluster.node("2", "--rdzv-conf=read_timeout=3600,is_host=false", env={"LOGLEVEL": "DEBUG"})
    launcher.wait_line("rendezvous backend")  # the last word before the first attempt
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "module",
    ["asyncio", "grpc", "elasticrun.agent.logs.router", "elasticrun.agent.runtime", "elasticrun.rpc.client"],
)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_launcher_still_starts(cluster: Cluster, module: str, signum: int) -> None:
    code = SIGNALLED_IMPORT.format(module=module, signum=int(signum))
    command = (sys.executable, "-c", code)
    is_networked = module in ("grpc", "elasticrun.rpc.client")  # of no use to a node that is alone
    launcher = cluster.node("2", command=command) if is_networked else cluster.alone(command=command)
    assert launcher.wait() == 128 + signum
    assert "Traceback" not in launcher.err
    cluster.nobody_left()


def test_a_stop_during_a_restart(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--max-restarts=3", FOREVER)
    stubborn, failing = cluster.director.round(0, 2)
    note(stubborn, signal.SIGTERM)
    failing.tell("exit 1")
    assert stubborn.answer() == {"signal": signal.SIGTERM}
    launcher.signal(signal.SIGTERM)
    launcher.wait_line("received SIGTERM")
    stubborn.tell("exit 0")
    assert launcher.wait() == 128 + signal.SIGTERM
    assert cluster.director.last_round == 0


def test_two_signals_during_a_restart(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--max-restarts=3", FOREVER)
    stubborn, failing = cluster.director.round(0, 2)
    note(stubborn, signal.SIGTERM)
    failing.tell("exit 1")
    assert stubborn.answer() == {"signal": signal.SIGTERM}
    for number in (1, 2):
        launcher.signal(signal.SIGINT)
        launcher.wait_lines("received SIGINT", number)
    assert launcher.wait() == 128 + signal.SIGINT
    assert cluster.director.last_round == 0


def test_a_stop_after_the_workers_finished_takes_nothing_from_the_others(cluster: Cluster) -> None:
    quick, slow = (
        cluster.node("2", f"--node-rank={rank}", "--event-log-handler=console", FOREVER) for rank in (0, 1)
    )
    first, second = cluster.director.round(0, 2)
    first.tell("exit 0")
    quick.wait_line("elasticrun.agent.finished")
    quick.signal(signal.SIGTERM)
    assert quick.wait() == 128 + signal.SIGTERM
    second.tell("exit 0")
    assert slow.wait() == 0, slow.story()
    assert cluster.director.last_round == 0


def test_the_group_of_a_terminal_gets_ctrl_c(cluster: Cluster) -> None:
    launcher = cluster.alone(FOREVER)
    (worker,) = cluster.director.round(0, 1)
    note(worker, signal.SIGINT)
    os.killpg(launcher.pid, signal.SIGINT)
    assert worker.answer() == {"signal": signal.SIGINT}
    worker.tell("exit 0")
    assert launcher.wait() == 128 + signal.SIGINT
    assert not worker.answers, "once, not a second time from the terminal"


def test_nohup_holds(cluster: Cluster) -> None:
    launcher = cluster.alone(command=("nohup", sys.executable, "-m", "elasticrun"))
    (worker,) = cluster.director.round(0, 1)
    launcher.signal(signal.SIGHUP)
    assert worker.ask("out still here") == "printed"
    worker.tell("exit 0")
    assert launcher.wait() == 0
    assert "SIGHUP" not in launcher.err


def test_signals_of_ones_own_choice(cluster: Cluster) -> None:
    launcher = cluster.alone("--signals-to-handle=SIGUSR1,SIGUSR2", FOREVER)
    (worker,) = cluster.director.round(0, 1)
    note(worker, signal.SIGUSR2)
    launcher.signal(signal.SIGUSR2)
    assert worker.answer() == {"signal": signal.SIGUSR2}
    worker.tell("exit 0")
    assert launcher.wait() == 128 + signal.SIGUSR2


def test_a_node_that_is_stopped_leaves_the_job_to_the_others(cluster: Cluster) -> None:
    stay, leave = (
        cluster.node("1:2", f"--node-rank={rank}", "--rdzv-conf=last_call_timeout=60") for rank in (0, 1)
    )
    cluster.director.round(0, 2)
    leave.signal(signal.SIGTERM)
    assert leave.wait() == 128 + signal.SIGTERM
    (alone,) = cluster.director.round(1, 1)
    assert alone.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    alone.tell("exit 0")
    assert stay.wait() == 0


def test_the_endpoints_node_is_stopped_and_the_job_goes_on_and_takes_in_others(cluster: Cluster) -> None:
    leave = cluster.node("1:2", "--rdzv-conf=last_call_timeout=60")
    stay = cluster.node("1:2")
    cluster.director.round(0, 2)
    if cluster.host() is stay:
        leave, stay = stay, leave
    leave.signal(signal.SIGTERM)
    assert leave.wait_status() == 128 + signal.SIGTERM
    (alone,) = cluster.director.round(1, 1)
    again = cluster.node("1:2")
    for worker in cluster.director.round(2, 2):
        worker.tell("exit 0")
    assert stay.wait() == again.wait() == 0
    assert alone.gone
    cluster.nobody_left()
