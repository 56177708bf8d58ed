"""Small files that nobody else may read or plant: written whole, and read only if they are ours.

A directory of ours with mode 0700 is opened first, without following a link, and everything else happens
below that descriptor. So it does not matter who may write to its parent directory: another user can move ours
away, or take its name first, which is noticed, but can never replace one of our files.

A new file gets its name by ``link``, which fails if the name is taken. So if several processes make the same
file at once, one wins, and the others find it complete.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator


class NotPrivateError(Exception):
    """Something that others could have read or made; the sentence says what, without a path."""


@contextlib.contextmanager
def private_directory(path: str, make: bool) -> Iterator[int]:
    """A descriptor of a directory that only this user can use. Raises OSError or NotPrivateError."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_private(os.fstat(directory))
        yield directory
    finally:
        os.close(directory)


def read_private(path: str, most: int, directory: int | None = None) -> bytes:
    """The first ``most`` bytes of a regular file that is private to this user. Raises as above."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivateError("is not a regular file")
        check_private(found)
        return os.read(file, most)
    finally:
        os.close(file)


def write_private(name: str, data: bytes, directory: int, replace: bool = False) -> None:
    """Make a file of mode 0600. Raises FileExistsError if there is one and it is not to be replaced."""
    draft = f".{name}.{os.urandom(8).hex()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
        if replace:
            os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            os.link(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=directory)


def check_private(found: os.stat_result) -> None:
    """Raise NotPrivateError for a file that belongs, or is open, to another user."""
    if found.st_uid != os.geteuid():
        raise NotPrivateError(f"belongs to user {found.st_uid}, not to user {os.geteuid()}")
    if found.st_mode & 0o077:
        raise NotPrivateError(f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o})")
