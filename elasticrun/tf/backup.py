"""Copies of the variables of parameter servers, in the memory of several of them.

    backup = PeerBackup(checkpoint, peers=1)
    ...
    path = manager.save(checkpoint_number=step)   # no step is under way
    backup.save(step, path)
    ...
    backup.restore(step, path)                    # in the next chief: from copies, else the file

Theory. When a ps is lost, so are its variables, and the chief has to start again; only the newest checkpoint
file still has that state. Copies hold the same state where it is read faster, and without that file's
storage: after each checkpoint every ps has its shard written into a directory on its own host and on those of
the next ``peers`` ps. The agents make these directories, in memory unless it is short there. They outlive the
process of a ps, but not its agent.

Invariant. A copy with a label holds exactly the variables that its label says, at its step: the label is
emptied before the first byte of a copy is touched and written again after the last one, and it has the
checksums by which the rest of the copy is checked when it is read. What is restored comes from one save, made
of the very checkpoint that is asked for; ``core/tensorflow/ps_backup.py`` says why that is enough. All
variables come from copies, or all come from the file. If the copies turn out to be damaged half way, the file
overwrites what they gave.

The caller sees to it that copies and file are the same state: between the checkpoint and the end of ``save``
no step may change a variable (join the coordinator before). A program that does not go on from a checkpoint
calls ``forget`` before its first step: otherwise it might find old copies of a step that it reaches again.

Cost. Memory for ``peers`` + 1 times the variables, spread over the hosts, and half a GiB for each shard while
it is written or read. Training waits for ``save``, about as long as for a checkpoint on a local disk, and
copies are read as fast as such a file: they help where the checkpoints' storage is shared or far away, or was
the lost ps's own. A copy never passes through the chief: tensors go from ps to ps. Where there is no room for
copies, or something else goes wrong with them, there is a warning and training goes on: copies are never
needed.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import TypeVar

import tensorflow as tf

from elasticrun.core.tensorflow.ps_backup import (
    ROOTS_VARIABLE,
    Choice,
    Copy,
    Label,
    Slice,
    Wanted,
    called,
    holders,
    origin,
    plan,
    stale,
)
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.tf.backup_directories import BackupDirectories, find_directories
from elasticrun.tf.backup_files import LABEL, ServerFiles
from elasticrun.tf.backup_label import encode_label
from elasticrun.tf.backup_shards import Shard, shards_of

logger = logging.getLogger(__name__)

#: The most bytes of a shard that are written or read at once, if no row is larger. A larger variable is
#: written and read in slices, which takes twice as long. TensorFlow cannot send 2 GiB.
PART_BYTES = 512 << 20
_MOST_THREADS = 16
_MOST_WORDS = 160  # letters of an error in a log line

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of one save."""

    step: int
    copies: int  # that were made and can be restored
    size: int  # bytes of all of them
    seconds: float
    problems: tuple[str, ...] = ()  # copies that were not made, and why


@dataclass(frozen=True, slots=True)
class Restored:
    """Where the variables are from."""

    step: int
    from_file: bool
    lines: tuple[str, ...]  # one for each ps, or why the file was read
    seconds: float


