"""The variables of a checkpoint, by parameter server.

A variable is named by the shortest path to it from the checkpoint, as in a checkpoint file; so the names are
the same in every run of the program, whatever the strategy calls them. A variable that lies on no ps, such as
the checkpoint's own counter, is lost with the chief: it goes with the shard of ps 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from elasticrun.core.tensorflow.ps_backup import Piece, Slice, cut
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.tf.backup_label import fingerprint

_ShardedVariable: Any = tf.__internal__.distribute.ShardedVariable
_Trackable: Any = tf.__internal__.tracking.Trackable
_REFERENCE = 32  # bytes that a string takes at least
#: A trackable object that overrides one of these has a state of its own.
_SAVERS = ("_serialize_to_tensors", "_gather_saveables_for_checkpoint")


@dataclass(frozen=True, slots=True)
class Shard:
    """The variables of one ps."""

    owner: int
    variables: tuple[Any, ...]
    pieces: tuple[Piece, ...]  # in the same order
    parts: tuple[tuple[Slice, ...], ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def fingerprint(self) -> str:
        """Equal for equal variables only."""
        return fingerprint(self.pieces, self.parts)

    def read(self, part: Sequence[Slice]) -> list[tf.Tensor]:
        """The values of a part, on the devices of its variables."""
        return [self._read(item) for item in part]

    def assign(self, part: Sequence[Slice], values: Sequence[tf.Tensor]) -> None:
        """Give a part its values."""
        for item, value in zip(part, values, strict=True):
            self._assign(item, value)

    def dtypes(self, part: Sequence[Slice]) -> list[Any]:
        """The types of a part's values."""
        return [tf.as_dtype(self.pieces[item.piece].dtype) for item in part]

    def _read(self, item: Slice) -> tf.Tensor:
        variable = self.variables[item.piece]
        with tf.device(variable.device):
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.as_dtype(variable.dtype))
            return value if item.rows is None else value[item.rows[0] : item.rows[1]]

    def _assign(self, item: Slice, value: tf.Tensor) -> None:
        variable = self.variables[item.piece]
        with tf.device(variable.device):
            if item.rows is None:
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
                return
            begin, end = ([row] for row in item.rows)
            tf.raw_ops.ResourceStridedSliceAssign(
                ref=variable.handle, begin=begin, end=end, strides=[1], value=value
            )


def shards_of(checkpoint: Any, servers: int, limit: int) -> tuple[Shard, ...]:
    """All variables of a checkpoint, by ps, in parts of ``limit`` bytes.

    Raises UsageError if it holds a state that is in no variable: copies would lack it.
    """
    _ = getattr(checkpoint, "save_counter", None)  # asking for it makes it
    found: list[list[tuple[Piece, Any]]] = [[] for _ in range(servers)]
    for path, variable in _variables(checkpoint):
        found[_owner(variable, servers)].append((_piece(path, variable), variable))
    shards = []
    for owner, pairs in enumerate(found):
        pieces = tuple(piece for piece, _ in pairs)
        shards.append(Shard(owner, tuple(one for _, one in pairs), pieces, cut(pieces, limit)))
    return tuple(shards)


def _variables(root: Any) -> Iterator[tuple[str, Any]]:
    """Every variable below ``root`` once, under its shortest path."""
    view = tf.train.TrackableView(root)
    queue: deque[tuple[str, Any]] = deque([("", root)])
    seen = {id(root)}
    while queue:
        path, item = queue.popleft()
        item = _of_keras(item)
        if isinstance(item, tf.Variable):
            yield path, item
            continue
        if isinstance(item, _ShardedVariable):
            yield from ((f"{path}#{number}", one) for number, one in enumerate(item.variables))
            continue
        if any(_overrides(type(item), name) for name in _SAVERS):
            raise UsageError(
                f"no copies can be kept of {path or 'the checkpoint'} ({type(item).__name__}), whose state "
                "is in no variable; keep it in a tf.Variable, or in a checkpoint of its own"
            )
        for name, child in sorted(view.children(item).items()):
            if id(child) not in seen:
                seen.add(id(child))
                queue.append((f"{path}/{name.replace('/', '//')}", child))


def _of_keras(item: Any) -> Any:
    """The variable inside a Keras variable; anything else as it is. Does not import Keras."""
    value = getattr(item, "value", None)
    return value if isinstance(value, (tf.Variable, _ShardedVariable)) else item


def _overrides(kind: type, name: str) -> bool:
    return getattr(kind, name, None) is not getattr(_Trackable, name, None)


def _piece(path: str, variable: Any) -> Piece:
    shape = tf.TensorShape(variable.shape)
    if not shape.is_fully_defined():
        raise UsageError(
            f"no copies can be kept of the variable {path}: its shape {shape} is not fixed; fix it"
        )
    dtype = tf.as_dtype(variable.dtype)
    return Piece(path, dtype.name, tuple(shape.as_list()), dtype.size or _REFERENCE)


def _owner(variable: Any, servers: int) -> int:
    device = tf.DeviceSpec.from_string(variable.device)
    on_server = device.job == "ps" and device.task is not None and device.task < servers
    return device.task if on_server else 0
