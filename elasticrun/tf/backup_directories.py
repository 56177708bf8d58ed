"""Where copies lie: the directories that agents made for their parameter servers, as the chief finds them.

An agent's directory has a name that cannot be foreseen. The chief knows a pattern for it, and the port of
each ps, which is the name of the ps's own directory in it. Beside that lie those of other ps of the same
agent, also of rounds that are over, with copies that are still good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from elasticrun.core.tensorflow import ps_room
from elasticrun.core.tensorflow.ps_backup import ROOTS_VARIABLE, Copy
from elasticrun.dataclass import dataclass
from elasticrun.tf.backup_files import LABEL, ServerFiles
from elasticrun.tf.backup_label import decode_label


@dataclass(frozen=True, slots=True)
class BackupDirectories:
    """The directories for copies of all ps that have one."""

    files: tuple[ServerFiles, ...]  # by ps
    paths: Mapping[int, str]  # the directory of each ps that has one
    problems: tuple[str, ...]  # why others have none

    def at(self, holder: int, owner: int) -> str:
        """The directory for the copy of ``owner`` that ``holder`` keeps."""
        return f"{self.paths[holder]}/of-{owner}"

    def copies(self) -> list[Copy]:
        """All copies that can be seen."""
        readers: dict[str, list[int]] = {}
        for index, own in self.paths.items():
            for path in self.files[index].find(f"{PurePosixPath(own).parent}/*/of-*/{LABEL}"):
                readers.setdefault(path, []).append(index)
        labels = {path: decode_label(self.files[seen[0]].read(path)) for path, seen in readers.items()}
        return [
            Copy(label, str(PurePosixPath(path).parent), tuple(readers[path]))
            for path, label in labels.items()
            if label is not None
        ]

    def discard(self, copies: Iterable[Copy]) -> None:
        """Empty copies, which frees their space."""
        for copy in copies:
            self.files[copy.readers[0]].clear(copy.where)

    def lacks(self, sizes: Mapping[tuple[int, int], int], again: Iterable[tuple[int, int]]) -> dict[int, str]:
        """The ps whose hosts have no room for the copies that they are to keep, and why, in words.

        ``sizes`` are bytes by (holder, owner); those in ``again`` replace one of the same size.
        """
        hosts: dict[str, list[int]] = {}
        for index, own in self.paths.items():
            hosts.setdefault(str(PurePosixPath(own).parent), []).append(index)
        replaced = set(again)
        found: dict[int, str] = {}
        for folder, servers in hosts.items():
            held = {place: size for place, size in sizes.items() if place[0] in servers}
            needed = sum(size for place, size in held.items() if place not in replaced)
            problem = _lack(self.files[servers[0]], folder, needed, sum(held.values()))
            if problem:
                names = ", ".join(f"ps {index}" for index in servers)
                found |= dict.fromkeys(servers, f"no copies are kept on the host of {names}: {problem}")
        return found


def find_directories(
    files: Sequence[ServerFiles], ports: Sequence[str], roots: Sequence[str]
) -> BackupDirectories:
    """Look for the directory of each ps, on its host."""
    if not roots:
        return BackupDirectories(
            tuple(files), {}, (f"no ps has a directory for copies ({ROOTS_VARIABLE} is not set)",)
        )
    paths, problems = {}, []
    for index, port in enumerate(ports):
        found = files[index].find(*(f"{root}/{port}" for root in roots))
        if len(found) == 1:
            paths[index] = found[0]
        else:
            why = f"{len(found)} directories claim to be that" if found else "its agent made none"
            problems.append(f"ps {index} has no directory for copies: {why}")
    return BackupDirectories(tuple(files), paths, tuple(problems))


def _lack(files: ServerFiles, folder: str, needed: int, whole: int) -> str:
    """Why a host has no room, as far as it tells; "" if it has."""
    if not needed:
        return ""
    mounts = files.read_text("/proc/self/mounts")
    if not ps_room.in_memory(mounts, folder):
        return ""  # a disk refuses what it cannot hold, and nobody is killed for it
    left = [ps_room.left_on_host(files.read_text("/proc/meminfo"))]
    for group in ps_room.cgroup_files(files.read_text("/proc/self/cgroup")):
        if files.find(group.limit):  # a ps logs an error for what it cannot read
            texts = (files.read_text(path) for path in (group.limit, group.usage, group.stat))
            left.append(ps_room.left_in_cgroup(*texts))
    return ps_room.lack(needed, whole, left, [ps_room.capacity(mounts, folder)])
