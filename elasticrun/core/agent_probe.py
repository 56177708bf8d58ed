"""The probe of a node's health, as its agent sees it: the one that runs, and what the last one found.

Invariant: ``report`` is of a probe that ran to its end, or to the end of its time. One that was stopped
before says nothing about the node, so it leaves no report, and may be asked for again under its number. One
that has left its report is not run again under that number, however often the master repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticrun.core.protocol import ProbeReport, StartProbe


@dataclass(frozen=True, slots=True)
class Probing:
    """Where the probing of this node stands. Immutable; most methods give what follows."""

    running: StartProbe | None = None  # until it ends or is stopped; sweeping it may last longer
    report: ProbeReport | None = None  # of the last one that ended

    def is_due(self, wanted: StartProbe) -> bool:
        """Whether a probe that is asked for has not been answered yet."""
        return self.report is None or self.report.check != wanted.check

    def is_obsolete(self, wanted: StartProbe | None) -> bool:
        """Whether a probe runs that is not the one that is wanted now."""
        running = self.running
        if running is None:
            return False
        return wanted is None or (wanted.check, wanted.groups) != (running.check, running.groups)

    def begin(self, start: StartProbe) -> Probing:
        """A probe starts."""
        return replace(self, running=start)

    def end(self, report: ProbeReport) -> Probing | None:
        """The probe that runs has ended so; None if the report is of another one."""
        if self.running is None or self.running.check != report.check:
            return None
        return Probing(report=report)

    def run_out(self) -> Probing:
        """The time for the probe is over."""
        assert self.running is not None
        over = f"the probe did not end within {self.running.timeout:g} s"
        return Probing(report=ProbeReport(self.running.check, over))

    def stop(self) -> Probing:
        """What runs is stopped before its end."""
        return replace(self, running=None)
