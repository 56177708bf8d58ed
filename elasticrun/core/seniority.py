"""Who may be rank 0 in a job without a token.

Rank 0's node is the host of the workers' store, and what rank 0 broadcasts the others unpickle: whoever gets
this place can run code on every node. Without a token nobody can tell the job's own nodes from a stranger
that reaches the port. So a node that joins later never gets it while an older one is there, whatever its
``--node-rank`` and whatever name it joins under.

The invariant: rank 0 of each world is one of the members that have been in worlds for longest. A node's
seniority belongs to its incarnation, so it is not inherited by the next one of the same name. The nodes of
the first world are equal, and the ranks that they were given hold among them: nobody was there before them. A
master that took over without a journal takes the members of the last world, as their seats tell, for those of
the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


class Seniority:
    """In which world each incarnation was first; changes by journaled events only."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def form(
        self, order: Sequence[str], round_: int, here: Mapping[str, str], voters: Collection[str] = ()
    ) -> list[str]:
        """The members of a new world by group rank, one of the oldest in front.

        ``here`` has the incarnations of all nodes that are in the job, ``voters`` those of the last world if
        another master formed it.
        """
        if not self._since:
            self._since = dict.fromkeys(voters, -1)
        since = [self._since.get(here[name], round_) for name in order]
        first = order[since.index(min(since))]
        known = {here[name]: age for name, age in zip(order, since, strict=True)}
        lives = set(here.values())
        self._since = {one: age for one, age in self._since.items() if one in lives} | known
        return [first, *(name for name in order if name != first)]
