"""Which memory of a warm parent is put together in large pages."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

import pytest

from elasticrun.worker.warm_memory import LARGE, full_ranges, put_together

REST = "KernelPageSize:        4 kB\nRss:   {there} kB\nAnonymous:   {there} kB\nVmFlags: rd wr mr mw \n"


def mapping(start: int, end: int, there: int, rights: str = "rw-p", file: str = "") -> str:
    """An entry of /proc/PID/smaps; ``there`` is how much of it was written, in kB."""
    origin = "00000000 00:00 0" if not file.startswith("/") else "00001000 fe:00 77"
    return f"{start:x}-{end:x} {rights} {origin}   {file}\nSize: {(end - start) // 1024} kB\n" + REST.format(
        there=there
    )


def found(*mappings: str) -> list[tuple[int, int]]:
    return list(full_ranges("".join(mappings).encode()))


FULL = 4 * LARGE // 1024


def test_whole_large_pages_of_full_mappings() -> None:
    begin = 100 * LARGE
    assert found(mapping(begin, begin + 4 * LARGE, FULL)) == [(begin, begin + 4 * LARGE)]
    assert found(mapping(begin - 4096, begin + 3 * LARGE + 4096, FULL, file="[heap]")) == [
        (begin, begin + 3 * LARGE)
    ]


@pytest.mark.parametrize(
    "other",
    [
        mapping(0, 4 * LARGE, FULL // 2),
        mapping(0, 4 * LARGE, FULL, "r--p"),
        mapping(0, 4 * LARGE, FULL, "rw-s"),
        mapping(0, 4 * LARGE, FULL, file="/lib/libtorch.so"),
        mapping(0, 4 * LARGE, FULL, file="[stack]"),
        mapping(4096, LARGE + 4096, LARGE // 1024),
    ],
    ids=["half empty", "read only", "shared", "a file's", "the stack", "no large page"],
)
def test_other_memory_is_left_alone(other: str) -> None:
    begin = 100 * LARGE
    assert found(other, mapping(begin, begin + 4 * LARGE, FULL), other) == [(begin, begin + 4 * LARGE)]


def large_pages() -> int:
    """How many bytes of this process are in large pages."""
    found = re.findall(r"AnonHugePages: +(\d+)", Path("/proc/self/smaps").read_text())
    return sum(int(size) * 1024 for size in found)


def test_the_kernel_does_it_or_leaves_it() -> None:
    """In a child, as the memory of this process is nobody's business."""
    pid = os.fork()
    if pid == 0:
        memory = mmap.mmap(-1, 8 * LARGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if can_collapse():
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # where each program has large pages from the start
        memory[:] = b"x" * len(memory)
        if can_collapse():
            memory.madvise(mmap.MADV_HUGEPAGE)  # that forbids it no more
        before = large_pages()
        put_together(ctypes.CDLL(None))
        is_same = memory[:] == b"x" * len(memory)
        os._exit(0 if is_same and (large_pages() > before or not can_collapse()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def can_collapse() -> bool:
    """Whether this kernel knows how."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    assert release is not None
    is_new = (int(release[1]), int(release[2])) >= (6, 1)
    return is_new and Path("/sys/kernel/mm/transparent_hugepage").exists()
