"""Copies saved bytes to where they are wanted, and finds out whether they are what was saved.

Theory. Both read all bytes, so they are done piece by piece, while a piece is in the processor's cache: that
takes hardly longer than the copy alone. So a target may have been filled by the time that its source proves
to be damaged; then it is filled again, from another copy, or the load fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch

from elasticrun.checkpoint.parallel import JOB
from elasticrun.checkpoint.parts import Item, checksum, damage, total_of, typed

#: Bytes that are summed and then copied: they stay in the cache of a core.
PIECE = 1 << 19


class Filling:
    """One tensor, or a part of one, on its way from a part of a commit. Made before anything is copied."""

    def __init__(
        self,
        target: torch.Tensor,
        data: torch.Tensor,
        item: Item,
        rank: int,
        box: tuple[tuple[int, int], ...],
    ) -> None:
        """``data``: the bytes of the item, in the part of ``rank``. ``box``: what of it is wanted, as the
        begin and the length in each dimension.
        """
        self.target = target
        self._data = data
        self._item = item
        self._rank = rank
        self._box = box
        self._sum = 0
        self._lock = threading.Lock()
        self._error: Exception | None = None

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether another thread may do it: one has streams of GPUs, and the modes of torch, of its own."""
        return self.target.device.type == "cpu" and not self.target.is_inference()

    def jobs(self) -> Iterator[Callable[[], None]]:
        """What is to be done, in any order and any threads. None of it raises."""
        if not self._is_plain:
            yield self._guarded(self._copy)
            return
        for begin in range(0, max(1, self._item.length), JOB):
            yield self._guarded(lambda begin=begin: self._copy_pieces(begin))  # type: ignore[misc]

    def finish(self) -> None:
        """Called after all jobs. Raises Damaged, or what went wrong."""
        if self._error is not None:
            raise self._error
        if self._is_plain and total_of(self._sum) != self._item.sum:
            raise damage(self._item, self._rank)

    @property
    def _is_plain(self) -> bool:
        """Whether the bytes are wanted as they are, all of them, side by side."""
        target, item = self.target, self._item
        return (
            self.may_be_elsewhere
            and target.is_contiguous()
            and not (target.is_conj() or target.is_neg())
            and str(target.dtype).removeprefix("torch.") == item.dtype
            and self._box == tuple((0, length) for length in item.shape)
            and tuple(target.shape) == item.shape
        )

    def _guarded(self, job: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 raised by ``finish``, in the order of the requests
                self._error = error

        return run

    def _copy(self) -> None:
        source = typed(self._data, self._item, self._rank)
        for dim, (begin, length) in enumerate(self._box):
            source = source.narrow(dim, begin, length)
        self.target.copy_(source)

    def _copy_pieces(self, begin: int) -> None:
        end = min(begin + JOB, self._item.length)
        bytes_ = self.target.reshape(-1).view(torch.uint8)
        found = 0
        for at in range(begin, end, PIECE):
            piece = self._data[at : min(at + PIECE, end)]
            found += checksum(piece)
            bytes_[at : at + piece.numel()].copy_(piece)
        with self._lock:
            self._sum += found
