"""Error files that are read off the loop, and one that never answers."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from elasticrun.agent.workers import error_reader
from elasticrun.agent.workers.error_file import ErrorRecord
from elasticrun.agent.workers.error_reader import ErrorReader, read_at_once


class Told:
    """What the reader told, and a wait for it."""

    def __init__(self) -> None:
        self.records: list[ErrorRecord | None] = []
        self._loop = asyncio.get_running_loop()

    def __call__(self, record: ErrorRecord | None) -> None:
        assert asyncio.get_running_loop() is self._loop
        self.records.append(record)

    async def wait(self, reader: ErrorReader) -> None:
        idle = asyncio.Event()
        reader.when_idle(idle.set)
        await asyncio.wait_for(asyncio.ensure_future(idle.wait()), 60)  # a task: the loop gets a turn


def test_a_file_is_read_and_the_rest_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "bad"}))

    async def main() -> None:
        told, reader = Told(), ErrorReader()
        reader.read(str(path), told)
        reader.read(str(tmp_path / "missing"), told)
        reader.read("", told)
        await told.wait(reader)
        assert sorted(record.message for record in told.records if record is not None) == ["bad"]
        assert len(told.records) == 3

    asyncio.run(main())
    now: list[ErrorRecord | None] = []
    read_at_once(str(path), now.append)
    read_at_once("", now.append)
    assert [record.message if record else None for record in now] == ["bad", None]


def test_a_file_that_never_answers_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file server that is gone: the thread is stuck in the kernel."""
    answers = threading.Event()

    def hang(path: str) -> ErrorRecord | None:
        answers.wait()
        return ErrorRecord("too late")

    monkeypatch.setattr(error_reader, "read_error_file", hang)

    async def main() -> None:
        told, reader = Told(), ErrorReader(deadline=0.01)
        reader.read("/gone/a", told)
        await told.wait(reader)
        reader.read("/gone/b", told)  # told at once
        problem = "its error file /gone/{} could not be read within 0.01 s"
        assert told.records == [ErrorRecord(problem=problem.format(name)) for name in "ab"]
        answers.set()
        monkeypatch.setattr(error_reader, "read_error_file", lambda path: ErrorRecord("back"))
        while told.records[-1] != ErrorRecord("back"):  # the thread that was stuck says that it is not
            reader.read("/back", told)
            await told.wait(reader)

    asyncio.run(main())


def test_a_thread_that_cannot_be_started_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        told, reader = Told(), ErrorReader()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        reader.read("/a", told)
        monkeypatch.undo()
        (record,) = told.records
        assert record is not None
        assert "could not be read" in record.problem

    asyncio.run(main())
