"""What a job leaves behind, or gathers while it runs: descriptors, temporary files, shared memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

from tests.support.launcher import MARK
from tests.support.processes import marked, title

SHARED_MEMORY = Path("/dev/shm")

#: Caches of torch, which it keeps for the next program on purpose.
FOREIGN_FILES = frozenset({"torchinductor_root", f"torchinductor_{os.environ.get('USER', 'root')}"})


def descriptors(pid: int) -> Counter[str]:
    """The open descriptors of a process, by kind: "socket", "pipe", "anon_inode", or the file's name."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            kinds[re.sub(r":\[\d+\]$", "", str(link.readlink()))] += 1
    return kinds


class Descriptors:
    """The open descriptors of processes that live long, looked at whenever the job is calm."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[Counter[str]]] = defaultdict(list)

    def look(self, role: str, pid: int) -> None:
        self._seen[role, pid].append(descriptors(pid))

    def longest(self) -> dict[str, list[int]]:
        """For each role, of the process that was looked at most often: the count at each look."""
        found: dict[str, list[int]] = {}
        for (role, _), seen in self._seen.items():
            counts = [kinds.total() for kinds in seen]
            found[role] = max(found.get(role, counts), counts, key=len)
        return found

    def leaks(self, slack: int) -> list[str]:
        """The processes that have more than ``slack`` descriptors more than at first, and which."""
        return [
            f"descriptors of {role} {pid}: {seen[0].total()}, later {seen[-1].total()}: "
            f"{dict(seen[-1] - seen[0])}"
            for (role, pid), seen in self._seen.items()
            if seen[-1].total() > seen[0].total() + slack
        ]


def left_by_killed(folder: Path, nodes: int) -> set[Path]:
    """Directories in which agents kept their workers' files, if there is at most one for each killed node.

    Where an agent and its spawner are killed together, nobody is left to remove that.
    """
    found = {path for path in folder.glob("elasticrun_*") if not path.name.startswith("elasticrun_master_")}
    return found if len(found) <= nodes else set()


def files_left(folder: Path, excused: set[Path]) -> list[str]:
    """Everything in a folder for temporary files but what is excused, as paths in it."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.iterdir()
        if path not in excused and path.name not in FOREIGN_FILES
    )


def shared_memory() -> frozenset[str]:
    return frozenset(path.name for path in SHARED_MEMORY.iterdir())


def shared_memory_left(before: frozenset[str]) -> list[str]:
    """What is new in shared memory, but for what living processes of others use: they share this machine."""
    return sorted(new for new in shared_memory() - before if not _used_by_others(str(SHARED_MEMORY / new)))


def _used_by_others(path: str) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            mine = MARK.encode() in (process / "environ").read_bytes()
            uses = path in (process / "maps").read_text() or path in map(
                os.readlink, (process / "fd").iterdir()
            )
            if uses and not mine:
                return True
    return False


def processes_left(mark: str) -> list[str]:
    return [f"{pid} {title(pid)}" for pid in marked(mark)]
