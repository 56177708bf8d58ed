"""``ElasticDataset``: batches for the steps of a chief, whose position is saved together with the model.

    data = ElasticDataset(len(images), 64, lambda indices: (images[indices], labels[indices]), signature)
    session = ChiefSession(coordinator, directory, model=model, data=data)
    session.restore_or_start()
    batches = iter(data)
    for number in session.steps(1000, save_every=100):
        session.schedule(step, args=(next(batches),))

Theory. The chief takes the batches, as it knows which steps are done, and hands each to the worker that gets
its step: parameter servers and workers cannot run a Python generator. ``tf.data`` prepares batches ahead in
threads of its own, and each has its indices with it. The position is made of the batches that the loop has
taken, however far ``tf.data`` is ahead. A session waits for all steps before it saves. So what its checkpoint
says of the samples is what the variables beside it were trained on, and a chief that restores one restores
the other.

If a worker is lost in the middle of a step, TensorFlow has another worker run this step again, with the same
batch; what the lost one has applied by then stays. That is asynchronous training; no sample is lost by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from elasticrun.core.data.ahead import Ahead, batches_ahead
from elasticrun.core.data.course import Course
from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Position
from elasticrun.core.data.record import LEAST_SEED, is_number
from elasticrun.errors import DataError


class ElasticDataset:
    """Batches of ``length`` samples in a seeded order, for one reader: epoch after epoch, without end.

    ``read`` makes a batch of a list of indices, as ``output_signature`` describes it: what is given to
    ``tf.data.Dataset.from_generator``. The first dimension is the size of the batch; as an epoch's last batch
    may be smaller, it is None there unless ``drop_last``. Without ``read`` a batch is the indices themselves.
    ``prefetch`` is how many batches are prepared ahead.

    An iteration goes on where the last one stopped, or where a state was loaded. The order is that of
    ``ElasticDistributedSampler``, with the same seed, in a world of any size.

    Raises:
        DataError: there is no sample, or no batch with ``drop_last``; or a number is none that can be.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        read: Callable[[list[int]], Any] | None = None,
        output_signature: Any = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        prefetch: int = 2,
    ) -> None:
        _check(length, batch_size, seed, prefetch)
        if drop_last and length < batch_size:
            raise DataError(
                f"the dataset has {length} samples: with drop_last that is no batch of {batch_size}"
            )
        if (read is None) != (output_signature is None):
            raise DataError("give both read and output_signature, which says what read returns, or none")
        self._size = batch_size
        self._read = read
        self._signature = output_signature
        self._drop_last = drop_last
        self._prefetch = prefetch
        self._course = Course(Position(Source(length, seed, bool(shuffle))), 1, 0)

    @property
    def epoch(self) -> int:
        """The epoch of the last batch that was taken; 0 before the first."""
        return self._course.position.epoch

    @property
    def samples(self) -> int:
        """How many samples were taken, in all epochs."""
        return self._course.position.places

    def __iter__(self) -> Iterator[Any]:
        """The next batches, without end.

        Raises:
            DataError: another iteration has begun since, or a state was loaded.
        """
        self._course.begin()
        return self._hand_out(self._course.iteration)

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values: what was taken until now."""
        return self._course.state()

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on after a position.

        Raises:
            DataError: it is damaged, or of a dataset of another length, another seed or ``shuffle``.
        """
        self._course.load(state)

    def _hand_out(self, iteration: int) -> Iterator[Any]:
        self._course.check(iteration)
        for epoch, indices, *batch in self._prepared():
            self._course.check(iteration)
            self._course.take_ahead(Ahead(int(epoch), tuple(indices.numpy().tolist())))
            iteration = self._course.iteration
            yield batch[0] if batch else indices

    def _prepared(self) -> Any:
        """A data set of the epoch, the indices and what was read of them."""
        ahead = batches_ahead(self._course.position, self._size, self._drop_last)
        own = (tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64))
        signature = own if self._signature is None else (*own, self._signature)
        data = tf.data.Dataset.from_generator(lambda: map(self._element, ahead), output_signature=signature)
        return data.prefetch(self._prefetch)

    def _element(self, batch: Ahead) -> tuple[Any, ...]:
        own = batch.epoch, batch.indices
        return own if self._read is None else (*own, self._read(list(batch.indices)))


def _check(length: int, batch_size: int, seed: int, prefetch: int) -> None:
    named = (("length", length, 1), ("batch_size", batch_size, 1), ("prefetch", prefetch, 0))
    for name, value, least in (*named, ("seed", seed, LEAST_SEED)):
        if not is_number(value, least):
            raise DataError(f"{name} is a whole number from {least} on, got {value!r}")
