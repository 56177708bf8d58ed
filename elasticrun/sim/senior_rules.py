"""In a job without a token, rank 0 is one of the oldest members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.sim.kernel import require


class SeniorRules:
    """Watches one simulated job, by the incarnations of its nodes."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._generation = 0

    def world_formed(
        self, order: Sequence[str], here: Mapping[str, str], round_: int, generation: int
    ) -> None:
        """A world of these nodes begins; ``here`` has the incarnations of all that are in the job."""
        if generation != self._generation:  # the master forgot everything
            self._since, self._generation = {}, generation
        lives = set(here.values())
        self._since = {one: since for one, since in self._since.items() if one in lives}
        ages = [self._since.setdefault(here[name], round_) for name in order]
        require("rank 0 is one of the oldest members", ages[0] == min(ages), f"{order}: {ages}")
