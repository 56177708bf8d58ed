"""What goes wrong with a storage. Each message says what failed, where, and what to do::

CheckpointError
└─ StorageError           something failed; ``trouble`` says whether to try again (core/state/retrying.py)
   ├─ StorageFullError    no room is left, or a quota is used up
   ├─ StorageDeniedError  it is read-only, or we have no permission
   ├─ StorageGoneError    it is not mounted, or was removed
   ├─ StorageStuckError   it does not answer
   ├─ IncompleteError     parts of a commit are missing, so it cannot be finished
   └─ DamagedError        what is there is not what was written
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from elasticrun.core.state.retrying import Trouble
from elasticrun.errors import CheckpointError


class StorageError(CheckpointError):
    """Something failed in the storage."""

    trouble = Trouble.OTHER
    advice = "look at the storage, and at the log of the system that serves it"


class StorageFullError(StorageError):
    """No room is left, or a quota is used up."""

    trouble = Trouble.FULL
    advice = "make room there, or keep fewer commits"


class StorageDeniedError(StorageError):
    """It is read-only, or this user has no permission."""

    trouble = Trouble.DENIED
    advice = "let this user write there, or choose another place"


class StorageGoneError(StorageError):
    """It is not mounted, or was removed."""

    trouble = Trouble.GONE
    advice = "is it mounted, and does it exist?"


class StorageStuckError(StorageError):
    """It does not answer."""

    trouble = Trouble.STUCK
    advice = "look at the network, and at the server of the storage"


class IncompleteError(StorageError):
    """Parts of a commit are missing, so it cannot be finished."""


class DamagedError(StorageError):
    """What is there is not what was written."""

    trouble = Trouble.DAMAGED


_BY_NUMBER: dict[int, type[StorageError]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), StorageFullError),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), StorageDeniedError),
    **dict.fromkeys(
        (
            *(errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN),
            *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        ),
        StorageGoneError,
    ),
    **dict.fromkeys((errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY), StorageStuckError),
}
_BY_TYPE: tuple[tuple[type[Exception], type[StorageError]], ...] = (
    (FileNotFoundError, StorageGoneError),
    (PermissionError, StorageDeniedError),
    (TimeoutError, StorageStuckError),
)


def explained(error: Exception, doing: str, url: str) -> StorageError:
    """The error to raise after ``doing`` ("write x") failed in the storage ``url``."""
    kind = _BY_NUMBER.get(getattr(error, "errno", None) or 0, StorageError)
    if kind is StorageError:
        kind = next((made for known, made in _BY_TYPE if isinstance(error, known)), StorageError)
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return kind(f"cannot {doing} in {url}: {said}; {kind.advice}")


@contextmanager
def explaining(doing: str, url: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise a StorageError in place of an OSError, or of another of ``kinds``."""
    caught: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except CheckpointError:
        raise
    except caught as error:
        raise explained(error, doing, url) from error
