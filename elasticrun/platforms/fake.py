"""The reference adapter: a platform in memory, for tests and for whoever writes the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elasticrun.core.fleet.replicas import (
    ENDED,
    Decision,
    Note,
    Operation,
    Phase,
    Record,
    Remove,
    Result,
    Seen,
    Start,
    Wish,
)
from elasticrun.platforms.protocol import PlatformError, Sight


class FakePlatform:
    """One job, "job". What starts runs at once, and what is removed is gone at once."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.record = Record()
        self.version = 0  # of what is kept
        self.seen: dict[int, Seen] = {}
        self.decision: Decision | None = None  # the last that was kept
        self.operations: list[Operation] = []
        self.results: list[Result] = []  # as they were told
        self.notes: list[Note] = []
        self.starts: list[Start] = []  # in order, each that was no repetition
        self.is_full = False  # refuses starts
        self.is_away = False  # answers nothing
        self._happened: Callable[[str], None] = lambda _: None

    async def look(self, job: str) -> Sight | None:
        self._answer()
        if job != "job":
            return None
        ended = {result.key for result in self.results if result.phase in ENDED}
        operations = tuple(each for each in self.operations if each.key not in ended)
        return Sight(self.wish, tuple(self.seen.values()), self.record, operations, self.version)

    async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
        self._answer()
        if sight.token != self.version:
            return False
        if decision.record != self.record:
            self.record, self.version = decision.record, self.version + 1
        self.decision = decision
        self.results += decision.results
        return True

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        self._answer()
        if start.index in self.seen:
            return
        if self.is_full:
            raise PlatformError("the quota is spent")
        self.starts.append(start)
        memory = start.memory or self.wish.memory
        self.seen[start.index] = Seen(start.index, Phase.RUNNING, start.slot, memory=memory)
        self._happened(job)

    async def remove(self, job: str, remove: Remove) -> None:
        self._answer()
        if self.seen.pop(remove.index, None) is not None:
            self._happened(job)

    async def tell(self, job: str, sight: Sight, note: Note) -> None:
        self.notes.append(note)

    def notify(self, happened: Callable[[str], None]) -> None:
        self._happened = happened
        happened("job")

    # -- what tests do to it

    def end(self, index: int, code: int) -> None:
        """A replica ends by itself."""
        self.seen[index] = replace(self.seen[index], phase=Phase.ENDED, exit_code=code)
        self._happened("job")

    def _answer(self) -> None:
        if self.is_away:
            raise PlatformError("the platform does not answer")
