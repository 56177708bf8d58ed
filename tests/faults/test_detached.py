"""What workers leave behind outlives a good end, and no other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticrun.agent.spawner import detached as spawner_detached
from tests.support.cluster import Cluster
from tests.support.launcher import Launcher
from tests.support.processes import wait_end

SCRIPT = """
    import os, subprocess, sys
    HELPER = "import os, sys; open(sys.argv[1]).read(); open(sys.argv[2], 'w').write('done')"
    def helper(name, **rest):
        process = subprocess.Popen([sys.executable, "-c", HELPER, f"{name} gate", name], **rest)
        print(name, process.pid, flush=True)
    helper("detached", start_new_session=True)
    helper("attached")
    match sys.argv[1]:
        case "fail": sys.exit(3)
        case "wait": __import__("signal").pause()
    """

#: Reads, and has the words of multiprocessing's resource tracker in its command line.
TRACKER = ("sh", "-c", f"cat; : {spawner_detached.TRACKER.decode()}")


def test_the_resource_tracker_is_known_by_its_command_line() -> None:
    code = """from multiprocessing import resource_tracker as it
it.ensure_running()
print(it._resource_tracker._pid, flush=True)
input()"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        tracker = int(owner.stdout.readline())
        while not Path(f"/proc/{tracker}/cmdline").read_bytes():
            pass  # it is in the midst of exec: it has no command line for a moment
        assert spawner_detached._is_tracker(tracker)
        assert not spawner_detached._is_tracker(owner.pid)
        owner.stdin.write(b"\n")
        owner.stdin.close()


def launch(cluster: Cluster, folder: Path, end: str, *options: str) -> tuple[Launcher, dict[str, int]]:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    for name in ("detached", "attached"):
        os.mkfifo(folder / f"{name} gate")
    launcher = cluster.launch("--standalone", *options, "train.py", end, cwd=folder)
    pids = {name: int(launcher.wait_line(rf"{name} (\d+)")[1]) for name in ("detached", "attached")}
    return launcher, pids


@pytest.mark.parametrize("warm", ["--warm=off", "--warm=on"])
def test_an_upload_goes_on_after_a_good_end(cluster: Cluster, tmp_path: Path, warm: str) -> None:
    launcher, pids = launch(cluster, tmp_path, "end", warm, "--warm-import=colorsys")
    assert launcher.wait_status() == 0
    launcher.wait_line(r"left alone, as the job ended well: ")
    for name, pid in pids.items():
        # A program that has only just replaced another one has no command line for a moment.
        shown = rf"{pid} \(({re.escape(sys.executable)} -c import|\[python)"
        assert re.search(shown, launcher.err), launcher.story()
        (tmp_path / f"{name} gate").write_text("")
        wait_end(pid)
        assert (tmp_path / name).read_text() == "done"
    assert launcher.wait() == 0
    cluster.nobody_left()


@pytest.mark.parametrize(
    ("end", "options"),
    [("end", ("--kill-leftovers",)), ("fail", ()), ("wait", ())],
    ids=["asked", "failure", "signal"],
)
def test_any_other_end_is_that_of_all(
    cluster: Cluster, tmp_path: Path, end: str, options: tuple[str, ...]
) -> None:
    launcher, pids = launch(cluster, tmp_path, end, *options)
    if end == "wait":
        launcher.signal(signal.SIGTERM)
    assert launcher.wait() == {"end": 0, "fail": 1, "wait": 128 + signal.SIGTERM}[end]
    for pid in pids.values():
        wait_end(pid, 0.0)
    assert "left alone" not in launcher.err


def test_a_restart_kills_what_was_detached_before(cluster: Cluster, tmp_path: Path) -> None:
    launcher, pids = launch(cluster, tmp_path, "fail", "--max-restarts=1")
    assert launcher.wait() == 1
    found = [int(pid) for pid in re.findall(r"detached (\d+)", launcher.out)]
    assert len(found) == 2
    assert found[0] == pids["detached"]
    for pid in found:
        wait_end(pid, 0.0)


def test_who_is_about_to_end_is_waited_for_and_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr(spawner_detached, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    detached = spawner_detached.Detached()
    detached.are_spared = True
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as brief,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as lasting,
        subprocess.Popen(TRACKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as tracker,
    ):
        for each in (lasting, tracker):
            assert each.stdin is not None
            assert each.stdout is not None
            each.stdin.write(b"x")
            each.stdout.read(1)  # so it has its name by now
        found = {brief.pid, lasting.pid, tracker.pid}
        assert detached.among(found) == found
        assert detached.may_leave()
        assert detached.time_left() == spawner_detached.MOMENT
        brief.communicate()
        assert detached.may_leave()
        clock[0] += spawner_detached.MOMENT
        assert not detached.may_leave()
        assert detached.take() == [(lasting.pid, "cat")]
        assert detached.time_left() is None
        assert not detached.may_leave(), "it was told of"
        lasting.communicate()
        tracker.communicate()
