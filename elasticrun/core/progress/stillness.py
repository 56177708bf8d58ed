"""Since when no rank of a node can have gone on by itself.

A node is *still* while every rank's main thread waits for other ranks or for the store, and nothing below any
of them is active. A rank that is not seen to wait is taken to work: one outside a collective, one that a
signal has stopped, one that shows no stack, and one that has opened an accelerator, whose work leaves no
trace in ``/proc``. A silence may also be wanted: a debugger is attached, or a worker waits for a line from a
prompt. Then the node is *held*, and is no hang unless the user fixed a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from elasticrun.core.progress.activity import Footprint, activity
from elasticrun.core.progress.stacks import Stack, awaits_peers, is_at_prompt
from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look found, by local rank where there is anything."""

    stacks: Mapping[int, Stack] = field(default_factory=dict)
    before: Mapping[int, Footprint] = field(default_factory=dict)  # just before the stacks were taken
    after: Mapping[int, Footprint] = field(default_factory=dict)


class Stillness:
    """Since when no rank of a node can have gone on by itself, from look to look."""

    def __init__(self) -> None:
        self.since: float | None = None  # None: one could go on
        self.quiet = 0.0  # seconds since then that were measured: between looks, not while taking stacks
        self.is_held = False  # a debugger is attached, or a prompt waits for a line
        self._doubt: tuple[int, str] | None = None  # a rank that could go on or is held, and why
        self._before: Mapping[int, Footprint] = {}  # footprints after the last look

    def weigh(self, ranks: Sequence[int], sight: Sight, now: float) -> None:
        """Take in what a look at ``now`` found of these local ranks."""
        stacks, before = sight.stacks, sight.before
        held = [(rank, why) for rank in ranks if (why := _held(stacks.get(rank, ()), before.get(rank)))]
        free = [
            (rank, why) for rank in ranks if (why := _could_go_on(stacks.get(rank, ()), before.get(rank)))
        ]
        busy = [(rank, why) for rank in ranks if (why := self._activity(rank, before.get(rank)))]
        self.is_held = bool(held)
        self._doubt = next(iter((*held, *free, *busy)), None)
        if held or free:
            self.since, self.quiet = None, 0.0
        elif busy or self.since is None:
            self.since, self.quiet = now, 0.0
        else:
            seen = [before[rank].at - self._before[rank].at for rank in ranks if rank in self._before]
            self.quiet += min(seen, default=0.0)
        self._before = sight.after

    def doubt(self, first_rank: int) -> str:
        """What speaks against a hang, in words."""
        return f"rank {first_rank + self._doubt[0]} {self._doubt[1]}" if self._doubt is not None else ""

    def _activity(self, rank: int, now: Footprint | None) -> str:
        before = self._before.get(rank)
        return activity(before, now) if before is not None and now is not None else ""


def _held(stack: Stack, footprint: Footprint | None) -> str:
    """Why this silence is wanted; "" if it is not."""
    if footprint is not None and footprint.is_traced:
        return "is being debugged"
    if is_at_prompt(stack) or (footprint is not None and footprint.reads_stdin):
        return "waits for input"
    return ""


def _could_go_on(stack: Stack, footprint: Footprint | None) -> str:
    """Why a rank may go on by itself; "" if it seems to need others."""
    if footprint is None:
        return "cannot be looked at"
    if footprint.is_stopped:
        return "is stopped by a signal (state T)"
    if not stack:
        return "shows no stack"
    if not awaits_peers(stack):
        return "is outside any collective"
    return "uses an accelerator, whose work cannot be observed" if footprint.has_device else ""
