"""What went wrong with a storage, in a sentence."""

from __future__ import annotations

import errno
import os

import pytest

from elasticrun.errors import CheckpointError, ExitCode
from elasticrun.storage import errors
from elasticrun.storage.errors import StorageError, explained, explaining


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), errors.StorageFullError),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), errors.StorageFullError),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), errors.StorageDeniedError),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), errors.StorageDeniedError),
        (OSError(errno.ESTALE, os.strerror(errno.ESTALE)), errors.StorageGoneError),
        (OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN)), errors.StorageGoneError),
        (OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)), errors.StorageStuckError),
        (OSError(errno.EIO, os.strerror(errno.EIO)), StorageError),
        (FileNotFoundError("bucket/x"), errors.StorageGoneError),
        (PermissionError("403"), errors.StorageDeniedError),
        (TimeoutError(), errors.StorageStuckError),
        (RuntimeError("service says no"), StorageError),
    ],
    ids=str,
)
def test_each_error_has_a_kind_and_a_sentence(raised: Exception, kind: type[StorageError]) -> None:
    found = explained(raised, "write x", "/disk")
    assert type(found) is kind
    said = getattr(raised, "strerror", None) or str(raised) or "TimeoutError"
    assert str(found) == f"cannot write x in /disk: {said}; {kind.advice}"
    assert isinstance(found, CheckpointError)
    assert found.exit_code is ExitCode.JOB_FAILED


def test_what_is_explained_already_stays_as_it_is() -> None:
    with (
        pytest.raises(CheckpointError, match=r"^weight is damaged$"),
        explaining("write", "/disk", Exception),
    ):
        raise CheckpointError("weight is damaged")


def test_other_errors_are_bugs() -> None:
    with pytest.raises(ValueError, match=r"^bug$"), explaining("write", "/disk"):
        raise ValueError("bug")
