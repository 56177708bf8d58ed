"""What the memory for saved states is told of other nodes, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from elasticrun.core.protocol.messages import Holding, Inlet, Sent, StoreReport

#: Called with what a node holds, where it takes copies in, with which order to copy it is done, and how its
#: order for the storage fares.
OnStock = Callable[[tuple[Holding, ...], Inlet | None, Sent | None, StoreReport | None], None]


class Peering(NamedTuple):
    """How this node exchanges copies with others."""

    host: str = ""  # the address to listen at, if it is one of this host; else all
    rate: float = 0.0  # the most bytes a second that it sends; 0: no bound
    expects_others: bool = True  # other nodes may join, also while this one trains alone
