"""The files of copies, on the hosts of parameter servers, as the chief reaches them.

A parameter server runs no code of ours: its files are read and written by TensorFlow's own operations, which
the chief places on it. They cannot rename or remove. So a file that is not needed any more is emptied, which
frees its space, and a copy counts only with its *label*, which is written after everything else and carries a
checksum of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elasticrun.tf.backup_label import checksum

#: The file that makes a directory a copy.
LABEL = "label"


class ServerFiles:
    """Files on the host of one ps. All methods raise ``tf.errors.OpError`` for what goes wrong there."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._device = f"/job:ps/replica:0/task:{index}/device:CPU:0"

    def find(self, *patterns: str) -> list[str]:
        """The files and directories that match."""
        with tf.device(self._device):
            try:
                return sorted(name.decode() for name in tf.io.matching_files(list(patterns)).numpy())
            except tf.errors.NotFoundError:  # not even the directory they would lie in is there
                return []

    def read(self, path: str) -> bytes:
        """Read a whole file, which has to be small."""
        with tf.device(self._device):
            data: bytes = tf.io.read_file(path).numpy()
            return data

    def read_text(self, path: str) -> str:
        """Read a whole file as text; "" if it cannot be read."""
        try:
            return self.read(path).decode(errors="replace")
        except tf.errors.OpError:
            return ""

    def write(self, path: str, text: str) -> None:
        """Write a whole file; directories that are missing are made."""
        with tf.device(self._device):
            tf.io.write_file(path, text)

    def clear(self, directory: str) -> None:
        """Empty all files of a copy, its label first: without that it is no copy."""
        for path in [f"{directory}/{LABEL}", *self.find(f"{directory}/*")]:
            self.write(path, "")

    def save(self, prefix: str, names: Sequence[str], tensors: Sequence[tf.Tensor]) -> str:
        """Write tensors, which may lie on another host. Returns the checksum of its index."""
        with tf.device(self._device):
            tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
            )
        return checksum(self.read(f"{prefix}.index"))

    def load(self, prefix: str, sum_: str, names: Sequence[str], dtypes: Sequence[Any]) -> list[tf.Tensor]:
        """Read tensors, which stay on this host until they are used. DataLossError if the index differs."""
        if checksum(self.read(f"{prefix}.index")) != sum_:
            raise tf.errors.DataLossError(None, None, "the index is not the one that was written")
        with tf.device(self._device):
            tensors: list[tf.Tensor] = tf.raw_ops.RestoreV2(
                prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes
            )
            return tensors
