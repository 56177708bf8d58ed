"""What is computed of TensorFlow jobs' events, and all faults of a job without tensorflow."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.benchmarks import run as run_module
from scripts.benchmarks import tf_cases
from scripts.benchmarks.launchers import BY_HAND, LAUNCHERS
from scripts.benchmarks.run import Event, Run, RunFailed, opened
from scripts.benchmarks.tf_cases import SAVED, first_step, fresh, longest_gap, served_anew
from tests.support import processes

#: Seconds between two steps.
PAUSE = 0.002
#: A job that takes as little time as possible and reports as the real one does. What it saves is the number
#: of a step; if it is forgetful, it never looks at that.
JOB = """\
import json, os, signal, socket, sys, threading, time
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
if task["type"] != "chief":
    port = int(cluster[task["type"]][task["index"]].rpartition(":")[2])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    signal.pause()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
events = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)

def report(what, **more):
    event = {"what": what, "at": time.monotonic(), "pid": os.getpid(), "rank": 0, **more}
    os.write(events, json.dumps(event).encode() + b"\\n")

report("line", cluster=cluster)
report("group")
number = 0
if os.path.exists(sys.argv[1]) and "forgetful" not in sys.argv:
    number = int(open(sys.argv[1]).read())
begun = number
while True:
    number += 1
    report("step", step=number)
    if number <= begun + 2:
        report("fresh", step=number)
    if number % int(sys.argv[2]) == 0:
        with open(sys.argv[1], "w") as file:
            file.write(str(number))
    threading.Event().wait({PAUSE})
"""


def event(what: str, at: float, pid: int, step: int = 0) -> Event:
    return Event(what, at, pid, 0, step=step)


def test_the_first_step_counts_only_of_a_chief_that_began_afterwards() -> None:
    events = [event("line", 1, 7), event("step", 2, 7), event("step", 5, 7)]
    assert first_step(events, 3) is None
    events += [event("line", 6, 8), event("step", 6.5, 7), event("step", 7, 8), event("step", 8, 8)]
    found = first_step(events, 3)
    assert found is not None
    assert (found.at, found.pid) == (7, 8)


def test_a_worker_serves_anew_at_its_first_step_for_the_same_chief() -> None:
    before = [event("fresh", 1, 7), event("fresh", 2, 7)]
    assert served_anew(before, 3, 7) is None
    assert served_anew([*before, event("fresh", 5, 7)], 3, 7) == 5


def test_with_another_chief_every_worker_has_to_serve_anew() -> None:
    events = [event("fresh", 1, 7), event("fresh", 2, 7), event("fresh", 5, 8)]
    assert served_anew(events, 3, 7) is None
    assert served_anew([*events, event("fresh", 6, 8)], 3, 7) == 6
    assert fresh(events, 8) == [5]


def test_the_longest_gap_is_between_neighbours_in_time() -> None:
    assert longest_gap([5.0, 1.0, 2.0]) == 3.0
    with pytest.raises(RunFailed, match="no two steps"):
        longest_gap([1.0])


def test_who_listens_is_found_whoever_ends_meanwhile() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert processes.listener(server.getsockname()[1]) == os.getpid()
    assert processes._open_files(Path("/proc/0/fd")) == set()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run of the loop that is made by hand, with the job above, and waits that are short."""
    script = tmp_path / "job.py"
    script.write_text(JOB.replace("{PAUSE}", str(PAUSE)))
    monkeypatch.setattr(run_module, "LOOK", 0.05)
    monkeypatch.setattr(run_module, "IDLE", 100.0)
    monkeypatch.setattr(tf_cases, "SERVED", str(script))
    monkeypatch.setattr(tf_cases, "SETTLED", SAVED)
    with opened(LAUNCHERS[BY_HAND], tmp_path, 0) as opened_run:
        yield opened_run


def test_a_job_goes_through_all_faults(run: Run) -> None:
    figures = tf_cases.served(run)
    assert [*figures] == [
        *("tf-served-start", "tf-calm-gap", "tf-worker-gap", "tf-worker"),
        *("tf-ps", "tf-ps-disk", "tf-chief", "tf-more", "tf-fewer"),
    ]
    assert all(value > 0 for value in figures.values())
    assert figures["tf-worker-gap"] > 5 * PAUSE, "a process was started meanwhile"
    clusters = [it.cluster for it in run.events if it.what == "line"]
    assert [len(cluster["ps"]) for cluster in clusters] == [2, 2, 2, 2, 2, 3, 2]
    assert all(cluster == clusters[0] for cluster in clusters[1:5])


def test_a_job_that_begins_anew_has_failed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_cases, "_saves", lambda run: (str(run.folder / "saved"), "50", "forgetful"))
    with pytest.raises(RunFailed, match="began anew") as failed:
        tf_cases.served(run)
    assert "tf-served-start" in failed.value.figures
    assert "tf-ps" not in failed.value.figures
