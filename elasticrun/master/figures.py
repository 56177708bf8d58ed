"""What the nodes of a job use, as their agents told it last, and the most that any of them ever used.

The most is since this master began: whoever needs it for longer keeps it. Nothing of this is a fact of the
job, so nothing goes to the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticrun.core.protocol.round_progress import NodeFigures, UsagePeak


class Figures:
    """Of one job."""

    def __init__(self) -> None:
        self._newest: dict[int, NodeFigures] = {}
        self.peak: UsagePeak | None = None  # None: nothing was told yet

    @property
    def newest(self) -> Mapping[int, NodeFigures]:
        """What is told of nodes that are here, by session."""
        return self._newest

    def take(self, session: int, figures: NodeFigures | None) -> None:
        """Hear what a node uses now; None: it does not tell this time."""
        if figures is None:
            return
        from elasticrun.core.protocol.round_progress import UsagePeak  # not before somebody tells

        self._newest[session] = figures
        self.peak = (self.peak or UsagePeak()).with_(figures)

    def drop(self, session: int) -> None:
        """The node is gone."""
        self._newest.pop(session, None)
