"""The workers' store as torch scripts meet it, with real torch: who serves it, where, and for how long."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.launcher import Launcher
from tests.support.ports import free_port

torch = pytest.importorskip("torch")

#: In torch 2.4, whoever asks to be the master has to listen, with torchrun as well.
needs_second_master = pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="torch 2.4 refuses a second master at a port"
)

CHATTY = """
import os, select, signal, sys, torch
from torch.distributed import TCPStore
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
hosted = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
store = TCPStore(os.environ["MASTER_ADDR"], port, is_master=rank == 0 and not hosted)
"""
FIRST_ENDS = (
    CHATTY
    + """
if rank == 0:
    store.set("rank 0", str(os.getpid()))
    store.get("rank 1 watches")
    sys.exit(0)
end = os.pidfd_open(int(store.get("rank 0")))
store.set("rank 1 watches", "1")
select.select([end], [], [])
print("still", store.add("count", 2))
"""
)
ROUNDS = (
    CHATTY
    + """
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
sys.stdout.write(f"round {os.environ['ELASTICRUN_ROUND']} of {restarts} port {port} {hosted}\\n")
assert store.add("fresh", 1) <= int(os.environ["WORLD_SIZE"]), "another round's store"
sys.stdout.flush()
if os.environ["ELASTICRUN_ROUND"] in sys.argv[1:]:
    signal.pause() if "wait" in sys.argv else sys.exit(3)
"""
)


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def servers(launcher: Launcher) -> list[int]:
    """The store servers below a launcher."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in launcher.processes}
    return [pid for pid, command in commands.items() if b"store_server.py" in command]


@pytest.mark.parametrize("nodes", [1, 2])
def test_rank_0_may_end_first(cluster: Cluster, tmp_path: Path, nodes: int) -> None:
    path = script(tmp_path, FIRST_ENDS)
    if nodes == 1:
        launchers = [cluster.launch("--standalone", "--nproc-per-node=2", path)]
    else:
        options = cluster.options("2")
        launchers = [cluster.launch(*options, f"--node-rank={rank}", path) for rank in (0, 1)]
    for launcher in launchers:
        assert launcher.wait() == 0, launcher.story()
    assert any("still 2" in launcher.out for launcher in launchers)


def test_each_round_has_a_store_of_its_own_at_the_port_that_was_given(
    cluster: Cluster, tmp_path: Path
) -> None:
    port = free_port()
    path = script(tmp_path, ROUNDS)
    launcher = cluster.launch(
        "--nnodes=1", f"--master-port={port}", "--nproc-per-node=2", "--max-restarts=3", path, "0", "1", "2"
    )
    assert launcher.wait() == 0, launcher.story()
    for round_ in range(4):
        assert launcher.out.count(f"round {round_} of {round_} port {port} True") == 2, launcher.story()


def test_the_loss_of_the_store_costs_no_restart(cluster: Cluster, tmp_path: Path) -> None:
    path = script(tmp_path, ROUNDS)
    launcher = cluster.launch("--standalone", "--max-restarts=0", path, "0", "wait")
    launcher.wait_line("round 0")
    (server,) = servers(launcher)
    os.kill(server, signal.SIGKILL)
    assert launcher.wait() == 0, launcher.story()
    assert f"the workers' store (pid {server}" in launcher.err
    assert "round 1 of 0" in launcher.out
    assert not Path(f"/proc/{server}").exists()


def test_a_thief_never_gets_the_port(cluster: Cluster, tmp_path: Path) -> None:
    port, over, stolen = free_port(), threading.Event(), []
    path = script(tmp_path, ROUNDS)
    launcher = cluster.launch("--nnodes=1", f"--master-port={port}", "--max-restarts=3", path, "0", "1", "2")

    def steal() -> None:
        while not over.is_set():
            for host in ("0.0.0.0", "127.0.0.1"):
                with socket.socket() as thief:
                    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        thief.bind((host, port))
                        thief.listen()
                    except OSError:
                        continue
                    stolen.append(host)

    launcher.wait_line("round 0")
    thread = threading.Thread(target=steal)
    thread.start()
    launcher.wait_line("round 3")
    over.set()
    thread.join()
    assert launcher.wait() == 0, launcher.story()
    assert stolen == []


