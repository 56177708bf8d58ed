"""Worlds, and what their members say of them, as values; ``core/membership/quorum.py`` says what for."""

from typing import Annotated

from elasticrun.core.protocol.bounds import ROUNDS, WORLD_SIZES, Epoch, Keep, Length, Name
from elasticrun.dataclass import dataclass

#: The most votes that a status carries.
MAX_VOTES = 64
#: The most members of a world that its votes name.
MAX_NAMED_MEMBERS = 64

Members = Annotated[tuple[Name, ...], Length(MAX_NAMED_MEMBERS, keep=Keep.HEAD)]


@dataclass(frozen=True, slots=True)
class World:
    """A world as votes name it."""

    round: Annotated[int, ROUNDS]
    epoch: Epoch  # of the master that formed it
    size: Annotated[int, WORLD_SIZES]  # number of nodes


@dataclass(frozen=True, slots=True)
class Vote:
    """A node's vote for a world, given when it starts its workers."""

    world: World
    base: World | None  # the newest world known to have started everywhere; None: there is none before this
    members: Members = ()  # the members' incarnations, if they are at most MAX_NAMED_MEMBERS

    def contradiction(self) -> str:
        """A contradiction between the two worlds, as a sentence; "" if there is none."""
        if self.base is None or self.base.round <= self.world.round:
            return ""
        return f"base must be older: round {self.world.round} has {self.base.round}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """The world that one of its members is asked to vote for."""

    world: World
    base: World | None  # as in Vote
    # The member's last vote, as far as the master knows; a member that has voted since refuses.
    prior: World | None
    members: Members = ()  # as in Vote
