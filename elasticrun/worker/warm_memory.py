"""The memory of a warm parent: made so that it is quickly forked, and given up first where it is short.

Theory. A fork copies an entry for each page that was written, and the end of a worker walks over them again;
with what torch and its compiler leave behind that is most of a fork. The kernel can put pages together
(Linux 6.1), and then there is one entry for 512 of them. Workers share them as before, and copy only the
small page that they write to.

The pages so made are new ones: those that parent and running workers have in use are shared with these no
more. So until these workers end, a node with a replacement needs more memory than one without. A replacement
is a luxury: while it makes itself ready, it is the one that the kernel ends if there is too little.

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
#: A mapping of /proc/PID/smaps that nobody else writes to and no file is behind, and how much of it is there.
MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) rw-p 0{8} 00:00 0 *(?:\[heap\])?\n(?:\w+: .*\n)*?Anonymous: +(\d+) kB$", re.M
)


def be_first_to_go() -> bytes:
    """Have the kernel end this process before others if memory is short; what was, for ``set_score``."""
    try:
        with open(SCORE, "rb") as file:  # noqa: PTH123 pathlib takes milliseconds
            before = file.read()
        set_score(HIGHEST)
    except OSError:
        return b""
    return before


def set_score(score: bytes) -> None:
    """How soon the kernel ends this process, and those that it forks; OSError if that is not allowed."""
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
    """Where whole large pages fit into mappings that are full."""
    for match in MAPPING.finditer(smaps):
        start, end = int(match[1], 16), int(match[2], 16)
        first, last = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if first < last and int(match[3]) * 1024 >= FULL * (end - start):
            yield first, last
