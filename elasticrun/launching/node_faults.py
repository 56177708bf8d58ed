"""What befalls a node, or lasts for seconds: the caller brings it about, as no rank can.

Theory. A rank that meets such a fault rings, and waits for the echo. So nothing of the job goes on before the
fault is there, and each run meets it at the same step. All of it happens while somebody waits for the job.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from elasticrun.clock import MonotonicClock
from elasticrun.dataclass import dataclass
from elasticrun.launching.call import Call, Ring
from elasticrun.launching.faults import Fault, Freeze, Join, LoseNode, Partition, is_for_good
from elasticrun.launching.launchers import Launchers
from elasticrun.launching.output import Output
from elasticrun.launching.relay import Relay

#: Has the master take these for the fewest nodes, and the most.
Scale = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is started, and what befalls it."""

    requests: Sequence[Mapping[str, Any]]  # one for each launcher
    nproc: int  # ranks of a node
    joiners: Sequence[Mapping[str, Any]] = ()  # the requests of nodes that join later, by a fault
    limits: tuple[int, int] = (1, 1)  # the fewest nodes, and the most at first
    faults: Sequence[Fault] = ()
    relays: Mapping[int, Relay] = field(default_factory=dict)  # by launcher; the job closes them
    is_streamed: bool = False  # its output is read line by line


class NodeFaults:
    """Brings about the faults of one job, each once. To be closed."""

    def __init__(self, plan: Plan, call: Call, launchers: Launchers, output: Output, scale: Scale) -> None:
        """``output``: of launchers, also of those that start later; ``scale``: orders other limits."""
        self._left = dict(enumerate(plan.faults))
        self._nproc = plan.nproc
        self._joiners = [*plan.joiners]
        self._late: set[int] = set()  # launchers of nodes that have joined
        self._limits = plan.limits
        self._relays = plan.relays
        self._call = call
        self._launchers = launchers
        self._output = output
        self._scale = scale
        self._clock = MonotonicClock()
        self._ends: list[tuple[float, int, Callable[[], None]]] = []  # of faults that last, by their time
        self._frozen: dict[int, list[int]] = {}  # pidfds, by the fault

    def hear(self, ring: Ring) -> None:
        """Bring about the fault that a rank has met. One that is none of this job's is nothing."""
        number = self._launchers.number_of(ring.launcher)
        fault = None if number is None else self._left.pop(ring.fault, None)
        if fault is None or number is None:
            return
        match fault:
            case LoseNode():
                self._hit(number, fault)
                self._launchers.tell(number, signal.SIGKILL)
            case Freeze(node=None):
                self._freeze([ring.worker], ring.fault, fault.seconds)
            case Freeze():
                self._hit(number, fault)
                self._freeze([*self._launchers.processes(number)], ring.fault, fault.seconds)
            case Partition() if number in self._relays:
                self._hit(number, fault)
                self._relays[number].cut()
                self._call.echo(ring.fault)
                self._after(fault.seconds, ring.fault, self._relays[number].mend)
            case Join():
                self._join()

    def check(self, number: int) -> None:
        """Raise why a node ended that was to join: the others would wait for it for ever."""
        end = self._launchers.ends.get(number)
        if number not in self._late - self._launchers.hit or end is None or self._launchers.are_over:
            return
        has_joined = self._launchers.has_begun(number) or end.failures  # then its end is the job's affair
        if end.status and not has_joined:
            raise end.error

    def wait(self) -> float | None:
        """Seconds until a fault ends that lasts; None: none does."""
        return max(0.0, self._ends[0][0] - self._clock.now()) if self._ends else None

    def pass_time(self) -> None:
        """End the faults whose time is over."""
        while self._ends and self._ends[0][0] <= self._clock.now():
            heapq.heappop(self._ends)[2]()

    def close(self) -> None:
        """Let go of the relays, and of what is frozen."""
        self._ends.clear()
        for fault in [*self._frozen]:
            self._let_go(fault)
        for relay in self._relays.values():
            relay.close()

    def _join(self) -> None:
        """Have one more node join, as an operator does: raise the limit, and start its launcher."""
        fewest, most = self._limits
        self._limits = fewest, most + 1
        self._scale(fewest, most + 1)
        self._late.add(self._launchers.start(self._joiners.pop(0), self._output.descriptors))
        if not self._joiners:
            self._output.hand_over()

    def _hit(self, number: int, fault: LoseNode | Freeze | Partition) -> None:
        self._launchers.hit.add(number)
        if is_for_good(fault):
            assert fault.node is not None
            first = fault.node * self._nproc
            self._launchers.lost |= {(fault.round, rank) for rank in range(first, first + self._nproc)}
            self._launchers.gone.add(number)

    def _freeze(self, pids: Sequence[int], fault: int, seconds: float | None) -> None:
        """Stop these processes; the rank that waits for the echo is one of them."""
        handles = self._frozen[fault] = []
        for pid in pids:
            with contextlib.suppress(OSError):  # it has just ended
                handles.append(os.pidfd_open(pid))
        _signal(handles, signal.SIGSTOP)

        def thaw() -> None:
            _signal(handles, signal.SIGCONT)
            self._let_go(fault)
            self._call.echo(fault)

        self._after(seconds, fault, thaw)

    def _let_go(self, fault: int) -> None:
        for handle in self._frozen.pop(fault):
            os.close(handle)

    def _after(self, seconds: float | None, fault: int, what: Callable[[], None]) -> None:
        if seconds is not None:
            heapq.heappush(self._ends, (self._clock.now() + seconds, fault, what))


def _signal(handles: Sequence[int], signum: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, signum)
