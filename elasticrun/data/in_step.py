"""Equally many batches for all ranks, whoever has how many: each step of the loop is one of all ranks.

Theory. Before a batch is handed out, the ranks add up how many records they have for this step. A rank that
has none gets padding, of scale 0. The epoch is over for all ranks at the same step: the first one for which
nobody has a record. So no rank waits in an exchange of gradients for one whose loop has ended.

The scale makes each record weigh the same. Gradients are averaged over W ranks, and a loss is the mean of its
batch; so the loss of a batch with n of the N records of a step is scaled by n * W / N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from elasticrun.core.data.batches import Part
from elasticrun.errors import DataError

Sized = tuple[Any, int]  # a batch, and how many records it has


def are_connected() -> bool:
    """Whether the ranks of this world are connected, and there are several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class Agreement:
    """Adds up over all ranks.

    It keeps its last exchange. Else a thread of gloo may be the last to drop it, and with it a tensor, which
    takes the interpreter's lock. A process group that ends just then waits for that thread, and has the lock.
    """

    def __init__(self) -> None:
        self._last: object = None

    def added_up(self, number: int) -> int:
        """The sum over all ranks. Each of them has to call it."""
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else None
        told = torch.tensor(number, dtype=torch.int64, device=device)
        self._last = exchange = dist.all_reduce(told, async_op=True)
        exchange.wait()
        return int(told)


def in_step(
    batches: Iterator[Sized], padding: Callable[[], Any], agreement: Agreement
) -> Iterator[tuple[Any, Part]]:
    """The batches of this rank and padding, as many as the rank with most batches has."""
    world, last = dist.get_world_size(), None
    while True:
        batch, count = next(batches, (None, 0))
        total = agreement.added_up(count)
        if not total:
            return
        if count:
            last = batch
        elif last is None:
            last = padding()
        yield batch if count else last, Part(count or 1, count * world / total, True)


def goes_in_step(is_wanted: bool | None, readers: int) -> bool:
    """Whether ``readers`` ranks go in step: as it is wanted, else if they are all that are connected.

    Raises:
        DataError: it is wanted, and they are not connected.
    """
    can = are_connected() and readers == dist.get_world_size()
    if is_wanted and not can and readers > 1:
        raise DataError(
            "in_step=True has the ranks agree on each step: call torch.distributed.init_process_group before,"
            f" and have all ranks read the data (readers={readers})"
        )
    return can and is_wanted is not False
