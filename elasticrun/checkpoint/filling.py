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
from elasticrun.checkpoint.parts import Item, checksum, damage, is_ordinary, tensor_in, total_of

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
        #: Whether another thread may do it: one has streams of GPUs, and the modes of torch, of its own.
        self.may_be_elsewhere = is_ordinary(target) and not target.is_inference()
        self._is_plain = self.may_be_elsewhere and self._is_wanted_as_it_is()

    @property
    def span(self) -> tuple[int, int]:
        """Where the memory of the target begins and ends; nowhere, if it has none of its own here."""
        target = self.target
        if not is_ordinary(target) or not target.numel():
            return 0, 0
        reach = sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))
        return target.data_ptr(), target.data_ptr() + (reach + 1) * target.element_size()

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
        if self._is_plain and self._item.sum and total_of(self._sum) != self._item.sum:
            raise damage(self._item, self._rank)

    def _is_wanted_as_it_is(self) -> bool:
        """Whether all the bytes are wanted as they are, side by side."""
        target, item = self.target, self._item
        return (
            target.is_contiguous()
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
        source = tensor_in(self._data, self._item, self._rank)
        for dim, (begin, length) in enumerate(self._box):
            source = source.narrow(dim, begin, length)
        self.target.copy_(source)

    def _copy_pieces(self, begin: int) -> None:
        end = min(begin + JOB, self._item.length)
        bytes_ = self.target.reshape(-1).view(torch.uint8)
        found = 0
        # Torch's own threads, if it has some, are worth more than the cache.
        size = PIECE if torch.get_num_threads() == 1 else JOB
        for at in range(begin, end, size):
            piece = self._data[at : min(at + size, end)]
            found += checksum(piece)
            bytes_[at : at + piece.numel()].copy_(piece)
        with self._lock:
            self._sum += found
