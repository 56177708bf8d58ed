"""The memory of a warm parent, made so that it is quickly forked.

Theory. A fork copies an entry for each page that was written, and the end of a worker walks over them again;
with what torch and its compiler leave behind that is most of a birth. The kernel can put pages together
(Linux 6.1), and then there is one entry for 512 of them. Workers share them as before, and copy only the
small page that they write to.

Invariant: only what is full anyway is put together, so it takes no more memory. A kernel that cannot, or does
not want to, leaves all as it is. This lies beside ``warm.py`` and is loaded with it, by its path.
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
#: A mapping of /proc/PID/smaps that nobody else writes to and no file is behind, and how much of it is there.
MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) rw-p 0{8} 00:00 0 *(?:\[heap\])?\n(?:\w+: .*\n)*?Anonymous: +(\d+) kB$", re.M
)


def put_together(libc: Any) -> None:
    """Ask for large pages wherever memory is full."""
    with open("/proc/self/smaps", "rb") as file:  # noqa: PTH123 pathlib takes milliseconds
        found = list(full_ranges(file.read()))
    for start, end in found:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def full_ranges(smaps: bytes) -> Iterator[tuple[int, int]]:
    """Where whole large pages fit into mappings that are full."""
    for match in MAPPING.finditer(smaps):
        start, end = int(match[1], 16), int(match[2], 16)
        first, last = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if first < last and int(match[3]) * 1024 >= FULL * (end - start):
            yield first, last
