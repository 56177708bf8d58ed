"""The probe of a node's health, as its agent sees it: the one that runs, and what the last one found.

A probe leaves a report if it ran to its end, or to the end of its time. A probe that was stopped before says
nothing about the node: it leaves no report, and may be asked for again under its number. A probe with a
report is not run again under that number, however often the master repeats itself.

Invariant: a probe runs only while the phase is CHECKING, and then there is a timer for its end. Sweeping what
is left of it may last beyond that.
"""

from __future__ import annotations

from elasticrun.core.agent.events import AgentTrigger, ProbeEnded, RunProbe
from elasticrun.core.agent.group import Group
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.phases import Phases
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase, ProbeReport, StartProbe
from elasticrun.core.timers import Deadlines

PROBE = "probe"


class Probes:
    """Runs one probe after the other."""

    def __init__(
        self, state: AgentState, group: Group, outbox: Outbox, phases: Phases, timers: Deadlines[str]
    ) -> None:
        self._state = state
        self._group = group
        self._outbox = outbox
        self._phases = phases
        self._timers = timers
        self._running: StartProbe | None = None  # until it ends or is stopped

    def start(self) -> bool:
        """Nothing runs: start the probe that is wanted, unless it was answered. Returns whether it did."""
        wanted, last = self._state.desired.probe, self._state.probe
        if (
            self._state.departure is not None
            or wanted is None
            or (last is not None and last.check == wanted.check)
        ):
            return False
        self._running = wanted
        self._timers.set(PROBE, self._state.now + wanted.timeout)
        self._outbox.inform(f"checking this node, probe {wanted.check}")
        self._outbox.put(RunProbe(wanted, self._state.round))
        self._phases.move(AgentTrigger.PROBE_WANTED)
        return True

    def watch(self) -> bool:
        """Stop the probe that runs if the node has to leave, or the master wants something else."""
        running, wanted = self._running, self._state.desired.probe
        if running is None:
            return False
        is_wanted = wanted is not None and (wanted.check, wanted.groups) == (running.check, running.groups)
        if is_wanted and self._state.departure is None:
            return False
        self._end()
        return True

    def ended(self, event: ProbeEnded) -> None:
        """Take the report of the running probe; ignore that of another one."""
        if self._running is not None and self._running.check == event.report.check:
            self._state.probe = event.report
            self._end()

    def run_out(self) -> None:
        """The time for the probe is over."""
        assert self._running is not None
        over = f"the probe did not end within {self._running.timeout:g} s"
        self._state.probe = ProbeReport(self._running.check, over)
        self._end()

    def _end(self) -> None:
        self._running = None
        self._timers.cancel(PROBE)  # sweeping what is left of it may last beyond that
        self._group.sweep()

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        is_running = self._running is not None
        assert is_running is (PROBE in self._timers), "a probe and its timer go together"
        if self._state.phase is AgentPhase.CHECKING:
            assert is_running is not self._group.is_swept, "a probe runs, or what is left of it is swept"
        else:
            assert not is_running, f"a probe runs in {self._state.phase}"
