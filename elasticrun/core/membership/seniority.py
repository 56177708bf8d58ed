"""Who may be rank 0 in a job without a token.

Rank 0's node is the host of the workers' store, and what rank 0 broadcasts the others unpickle: whoever gets
this place can run code on every node. Without a token nobody can tell the job's own nodes from a stranger
that reaches the port. So a node that joins later never gets it while an older one is there, whatever its
``--node-rank`` and whatever name it joins under.

The invariant: rank 0 of each world is the member that has been in worlds for longest; of those that came into
their first world together, the one that attached first. Before it comes the agent that started the master: it
said so to its own child, through a pipe that nobody else can reach, so its node surely is the job's. Who
attaches before the first world with ``--node-rank 0`` gains nothing by it: there, too, nobody can tell whose
word that is. The other ranks hold as they were given.

A node's seniority belongs to its incarnation, so it is not inherited by the next one of the same name. A
master that took over without a journal takes the members of the last world, as their votes tell, for those
of the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


class Seniority:
    """How long each incarnation has been a member; changes by journaled events only."""

    def __init__(self) -> None:
        self.host = ""  # the incarnation of the agent that started the master; "": unknown
        # The round in which each was first a member, and its place among those of the same round.
        self._since: dict[str, tuple[int, int]] = {}

    def form(
        self, order: Sequence[str], round_: int, here: Mapping[str, str], voters: Collection[str] = ()
    ) -> list[str]:
        """The members of a new world by group rank, the oldest in front.

        ``here`` has the incarnations of all nodes that are in the job, in the order in which they came,
        ``voters`` those of the last world if another master formed it.
        """
        places = {one: place for place, one in enumerate(here.values())} | {self.host: -1}
        if not self._since:
            self._since = {one: (-1, places[one]) for one in voters}
        known = {here[name]: self._since.get(here[name], (round_, places[here[name]])) for name in order}
        first = min(order, key=lambda name: known[here[name]])
        lives = set(here.values())
        self._since = {one: age for one, age in self._since.items() if one in lives} | known
        return [first, *(name for name in order if name != first)]
