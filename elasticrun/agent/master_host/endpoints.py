"""The endpoints of a job, in the order in which their hosts take over, and the current one."""

from __future__ import annotations

from elasticrun.config import Endpoint, RendezvousConfig


class Endpoints:
    """Tracks whose turn it is; a single endpoint always has the turn."""

    def __init__(self, config: RendezvousConfig) -> None:
        self.all = (config.endpoint, *config.successors)
        self.position = -1 if config.successors else 0  # of this host; -1: it serves none of them
        # The endpoint whose turn it is; with the port that its master chose, if it did.
        self.current = config.endpoint
        self._turn = 0

    @property
    def are_several(self) -> bool:
        """Several hosts may become the master's."""
        return len(self.all) > 1

    @property
    def is_ours(self) -> bool:
        """It is this host's turn. Always true of a single endpoint, which may be elsewhere."""
        return self._turn == self.position

    @property
    def own(self) -> Endpoint:
        """The endpoint that this host serves, or else the first."""
        return self.all[max(self.position, 0)]

    @property
    def others(self) -> tuple[Endpoint, ...]:
        """Where the agent of a listed host first looks for a master: the job may be older."""
        return self.all[1:] if self.are_several and self.position >= 0 else ()

    def advance(self) -> None:
        """Pass the turn to the next endpoint."""
        self._turn = (self._turn + 1) % len(self.all)
        self.current = self.all[self._turn]

    def follow(self, endpoint: Endpoint) -> None:
        """Give the turn to ``endpoint``, whose master answers."""
        if self.are_several:
            self._turn, self.current = self.all.index(endpoint), endpoint
