"""What teams do without a launcher: TF_CONFIG written by hand, and a loop that starts everything again.

It starts one process for each task. When one of them ends, it kills all the others and starts the whole job
again, on the same addresses; the job is over when its chief, or the first worker where there is no chief,
ends with 0. The others are killed by SIGKILL at once, as the state is in the checkpoint: no gentler way to
stop them is faster. All roles run the training script, which serves where it has to.

It takes as much of elastic-run's command line as the measurements need, and imports nothing of the package.
For another number of tasks an operator edits ``role-counts`` in its working directory, which is read whenever
the job is started, and ends the chief.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

COUNTS = "role-counts"
Addresses = dict[str, list[str]]


def counts_of(text: str) -> dict[str, int]:
    """``chief=1,worker=2`` as numbers by role."""
    pairs = (item.partition("=") for item in text.strip().split(","))
    return {role: int(count) for role, _, count in pairs}


def place(known: Addresses, counts: Mapping[str, int], ports: Sequence[int]) -> Addresses:
    """The addresses of these tasks: known ones are kept, others get the next of these ports."""
    free = iter(ports)
    placed = {}
    for role, count in counts.items():
        kept = known.get(role, [])[:count]
        placed[role] = kept + [f"127.0.0.1:{next(free)}" for _ in range(count - len(kept))]
    return placed


def tasks(addresses: Addresses) -> list[tuple[str, int]]:
    """Every task; the one that ends the job comes first."""
    roles = sorted(addresses, key=lambda role: ("chief", "worker").index(role) if role != "ps" else 2)
    return [(role, index) for role in roles for index in range(len(addresses[role]))]


def config(addresses: Addresses, role: str, index: int) -> str:
    """TF_CONFIG of one task."""
    return json.dumps({"cluster": addresses, "task": {"type": role, "index": index}, "rpc_layer": "grpc"})


def free_ports(count: int) -> list[int]:
    """``count`` ports that nobody holds."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def run_once(addresses: Addresses, command: Sequence[str]) -> bool:
    """Start all tasks, and kill all once one of them has ended; returns whether the job is over."""
    started = [
        subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config(addresses, role, index)})
        for role, index in tasks(addresses)
    ]
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    for process in started:
        process.send_signal(signal.SIGKILL)
    statuses = {process.pid: process.wait() for process in started}
    return ended.si_pid == started[0].pid and statuses[ended.si_pid] == 0


def main() -> None:
    """Keep the job alive until it is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--role-counts", default="")
    for ignored in ("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "local-addr", "token-file"):
        parser.add_argument(f"--{ignored}")
    parser.add_argument("--framework")
    parser.add_argument("--max-restarts")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    addresses: Addresses = {}
    is_over = False
    while not is_over:
        edited = Path(COUNTS)
        text = edited.read_text() if edited.exists() else options.role_counts
        counts = counts_of(text or f"worker={options.nproc_per_node}")
        addresses = place(addresses, counts, free_ports(sum(counts.values())))
        is_over = run_once(addresses, [sys.executable, *options.command])


if __name__ == "__main__":
    main()
