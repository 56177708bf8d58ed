"""The job's saved states: what becomes of each commit, and which one the next round restores.

``CommitLedger`` knows who holds what. This part tells the members of the round once a commit is whole, so
that they may overwrite older ones, and once a commit is void, so that they may overwrite that.

Invariant: what nodes were told to be whole was so when it was told; what a round restores is whole when the
round is formed. A verdict names its round, so one that comes late means nothing to the next round.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import JudgeCommits


class Commits:
    """Keeps the ledger, and tells nodes what follows from it."""

    def __init__(self, state: JobState, outbox: Outbox) -> None:
        self._state = state
        self._outbox = outbox

    def hear(self, node: Node) -> None:
        """Take in what a node holds; tell all members if that decides about a commit."""
        ledger, holdings = self._state.ledger, node.status.holdings
        if holdings or node.info.node in ledger.nodes:
            ledger.hear(node.info.node, holdings)
            self._judge()

    def lose(self, name: str) -> None:
        """A node is gone, and all that it held."""
        if name in self._state.ledger.nodes:
            self._state.ledger.lose(name)

    def greet(self, node: Node) -> None:
        """Tell a node that has come, or come back, what was decided about the commits of its round."""
        verdict = self._state.verdict
        if verdict != (None, None) and node.session is not None:
            self._outbox.send(node.session, JudgeCommits(self._state.epoch, self._state.round, *verdict))

    def choose(self) -> CommitId | None:
        """The commit that the next world restores; None if the nodes that are here hold none."""
        ledger = self._state.ledger
        whole, held = ledger.newest_whole(), ledger.newest_held()
        if held is not None and held != whole:
            missing = ledger.missing(held)
            lost = (
                f"{missing} of its {ledger.size(held)} parts" if missing else "a part of what its ranks share"
            )
            lost = f"{held} is lost: nobody here has {lost}"
            self._outbox.decide(lost)
            self._outbox.tell_all([f"{lost}; {'nothing' if whole is None else whole} is restored"])
        if whole is not None:
            self._outbox.decide(f"{whole} is restored from memory")
        return whole

    def begin(self, order: Sequence[str]) -> None:
        """A round begins whose members are these, by group rank."""
        self._state.ledger.begin(self._state.round, order)
        self._state.verdict = None, None

    def _judge(self) -> None:
        state = self._state
        if state.round < 0:  # nobody runs a round that this master knows
            return
        verdict = state.ledger.newest_whole(), state.ledger.newest_void()
        if verdict == state.verdict:
            return
        state.verdict = verdict
        message = JudgeCommits(state.epoch, state.round, *verdict)
        for name in state.current.assignments:
            node = state.members.nodes.get(name)
            if node is not None and node.session is not None:
                self._outbox.send(node.session, message)

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        here = self._state.members.nodes.keys()
        rules = {
            **dict.fromkeys(self._state.ledger.check(), False),
            "only nodes that are here hold anything": self._state.ledger.nodes <= here,
        }
        return [rule for rule, holds in rules.items() if not holds]
