"""Redirects, tee, filters and log directories through the real launcher."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.director import Worker


def speak(worker: Worker, text: str = "hello") -> None:
    worker.ask(f"out {text} out of {worker.rank}")
    worker.ask(f"err {text} err of {worker.rank}")


def speak_and_end(cluster: Cluster, size: int = 2) -> None:
    for worker in cluster.director.round(0, size):
        speak(worker)
        worker.tell("exit 0")


def files(folder: Path) -> dict[str, str]:
    """The text of every file below the one directory of the run, by path without it."""
    (run,) = folder.iterdir()
    return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()}


def test_redirects(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--log-dir", tmp_path / "logs", "-r", "0:1,1:3")
    speak_and_end(cluster)
    assert launcher.wait() == 0
    assert launcher.out == ""
    assert launcher.err == "hello err of 0"
    found = files(tmp_path / "logs")
    assert found["attempt_0/0/stdout.log"] == "hello out of 0\n"
    assert found["attempt_0/1/stdout.log"] == "hello out of 1\n"
    assert found["attempt_0/1/stderr.log"] == "hello err of 1\n"


def test_tee(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--role=r", "--log-dir", tmp_path / "logs", "-t3")
    speak_and_end(cluster)
    assert launcher.wait() == 0
    assert sorted(launcher.out.splitlines()) == ["[r0]:hello out of 0", "[r1]:hello out of 1"]
    assert sorted(launcher.err.splitlines()) == ["[r0]:hello err of 0", "[r1]:hello err of 1"]
    found = files(tmp_path / "logs")
    assert found["attempt_0/0/stdout.log"] == "hello out of 0\n"
    assert found["attempt_0/1/stderr.log"] == "hello err of 1\n"


def test_a_prefix_of_ones_own(cluster: Cluster, tmp_path: Path) -> None:
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}/${rank}> "}
    launcher = cluster.alone("--log-dir", tmp_path / "logs", "-t", "1", env=template)
    speak_and_end(cluster, 1)
    assert launcher.wait() == 0
    assert launcher.out == "<default/0> hello out of 0"


def test_only_some_ranks_on_the_console(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--nproc-per-node=2", "--local-ranks-filter=1", "--log-dir", tmp_path / "logs", "-t3")
    launcher = cluster.alone(*options)
    speak_and_end(cluster)
    assert launcher.wait() == 0
    assert launcher.out == "[default1]:hello out of 1"
    assert launcher.err == "[default1]:hello err of 1"
    assert files(tmp_path / "logs")["attempt_0/0/stdout.log"] == "hello out of 0\n"


def test_lines_that_are_copied(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone(
        "--nproc-per-node=2", "--log-dir", tmp_path / "logs", "-r3",
        "--duplicate-stdout-filters=loss,of 1", "--duplicate-stderr-filters=nothing",
    )  # fmt: skip
    workers = cluster.director.round(0, 2)
    for worker in workers:
        speak(worker, "loss" if worker.rank == 0 else "other")
        speak(worker, "quiet")
        worker.tell("exit 0")
    assert launcher.wait() == 0
    found = files(tmp_path / "logs")
    assert sorted(found["attempt_0/filtered_stdout.log"].splitlines()) == [
        "[default0]:loss out of 0",
        "[default1]:other out of 1",
        "[default1]:quiet out of 1",
    ]
    assert found["attempt_0/filtered_stderr.log"] == ""


def test_one_directory_for_each_round_and_none_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    """A joiner starts a round without a restart: torchrun's attempt number repeats there, ours does not."""
    logs = tmp_path / "logs"
    first = cluster.node(
        "1:2", "--rdzv-conf=last_call_timeout=0", "--max-restarts=1", "--log-dir", logs, "-r1"
    )
    (alone,) = cluster.director.round(0, 1)
    speak(alone, "alone")
    second = cluster.node("1:2", "--max-restarts=1")
    pair = cluster.director.round(1, 2)
    speak(pair[0], "pair")
    pair[0].tell("exit 1")
    for worker in cluster.director.round(2, 2):
        speak(worker, "last")
        worker.tell("exit 0")
    assert first.wait() == second.wait() == 0
    found = files(logs)
    assert found["attempt_0/0/stdout.log"] == "alone out of 0\n"
    assert found["attempt_1/0/stdout.log"] == "pair out of 0\n"
    assert found["attempt_2/0/stdout.log"] == "last out of 0\n"


def test_the_summary_says_where_the_logs_are(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone("--log-dir", tmp_path / "logs", "-r3")
    (worker,) = cluster.director.round(0, 1)
    worker.ask("err into the file")
    worker.tell("exit 1")
    assert launcher.wait() == 1
    assert "into the file" in launcher.err, "the tail is read from the file"
    (run,) = (tmp_path / "logs").iterdir()
    assert f"Logs: {run}" in launcher.err


def test_a_private_directory_is_removed_after_a_good_end(cluster: Cluster, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    launcher = cluster.alone(env={"TMPDIR": str(temporary)})
    (worker,) = cluster.director.round(0, 1)
    assert Path(worker.env["TORCHELASTIC_ERROR_FILE"]).is_relative_to(temporary)
    worker.tell("exit 0")
    assert launcher.wait() == 0
    assert list(temporary.iterdir()) == []


def test_events_on_the_console(cluster: Cluster) -> None:
    launcher = cluster.alone("--event-log-handler=console", "--max-restarts=1")
    cluster.director.round(0, 1)[0].tell("exit 1")
    cluster.director.round(1, 1)[0].tell("exit 0")
    assert launcher.wait() == 0
    events = [json.loads(line) for line in launcher.err.splitlines() if line.startswith("{")]
    states = [event["metadata"]["state"] for event in events if event["source"] == "WORKER"]
    assert [states.index(state) for state in ("HEALTHY", "FAILED", "SUCCEEDED")] == sorted(
        states.index(state) for state in ("HEALTHY", "FAILED", "SUCCEEDED")
    )


def test_output_without_options_is_the_launchers_own(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2")
    speak_and_end(cluster)
    assert launcher.wait() == 0
    assert sorted(launcher.out.splitlines()) == ["hello out of 0", "hello out of 1"]
    assert sorted(launcher.err.splitlines()) == ["hello err of 0", "hello err of 1"]
