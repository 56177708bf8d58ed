"""The loop that elastic-run is measured beside: it has to do what it is said to do, and nothing slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from scripts.benchmarks import by_hand
from tests.support.processes import DEADLINE, marked

TWO = {"chief": ["h:1"], "worker": ["h:2", "h:3"]}

#: The first chief orders another ps and ends as if its state were saved; the second one ends well.
TASK = """\
import json, os, pathlib, signal, sys
config = json.loads(os.environ["TF_CONFIG"])
task, servers = config["task"], config["cluster"]["ps"]
if task["type"] != "chief":
    signal.pause()
with open("lives", "a") as lives:
    print(json.dumps([os.getpid(), config["cluster"], sys.argv[1:]]), file=lives)
if len(servers) == 1:
    pathlib.Path("role-counts").write_text("chief=1,worker=1,ps=2\\n")
    sys.exit(42)
"""


def test_counts_are_read_as_they_are_written_for_elastic_run() -> None:
    assert by_hand.counts_of("chief=1,worker=2\n") == {"chief": 1, "worker": 2}


def test_addresses_are_kept_and_new_ones_come_behind_them() -> None:
    more = by_hand.place({"chief": ["h:1"], "ps": ["h:2"]}, {"chief": 1, "ps": 2}, [7, 8, 9])
    assert more == {"chief": ["h:1"], "ps": ["h:2", "127.0.0.1:7"]}
    assert by_hand.place(more, {"chief": 1, "ps": 1}, []) == {"chief": ["h:1"], "ps": ["h:2"]}


def test_the_task_that_ends_the_job_comes_first() -> None:
    assert by_hand.tasks({"ps": ["a"], **TWO})[0] == ("chief", 0)
    assert by_hand.tasks({"worker": ["a", "b"]}) == [("worker", 0), ("worker", 1)]


def test_each_task_is_told_its_seat() -> None:
    assert json.loads(by_hand.config(TWO, "worker", 1)) == {
        "cluster": TWO,
        "task": {"type": "worker", "index": 1},
        "rpc_layer": "grpc",
    }


def test_ports_are_different_ones() -> None:
    assert len(set(by_hand.free_ports(20))) == 20


def _job(code: str) -> list[str]:
    prelude = "import json, os, signal, sys; t = json.loads(os.environ['TF_CONFIG'])['task']; "
    return [sys.executable, "-c", prelude + code]


def test_the_chiefs_good_end_is_the_jobs() -> None:
    assert by_hand.run_once(TWO, _job("t['type'] == 'chief' or signal.pause()"))


def test_any_other_end_is_that_of_all_tasks() -> None:
    last_worker_ends = "(t['type'], t['index']) == ('worker', 1) or signal.pause()"
    assert not by_hand.run_once(TWO, _job(last_worker_ends))
    assert not by_hand.run_once(TWO, _job("sys.exit(3) if t['type'] == 'chief' else signal.pause()"))


def test_who_ignores_signals_is_killed() -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); t['type'] == 'chief' or signal.pause()"
    assert by_hand.run_once(TWO, _job(stubborn))


def test_a_job_begins_again_with_as_many_tasks_as_were_ordered(tmp_path: Path) -> None:
    script = tmp_path / "task.py"
    script.write_text(TASK)
    options = [
        "--nnodes=1",
        "--role-counts=chief=1,worker=1,ps=1",
        "--max-restarts",
        "3",
        str(script),
        "-x",
        "y",
    ]
    mark = f"BENCH_TEST={os.getpid()}.{tmp_path.name}"
    env = {**os.environ, "BENCH_TEST": mark.partition("=")[2]}
    subprocess.run(
        [sys.executable, by_hand.__file__, *options], cwd=tmp_path, env=env, timeout=DEADLINE, check=True
    )
    (_, first, argv), (_, second, _) = map(json.loads, (tmp_path / "lives").read_text().splitlines())
    assert argv == ["-x", "y"]
    assert second == {**first, "ps": [*first["ps"], second["ps"][1]]}
    assert marked(mark) == []
