"""Three hosts train, one of them fails: how long until the survivors have reduced together again?

    python tests/faults/recovery.py --runs 3 [--fault agent] [--fault host]

``agent``: everything on the host is SIGKILLed; its kernel lives and closes the connections.
``host``: the host is silently gone: its packets vanish, and nothing tells anybody.

Prints for each run the seconds from the fault to the survivors' next round, and to the end of the first
all-reduce in it on the last of them. Needs root and torch.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.cluster import Cluster  # noqa: E402
from tests.support.director import Worker  # noqa: E402
from tests.support.hosts import Hosts, switch, why_no_hosts  # noqa: E402

REDUCER = ROOT / "tests" / "support" / "reducer.py"

Fault = Callable[[Hosts, int], None]
FAULTS: dict[str, Fault] = {"agent": Hosts.kill, "host": Hosts.drop}


@dataclass(frozen=True)
class Recovery:
    """Seconds from the fault on; for the reader, no test decides by them."""

    round: float  # until every survivor had heard of its next round
    hello: float  # until the last new worker had begun
    reduced: float  # until the last new worker had done its first all-reduce

    def __str__(self) -> str:
        return f"next round {self.round:.2f} s, workers {self.hello:.2f} s, all-reduce {self.reduced:.2f} s"


def reduced(workers: list[Worker]) -> None:
    """All of them have done an all-reduce with one another."""
    for worker in workers:
        assert worker.answer() == {"reduced": len(workers)}


def recover(hosts: Hosts, fault: Fault) -> Recovery:
    """Host 2 of three fails; the two others go on, and end well."""
    for index in range(3):
        hosts.node(index, "2:3", "--last-call-timeout=60", script=REDUCER)
    reduced(hosts.director.round(0, 3))
    failed = time.monotonic()
    fault(hosts, 2)
    after = hosts.director.round(1, 2)
    hello = time.monotonic()
    reduced(after)
    done = time.monotonic()
    survivors = [hosts[index].launchers[0] for index in (0, 1)]
    formed = max(it.moment(r"round 1: node \d of 2", failed) for it in survivors)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in after} == {"0"}
    for worker in after:
        worker.tell("end")
    for launcher in survivors:
        assert launcher.wait() == 0, launcher.story()
    return Recovery(formed - failed, hello - failed, done - failed)


def run(name: str) -> Recovery:
    """One run on hosts of its own."""
    with tempfile.TemporaryDirectory(prefix="elasticrun-recovery-") as folder, switch() as network:
        cluster = Cluster(Path(folder))
        try:
            hosts = Hosts(cluster, *network)
            for _ in range(3):
                hosts.add()
            return recover(hosts, FAULTS[name])
        finally:
            for launcher in cluster.launchers:
                launcher.finish()
            cluster.director.close()


def main() -> int:
    """All runs of all faults."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS))
    options = parser.parse_args()
    if why := why_no_hosts():
        parser.exit(1, f"{why}\n")
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # and clean up on the way
    for name in options.fault or FAULTS:
        found = []
        for number in range(1, options.runs + 1):
            found.append(run(name))
            print(f"{name} {number}: {found[-1]}", flush=True)
        medians = [statistics.median(getattr(it, what.name) for it in found) for what in fields(Recovery)]
        print(f"{name}: median of {len(found)}: {Recovery(*medians)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
