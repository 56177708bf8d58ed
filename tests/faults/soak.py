"""The digits, trained again and again with a worker or a node killed on the way: how often does it end well?

    python tests/faults/soak.py --runs 20 [--scenario worker] [--scenario node]
    python tests/faults/soak.py --scenario chaos [--minutes 30] [--every 20] [--seed N] [--faults a,b]

``worker``: two workers on one node, one SIGKILLed once the third epoch is done.
``node``: one node trains, a second one joins, and is SIGKILLed with everything it started.
``chaos``: one long training on two nodes, with a random fault every few seconds; see chaos.py. It has to be
asked for, and takes more than twice --minutes, as it is compared with a run that nobody disturbs.

For the others prints one line for each run, with the seconds from the kill to the next line of an epoch, and
at the end how many runs ended with 0 and an accuracy of at least 0.97. The exit status is 0 if all did.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.faults import chaos_run  # noqa: E402
from tests.support.cluster import EXAMPLES, Cluster  # noqa: E402
from tests.support.launcher import Launcher  # noqa: E402

DIGITS = EXAMPLES / "digits.py"
EPOCH = r"epoch (\d+) loss"
EPOCHS = 20  # of the digits, if they are told no other number
LEAST_ACCURACY = 0.97


@dataclass(frozen=True)
class Result:
    """What one run came to."""

    status: int
    accuracy: float
    seconds: tuple[tuple[str, float], ...]  # what was waited for, and how long

    @property
    def good(self) -> bool:
        return self.status == 0 and self.accuracy >= LEAST_ACCURACY


def accuracy_of(text: str) -> float:
    found = re.findall(r"test accuracy ([\d.]+)", text)
    return float(found[-1]) if found else 0.0


def started(text: str) -> list[tuple[int, int]]:
    """(rank, pid) of every start of a worker that the digits told of."""
    return [(int(rank), int(pid)) for rank, pid in re.findall(r"rank (\d+) of \d+: pid (\d+)", text)]


def kill_worker(cluster: Cluster) -> Result:
    """One of two workers is killed; the job trains on after a restart."""
    launcher = cluster.launch(
        "--standalone", "--nproc-per-node=2", "--max-restarts=3",
        DIGITS, "--checkpoint-dir", cluster.folder / "checkpoints",
    )  # fmt: skip
    launcher.wait_lines(EPOCH, 3)
    pids = dict(started(launcher.out))
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    back = launcher.moment(rf"rank 0 of 2: pid (?!{pids[0]}\b)", killed)
    epoch = launcher.moment(EPOCH, back)
    status = end_of_training(launcher, EPOCHS)
    seconds = (("worker's first line", back - killed), ("next epoch", epoch - killed))
    return Result(status, accuracy_of(launcher.out), seconds)


def kill_node(cluster: Cluster, epochs: int = 40) -> Result:
    """A second node joins while the first one trains, then dies; the first goes on alone."""
    first = digits_node(cluster, 0, epochs)
    first.wait_line(EPOCH)
    joined = time.monotonic()
    second = digits_node(cluster, 1, epochs)
    together = first.moment(EPOCH, second.moment(r"rank 1 of 2", joined))
    killed = time.monotonic()
    second.kill_node()
    back = first.moment(r"rank 0 of 1", killed)
    epoch = first.moment(EPOCH, back)
    status = end_of_training(first, epochs)
    seconds = (
        ("join to an epoch together", together - joined),
        ("worker's first line", back - killed),
        ("next epoch", epoch - killed),
    )
    return Result(status, accuracy_of(first.out), seconds)


def end_of_training(launcher: Launcher, epochs: int) -> int:
    """The exit status; each epoch has a deadline of its own, as all of them take long on a busy machine."""
    for epoch in range(1, epochs + 1):
        later = "|".join(map(str, range(epoch, epochs + 1)))  # one that was saved may never be told of
        launcher.wait_line(rf"epoch ({later}) loss")
    return launcher.wait()


def digits_node(cluster: Cluster, rank: int, epochs: int) -> Launcher:
    """One of two nodes that train the digits."""
    return cluster.launch(
        *cluster.options("1:2"), "--last-call-timeout=0", f"--node-rank={rank}",
        DIGITS, "--epochs", str(epochs), "--checkpoint-dir", cluster.folder / f"checkpoints{rank}",
    )  # fmt: skip


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {"worker": kill_worker, "node": kill_node}


def run(name: str) -> tuple[Result | None, str]:
    """One run of a scenario; without a result, the story of what went wrong."""
    with tempfile.TemporaryDirectory(prefix="elasticrun-soak-") as folder:
        cluster = Cluster(Path(folder))
        try:
            result = SCENARIOS[name](cluster)
            cluster.nobody_left()
        except AssertionError as error:
            return None, str(error)
        finally:
            for launcher in cluster.launchers:
                launcher.finish()
            cluster.director.close()
        story = "\n".join(launcher.story() for launcher in cluster.launchers)
        return result, "" if result.good else story


def main() -> int:
    """All runs of all scenarios; 0 if every one was good."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--scenario", action="append", choices=[*sorted(SCENARIOS), "chaos"])
    chaos_run.add_options(parser.add_argument_group("chaos"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # and clean up on the way
    all_good = True
    for name in options.scenario or SCENARIOS:
        all_good &= chaos_run.run(options) if name == "chaos" else repeat(name, options.runs)
    return 0 if all_good else 1


def repeat(name: str, runs: int) -> bool:
    """Run a scenario, tell of each run and of all."""
    good: list[Result] = []
    for number in range(1, runs + 1):
        result, story = run(name)
        if result is None or not result.good:
            print(f"{name} {number}: FAILED\n{story}", flush=True)
            continue
        good.append(result)
        times = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in result.seconds)
        print(f"{name} {number}: accuracy {result.accuracy:.3f}; {times}", flush=True)
    print(f"{name}: {len(good)} of {runs} runs ended well", flush=True)
    for what in dict.fromkeys(what for result in good for what, _ in result.seconds):
        values = [dict(result.seconds)[what] for result in good]
        median = statistics.median(values)
        print(f"{name}: {what}: {min(values):.2f} / {median:.2f} / {max(values):.2f} s (least, median, most)")
    return len(good) == runs


if __name__ == "__main__":
    sys.exit(main())
