"""Which node may be rank 0 in a job without a token.

Rank 0's node hosts the workers' store, and the other ranks unpickle what rank 0 broadcasts: it can run code
on every node. Without a token nobody can tell the job's own nodes from a stranger that reaches the port. So a
node that joins later never gets rank 0 while an older one is there, whatever its ``--node-rank`` and whatever
name it joins under.

The invariant: rank 0 of each world is the member that has been in worlds for longest. Of members that came
into their first world together, it is the agent that started the master, else the one that attached first.
That agent named itself to its own child, through a pipe that nobody else can reach, so its node surely is the
job's. ``--node-rank 0`` gives a node no advantage before the first world either: a stranger could claim it,
too. The other ranks hold as they were given.

A node's seniority belongs to its incarnation, so the next one of the same name does not inherit it. A master
that took over without a journal treats the members of the last world, as their votes tell, as those of the
first one.
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
