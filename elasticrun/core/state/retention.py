"""Which commits in the storage are not needed any more.

Theory. A commit in the storage stays if any rule of ``Retention`` says so. Commits are ordered by the number
that each one got when it was finished: rounds begin anew with each run of a job, and a run may go back to an
earlier step, so neither round nor step tells which commit is the newest.

Invariants. The newest finished commit always stays, and so does a commit that somebody writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from elasticrun.dataclass import dataclass

#: Seconds without a change after which nobody writes an unfinished commit any more: a storage may show a
#: large file only when it is complete.
LEASE = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Found:
    """One commit in the storage."""

    name: str
    step: int
    number: int | None = None  # in the order in which commits were finished; None: this one is not
    since: float | None = None  # when it was finished, or else changed last; None: the storage does not say


@dataclass(frozen=True, slots=True)
class Retention:
    """Which commits stay. Without any rule all finished ones do."""

    last: int | None = None  # so many, the newest ones
    every: int | None = None  # of each so many steps, the commit that was finished first
    seconds: float | None = None  # those that were finished less than so long ago
    lease: float = LEASE  # unfinished ones that were changed less than so many seconds ago

    @property
    def keeps_all(self) -> bool:
        """Whether no finished commit has to go."""
        return self.last is None and self.every is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class Removal:
    """A commit that has to go, and why."""

    name: str
    reason: str


def surplus(
    found: Iterable[Found], rule: Retention, now: float, writing: Collection[str] = ()
) -> list[Removal]:
    """Which commits have to go, the oldest first. ``now`` is on the clock of ``Found.since``.

    ``writing``: names of commits that somebody is known to write.
    """
    others = [each for each in found if each.name not in writing]
    return [*_outdated(others, rule, now), *_abandoned(others, rule, now)]


def _outdated(found: Iterable[Found], rule: Retention, now: float) -> Iterator[Removal]:
    finished = sorted(
        ((each.number, each) for each in found if each.number is not None), key=lambda pair: pair[0]
    )
    if rule.keeps_all:
        return
    firsts: set[int] = set()  # spans of steps of which one commit stays
    for left, (_, commit) in zip(range(len(finished) - 1, -1, -1), finished, strict=True):
        is_first = rule.every is not None and commit.step // rule.every not in firsts
        if rule.every is not None:
            firsts.add(commit.step // rule.every)
        if left >= max(1, rule.last or 0) and not is_first and not _is_young(commit, rule.seconds, now):
            newer = "1 newer one is" if left == 1 else f"{left} newer ones are"
            yield Removal(commit.name, f"no rule keeps it, and {newer} finished")


def _abandoned(found: Iterable[Found], rule: Retention, now: float) -> Iterator[Removal]:
    for commit in sorted(found, key=lambda each: each.name):
        if commit.number is None and commit.since is not None and not _is_young(commit, rule.lease, now):
            hours = (now - commit.since) / 3600
            yield Removal(commit.name, f"it is not finished, and nobody has changed it for {hours:.1f} hours")


def _is_young(commit: Found, seconds: float | None, now: float) -> bool:
    """Whether it is younger than this; also if its age is unknown. None: no age counts as young."""
    return seconds is not None and (commit.since is None or now - commit.since < seconds)
