"""Redirects, tee, filters and log directories through the real launcher."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from click.testing import CliRunner

from elasticrun.agent.logs.dirs import LATEST
from elasticrun.cli.ctl import group
from elasticrun.errors import ExitCode
from elasticrun.master.event_log import NAME as EVENTS
from tests.support.cluster import WORKER, Cluster
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
    texts = {path: path.read_text() for path in only_run(folder).rglob("*") if path.is_file()}
    return {str(path.relative_to(only_run(folder))): texts[path] for path in texts if path.name != EVENTS}


def only_run(folder: Path) -> Path:
    """The directory of the run, to which ``latest`` leads."""
    (run,) = (path for path in folder.iterdir() if not path.is_symlink())
    assert (folder / LATEST).readlink() == Path(run.name)
    return run


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
    assert f"Logs: {only_run(tmp_path / 'logs')}" in launcher.err


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


def test_a_rank_prefix_needs_no_files(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2", "--rank-prefix")
    for worker in cluster.director.round(0, 2):
        worker.ask(f"out I am {worker.rank}")
        worker.ask("err so am I")
        worker.tell("exit 0")
    assert launcher.wait() == 0
    assert sorted(launcher.out.splitlines()) == ["[rank0] I am 0", "[rank1] I am 1"]
    assert {"[rank0] so am I", "[rank1] so am I"} <= set(launcher.err.splitlines())


def test_the_event_log_outlives_the_job_and_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone("--log-dir", tmp_path / "logs", "--max-restarts=1")
    (worker,) = cluster.director.round(0, 1)
    worker.tell("exit 3")
    cluster.director.round(1, 1)
    launcher.kill_node()
    launcher.wait()
    told = CliRunner().invoke(group, ["events", str(tmp_path / "logs" / LATEST), "--why", "1"])
    assert told.exit_code == 0 and "exited with 3" in told.stdout, told.output
    assert (only_run(tmp_path / "logs") / EVENTS).is_file()


def test_a_state_directory_keeps_its_event_log(cluster: Cluster, tmp_path: Path) -> None:
    launcher = cluster.alone("--log-dir", tmp_path / "logs", "--state-dir", tmp_path / "state")
    speak_and_end(cluster, 1)
    assert launcher.wait() == 0
    assert (tmp_path / "state" / EVENTS).is_file()
    assert not (only_run(tmp_path / "logs") / EVENTS).exists()


def test_a_run_that_cannot_begin_leaves_no_directory(cluster: Cluster, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launcher = cluster.launch("--master-port", str(port), "--log-dir", tmp_path / "logs", WORKER)
        assert launcher.wait() == ExitCode.ENDPOINT_TAKEN
    assert list((tmp_path / "logs").iterdir()) == []
