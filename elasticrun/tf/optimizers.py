"""Optimizers for variables that are sharded over parameter servers.

Theory. A checkpoint knows a sharded variable as one tensor, whatever number of shards it has, so it can be
restored into another number of them. For an optimizer's slots to travel with their variable they have to be
sharded variables as well. Those of Keras are not: it sees each shard as a variable of its own, and slots
for two shards say nothing about three. Here every slot is cut where its variable is cut, and each piece lies
on the server of its variable's piece, so that a server updates both alone.

Gradients are taken with respect to ``parts``, the shards of all variables: ``tf.nn.embedding_lookup`` splits
the ids over the shards of a table, and the gradient for each shard counts rows from the shard's own
beginning. ``apply`` may run on several workers at once; an update then may miss one that another worker makes
in the same moment, as usual for asynchronous training, but each single operation is atomic.

Invariant. The order of ``variables`` names the slots in a checkpoint: keep it, and add at the end only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from elasticrun.errors import UsageError


class ShardedOptimizer(tf.Module):  # type: ignore[misc]
    """The common part of these optimizers: slots, and the way from gradients to updates.

    ``variables``: plain or sharded variables. Make both in the scope of the same strategy.
    """

    SLOTS: tuple[str, ...] = ()

    def __init__(self, variables: Sequence[Any], learning_rate: float) -> None:
        super().__init__()
        if learning_rate <= 0:
            raise UsageError(f"a learning rate of {learning_rate} is not above 0")
        self.learning_rate = learning_rate
        self.slots = {
            name: [slot_for(variable, self.first_value(name)) for variable in variables]
            for name in self.SLOTS
        }
        self._pieces = _Pieces(all_parts(variables), [all_parts(self.slots[name]) for name in self.SLOTS])

    @property
    def parts(self) -> list[Any]:
        """The shards of all variables, in their order; a variable that is not sharded is its only shard."""
        return self._pieces.parts

    def first_value(self, slot: str) -> float:
        """The first value of every element of this slot."""
        del slot
        return 0.0

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update every part by its gradient; None leaves a part as it is."""
        if len(gradients) != len(self.parts):
            raise UsageError(
                f"apply() got {len(gradients)} gradients for {len(self.parts)} parts; take them with "
                "tape.gradient(loss, optimizer.parts)"
            )
        count = self.begin()
        for index, (part, gradient) in enumerate(zip(self.parts, gradients, strict=True)):
            slots = [of_slot[index] for of_slot in self._pieces.slots]
            if isinstance(gradient, tf.IndexedSlices):
                self.update_rows(part, slots, *summed_rows(gradient), count)
            elif gradient is not None:
                self.update(part, slots, gradient, count)

    def begin(self) -> Any:
        """Called once for each ``apply``; what it returns is handed to the updates."""
        return 0

    def update(self, part: Any, slots: Sequence[Any], gradient: Any, count: Any) -> None:
        """Update all of a part."""
        raise NotImplementedError

    def update_rows(self, part: Any, slots: Sequence[Any], rows: Any, gradient: Any, count: Any) -> None:
        """Update some rows of a part, each named once."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Pieces:
    """Shards, hidden from checkpoints: in a list or dictionary they would be saved a second time."""

    parts: list[Any]
    slots: list[list[Any]]  # for each slot, by part


class ShardedAdagrad(ShardedOptimizer):
    """Adagrad: the rows of an embedding that are seen rarely take larger steps."""

    SLOTS = ("accumulator",)

    def __init__(
        self,
        variables: Sequence[Any],
        learning_rate: float = 0.05,
        initial_accumulator: float = 0.1,
        epsilon: float = 1e-7,
    ) -> None:
        self._initial_accumulator = initial_accumulator
        self._epsilon = epsilon
        super().__init__(variables, learning_rate)

    def first_value(self, slot: str) -> float:
        del slot
        return self._initial_accumulator

    def update(self, part: Any, slots: Sequence[Any], gradient: Any, count: Any) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=part.handle,
            accum=slots[0].handle,
            lr=self.learning_rate,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )

    def update_rows(self, part: Any, slots: Sequence[Any], rows: Any, gradient: Any, count: Any) -> None:
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=part.handle,
            accum=slots[0].handle,
            lr=self.learning_rate,
            epsilon=self._epsilon,
            grad=gradient,
            indices=rows,
            use_locking=True,
        )


class ShardedAdam(ShardedOptimizer):
    """Adam; of an embedding only the rows that a batch uses are touched ("lazy" Adam)."""

    SLOTS = ("momentum", "velocity")

    def __init__(
        self,
        variables: Sequence[Any],
        learning_rate: float = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> None:
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._epsilon = epsilon
        super().__init__(variables, learning_rate)
        self.iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    def begin(self) -> Any:
        self.iterations.assign_add(1)
        return tf.cast(self.iterations.read_value(), tf.float32)

    def update(self, part: Any, slots: Sequence[Any], gradient: Any, count: Any) -> None:
        tf.raw_ops.ResourceApplyAdam(
            var=part.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=tf.pow(self._beta_1, count),
            beta2_power=tf.pow(self._beta_2, count),
            lr=self.learning_rate,
            beta1=self._beta_1,
            beta2=self._beta_2,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )

    def update_rows(self, part: Any, slots: Sequence[Any], rows: Any, gradient: Any, count: Any) -> None:
        momentum = _decayed(slots[0], rows, self._beta_1, gradient)
        velocity = _decayed(slots[1], rows, self._beta_2, tf.square(gradient))
        rate = (
            self.learning_rate * tf.sqrt(1 - tf.pow(self._beta_2, count)) / (1 - tf.pow(self._beta_1, count))
        )
        step = rate * momentum / (tf.sqrt(velocity) + self._epsilon)
        part.scatter_sub(tf.IndexedSlices(step, rows))


def parts_of(variable: Any) -> list[Any]:
    """The shards of a variable; a plain one is its only shard."""
    return list(variable.variables) if is_sharded(variable) else [variable]


def all_parts(variables: Sequence[Any]) -> list[Any]:
    """The shards of all of these, in their order."""
    return [part for variable in variables for part in parts_of(variable)]


def is_sharded(variable: Any) -> bool:
    """Whether a partitioner has cut this variable."""
    return bool(getattr(variable, "is_sharded_variable", False))


def slot_for(variable: Any, value: float) -> Any:
    """A variable of the same shape, cut and placed as the given one, with one value everywhere."""
    strategy = tf.distribute.get_strategy()

    def beside(part: Any, number: int) -> Any:
        with strategy.extended.colocate_vars_with(part):
            return tf.Variable(
                lambda: tf.fill(part.shape, tf.constant(value, part.dtype)),
                shape=part.shape,
                dtype=part.dtype,
                trainable=False,
                name=f"slot/part_{number}",
            )

    parts = [beside(part, number) for number, part in enumerate(parts_of(variable))]
    return tf.__internal__.distribute.ShardedVariable(parts) if is_sharded(variable) else parts[0]


def summed_rows(gradient: Any) -> tuple[Any, Any]:
    """(rows, their gradients) where each row is named once."""
    rows, where = tf.unique(gradient.indices)
    return rows, tf.math.unsorted_segment_sum(gradient.values, where, tf.shape(rows)[0])


def _decayed(slot: Any, rows: Any, decay: float, news: Any) -> Any:
    """Move these rows of the slot towards ``news``; returns their new values."""
    following = decay * slot.sparse_read(rows) + (1 - decay) * news
    slot.scatter_update(tf.IndexedSlices(following, rows))
    return following
