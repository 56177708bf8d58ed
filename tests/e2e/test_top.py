"""``elastic-ctl top`` and ``events`` on real jobs, and the launcher's status line, on real terminals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticrun.cli.documents import FOLDER
from tests.support.cluster import Cluster
from tests.support.launcher import clean_environment, private_folders
from tests.support.ports import free_port
from tests.support.schema import misfits
from tests.support.terminal import Terminal

CTL = (sys.executable, "-m", "elasticrun.cli.ctl")
LINES = """\
import threading
for n in range(300):
    print(f"<{n:04}" + "x" * 70 + ">", flush=True)
    threading.Event().wait(0.01)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return clean_environment(**private_folders(tmp_path))


def ctl(env: dict[str, str], *arguments: str, status: int = 0) -> str:
    done = subprocess.run([*CTL, *arguments], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stdout if not status else done.stderr


def test_a_picture_of_a_job_and_its_data_fit_the_schema(cluster: Cluster, env: dict[str, str]) -> None:
    launcher = cluster.alone("--nproc-per-node", "2")
    worker, _ = cluster.director.round(0, 2)
    pid = str(launcher.pid)
    text = ctl(env, "top", "--once", "--pid", pid)
    assert "running  round 0  1 of 1:1 nodes" in text and "WHERE THE TIME" in text and "\x1b" not in text
    found: dict[str, Any] = json.loads(ctl(env, "top", "--once", "--json", "--pid", pid))
    assert misfits(found, json.loads((FOLDER / "top.json").read_text())) == []
    assert [node["phase"] for node in found["nodes"]] == ["running"]
    assert "no terminal" in ctl(env, "top", "--pid", pid, status=2)
    assert "--once" in ctl(env, "top", "--json", "--pid", pid, status=2)
    assert worker is not None


@pytest.mark.parametrize(
    ("end", "status"), [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_keys_and_every_end_restores_the_terminal(
    cluster: Cluster, env: dict[str, str], tmp_path: Path, end: bytes | signal.Signals, status: int
) -> None:
    launcher = cluster.alone()
    cluster.director.round(0, 1)
    with Terminal([*CTL, "top", "--pid", str(launcher.pid)], env, tmp_path) as top:
        at = top.wait_for("q quit")
        assert top.attributes != top.before
        if status == 0:
            top.type(b"?")
            at = top.wait_for("drain the selected node", at)
            top.type(b"?d")
            at = top.wait_for("It leaves with grace (y/n)", at)
            top.type(b"n")
            at = top.wait_for("nothing was ordered", at)
            top.type(b"s")
            at = top.wait_for("stacks of their workers", at)
            top.resize(120, 40)
            top.signal(signal.SIGWINCH)
            at = top.wait_for("NET IN/OUT", at)
        if isinstance(end, bytes):
            top.type(end)
        else:
            top.signal(end)
        assert top.end() == status
        assert top.attributes == top.before
        assert top.shown.endswith(b"\x1b[?1049l") or b"\x1b[?1049l" in top.shown[at:]
        assert b"\x1b[?25h" in top.shown[at:], "the cursor is back"


def test_a_node_is_drained_by_a_key(cluster: Cluster, env: dict[str, str], tmp_path: Path) -> None:
    launcher = cluster.alone()
    cluster.director.round(0, 1)
    with Terminal([*CTL, "top", "--pid", str(launcher.pid)], env, tmp_path) as top:
        at = top.wait_for("q quit")
        top.type(b"dy")
        launcher.wait_line("leaves")
        top.type(b"q")
        top.end()
        assert len(top.shown) > at


def test_events_of_a_running_job_until_its_end(cluster: Cluster, env: dict[str, str], tmp_path: Path) -> None:
    launcher = cluster.alone("--state-dir", tmp_path / "state")
    (worker,) = cluster.director.round(0, 1)
    pid = str(launcher.pid)
    now = [json.loads(line) for line in ctl(env, "events", "--json", "--pid", pid).splitlines()]
    assert "round_started" in [entry["kind"] for entry in now]
    commands = (
        [*CTL, "events", "--follow", "--json", "--pid", pid],
        [*CTL, "events", str(tmp_path / "state"), "--follow", "--json"],
    )
    readers = [subprocess.Popen(it, env=env, stdout=subprocess.PIPE, text=True) for it in commands]
    seen: list[list[dict[str, Any]]] = []
    for reader in readers:
        assert reader.stdout is not None
        seen.append([json.loads(reader.stdout.readline()) for _ in now])
    worker.tell("exit 0")
    for reader, begun in zip(readers, seen, strict=True):
        rest, _ = reader.communicate(timeout=120)
        assert reader.returncode == 0
        entries = [*begun, *map(json.loads, rest.splitlines())]
        ended = [entry["kind"] for entry in entries].index("job_ended")
        assert {entry["kind"] for entry in entries[ended + 1 :]} <= {"node_changed"}, (
            "told at the same moment"
        )
        assert entries[: len(now)] == now
    assert launcher.wait() == 0


# -- the launcher's status line


def launch(tmp_path: Path, env: dict[str, str], *words: str | Path, script: str, **rest: Any) -> Terminal:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "elasticrun", *words, path]
    return Terminal(command, {**env, "PET_HEALTH_CHECK": "off"}, tmp_path, **rest)


def screen(shown: bytes) -> list[str]:
    """The lines of a wide terminal, as somebody sees them in the end."""
    text = shown.decode(errors="replace").replace("\x1b[2m", "").replace("\x1b[0m", "")
    return [re.sub(r".*\r\x1b\[J", "", line).rstrip("\r") for line in text.split("\n")]


def test_no_line_of_a_worker_is_mixed_with_the_status_line(tmp_path: Path, env: dict[str, str]) -> None:
    with launch(tmp_path, env, "--standalone", "--tee", "3", "--nproc-per-node", "2", script=LINES) as job:
        assert job.end() == 0
    assert b"2 workers on 1 node, at work" in job.shown, "the line is drawn"
    wanted = sorted(f"[default{rank}]:<{n:04}{'x' * 70}>" for rank in (0, 1) for n in range(300))
    assert sorted(line for line in screen(job.shown) if "<" in line) == wanted
    assert not any("at work" in line for line in screen(job.shown)), "and erased"
    assert "elastic-run: done: 2 workers" in "\n".join(screen(job.shown))


def test_there_is_none_while_workers_write_to_the_terminal_themselves(
    tmp_path: Path, env: dict[str, str]
) -> None:
    with launch(tmp_path, env, "--standalone", script=LINES) as job:
        assert job.end() == 0
    assert b"at work" not in job.shown
    assert sum(line.startswith("<") for line in screen(job.shown)) == 300


def test_a_node_that_waits_says_for_how_long(tmp_path: Path, env: dict[str, str]) -> None:
    words = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{free_port()}",
        "--rdzv-id",
        "job",
    )
    with launch(tmp_path, env, *words, script=LINES) as job:
        at = job.wait_for("waiting until 2 nodes can start, ")
        job.wait_for("waiting until 2 nodes can start, ", at)
        job.signal(signal.SIGTERM)
        job.end()
    assert not any("waiting until" in line for line in screen(job.shown))


@pytest.mark.parametrize(
    ("words", "extra"),
    [(("--ui", "off"), {}), ((), {"TERM": "dumb"}), ((), {"LOGLEVEL": "ERROR"})],
    ids=["off", "dumb", "quiet"],
)
def test_there_is_none_where_none_is_wanted(
    tmp_path: Path, env: dict[str, str], words: tuple[str, ...], extra: dict[str, str]
) -> None:
    options = ("--standalone", "--tee", "3", *words)
    with launch(tmp_path, {**env, **extra}, *options, script=LINES) as job:
        assert job.end() == 0
    assert b"\x1b" not in job.shown


def test_colours_are_left_out_on_request(tmp_path: Path, env: dict[str, str]) -> None:
    with launch(tmp_path, {**env, "NO_COLOR": "1"}, "--standalone", "--tee", "3", script=LINES) as job:
        assert job.end() == 0
    assert b"1 worker on 1 node" in job.shown and b"\x1b[2m" not in job.shown