class PeerBackup:
    """Keeps copies of a checkpoint's variables with the parameter servers. Only for a chief.

    ``peers`` is the number of other ps that keep a copy of each ps's variables: that many ps may be lost at
    once. ``roots`` are patterns of the directories for copies, by default those that the agent gives. Raises
    UsageError if TF_CONFIG has no ps.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        peers: int = 1,
        *,
        roots: Sequence[str] | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        if peers < 0:
            raise UsageError(f"peers={peers}: the number of other ps that keep a copy is 0 or more")
        addresses = _servers()
        if not addresses:
            raise UsageError(
                "PeerBackup keeps copies with parameter servers, and there is none; leave it out, or add a ps"
            )
        self._checkpoint = checkpoint
        self._peers = peers
        self._part_bytes = part_bytes
        self._roots = tuple(_roots() if roots is None else roots)
        self._ports = [address.rpartition(":")[2] for address in addresses]
        self._files = [ServerFiles(index) for index in range(len(addresses))]
        self._said: set[str] = set()  # warnings; each is given once

    # -- for the chief

    def save(self, step: int, checkpoint_path: str) -> Saved:
        """Make copies of the variables as they are now, which ``checkpoint_path`` of that step has as well.

        They replace older copies. Never fails; what went wrong is in the result and logged.
        """
        began = time.monotonic()
        try:
            directories = self._directories()
            labels, problems = self._save(step, checkpoint_path, directories)
            problems = [*directories.problems, *problems]
        except (tf.errors.OpError, UsageError) as error:
            labels, problems = [], [_short(error)]
        self._warn(problems)
        size = sum(label.size for label in labels)
        return Saved(step, len(labels), size, time.monotonic() - began, tuple(problems))

    def restore(
        self, step: int, checkpoint_path: str, read: Callable[[str], object] | None = None
    ) -> Restored:
        """Give all variables the values of that step: from copies if they have all of it, else from the file.

        Call it once all variables are made. Copies of another step or checkpoint are emptied. The file is
        read by ``read``, by default ``tf.train.Checkpoint.restore``; what that raises is raised here, and the
        variables are then of no use.
        """
        began = time.monotonic()
        try:
            lines, problem = self._from_copies(step, checkpoint_path, self._directories())
        except (tf.errors.OpError, UsageError) as error:
            lines, problem = (), _short(error)
        if problem:
            (read or self._checkpoint.restore)(checkpoint_path)
            lines = (f"all ps: from the checkpoint file {checkpoint_path}, step {step} ({problem})",)
        for line in lines:
            logger.info("%s", line)
        return Restored(step, bool(problem), lines, time.monotonic() - began)

    def forget(self) -> None:
        """Empty all copies: the program starts anew, or from somewhere else than its newest checkpoint."""
        try:
            directories = self._directories()
            directories.discard(directories.copies())
        except tf.errors.OpError as error:
            self._warn([f"old copies are still there: {_short(error)}"])

    # -- saving

    def _save(
        self, step: int, checkpoint_path: str, directories: BackupDirectories
    ) -> tuple[list[Label], list[str]]:
        shards = shards_of(self._checkpoint, len(self._files), self._part_bytes)
        targets = [
            _Target(shard, holder, directories.at(holder, shard.owner))
            for shard in shards
            for holder in holders(shard.owner, len(shards), self._peers)
            if holder in directories.paths
        ]
        found = {copy.where: copy for copy in directories.copies()}
        again = {target.place: target.where for target in targets if target.replaces(found.get(target.where))}
        directories.discard(copy for where, copy in found.items() if where not in again.values())
        lacks = directories.lacks({target.place: target.shard.size for target in targets}, again)
        label = partial(_label, step, checkpoint_path, uuid.uuid4().hex, len(shards))

        def write(shard: Shard) -> list[Label | str]:
            return [
                self._write(target, label(target), target.place in again)
                for target in targets
                if target.shard is shard and target.holder not in lacks
            ]

        results = _each(write, shards, lambda results: any(isinstance(one, str) for one in results))
        made = [one for results_ in results for one in results_]
        labels = [one for one in made if isinstance(one, Label)]
        return labels, [*dict.fromkeys(lacks.values()), *(one for one in made if isinstance(one, str))]

    def _write(self, target: _Target, label: Label, again: bool) -> Label | str:
        """Make one copy; returns its label, or why it failed. ``again``: it replaces a copy of its size."""
        shard, files = target.shard, self._files[target.holder]
        try:
            files.write(f"{target.where}/{LABEL}", "")  # from here on it is no copy
            if not again:
                files.clear(target.where)
            try:
                sums = tuple(
                    files.save(f"{target.where}/{number}", _names(label, part), shard.read(part))
                    for number, part in enumerate(shard.parts)
                )
                label = replace(label, sums=sums)
                files.write(f"{target.where}/{LABEL}", encode_label(label))
            except tf.errors.OpError:
                files.clear(target.where)  # room may be short, which the job needs too
                raise
        except tf.errors.OpError as error:
            return f"ps {shard.owner}: {called(label)} could not be made ({_short(error)})"
        return label

    # -- restoring

    def _directories(self) -> BackupDirectories:
        return find_directories(self._files, self._ports, self._roots)

    def _from_copies(
        self, step: int, checkpoint_path: str, directories: BackupDirectories
    ) -> tuple[tuple[str, ...], str]:
        """Restore from copies; returns a line for each ps, or why the file has to be read."""
        shards = shards_of(self._checkpoint, len(self._files), self._part_bytes)
        wanted = Wanted(step, checkpoint_path, tuple(shard.fingerprint for shard in shards))
        found = directories.copies()
        directories.discard(copy for copy in found if stale(copy.label, wanted))
        if not directories.paths:
            return (), "; ".join(directories.problems)
        plan_ = plan(found, wanted)
        if plan_.problem:
            return (), plan_.problem
        results = _each(
            lambda shard: self._read(shard, plan_.choices[shard.owner]),
            shards,
            lambda result: isinstance(result, Choice) or "damaged" in result,
        )
        failed = [choice.nothing for choice in results if isinstance(choice, Choice)]
        return tuple(line for line in results if isinstance(line, str)), "; ".join(failed)

    def _read(self, shard: Shard, choice: Choice) -> str | Choice:
        """Restore one shard from its best undamaged copy; else return the choice without sources."""
        passed = list(choice.passed)
        for copy in choice.sources:
            reader = shard.owner if shard.owner in copy.readers else copy.readers[0]
            try:
                for number, (part, sum_) in enumerate(zip(shard.parts, copy.label.sums, strict=True)):
                    prefix, names = f"{copy.where}/{number}", _names(copy.label, part)
                    shard.assign(part, self._files[reader].load(prefix, sum_, names, shard.dtypes(part)))
            except tf.errors.OpError as error:
                passed.append(f"{called(copy.label)}: damaged, {_short(error)}")
            else:
                return origin(copy.label, passed)
        return replace(choice, sources=(), passed=tuple(passed))

    def _warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            if text not in self._said:
                self._said.add(text)
                logger.warning("%s", text)


@dataclass(frozen=True, slots=True)
class _Target:
    """A copy that is to be made."""

    shard: Shard
    holder: int
    where: str

    @property
    def place(self) -> tuple[int, int]:
        """The holder and the owner."""
        return (self.holder, self.shard.owner)

    def replaces(self, copy: Copy | None) -> bool:
        """Whether it overwrites the copy that is there, each file with one of the same size."""
        return copy is not None and copy.label.shard == self.shard.fingerprint


def _label(step: int, checkpoint_path: str, save: str, servers: int, target: _Target) -> Label:
    shard = target.shard
    return Label(
        step=step,
        checkpoint=checkpoint_path,
        save=save,
        servers=servers,
        owner=shard.owner,
        holder=target.holder,
        shard=shard.fingerprint,
        size=shard.size,
        sums=(),
    )


def _names(label: Label, part: Sequence[Slice]) -> list[str]:
    """The names of a part's values in their file. The save is part of them, so no bug can mix two saves."""
    return [f"{label.save}/{item.key}" for item in part]


def _each(
    work: Callable[[_Item], _Result], items: Sequence[_Item], failed: Callable[[_Result], bool]
) -> list[_Result]:
    """Work on all items at once, as different servers do it; returns a result for each.

    An error on a server fails everything that waits for that server. So what failed is done again alone.
    """
    with ThreadPoolExecutor(min(len(items), _MOST_THREADS)) as pool:
        first = list(pool.map(work, items))
    return [work(item) if failed(result) else result for item, result in zip(items, first, strict=True)]


def _short(error: Exception) -> str:
    """The first line of what TensorFlow says, or the sentence of this library."""
    if not isinstance(error, tf.errors.OpError):
        return str(error)
    return shorten(str(error.message).partition("\n")[0], _MOST_WORDS, placeholder=" ...")


def _servers() -> Sequence[str]:
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
    return list(cluster.get("ps", ()))


def _roots() -> list[str]:
    return [root for root in os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep) if root]
