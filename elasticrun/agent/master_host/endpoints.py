"""The endpoints of a job, in the order in which their hosts take over, and whose turn it is."""

from __future__ import annotations

from elasticrun.config import Endpoint, RendezvousConfig


class Endpoints:
    """With one endpoint it is always that one's turn."""

    def __init__(self, config: RendezvousConfig) -> None:
        self.all = (config.endpoint, *config.successors)
        self.position = -1 if config.successors else 0  # of this host; -1: it serves none of them
        # Whose turn it is; with the port that its master found, if it chose one.
        self.current = config.endpoint
        self._turn = 0

    @property
    def are_several(self) -> bool:
        """Several hosts may become the master's."""
        return len(self.all) > 1

    @property
    def is_ours(self) -> bool:
        """It is this host's turn, or, of a single endpoint, perhaps this host's."""
        return self._turn == self.position

    @property
    def own(self) -> Endpoint:
        """The endpoint that this host serves, or else the first."""
        return self.all[max(self.position, 0)]

    @property
    def others(self) -> tuple[Endpoint, ...]:
        """Where the agent of a listed host looks for a master before it begins: the job may be older."""
        return self.all[1:] if self.are_several and self.position >= 0 else ()

    def advance(self) -> None:
        """The endpoint does not answer: it is the next one's turn."""
        self._turn = (self._turn + 1) % len(self.all)
        self.current = self.all[self._turn]

    def follow(self, endpoint: Endpoint) -> None:
        """Its master answers, so it is its turn."""
        if self.are_several:
            self._turn, self.current = self.all.index(endpoint), endpoint
