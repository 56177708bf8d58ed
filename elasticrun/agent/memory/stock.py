"""Where the memory is of each part that one node has: those of its own workers, and copies for others."""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.agent.memory.buffers import Buffers
from elasticrun.agent.memory.copies import Copies
from elasticrun.agent.memory.sending import Order
from elasticrun.agent.memory.storage_access import Held
from elasticrun.core.protocol.commits import CommitId, Copy, Holding
from elasticrun.core.state.buffers import Buffer
from elasticrun.core.state.events import Offer, Piece
from elasticrun.core.state.vault import Vault


class Stock:
    """All parts of one node."""

    def __init__(self, vault: Vault, buffers: Buffers) -> None:
        self.copies: Copies | None = None  # None: there is no other node, or none can reach us
        self._vault = vault
        self._buffers = buffers

    def each_rank(self, commit: CommitId) -> list[tuple[Buffer, int]]:
        """Each rank's part of a commit that is here, and its descriptor; our own first."""
        found = {part.rank: (part, self._buffers.fds[part.number]) for part in self._vault.stored(commit)}
        if self.copies is not None:
            for part in self.copies.replicas.stored(commit):
                found.setdefault(part.rank, (part, self.copies.fd(part)))
        return list(found.values())

    def held(self, commit: CommitId, group_rank: int) -> list[Held]:
        """The pieces of a part that is here, our own or a copy, with their descriptors; none if it is not."""
        found: list[tuple[Buffer, int]] = []
        if self._own(commit, group_rank) is not None:
            parts = sorted(self._vault.stored(commit), key=lambda part: part.rank)
            found = [(part, self._buffers.fds[part.number]) for part in parts]
        elif self.copies is not None:
            found = [(part, self.copies.fd(part)) for part in self.copies.replicas.stored(commit, group_rank)]
        return [(Piece(part.rank, part.length, part.digest), fd) for part, fd in found]

    def orders(self, commit: CommitId, copies: Sequence[Copy]) -> list[Order]:
        """What is to be sent to other nodes, of what is here."""
        found = []
        for copy in copies:
            held = self.held(commit, copy.group_rank)
            if held:
                offer = self._offer(commit, copy.group_rank, tuple(piece for piece, _ in held))
                found.append(Order(copy, offer, [fd for _, fd in held]))
        return found

    def _offer(self, commit: CommitId, group_rank: int, pieces: tuple[Piece, ...]) -> Offer:
        """What a part that is here is offered as."""
        own = self._own(commit, group_rank)
        if own is not None:
            return Offer(commit, own.size, own.parts[0], pieces)
        assert self.copies is not None, "a part that is not ours came as a copy"
        offer = self.copies.replicas.offer(commit, group_rank)
        assert offer is not None, "its pieces are here"
        return offer

    def _own(self, commit: CommitId, group_rank: int) -> Holding | None:
        own = self._vault.told.get(commit)
        return own if own is not None and own.parts[0].group_rank == group_rank else None
