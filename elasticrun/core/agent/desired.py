"""The desired state of an agent: the newest directive of the master, and nothing else.

A directive counts only if its (epoch, sequence) is newer than that of the last one. A later one replaces an
earlier one entirely, except that a round once stopped stays stopped.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.protocol.messages import JobEnded, StartProbe, StartRound, StopRound
from elasticrun.dataclass import dataclass

Directive = StartRound | StopRound | StartProbe | JobEnded


@dataclass(frozen=True, slots=True)
class Desired:
    """What the directive in force asks for."""

    epoch: int = -1  # the newest that this agent has seen; -1: none
    round: StartRound | None = None
    probe: StartProbe | None = None
    stop_through: int = -1  # every round up to this one has to stop
    drains: bool = False  # because a node leaves with grace: workers may save their state
    stamp: tuple[int, int] = (-1, -1)

    def after(self, message: Directive) -> Desired | None:
        """The desired state after this message; None if the message is old."""
        stamp = (message.epoch, message.sequence)
        if message.epoch < self.epoch or stamp <= self.stamp:
            return None
        desired = replace(self, epoch=max(self.epoch, message.epoch), stamp=stamp)
        match message:
            case StartRound():
                return replace(desired, round=message, probe=None)
            case StartProbe():
                return replace(desired, round=None, probe=message)
            case StopRound(round=number, drain=drain):
                through = max(self.stop_through, number)
                return replace(desired, round=None, probe=None, stop_through=through, drains=drain)
            case _:  # the job has ended
                return desired

    def outdates(self, running: int) -> bool:
        """Whether the workers of this round have to make way."""
        superseded = self.round is not None and self.round.assignment.round > running
        return superseded or self.stop_through >= running

    def next_round(self, last: int) -> StartRound | None:
        """The round to start after ``last``, the last one accepted, when nothing runs; None: none."""
        wanted = self.round
        if wanted is not None and wanted.assignment.round > max(last, self.stop_through):
            return wanted
        return None
