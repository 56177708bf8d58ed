"""Control groups that a test makes below the one it runs in, of version 1 or 2, and removes afterwards."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import DEADLINE, wait_end

ROOT = Path("/sys/fs/cgroup")
#: Puts itself into the group whose folder comes first, then becomes the command behind it.
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class NoCgroupError(Exception):
    """This box cannot do it; the sentence says why."""


class Cgroup:
    """A group with one controller, ``memory`` or ``cpu``."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder
        self.version = version
        self.enter = ("sh", "-c", _ENTER, str(folder))  # goes in front of a command

    def write(self, file: str, value: int | str) -> None:
        """Set a limit; NoCgroupError if this kernel has none of that name."""
        try:
            (self.folder / file).write_text(f"{value}\n")
        except OSError as error:
            raise NoCgroupError(f"cannot write {file} of a control group: {error.strerror}") from None

    def limit_cpu(self, share: float, period: int = 100_000) -> None:
        """No more than this share of one core, in each period of so many microseconds."""
        quota = round(share * period)
        if self.version == 2:
            self.write("cpu.max", f"{quota} {period}")
        else:
            self.write("cpu.cfs_period_us", period)
            self.write("cpu.cfs_quota_us", quota)

    def outweigh(self) -> None:
        """Have the CPUs first, whoever else would use them."""
        if self.version == 2:
            self.write("cpu.weight", 10_000)
        else:
            self.write("cpu.shares", 262_144)

    def limit_memory(self, size: int) -> None:
        """No more than so many bytes, swap included where the kernel counts it."""
        self.write("memory.max" if self.version == 2 else "memory.limit_in_bytes", size)
        with contextlib.suppress(NoCgroupError):  # a kernel that does not account for swap
            swap = ("memory.swap.max", 0) if self.version == 2 else ("memory.memsw.limit_in_bytes", size)
            self.write(*swap)

    def remove(self) -> None:
        """The kernel refuses while anybody is in it."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            wait_end(int(pid), DEADLINE)
        self.folder.rmdir()


@contextlib.contextmanager
def cgroup(controller: str) -> Iterator[Cgroup]:
    """A group with this controller. NoCgroupError if there can be none."""
    made = _make(controller)
    try:
        yield made
    finally:
        made.remove()


def _make(controller: str) -> Cgroup:
    entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in entries:
        if controller in controllers.split(","):
            return Cgroup(_child(_own(ROOT / controller, path)), 1)
    for number, _, path in entries:
        if number == "0":
            return Cgroup(_child_with(controller, _own(ROOT, path)), 2)
    raise NoCgroupError(f"there are no control groups for {controller} here")


def _own(root: Path, path: str) -> Path:
    """Our group's folder; a container may see the path that the host has, but its folder as the root."""
    folder = root / path.lstrip("/")
    return folder if folder.is_dir() else root


def _child(parent: Path) -> Path:
    folder = parent / f"elasticrun-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NoCgroupError(f"cannot make a control group: {error.strerror}") from None
    return folder


def _child_with(controller: str, own: Path) -> Path:
    """In version 2 a group that has processes lends its children no controller, so look upwards."""
    for parent in (own, *(above for above in own.parents if above.is_relative_to(ROOT))):
        folder = _child(parent)
        if controller in (folder / "cgroup.controllers").read_text().split():
            return folder
        folder.rmdir()
    raise NoCgroupError(f"no control group here may limit {controller}")
