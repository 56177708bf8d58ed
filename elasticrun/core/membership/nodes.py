"""The nodes in the job, their incarnations and their sessions.

One node name has one incarnation, and one incarnation has at most one session (an open stream). Messages
from any other session are stale. An incarnation that left or was replaced is remembered, so that it cannot
come back. Within a session, a status counts only if its sequence is newer than the last
one. These three fences make duplicates, reordering and late delivery harmless: every accepted status is the
newest fact about a live incarnation.

A name belongs to the incarnation that has it. While its session is open, only that incarnation may open
another one, and it has to prove its identity (``Trust.RETURNING``). So no Hello ends another node: an agent
that was started again waits until the stream of the one before is found dead. A node that a restarted master
waits for has no session to protect it; until that wait is over, a stranger may not have its name either. A
stranger that takes the name of a lost node only holds it: when the earlier incarnation comes back, it is not
sent away, but waits until the name is free.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from elasticrun.core.protocol.messages import AgentPhase, AgentStatus, NodeInfo, Rejected, Trust

#: How many incarnations that may not come back, and names of nodes that are gone, are remembered.
REMEMBERED = 10_000
#: The most nodes beyond those that a world takes, if some may be strangers.
MOST_SPARES = 4096


@dataclass(slots=True)
class Node:
    """What the master knows of one node."""

    info: NodeInfo
    status: AgentStatus
    session: int | None  # None: known from before the master restarted, not yet back
    arrival: int

    @property
    def ready(self) -> bool:
        """Whether it is attached, has no worker alive, and could start one at once."""
        return self.session is not None and self.status.phase is AgentPhase.READY


class Admission(Enum):
    """What a Hello means."""

    JOINS = "joins"
    REATTACHES = "re-attaches"
    SUPERSEDES = "joins in place of its earlier incarnation"
    REFUSED = "is refused"
    STALE = "is late: a newer stream was here first"
    IN_USE = "has a name that another agent has"
    CROWDED = "is one too many"


#: Admissions that change nothing.
REFUSALS = (Admission.STALE, Admission.REFUSED, Admission.IN_USE, Admission.CROWDED)


class Membership:
    """The table of nodes, of which a world takes ``max_nodes``. All but ``detach_all`` is amortised O(1)."""

    def __init__(self, max_nodes: int = 1) -> None:
        self.nodes: dict[str, Node] = {}
        self._room = max_nodes + MOST_SPARES  # for nodes that may be strangers
        self.detached = 0  # number of known nodes without a session
        self._by_session: dict[int, str] = {}
        # The last admitted incarnation of each node, and the retired incarnations with what each is told. Of
        # nodes that are gone only the newest are kept (REMEMBERED), since strangers may come and go for ever.
        self._latest: OrderedDict[str, str] = OrderedDict()
        self._retired: OrderedDict[str, Rejected | None] = OrderedDict()
        self._arrivals = 0

    def judge(self, session: int, info: NodeInfo, trust: Trust) -> Admission:
        """What a Hello on ``session`` means, before anything is changed."""
        if info.incarnation in self._retired:
            return Admission.REFUSED
        known = self.nodes.get(info.node)
        if known is None:
            is_full = trust is Trust.STRANGER and len(self.nodes) >= self._room
            return Admission.CROWDED if is_full else Admission.JOINS
        if known.session is not None and session < known.session:
            return Admission.STALE
        is_same = known.info.incarnation == info.incarnation
        if is_same and trust is Trust.RETURNING:
            return Admission.REATTACHES
        if known.session is not None or trust is Trust.STRANGER:
            return Admission.IN_USE
        return Admission.REATTACHES if is_same else Admission.SUPERSEDES

    def attach(
        self, session: int, info: NodeInfo, status: AgentStatus, trust: Trust = Trust.MEMBER
    ) -> tuple[Node, int | None]:
        """Give a node its newest session. Also returns the older session that it replaces, if any."""
        latest = self._latest.setdefault(info.node, info.incarnation)
        if latest != info.incarnation:
            if trust is not Trust.STRANGER:  # a stranger that took a free name retires nobody
                self._retire(latest, self._retired.get(latest))
            self._latest[info.node] = info.incarnation
        if len(self._latest) > REMEMBERED + 2 * len(self.nodes):
            self._forget_names()
        node = self.nodes.get(info.node)
        if node is None:
            self._arrivals += 1
            node = self.nodes[info.node] = Node(info, status, None, self._arrivals)
            self.detached += 1
        replaced = node.session
        if replaced is None:
            self.detached -= 1
        else:
            del self._by_session[replaced]
        node.session = session
        self._by_session[session] = info.node
        if status.sequence > node.status.sequence:
            node.status = status
        return node, replaced if replaced != session else None

    def node_of(self, session: int) -> Node | None:
        """The node whose newest session this is, or None if the session is stale."""
        name = self._by_session.get(session)
        return self.nodes[name] if name is not None else None

    def has_met(self, info: NodeInfo) -> bool:
        """Whether this incarnation was admitted before."""
        return self._latest.get(info.node) == info.incarnation

    def retire(self, node: Node, farewell: Rejected | None) -> None:
        """Never admit this incarnation again; it is told ``farewell``; None: that another took its place."""
        self._retire(node.info.incarnation, farewell)

    def _retire(self, incarnation: str, farewell: Rejected | None) -> None:
        self._retired[incarnation] = farewell
        if len(self._retired) > REMEMBERED:
            self._retired.popitem(last=False)

    def _forget_names(self) -> None:
        """Forget half of the names of nodes that are gone. They are the majority, so passes are rare."""
        gone = [name for name in self._latest if name not in self.nodes]
        for name in gone[: len(gone) // 2]:
            del self._latest[name]

    def farewell(self, info: NodeInfo) -> Rejected | None:
        """The farewell of a retired incarnation, which may not have heard it; None if there is none."""
        return self._retired.get(info.incarnation)

    def remove(self, name: str) -> None:
        """Forget a node."""
        node = self.nodes.pop(name)
        if node.session is None:
            self.detached -= 1
        else:
            del self._by_session[node.session]

    def detach_all(self) -> None:
        """Drop every session, and keep every node: the master has restarted."""
        for node in self.nodes.values():
            node.session = None
        self._by_session.clear()
        self.detached = len(self.nodes)
