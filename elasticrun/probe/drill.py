"""Faults on purpose, to try a health check on a real cluster.

``ELASTICRUN_PROBE_FAULT`` in the environment of ``elastic-run`` on one node makes that node's probe fail:

    compute    a matrix product comes out wrong
    slow=0.5   the node computes at half its speed (any number above 0, below 1)
    network    the node passes its self test, but takes no part in any all-gather
    wrong      what the node sends in all-gathers is damaged
    hang       the probe never ends
    crash      the probe is killed by SIGSEGV

Training itself is never touched. Only the probe child reads the variable.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from dataclasses import dataclass

from .sockets import ProbeError

VARIABLE = "ELASTICRUN_PROBE_FAULT"
KINDS = ("compute", "slow", "network", "wrong", "hang", "crash")


@dataclass(frozen=True)
class Drill:
    """Which fault to show; an empty ``kind`` means none."""

    kind: str = ""
    speed: float = 1.0

    def strike(self) -> None:
        """Hang or crash, if that is the fault; then never return."""
        if self.kind == "hang":
            threading.Event().wait()
        elif self.kind == "crash":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)


def parse_drill(value: str) -> Drill:
    """The fault that ``value`` names; ProbeError if there is no such fault."""
    kind, _, number = value.partition("=")
    if not value or (kind in KINDS and kind != "slow" and not number):
        return Drill(kind)
    try:
        speed = float(number) if kind == "slow" else 0.0
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1:
        raise ProbeError(
            f"{VARIABLE}={value} is not valid: give compute, slow=0.5, network, wrong, hang or crash"
        )
    return Drill(kind, speed)
