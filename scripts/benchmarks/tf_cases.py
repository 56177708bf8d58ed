"""The cases of TensorFlow jobs: how long training stands still when a task is lost or added.

Each case goes through all its faults in one job, since its processes take seconds to import tensorflow; a
fault comes when the job has trained a while since the one before and its launcher has nothing left to do.
Both launchers run the same training script, which saves every ``SAVE_EVERY`` steps. The new chief or world
has to go on from what was saved: if it begins anew, the run has failed.

Where there are parameter servers, steps are those that the chief has seen done. A server's pid is the one
that listens at its address, so it does not matter how it was started.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmarks.by_hand import COUNTS
from scripts.benchmarks.launchers import BY_HAND
from scripts.benchmarks.run import MIRRORED, SERVED, Event, Run, RunFailed
from tests.support.processes import listener

START = 150.0  # seconds; several processes import tensorflow at once
RECOVERY = 90.0
SETTLED = 100  # steps, two seconds or more
SAVE_EVERY = 50  # steps
SAVED = 10  # steps after a save by which it is complete, copies included
WORLD, WORKERS, SERVERS = 3, 2, 2
RESTARTS = ("--max-restarts", "1000")


def mirrored(run: Run) -> dict[str, float]:
    """``tf-mirrored``: 3 workers of MultiWorkerMirroredStrategy on one node. From the launch to the first
    step of the last worker; then from the SIGKILL of one worker to the same step of the new world.
    """
    options = ("--framework", "tensorflow", "--nproc-per-node", str(WORLD))
    node = run.node("1", *options, *RESTARTS, MIRRORED, *_saves(run))
    workers = run.all_of("reduced", WORLD, START)
    started = max(event.at for event in workers) - node.begun
    run.steps(workers, SETTLED, START)
    run.quiet(START)
    _saved(run)
    killed = run.kill(workers[run.number % WORLD].pid)
    again = run.all_of("reduced", WORLD, RECOVERY, after=killed)
    _resumed(again)
    return {"tf-mirrored-start": started, "tf-mirrored": max(event.at for event in again) - killed}


def served(run: Run) -> dict[str, float]:
    """``tf-served``: a chief, 2 workers and 2 parameter servers on one node. From the launch to the first
    step. Then a worker is SIGKILLed: the time to the first step of the new worker, and the longest gap
    between two steps until training is as before, beside the longest gap of an undisturbed time. Then a ps is
    SIGKILLed, then a ps whose own directory of copies is removed as well, and then the chief: each time to
    the first step of the new chief. Then a third ps is added, and at last removed: each time from the last
    step before to the first one after.

    elastic-run must restore the first ps from its own copy and the second from its peer's, or the run has
    failed; by hand both are restored from the checkpoint's files.
    """
    token = run.folder / "token"
    token.write_text("5d0c1f4ae9b27386f1d2c4b8907e6a35")
    token.chmod(0o600)
    options = ("--role-counts", _counts(SERVERS), "--token-file", str(token))
    node = run.node("1", *options, *RESTARTS, SERVED, *_saves(run))
    first = _first_step(run, 0.0, START)
    figures = {"tf-served-start": first.at - node.begun}
    try:
        _settle(run)
        figures |= _lose_worker(run)
        for name, is_disk_lost in (("tf-ps", False), ("tf-ps-disk", True)):
            _settle(run)
            figures[name] = _lose_server(run, run.number % SERVERS, is_disk_lost)
        _settle(run)
        killed = run.kill(_chief(run).pid)
        figures["tf-chief"] = _first_step(run, killed, RECOVERY).at - killed
        for name, count in (("tf-more", SERVERS + 1), ("tf-fewer", SERVERS)):
            _settle(run)
            figures[name] = _scale(run, count)
    except RunFailed as error:
        raise RunFailed(str(error), figures) from None
    return figures


# -- single faults


def _lose_worker(run: Run) -> dict[str, float]:
    chief = _chief(run)
    calm = _steps(run, chief.pid)[-SETTLED:]
    killed = run.kill(_task(run, _port(chief, "worker", run.number % WORKERS)))
    at = run.wait(lambda: served_anew(run.events, killed, chief.pid), RECOVERY, "step of the new worker")
    _further(run)
    return {
        "tf-calm-gap": longest_gap(calm),
        "tf-worker-gap": longest_gap([calm[-1], *(it for it in _steps(run) if it > calm[-1])]),
        "tf-worker": at - killed,
    }


def _lose_server(run: Run, index: int, is_disk_lost: bool) -> float:
    chief = _chief(run)
    port = _port(chief, "ps", index)
    if is_disk_lost:
        for root in filter(None, chief.copies.split(os.pathsep)):
            for folder in Path("/").glob(f"{root.lstrip('/')}/{port}"):
                shutil.rmtree(folder)
    killed = run.kill(_task(run, port))
    first = _first_step(run, killed, RECOVERY)
    source = f"ps {index}: from its {'peer' if is_disk_lost else 'own copy'}"
    restored = next(it.sources for it in run.events if it.pid == first.pid and it.what == "group")
    if run.launcher.name != BY_HAND and not any(line.startswith(source) for line in restored):
        raise RunFailed(f"ps {index} was not restored from a copy: {'; '.join(restored)}")
    return first.at - killed


def _scale(run: Run, servers: int) -> float:
    """Order this many parameter servers; returns how long no step was made."""
    old = _chief(run)
    ordered = time.monotonic()
    if run.launcher.name == BY_HAND:
        (run.folder / COUNTS).write_text(_counts(servers))
        os.kill(old.pid, signal.SIGTERM)
    else:
        place = ("--endpoint", run.endpoint, "--rdzv-id", "bench", "--token-file", str(run.folder / "token"))
        order = [sys.executable, "-m", "elasticrun.cli.ctl", "scale", "--role", f"ps={servers}", *place]
        done = subprocess.run(order, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunFailed(f"elastic-ctl ended with {done.returncode}: {done.stderr.strip()}")
    first = _first_step(run, ordered, RECOVERY)
    if (found := len(_chief(run).cluster["ps"])) != servers:
        raise RunFailed(f"the new chief has {found} parameter servers instead of {servers}")
    return first.at - _steps(run, old.pid)[-1]


# -- what is waited for


def _settle(run: Run) -> None:
    """Return once the newest chief trains on all its workers, has saved, and all is quiet."""
    chief = _chief(run)
    run.wait(
        lambda: True if len(fresh(run.events, chief.pid)) >= WORKERS else None, START, "step of each worker"
    )
    _further(run)
    ports = [int(place.rpartition(":")[2]) for role in chief.cluster.values() for place in role]
    run.quiet(START, but=[pid for port in ports if (pid := _listening(port))])
    _saved(run)


def _saved(run: Run) -> None:
    """Return ``SAVED`` steps after a save. That is the same point in all runs, and no fault meets a
    checkpoint that is being written.
    """
    now = time.monotonic()
    run.wait(
        lambda: True if any(it.step % SAVE_EVERY == SAVED and it.at > now for it in run.events) else None,
        START,
        "checkpoint",
    )


def _further(run: Run) -> None:
    """Return once the newest chief has made some more steps."""
    begun = len(_steps(run))
    run.wait(lambda: True if len(_steps(run)) >= begun + SETTLED else None, START, f"{SETTLED} further steps")


def _first_step(run: Run, after: float, seconds: float) -> Event:
    """Wait for the first step of a chief that began after a moment; unless that is 0, it must resume."""
    first = run.wait(lambda: first_step(run.events, after), seconds, "step of a new chief")
    if after:
        _resumed([first])
    return first


def _resumed(steps: Sequence[Event]) -> None:
    if any(event.step <= 1 for event in steps):
        raise RunFailed("training began anew instead of going on from what was saved")


def first_step(events: Sequence[Event], after: float) -> Event | None:
    """The first step of a chief whose first line was after a moment."""
    begun = {it.pid for it in events if it.what == "line" and it.at > after}
    return next((it for it in events if it.what == "step" and it.pid in begun), None)


def fresh(events: Sequence[Event], chief: int, after: float = 0.0) -> list[float]:
    """When the workers of a chief made their first steps, if after a moment."""
    return [it.at for it in events if it.what == "fresh" and it.pid == chief and it.at > after]


def served_anew(events: Sequence[Event], killed: float, chief: int) -> float | None:
    """When all workers served again after one was killed: with another chief, all of them are new."""
    if of_same := fresh(events, chief, killed):
        return of_same[0]
    others = {it.pid for it in events if it.what == "fresh" and it.at > killed}
    complete = [found for pid in others if len(found := fresh(events, pid, killed)) >= WORKERS]
    return min((found[WORKERS - 1] for found in complete), default=None)


def longest_gap(moments: Sequence[float]) -> float:
    """The longest time between two neighbours; RunFailed if there are no two."""
    ordered = sorted(moments)
    if len(ordered) < 2:
        raise RunFailed("there are no two steps to measure between")
    return max(later - earlier for earlier, later in itertools.pairwise(ordered))


def _chief(run: Run) -> Event:
    """The first line of the newest chief."""
    return max((it for it in run.events if it.what == "line"), key=lambda it: it.at)


def _steps(run: Run, chief: int | None = None) -> list[float]:
    """When steps were done, by one chief or by any."""
    return [it.at for it in run.events if it.what == "step" and chief in (None, it.pid)]


def _port(chief: Event, role: str, index: int) -> int:
    return int(chief.cluster[role][index].rpartition(":")[2])


def _task(run: Run, port: int) -> int:
    """The pid of the task that listens on a port, once one does: the chief may step before."""
    return run.wait(lambda: _listening(port) or None, START, f"task that listens on port {port}")


def _listening(port: int) -> int:
    """The pid that listens on a port; 0 if none does, as on the chief's own."""
    try:
        return listener(port)
    except AssertionError:
        return 0


def _counts(servers: int) -> str:
    return f"chief=1,worker={WORKERS},ps={servers}"


def _saves(run: Run) -> tuple[str, str]:
    """The arguments of a training script: where it saves, and how often."""
    return str(run.folder / "checkpoints"), str(SAVE_EVERY)
