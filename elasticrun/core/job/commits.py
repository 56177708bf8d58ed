"""The job's saved states: what becomes of each commit, which one is copied, and which one a round restores.

``CommitLedger`` knows who holds what. This part tells the members of the round once a commit is whole, so
that they may overwrite older ones, and once a commit is void, so that they may overwrite that. It has them
copy what only one host has to another one (``core/state/replication.py``).

Invariant: what nodes were told to be whole was so when it was told; what a round restores is whole when the
round is formed, and its members have all of it. A verdict names its round, so one that comes late means
nothing to the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import ARRIVING, COLLECTING, UNJUDGED, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.commits import MAX_COPIES, CommitId, Copy
from elasticrun.core.protocol.messages import JudgeCommits
from elasticrun.core.state.placement import Transfer, is_spread, plan, plan_gathering
from elasticrun.core.state.replication import TRIES, Transport

#: Seconds for which a world waits for parts that nodes outside it send to its members. Senders tell when they
#: are done or have failed, so this only bounds the wait for one that does neither.
COLLECTING_TIMEOUT = 300.0
#: Seconds for which a receiver may tell that it has what it was sent, once all senders are done. It tells at
#: once, so this only bounds the wait for one that has dropped it again.
ARRIVAL_TIMEOUT = 10.0


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
            replication = self._state.replication
            if replication.hear(node.info.node, holdings, node.status.copied):
                self._note_safe(replication.copying)
            self._watch_arrival()
            self._judge()

    def lose(self, name: str) -> None:
        """A node is gone, and all that it held."""
        if name in self._state.ledger.nodes:
            self._state.ledger.lose(name)
        self._state.replication.lose(name)
        self._watch_arrival()

    def expire_arrival(self, _: str) -> None:
        """Wait no longer for receivers that do not tell: copy the next commit, or gather in other ways."""
        self._state.replication.expect_nothing()
        self._judge()

    def _watch_arrival(self) -> None:
        timers = self._state.timers
        if self._state.replication.is_sent:
            timers.set_default((ARRIVING, ""), self._state.now + ARRIVAL_TIMEOUT)
        else:
            timers.cancel((ARRIVING, ""))

    def greet(self, node: Node) -> None:
        """Tell a node that has come, or come back, what was decided about the commits of its round."""
        if self._state.verdict != UNJUDGED:
            self._tell(node)

    def collect(self, members: Sequence[str]) -> bool:
        """Whether parts of the newest whole commit are on their way to the members of the next world.

        A node that is here and will be no member may be the only one that has a part: after a scale-in, or
        if it was lost, came back, and its place was taken.
        """
        newest = self._state.ledger.newest_whole()
        return newest is not None and not self.has_newest(members) and self._gathers(newest, members)

    def collect_older(self, members: Sequence[str]) -> bool:
        """Whether parts of the next best commit are on their way, as those of the newest cannot come."""
        ledger, durable = self._state.ledger, self._state.storing.durable
        best = max(
            (it.age for it in (ledger.newest_among(members), durable) if it is not None), default=(-1, -1)
        )
        newest = ledger.newest_whole()
        older = [it for it in ledger.whole() if it.age > best and it != newest]
        return any(self._gathers(it, members) for it in sorted(older, key=lambda it: it.age, reverse=True))

    def has_newest(self, members: Sequence[str]) -> bool:
        """Whether these nodes need no other one to restore the newest whole commit."""
        return self._state.ledger.newest_whole() == self._state.ledger.newest_among(members)

    def _gathers(self, commit: CommitId, members: Sequence[str]) -> bool:
        """Whether parts of a commit are on their way to ``members``, by now or from before."""
        state, replication, newest = self._state, self._state.replication, self._state.ledger.newest_whole()
        has_begun = replication.gathered == newest
        if has_begun and (COLLECTING, "") not in state.timers:
            return False  # the time is over
        if has_begun and replication.copying == commit and replication.is_arriving:
            return True
        if not self._collect(commit, members):
            return False
        if not has_begun:
            replication.gathered = newest
            state.timers.set((COLLECTING, ""), state.now + COLLECTING_TIMEOUT)
        return True

    def choose(self, members: Sequence[str]) -> CommitId | None:
        """The commit that the next world restores; None: members have none, or the storage a newer one."""
        ledger = self._state.ledger
        chosen, whole, held = ledger.newest_among(members), ledger.newest_whole(), ledger.newest_held()
        why = ""
        if held is not None and held != whole:
            lost = ledger.known(held)
            some = f"{lost.missing} of its {lost.size} parts"
            parts = some if lost.missing else "a part of what its ranks share"
            why = f"{held} is lost: nobody here has {parts}"
        elif whole != chosen:
            why = f"{whole} cannot be restored: only nodes outside the new world have some parts of it"
        if why:
            self._outbox.decide(why)
        durable = self._state.storing.durable
        if durable is not None and (chosen is None or chosen.age < durable.age):
            source = f"{durable} is restored from {self._state.config.state_storage}"
            self._outbox.decide(source)
            self._outbox.tell_all([f"{why}; {source}"])  # it was in memory, else it would not be there
            return None
        if why:
            self._outbox.tell_all([f"{why}; {'nothing' if chosen is None else chosen} is restored"])
        if chosen is not None:
            self._outbox.decide(f"{chosen} is restored from memory")
        return chosen

    def begin(self, order: Sequence[str]) -> None:
        """A round begins whose members are these, by group rank."""
        self._state.ledger.begin(self._state.round, order)
        self._state.replication.stop()
        for timer in (COLLECTING, ARRIVING):
            self._state.timers.cancel((timer, ""))
        self._state.verdict = UNJUDGED

    def _judge(self) -> None:
        state = self._state
        if state.round < 0:  # nobody runs a round that this master knows
            return
        whole, void = state.ledger.newest_whole(), state.ledger.newest_void()
        if whole is not None and whole != state.replication.considered and not state.replication.is_arriving:
            self._copy(whole)
        verdict = whole, void, state.ledger.safe, state.replication.copying
        if verdict == state.verdict:
            return
        state.verdict = verdict
        for name in state.current.assignments:
            if (node := state.members.nodes.get(name)) is not None:
                self._tell(node)

    def _tell(self, node: Node) -> None:
        if node.session is not None:
            state = self._state
            copies = state.replication.orders(node.info.node)
            number = state.replication.number
            verdict = JudgeCommits(state.epoch, state.round, *state.verdict, copies=copies, number=number)
            self._outbox.send(node.session, verdict)

    def _copy(self, commit: CommitId) -> None:
        """Have what too few hosts have of a commit sent to others."""
        state = self._state
        state.replication.considered = commit
        hosts = self._hosts()
        holders = state.ledger.holders(commit).values()
        if not self._order(commit, plan(holders, hosts, 1 + state.config.state_copies)):
            self._note_safe(commit)

    def _collect(self, commit: CommitId, members: Sequence[str]) -> bool:
        """Have other nodes send to ``members`` what these lack of a commit; False if nobody can."""
        state, nodes, replication = self._state, self._state.members.nodes, self._state.replication
        holders = state.ledger.holders(commit).values()
        exchanging = {name for name, node in nodes.items() if node.status.inlet is not None}
        transfers = plan_gathering(holders, members, exchanging, replication.tried(commit), TRIES)
        senders = self._order(commit, transfers)
        if not senders:
            return False
        replication.note_try()
        replication.considered = state.ledger.newest_whole()
        self._outbox.decide(f"{', '.join(senders)}: parts of {commit} go to the next world's members first")
        for name in dict.fromkeys((*senders, *members)):
            session, round_ = nodes[name].session, max(0, nodes[name].status.round)
            assert session is not None, "no world is formed while somebody is away"
            if round_ < commit.round:  # a spare: it can tell of nothing from rounds that it has not heard of
                self._outbox.direct(nodes[name])
                round_ = state.newest
            verdict = None, None, state.ledger.safe, commit
            copies, number = replication.orders(name), replication.number
            self._outbox.send(
                session, JudgeCommits(state.epoch, round_, *verdict, copies=copies, number=number)
            )
        return True

    def _order(self, commit: CommitId, transfers: Iterable[Transfer]) -> list[str]:
        """Give the orders for these transfers, as far as the protocol allows. Returns the senders."""
        nodes = self._state.members.nodes
        orders: dict[str, list[Transport]] = {}
        for rank, sender, receiver in transfers:
            target, inlet = nodes[receiver], nodes[receiver].status.inlet
            # who takes nothing in cannot send either, and would never tell that it is done
            can_send = nodes[sender].status.inlet is not None
            if can_send and inlet is not None and len(orders.get(sender, ())) < MAX_COPIES:
                copy = Copy(rank, target.info.address, inlet)
                orders.setdefault(sender, []).append((receiver, copy))
        if orders:
            self._state.replication.begin(commit, orders)
            self._watch_arrival()
        return list(orders)

    def _note_safe(self, commit: CommitId | None) -> None:
        """Call a commit safe if each part of it is on enough hosts."""
        state, hosts = self._state, self._hosts()
        assert commit is not None
        copies = 1 + state.config.state_copies
        safe = state.ledger.safe
        is_newer = (safe is None or safe.age < commit.age) and commit in state.ledger.whole()
        if is_newer and is_spread(state.ledger.holders(commit).values(), hosts, copies):
            state.ledger.safe = commit
            found = min(copies, len(set(hosts.values())))
            if found > 1:
                self._outbox.decide(f"{commit} is safe: {found} hosts have each part of it")

    def _hosts(self) -> dict[str, str]:
        """The hosts of the members that are here, by group rank."""
        nodes = self._state.members.nodes
        return {name: nodes[name].info.host for name in self._state.current.assignments if name in nodes}

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        here = self._state.members.nodes.keys()
        rules = {
            **dict.fromkeys(self._state.ledger.check(), False),
            "only nodes that are here hold anything": self._state.ledger.nodes <= here,
            "the wait for receivers has a bound": self._state.ended
            or self._state.replication.is_sent == ((ARRIVING, "") in self._state.timers),
        }
        return [rule for rule, holds in rules.items() if not holds]
