"""A log that is read while it grows, is cut, is renamed and is dropped; and news of that from the kernel."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from elasticrun.errors import UsageError
from elasticrun.master.event_log import files_of
from elasticrun.ui.growing import GrowingLog
from elasticrun.ui.watching import LogNews


def rename(path: Path) -> None:
    """As the master does when a file is full."""
    for number in (3, 2, 1):
        older = path.with_suffix(f".{number - 1}.jsonl") if number > 1 else path
        if older.exists():
            older.replace(path.with_suffix(f".{number}.jsonl"))


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def read(log: GrowingLog) -> list[str]:
    return [line.decode() for line in log.lines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_lines_come_once_and_whole(path: Path) -> None:
    add(path, "a\nb\nhal")
    log = GrowingLog(path, files_of)
    assert read(log) == ["a", "b"] and read(log) == []
    add(path, "f\nc\n")
    assert read(log) == ["half", "c"]
    log.close()
    log.close()


def test_a_cut_line_is_forgotten(path: Path) -> None:
    add(path, "a\nhal")
    log = GrowingLog(path, files_of)
    assert read(log) == ["a"]
    os.truncate(path, 2)
    add(path, "b\n")
    assert read(log) == ["b"]
    log.close()


@pytest.mark.parametrize("renames", [1, 2])
def test_it_goes_on_over_files_that_are_renamed(path: Path, renames: int) -> None:
    add(path, "a\n")
    log = GrowingLog(path, files_of)
    assert read(log) == ["a"]
    wanted = ["b"]
    add(path, "b\n")
    for number in range(renames):
        rename(path)
        add(path, f"{number}\n")
        wanted.append(str(number))
    assert read(log) == wanted and read(log) == []
    log.close()


def test_older_files_come_first_and_of_dropped_ones_what_is_left(path: Path) -> None:
    add(path, "a\n")
    rename(path)
    add(path, "b\n")
    log = GrowingLog(path, files_of)
    assert read(log) == ["a", "b"]
    path.with_suffix(".1.jsonl").unlink()
    rename(path)
    path.with_suffix(".1.jsonl").unlink()
    assert read(log) == [], "there is no file"
    add(path, "c\n")
    assert read(log) == ["c"]
    log.close()


def test_a_line_of_any_length(path: Path) -> None:
    add(path, "x" * 3_000_000 + "\nb\n")
    log = GrowingLog(path, files_of)
    assert [len(line) for line in read(log)] == [3_000_000, 1]
    log.close()


def test_what_is_no_log_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="there is no event log"):
        GrowingLog(path, files_of)
    os.mkfifo(path)
    with pytest.raises(UsageError, match="no regular file"):
        GrowingLog(path, files_of)


def test_the_kernel_tells_of_changes(path: Path) -> None:
    async def watch() -> None:
        news = LogNews(path)
        try:
            for _ in range(2):
                add(path, "a\n")
                await asyncio.wait_for(news.wait(), 60)
            rename(path)
            add(path, "")
            await asyncio.wait_for(news.wait(), 60)
            add(path.with_name("other"), "x")
            waits = asyncio.ensure_future(news.wait())
            add(path, "c\n")
            await asyncio.wait_for(waits, 60)
        finally:
            news.close()

    asyncio.run(watch())


def test_a_directory_that_is_not_there_cannot_be_watched(path: Path) -> None:
    async def watch() -> None:
        with pytest.raises(UsageError, match="cannot follow"):
            LogNews(path.parent / "nowhere" / "events.jsonl")

    asyncio.run(watch())
