"""What the ranks of ``keeper.py`` have said of the state that they have."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.launcher import ROOT, Launcher

KEEPER = ROOT / "tests" / "support" / "keeper.py"


class Said(NamedTuple):
    """What a rank says of itself at some time."""

    round: int
    rank: int
    step: int
    seen: int
    digest: str


def said(what: str, *launchers: Launcher) -> list[Said]:
    """All that ranks have said, sorted."""
    form = rf"round (\d+) rank (\d+) {what} after step (\d+), seen (\d+), has (\w+)"
    found = [each for launcher in launchers for each in re.findall(form, launcher.out)]
    return sorted(Said(int(n), int(rank), int(step), int(seen), has) for n, rank, step, seen, has in found)


def digests(found: list[Said]) -> set[str]:
    return {each.digest for each in found}
