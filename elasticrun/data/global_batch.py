"""``GlobalBatch``: steps of the same samples for any number of ranks."""

from __future__ import annotations

from elasticrun.core.data import batches
from elasticrun.core.data.batches import Part
from elasticrun.core.data.record import is_number
from elasticrun.data.world import find_world
from elasticrun.errors import DataError


class GlobalBatch:
    """The batch of all ranks together, which stays the same when the world changes.

    ``size``: samples of a step. ``micro``: the most samples that fit on a device at a time; a rank whose
    share is larger computes it in several micro-batches, and all ranks in equally many.

    Give it to an ``ElasticDataLoader`` as its ``batch_size``. The loader hands out micro-batches, and says in
    ``loader.part`` what the last one was::

        loader = ElasticDataLoader(dataset, batch_size=GlobalBatch(512, micro=32), shuffle=True)
        for inputs, targets in loader:
            part = loader.part
            with contextlib.nullcontext() if part.is_last else model.no_sync():  # model: DDP
                (part.scale * loss_function(model(inputs), targets)).backward()
            if part.is_last:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                keeper.save(step, state)

    The loss has to be a mean over the micro-batch, and the gradients an average over the ranks, as
    ``DistributedDataParallel`` makes them. Then each sample of a step weighs the same:

    * where the ranks divide ``size``, they have equally many samples each;
    * where they do not, ranks differ by one sample, and ``scale`` makes up for it: a step still has exactly
      ``size`` samples, the same ones for any world;
    * the last step of an epoch may have less samples; ``scale`` makes it a mean over these;
    * a rank without a sample for a micro-batch computes one of the step's again, with scale 0. That is
      padding; but batch normalization sees it.

    The loader's position moves at the end of a step: a state that is saved in its middle belongs to its
    beginning, as the gradients since then are in no state.

    Raises:
        DataError: ``size`` is smaller than the world, or these are no such numbers.
    """

    def __init__(
        self, size: int, micro: int | None = None, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        for name, value in (("size", size), ("micro", micro)):
            if value is not None and not is_number(value, 1):
                raise DataError(f"{name} of a GlobalBatch is a number of samples from 1 on, got {value!r}")
        self.num_replicas, self.rank = find_world(num_replicas, rank)
        if size < self.num_replicas:
            raise DataError(
                f"a global batch of {size} samples has none for each of {self.num_replicas} ranks"
            )
        self.size = size
        self.micro = micro or size

    @property
    def rank_size(self) -> int:
        """How many samples of a step this rank has."""
        return len(range(self.rank, self.size, self.num_replicas))

    @property
    def micro_steps(self) -> int:
        """How many micro-batches each rank makes in a step."""
        return batches.micro_steps(self.size, self.num_replicas, self.micro)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The micro-batches of this rank in a whole step: how many samples, and their scale."""
        return batches.parts(self.size, self.num_replicas, self.rank, self.micro)
