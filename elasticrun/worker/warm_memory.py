"""The memory of a warm parent: quick to fork, and a replacement's is given up first if memory is short.

Theory. A fork copies an entry for each page that was written, and the end of a worker walks over them again;
with what torch and its compiler leave behind that is most of a fork. The kernel can put pages together
(Linux 6.1), and then there is one entry for 512 of them. Workers share them as before, and copy only the
small page that they write to.

The pages so made are new, and no longer shared with the parent and its running workers. So until these
workers end, a node with a replacement needs more memory than one without. A replacement is a luxury: while it
makes itself ready, the kernel ends it first if memory is short.

Invariant: only what is full anyway is put together, so the replacement itself grows by a tenth at most. A
kernel that cannot leaves all as it is. This lies beside ``warm.py`` and is loaded with it, by its path.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MADV_COLLAPSE = 25
LARGE = 2**21  # bytes; where large pages are larger, the kernel refuses
FULL = 0.9
SCORE = "/proc/self/oom_score_adj"
HIGHEST = b"1000"
#: A private, writable mapping of /proc/PID/smaps without a file, and how much of it is there.
MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) rw-p 0{8} 00:00 0 *(?:\[heap\])?\n(?:\w+: .*\n)*?Anonymous: +(\d+) kB$", re.M
)


def be_first_to_go() -> bytes:
    """Have the kernel end this process before others if memory is short; the score before, for later."""
    try:
        with open(SCORE, "rb") as file:  # noqa: PTH123 pathlib takes milliseconds
            before = file.read()
        set_score(HIGHEST)
    except OSError:
        return b""
    return before


def set_score(score: bytes) -> None:
    """Set how soon the kernel ends this process, and those that it forks; OSError if that is not allowed."""
    if score:
        with open(SCORE, "wb", buffering=0) as file:  # noqa: PTH123 as above
            file.write(score)


def put_together(libc: Any) -> None:
    """Ask for large pages wherever memory is full."""
    try:
        with open("/proc/self/smaps", "rb") as file:  # noqa: PTH123 as above
            found = list(full_ranges(file.read()))
    except OSError:
        return  # this kernel does not tell
    for start, end in found:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def full_ranges(smaps: bytes) -> Iterator[tuple[int, int]]:
    """The ranges of whole large pages in mappings that are full."""
    for match in MAPPING.finditer(smaps):
        start, end = int(match[1], 16), int(match[2], 16)
        first, last = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if first < last and int(match[3]) * 1024 >= FULL * (end - start):
            yield first, last
