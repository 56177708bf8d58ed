"""How all of a commit comes to be on several hosts: what the master knows of it.

Theory. All nodes copy the same commit at a time, so that what is copied makes a whole: if each chose its own
step, the copies might never fit together. The commit that is *being copied* is pinned: nobody writes over
it. It is *safe* once each receiver has told that it holds what it was to be sent, and so is everything that a
restore needs on enough hosts. Then, or once nothing is expected any more, the next one can be copied: the
newest whole one by then. A sender that cannot send says that it is done as well, so nobody waits for it; that
commit is not safe, and the one before stays so.

A commit that was copied may have to be copied again, to the members of the next world. So orders are
numbered, and a sender tells with which one it is done. Its word may come before that of the receivers, which
have what was not missed, so these are waited for. If one does not tell, as it has dropped what it took, that
wait has a bound. What could not be sent to one of the next world's members is sent to another one: so each
such transfer is counted, and tried ``TRIES`` times at most.

Which commit is safe, the ledger knows. Invariant: it was on enough hosts when it was called so, and stays
pinned until a newer one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elasticrun.core.protocol.commits import CommitId, Copy, Holding, Sent
from elasticrun.core.state.placement import Transfer

#: How often one node tries to send a part to another one. More than once, as the first offer may come before
#: the master's word to take it in.
TRIES = 2
#: One copy on its way: the node that takes it in, and what its sender is told.
Transport = tuple[str, Copy]


class Replication:
    """The copying of one job. No dataclass: each master loads this, and most jobs save nothing."""

    def __init__(self) -> None:
        self.copying: CommitId | None = None  # being copied, or the last one that was
        self.number = 0  # of the newest order of all
        self.considered: CommitId | None = None  # the newest whole commit for which was decided what to copy
        self.gathered: CommitId | None = None  # the newest whole one when parts began to go to the next world
        self._tried: dict[CommitId, dict[Transfer, int]] = {}  # how often, to bring parts to the next world
        self._orders: dict[str, tuple[Transport, ...]] = {}  # by sender
        self._unsent: set[str] = set()  # senders that are not done
        self._expected: dict[str, set[int]] = {}  # by receiver: parts that it has not told of

    @property
    def is_sent(self) -> bool:
        """Whether all senders are done, and some receiver has not told of what it was sent."""
        return bool(self._expected) and not self._unsent

    @property
    def is_arriving(self) -> bool:
        """Whether some receiver may still tell that it has what it was sent."""
        return bool(self._expected)

    def begin(self, commit: CommitId, orders: Mapping[str, Sequence[Transport]]) -> None:
        """Have nodes send parts of a commit, by sender, and expect them to arrive."""
        self.copying = commit
        self.number += 1
        self._orders = {sender: tuple(given) for sender, given in orders.items()}
        self._unsent = set(orders)
        self._expected = {}
        for receiver, copy in (each for given in orders.values() for each in given):
            self._expected.setdefault(receiver, set()).add(copy.group_rank)

    def tried(self, commit: CommitId) -> Mapping[Transfer, int]:
        """How often each transfer of a commit to the next world's members was tried."""
        return self._tried.get(commit, {})

    def note_try(self) -> None:
        """What is sent now goes to the next world's members."""
        assert self.copying is not None, "nothing is sent"
        tried = self._tried.setdefault(self.copying, {})
        for sender, given in self._orders.items():
            for receiver, copy in given:
                transfer = Transfer(copy.group_rank, sender, receiver)
                tried[transfer] = tried.get(transfer, 0) + 1

    def orders(self, node: str) -> tuple[Copy, ...]:
        """What a node has to send of the commit that is being copied."""
        return tuple(copy for _, copy in self._orders.get(node, ()))

    def hear(self, node: str, holdings: Sequence[Holding], sent: Sent | None) -> bool:
        """Take in what a node has, and what it has sent. Returns whether all has arrived by that."""
        if sent is not None and (sent.commit, sent.number) == (self.copying, self.number):
            self._unsent.discard(node)
            given = self._orders.get(node, ())
            self._expect_no_more(given[place] for place in sent.missed if place < len(given))
        if node not in self._expected:
            return False
        for holding in holdings:
            if holding.commit == self.copying:
                self._expected[node].difference_update(part.group_rank for part in holding.parts)
        return self._drop_served(node)

    def lose(self, node: str) -> None:
        """A node is gone: it sends nothing, and nothing arrives there."""
        self._expect_no_more(self._orders.pop(node, ()))
        self._unsent.discard(node)
        self._expected.pop(node, None)
        for tried in self._tried.values():  # another incarnation may come, and be no worse for that
            for transfer in [each for each in tried if node in (each.sender, each.receiver)]:
                del tried[transfer]

    def expect_nothing(self) -> None:
        """Receivers that have not told by now do not have what they were sent."""
        self._expected = {}

    def stop(self) -> None:
        """A new round begins: nobody sends any more for the one before."""
        self.copying = self.considered = self.gathered = None
        self._orders, self._unsent, self._expected, self._tried = {}, set(), {}, {}

    def _expect_no_more(self, transports: Iterable[Transport]) -> None:
        for receiver, copy in transports:
            expected = self._expected.get(receiver, set())
            expected.discard(copy.group_rank)
            if not expected:
                self._expected.pop(receiver, None)

    def _drop_served(self, node: str) -> bool:
        if not self._expected[node]:
            del self._expected[node]
        return not self._expected
