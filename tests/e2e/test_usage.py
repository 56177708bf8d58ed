"""What tasks use, and how fast they go, from a task's own report to an operator's eyes.

No TensorFlow here: the tasks are remote-controlled.
"""

from __future__ import annotations

import re
import time

from tests.support.cluster import WORKER, Cluster
from tests.support.orders import TOKEN, Orders
from tests.support.processes import DEADLINE


def test_an_operator_sees_what_tasks_use_and_how_fast_they_go(cluster: Cluster) -> None:
    options = ("--role-counts", "chief=1,worker=1,ps=2", "--tf-servers", "script", *cluster.options("1"))
    often = ("--rdzv-conf", "keep_alive_interval=0.2,keep_alive_max_attempt=300")
    cluster.pretend_tensorflow()
    cluster.launch(*options, *often, WORKER, env={"ELASTICRUN_TOKEN": TOKEN})
    chief, orders = cluster.director.task("chief"), Orders(cluster)
    deadline, step, words = time.monotonic() + DEADLINE, 0, ""
    while "steps/s, 125 ms per step" not in words:  # two heartbeats after the first step that it tells of
        assert time.monotonic() < deadline, words
        step += 1
        assert chief.ask(f"step {step} 0.125") == "reported"
        words = orders.done("status")
    lines = words.splitlines()
    (line,) = (line for line in lines if line.startswith("    chief 0 "))
    assert re.search(r"running; [\d.]+ cores, \d+ MiB, step \d+, \S+ steps/s, 125 ms per step$", line)
    assert re.fullmatch(r"  ps, 2 tasks: [\d.]+ cores, \d+ MiB", lines[-1])
    chief.tell("exit 0")
    cluster.wait_all()
