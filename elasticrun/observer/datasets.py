"""How far the job is with the datasets that its ranks share, as rows of the page."""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core.protocol.chronicle import DataProgress
from elasticrun.dataclass import dataclass

#: A page reckons with whole numbers up to this one.
_MOST = 2**53


@dataclass(frozen=True, slots=True)
class DataRow:
    """The shards of one dataset, of the epoch that is read."""

    name: str
    epoch: int
    done: int
    leased: int
    failed: int
    total: int  # 0: there is no end


def data_of(told: Iterable[DataProgress]) -> tuple[DataRow, ...]:
    """Sorted by name."""
    rows = [
        DataRow(
            it.dataset, *(max(0, min(n, _MOST)) for n in (it.epoch, it.done, it.leased, it.failed, it.total))
        )
        for it in told
    ]
    return tuple(sorted(rows, key=lambda row: row.name))
