"""The copy of the journal on a real disk."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from elasticrun.agent.master_host import journal_copy as module
from elasticrun.agent.master_host.journal_copy import KeptCopy
from elasticrun.core.protocol.messages import JournalCopy


@pytest.fixture
def copy(tmp_path: Path) -> KeptCopy:
    return KeptCopy(tmp_path / "state" / "copy.jsonl")


def lines(copy: KeptCopy) -> list[str]:
    return copy.path.read_text().splitlines()


def test_lines_are_kept_in_order(copy: KeptCopy) -> None:
    copy.take(JournalCopy(2, 0, ("a", "b")))
    copy.take(JournalCopy(2, 2, ("c",)))
    copy.take(JournalCopy(4, 3, ("d",)))
    assert lines(copy) == ["a", "b", "c", "d"]
    assert stat.S_IMODE(copy.path.stat().st_mode) == 0o600
    copy.close()
    copy.close()


def test_gaps_and_repetitions_are_dropped(copy: KeptCopy) -> None:
    copy.take(JournalCopy(2, 3, ("x",)))
    assert not copy.path.exists()
    copy.take(JournalCopy(2, 0, ("a",)))
    copy.take(JournalCopy(2, 2, ("x",)))
    copy.take(JournalCopy(2, 1, ("b",)))
    copy.take(JournalCopy(2, 1, ("b",)))
    assert lines(copy) == ["a", "b"]


def test_an_earlier_master_cannot_undo_what_a_later_one_said(copy: KeptCopy) -> None:
    copy.take(JournalCopy(3, 0, ("new",)))
    copy.take(JournalCopy(2, 0, ("old",)))
    assert lines(copy) == ["new"]


def test_a_copy_that_begins_anew_leaves_the_file_that_is_in_use(copy: KeptCopy) -> None:
    copy.take(JournalCopy(2, 0, ("a",)))
    with copy.path.open() as used:
        copy.take(JournalCopy(3, 0, ("b",)))
        assert used.read() == "a\n"
    assert lines(copy) == ["b"]


def test_a_full_disk_is_told_once(
    copy: KeptCopy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    copy.take(JournalCopy(2, 0, ("a",)))
    monkeypatch.setattr(module, "_write_all", full)
    with caplog.at_level(logging.WARNING):
        copy.take(JournalCopy(2, 1, ("b",)))
        copy.take(JournalCopy(2, 1, ("b",)))
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text


def test_a_copy_that_begins_anew_takes_the_old_ones_place_once_it_is_whole(copy: KeptCopy) -> None:
    copy.take(JournalCopy(2, 0, ("header", "a"), 1))
    copy.take(JournalCopy(2, 0, ("header", "1 of 2"), 3))
    assert lines(copy) == ["header", "a"], "half a snapshot is of no use"
    copy.take(JournalCopy(2, 2, ("2 of 2",)))
    assert lines(copy) == ["header", "1 of 2", "2 of 2"]
    copy.take(JournalCopy(2, 3, ("b",)))
    assert lines(copy)[-1] == "b"
