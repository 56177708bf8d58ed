"""What the nodes of a job use, as their agents told it last, and the most that any, or any of a role, used.

The most is since this master began: whoever needs it for longer keeps it. Nothing of this is a fact of the
job, so nothing goes to the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticrun.core.protocol.messages import NodeInfo
    from elasticrun.core.protocol.round_progress import NodeFigures, UsagePeak
    from elasticrun.core.protocol.status import JobStatus


class Figures:
    """Of one job."""

    def __init__(self) -> None:
        self._newest: dict[int, NodeFigures] = {}
        self.peak: UsagePeak | None = None  # None: nothing was told yet
        self._by_role: dict[str, UsagePeak] = {}

    @property
    def newest(self) -> Mapping[int, NodeFigures]:
        """What is told of nodes that are here, by session."""
        return self._newest

    def take(self, session: int, info: NodeInfo | None, figures: NodeFigures | None) -> None:
        """Hear what a node uses now; None: it does not tell this time, or is not known any more."""
        if figures is None:
            return
        from elasticrun.core.protocol.round_progress import MAX_PEAKS, UsagePeak  # not before somebody tells

        self._newest[session] = figures
        self.peak = (self.peak or UsagePeak()).with_(figures)
        if info is None:
            return
        role = info.roles[0].value if info.roles else info.role
        if role in self._by_role or len(self._by_role) < MAX_PEAKS:
            self._by_role[role] = self._by_role.get(role, UsagePeak()).with_(figures)

    def added(self, status: JobStatus) -> JobStatus:
        """The status with the most that was used."""
        from elasticrun.core.protocol.round_progress import RolePeak

        peaks = tuple(RolePeak(role, peak) for role, peak in sorted(self._by_role.items()))
        return replace(status, peak=self.peak, role_peaks=peaks)

    def drop(self, session: int) -> None:
        """The node is gone."""
        self._newest.pop(session, None)
