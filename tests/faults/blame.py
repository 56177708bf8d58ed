"""Is the rank that failed first the one that the launcher names? Each case, again and again.

    python -m tests.faults.blame [CASE...] [--count 100] [--python PYTHON --root DIRECTORY]

    slow      rank 1 raises, closes its socket, and takes 0.4 s to end in an ``atexit`` function
    recorded  the same with an error file, and nothing on stderr
    finally   the same, but the 0.4 s pass in a ``finally`` clause, before anything says why
    ddp       rank 1 of two raises, and destroys the process group of gloo in ``finally``
    kill      rank 1 of four is killed by SIGKILL, while other programs use all cores twice over
    two       ranks 1 and 2 of three raise at once; either is right
    nodes     as slow, with the two ranks on two nodes: the summaries of both nodes have to be right
    finallynodes  as finally, on two nodes
    nodekill  as kill, with two ranks on two nodes

Rank 0 only ever loses its connection, so it is never right. Prints ``CASE: right k of N`` for each, and of a
wrong run its output. The exit status is 0 if all were right. ``--python`` and ``--root`` have another version
of elasticrun tried.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


from tests.support.launcher import clean_environment  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

BAD = "the data are bad"  # as blamed.py says
WORKERS = ROOT / "tests" / "support"
DEADLINE = 60.0
CAUSE = re.compile(r"Root Cause.*?\n\s+rank\s+: (\d+) .*?\n\s+exitcode\s+: (-?\d+)", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """What runs, and what has to be named."""

    worker: str  # what blamed.py is told
    local: int  # workers on a node
    nodes: int = 1
    ranks: tuple[int, ...] = (1,)
    says: str = BAD
    exit_code: int | None = None  # None: any
    load: int = 0  # busy programs for each core


CASES = {
    "slow": Case("slow", 2),
    "recorded": Case("recorded", 2),
    "finally": Case("finally", 2),
    "ddp": Case("ddp", 2),
    "kill": Case("kill", 4, says="", exit_code=-signal.SIGKILL, load=2),
    "two": Case("two", 3, ranks=(1, 2)),
    "nodes": Case("slow", 1, nodes=2),
    "finallynodes": Case("finally", 1, nodes=2),
    "nodekill": Case("kill", 1, nodes=2, says="", exit_code=-signal.SIGKILL, load=2),
}


@dataclass(frozen=True)
class Tried:
    """The version that is tried."""

    python: str
    root: Path

    def launch(self, case: Case, directory: Path) -> list[str]:
        """What each node's launcher says."""
        os.mkfifo(directory / "gate")
        script = "blamed_ddp.py" if case.worker == "ddp" else "blamed.py"
        shared = [f"--nproc-per-node={case.local}", str(WORKERS / script), case.worker, str(directory)]
        port = free_port()
        nodes = ["--nnodes=2", f"--rdzv-endpoint=localhost:{port}"]
        members = [[*nodes, f"--node-rank={n}"] for n in range(2)] if case.nodes > 1 else [["--standalone"]]
        running = [self._start([*member, *shared], directory) for member in members]
        return [_output(launcher) for launcher in running]

    def _start(self, arguments: list[str], directory: Path) -> subprocess.Popen[bytes]:
        environment = clean_environment(PYTHONPATH=str(self.root))
        command = [self.python, "-m", "elasticrun", *arguments]
        return subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )


def _output(launcher: subprocess.Popen[bytes]) -> str:
    try:
        said = launcher.communicate(timeout=DEADLINE)[1]
    except subprocess.TimeoutExpired:
        launcher.kill()
        said = launcher.communicate()[1] + b"it never ended\n"
    return said.decode(errors="replace")


def is_right(case: Case, output: str) -> bool:
    found = CAUSE.search(output)
    if found is None or int(found[1]) not in case.ranks:
        return False
    return case.says in output[found.start() :] and case.exit_code in (None, int(found[2]))


@contextlib.contextmanager
def load(programs: int) -> Iterator[None]:
    """So many programs compute for nothing."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in busy:
            program.kill()
            program.wait()


def count_right(name: str, tried: Tried, count: int) -> int:
    """How many runs of a case name the right rank, on all nodes."""
    case, right = CASES[name], 0
    with load(case.load * (os.cpu_count() or 1)):
        for _ in range(count):
            with tempfile.TemporaryDirectory() as directory:
                said = tried.launch(case, Path(directory))
            if all(is_right(case, output) for output in said):
                right += 1
            else:
                print(*said, sep="\n", file=sys.stderr)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", nargs="*", help=f"one of {', '.join(CASES)}; by default each")
    parser.add_argument("--count", type=int, default=100, help="how often (100)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the package lies")
    given = parser.parse_args()
    is_good = True
    for name in given.case or CASES:
        right = count_right(name, Tried(given.python, given.root.absolute()), given.count)
        print(f"{name}: right {right} of {given.count}", flush=True)
        is_good = is_good and right == given.count
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
