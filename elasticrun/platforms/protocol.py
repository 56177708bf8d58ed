"""What a platform has to offer, so that elasticrun can keep a job's replicas running there.

An adapter fills ``Platform`` and decides nothing: ``keeper.py`` asks it what is there, lets ``core/fleet``
decide, and has it carry that out. ``fake.py`` is the reference, and the smallest adapter that is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from elasticrun.core.fleet.replicas import Decision, Note, Operation, Record, Remove, Seen, Start, Usage, Wish
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError


class PlatformError(ElasticRunError):
    """The platform does not answer, or refuses; the text says what, and trying again later may help."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a platform shows of one job at one moment."""

    wish: Wish
    seen: tuple[Seen, ...]
    record: Record
    operations: tuple[
        Operation, ...
    ] = ()  # for more or fewer replicas, the oldest first, as far as not ended
    token: Any = None  # the adapter's own, such as the version of what was read
    usage: Usage = Usage()  # what was measured of replicas
    stranded: int = 0  # replicas that are with a master which lacks too many others of the last world


class Platform(Protocol):
    """Where replicas run. Each method may raise PlatformError."""

    async def look(self, job: str) -> Sight | None:
        """Who is there, and what is wished; None if there is no such job, or nothing is to be done for it.

        The record must not be newer than what is seen: read it first.
        """

    async def keep(self, job: str, sight: Sight, decision: Decision) -> bool:
        """Keep the record of a decision, show its phase and conditions, and then the results of operations.

        False, and nothing is kept, if somebody else has kept one since ``sight``.
        """

    async def start(self, job: str, sight: Sight, start: Start) -> None:
        """Start a replica with these resources; done if one with this index is there already."""

    async def remove(self, job: str, remove: Remove) -> None:
        """Remove a replica with grace; done if there is none. A replacement is a start with another index."""

    async def tell(self, job: str, sight: Sight, note: Note) -> None:
        """Tell people something, once."""

    def notify(self, happened: Callable[[str], None]) -> None:
        """From now on call this with the name of each job to which something happens; first of each there is.

        More calls than needed do no harm; one that is missing leaves the job as it is.
        """
