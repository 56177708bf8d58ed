"""Virtual time: a heap of actions, one source of randomness, and the trace."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any


class Violation(AssertionError):
    """A rule does not hold."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


def require(rule: str, holds: bool, text: str) -> None:
    """Raise Violation unless the rule holds."""
    if not holds:
        raise Violation(rule, text)


class Kernel:
    """Runs actions in the order of their instants, and in the order of scheduling at one instant."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.random = self.rng.random
        self.lines: list[str] | None = [] if trace else None
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ties = itertools.count()

    def at(self, instant: float, action: Callable[..., None], *args: Any) -> None:
        """Run ``action(*args)`` at ``instant``."""
        heapq.heappush(self._heap, (instant, next(self._ties), action, args))

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Run ``action(*args)`` in ``delay`` seconds."""
        heapq.heappush(self._heap, (self.now + delay, next(self._ties), action, args))

    def step(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._heap:
            return False
        self.now, _, action, args = heapq.heappop(self._heap)
        self.steps += 1
        action(*args)
        return True

    def say(self, who: str, text: str) -> None:
        """Add a line to the trace; callers check ``tracing`` first where the text is costly."""
        if self.lines is not None:
            self.lines.append(f"{self.now:9.3f} {who:10} {text}")

    @property
    def tracing(self) -> bool:
        """Whether the trace is kept."""
        return self.lines is not None