@needs_second_master
def test_a_second_store_that_wants_to_be_the_master_is_a_client(cluster: Cluster, tmp_path: Path) -> None:
    path = script(
        tmp_path, CHATTY + "other = TCPStore(os.environ['MASTER_ADDR'], port, is_master=True)\nprint('fine')"
    )
    launcher = cluster.launch("--standalone", path)
    assert launcher.wait() == 0, launcher.story()
    assert "fine" in launcher.out


AGAIN = """
import os, torch, torch.distributed as dist
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
for number in range(3):
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    assert not store.check(["met"]), f"group {number} is in the store of another"
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    dist.barrier()
    store.set("met", "yes")
    dist.barrier()
    dist.destroy_process_group()
print("fine")
"""


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_end_their_group_meet_again(cluster: Cluster, tmp_path: Path, size: int) -> None:
    """Nobody finds the addresses that the members of the first group had."""
    launcher = cluster.launch("--standalone", f"--nproc-per-node={size}", script(tmp_path, AGAIN))
    assert launcher.wait() == 0, launcher.story()
    assert launcher.out.count("fine") == size


@needs_second_master
@pytest.mark.parametrize("warm", ["auto", "off"])
def test_a_scripts_own_clash_at_the_port_is_no_taken_port(
    cluster: Cluster, tmp_path: Path, warm: str
) -> None:
    """As a DataLoader with spawned workers in a script without a guard."""
    path = script(
        tmp_path,
        CHATTY.replace("and not hosted", "")
        + """
import subprocess
print("began")
bind = f"import socket; socket.create_server(('', {port}))"
subprocess.run([sys.executable, "-c", bind])
raise RuntimeError(f"The server socket has failed to listen on port {port}: EADDRINUSE")
""",
    )
    launcher = cluster.launch("--standalone", f"--warm={warm}", "--max-restarts=1", path)
    assert launcher.wait() == 1, launcher.story()
    assert launcher.out.count("began") == 2, launcher.story()


def test_without_a_warm_parent_rank_0_serves_the_store(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.launch("--standalone", "--warm=off", script(tmp_path, ROUNDS))
    assert launcher.wait() == 0, launcher.story()
    assert "False" in launcher.out


NO_STORE = """
import os
if os.environ.get("RANK") is None:  # it is the server's
    open("server", "w").write(str(os.getpid()))
raise ImportError("built without it")
"""
AFTER_THE_SERVER = """
import os, select
print("starts", flush=True)
if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True":
    try:
        server = select.poll()
        server.register(os.pidfd_open(int(open("server").read())))
        server.poll()
    except ProcessLookupError:
        pass
print("ends", flush=True)
"""
ASKS = """
import os, socket, torch
print("starts", flush=True)
if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True":
    open("server").read()
    socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).recv(1)
print("ends", flush=True)
"""


@pytest.mark.parametrize("asks", [False, True], ids=["nobody asks for it", "somebody does"])
def test_a_torch_that_cannot_serve_stops_nobody_who_does_not_ask(
    cluster: Cluster, tmp_path: Path, asks: bool
) -> None:
    """What stands for torch has no torch.distributed that could be imported."""
    os.mkfifo(tmp_path / "server")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "distributed.py").write_text(NO_STORE)
    (tmp_path / "train.py").write_text(ASKS if asks else "import torch\n" + AFTER_THE_SERVER)
    launcher = cluster.launch("--standalone", "train.py", cwd=tmp_path)
    assert launcher.wait() == 0, launcher.story()
    assert launcher.out.split() == ["starts"] * (1 + asks) + ["ends"], launcher.story()
    assert ("the workers' store" in launcher.err) == asks
