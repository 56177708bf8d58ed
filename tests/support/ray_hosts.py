"""A Ray cluster of one test: each host is an address of 127.0.0.0/8, and processes of this one.

It is a program of its own, as Ray starts threads and warns of much. Words on its standard input:

    add         start a host, with room for one node; prints the pid of its raylet
    lose PID    SIGKILL all that runs on the host with this raylet, as if it lost power

Its end, or that of its input, ends the cluster. It prints a line of JSON for each word, and first the address
of the head, which runs nothing but the server for jobs, and the URL of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

#: Bytes of each host's object store: the least that Ray takes.
_STORE = 80 << 20
_FIRST = 10


def main() -> None:
    """Keep the cluster until standard input ends."""
    from ray.cluster_utils import Cluster

    addresses = [f"127.0.0.{number}" for number in range(_FIRST, 250)]
    head = {**_host(addresses.pop(0), 0), "include_dashboard": True, "dashboard_port": 0}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[int, Any] = {}
    _say({"address": cluster.address, "url": f"http://{cluster.head_node.webui_url}"})
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "add":
            node = cluster.add_node(**_host(addresses.pop(0), 1))
            pid = node.all_processes["raylet"][0].process.pid
            nodes[pid] = node
            _say({"raylet": pid})
        else:
            _kill_all(rest[0])
            cluster.remove_node(nodes.pop(int(rest[0])), allow_graceful=False)
            _say({"lost": rest[0]})
    cluster.shutdown()


def _kill_all(raylet: str) -> None:
    """SIGKILL all that this raylet has started, so that nobody there can say that its host is gone.

    The raylet itself ends last, and would tell of the end of each process until then: so it is stopped.
    """
    os.kill(int(raylet), signal.SIGSTOP)
    mark = f"RAY_RAYLET_PID={raylet}".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _host(address: str, cpus: int) -> dict[str, Any]:
    return {"node_ip_address": address, "num_cpus": cpus, "object_store_memory": _STORE}


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    main()
