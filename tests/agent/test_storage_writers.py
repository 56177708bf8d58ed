"""Writers of saved states as the agent sees them: the real program, started without a spawner."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.agent.memory.storage_access import Held, WriteJob
from elasticrun.agent.programs import STORAGE_PROGRAM
from elasticrun.agent.spawner.client import Command, Exited, SpawnFailed, WarmNews
from elasticrun.agent.workers.storage_writers import FIRST_NUMBER, StorageWriters
from elasticrun.checkpoint.storage_writer import device_of, open_here
from elasticrun.config import Entrypoint, EntrypointKind, WorkerConfig
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.storing import StoreOrder, StorePart
from elasticrun.core.state.events import Piece
from elasticrun.core.state.retrying import Trouble
from elasticrun.core.state.writing import Ended, Moved
from elasticrun.storage.catalog import commits, newest
from elasticrun.storage.errors import StorageGoneError
from elasticrun.storage.opening import open_store
from elasticrun.storage.verifying import damages
from tests.support.saved_parts import saved_bytes

pytestmark = pytest.mark.torch

#: Generous: writers have the lowest priority, and this box may be busy.
DEADLINE = 300.0
SCRIPT = Entrypoint(EntrypointKind.SCRIPT, "train.py", (), sys.executable)
CONFIG = WorkerConfig(SCRIPT, 1, env=tuple(os.environ.items()))
PARTS = (StorePart(0, 0, 0, 2), StorePart(1, 1, 1, 2))


class Starter:
    """Starts programs as the spawner does, and tells of their ends."""

    def __init__(self, program: Sequence[str] = ()) -> None:
        self.commands: list[Command] = []
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.writers: StorageWriters
        self._program = program

    def spawn(self, worker: int, command: Command) -> None:
        self.commands.append(command)
        streams = {"stdin": command.stdin, "stdout": command.stdout, "stderr": command.stderr}
        process = subprocess.Popen(self._program or command.argv, env=dict(command.env), **streams)  # type: ignore[call-overload]
        self.processes[worker] = process
        loop = asyncio.get_running_loop()
        waits = loop.run_in_executor(None, process.wait)
        waits.add_done_callback(lambda done: self.writers.on_exited(Exited(worker, done.result())))

    def signal(self, worker: int, signum: int) -> None:
        self.processes[worker].send_signal(signum)

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        raise AssertionError("nobody sweeps")


@pytest.fixture
def held() -> Iterator[list[list[Held]]]:
    """The parts of two nodes of one rank each, as memory."""
    parts = []
    for rank in range(2):
        data, digest = saved_bytes({"weight": torch.full((40,), 7.0), "step": 5})
        fd = os.memfd_create("part")
        os.write(fd, data)
        parts.append([(Piece(rank, len(data), digest), fd)])
    yield parts
    for ((_, fd),) in parts:
        os.close(fd)


def job(
    folder: Path | str, held: list[list[Held]], parts: tuple[StorePart, ...], step: int = 5, **keep: int
) -> WriteJob:
    order = StoreOrder(1, "run7", CommitId(0, step), parts, 2)
    chosen = [(part, held[part.group_rank]) for part in parts]
    return WriteJob(str(folder), order, chosen, keep.get("last"), None)


def write(*jobs: WriteJob, starter: Starter | None = None, kills: bool = False) -> list[Ended]:
    """How these end, one after the other."""
    return asyncio.run(_write(jobs, starter or Starter(), kills))


async def _write(jobs: Sequence[WriteJob], starter: Starter, kills: bool) -> list[Ended]:
    writers = starter.writers = StorageWriters(CONFIG, starter)
    ends = []
    for attempt, each in enumerate(jobs, 1):
        ended: asyncio.Queue[Moved | Ended] = asyncio.Queue()
        writers.start(attempt, each, ended.put_nowait)
        assert len(writers.numbers) == 1
        if kills:
            writers.kill(attempt)
        while isinstance(event := await asyncio.wait_for(ended.get(), DEADLINE), Moved):
            assert event.attempt == attempt
        ends.append(event)
        assert not writers.numbers
    writers.close()
    return ends


def test_parts_are_written_and_the_commit_is_finished(tmp_path: Path, held: list[list[Held]]) -> None:
    folder, starter = tmp_path / "run", Starter()
    assert write(*(job(folder, held, it) for it in (PARTS, ())), starter=starter) == [Ended(1), Ended(2)]
    store = open_store(str(folder))
    marker = newest(store)
    assert marker is not None
    assert (marker.name.commit, marker.name.run, marker.world_size) == (CommitId(0, 5), "run7", 2)
    assert list(damages(store, marker)) == []
    [first, second] = starter.commands
    assert (first.argv[-1], first.program) == (STORAGE_PROGRAM, STORAGE_PROGRAM)
    assert [*starter.processes] == [FIRST_NUMBER, FIRST_NUMBER - 1]
    assert second.env == dict(CONFIG.env)


def test_what_is_not_kept_is_removed_with_the_next_one(tmp_path: Path, held: list[list[Held]]) -> None:
    folder = tmp_path / "run"
    for step in (5, 6):
        ends = write(*(job(folder, held, parts, step, last=1) for parts in (PARTS, ())))
        assert [end.trouble for end in ends] == [None, None]
    assert [each.name.commit.step for each in commits(open_store(str(folder)))] == [6]


def test_a_commit_of_which_a_part_is_missing_is_not_finished(tmp_path: Path, held: list[list[Held]]) -> None:
    folder = tmp_path / "run"
    [wrote, finished] = write(job(folder, held, PARTS[:1]), job(folder, held, ()))
    assert wrote == Ended(1)
    assert finished.trouble is Trouble.OTHER
    assert "part 1 of 2 is not there" in finished.reason


def test_a_storage_that_fails_says_how(tmp_path: Path, held: list[list[Held]]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    [ended] = write(job(blocked / "run", held, PARTS))
    assert ended.trouble is Trouble.GONE
    assert "is it mounted, and does it exist?" in ended.reason


def test_a_storage_that_has_vanished_is_not_made_anew(tmp_path: Path, held: list[list[Held]]) -> None:
    folder = tmp_path / "run"

    async def scenario() -> Sequence[Moved | Ended]:
        starter = Starter()
        writers = starter.writers = StorageWriters(CONFIG, starter)
        ended: asyncio.Queue[Moved | Ended] = asyncio.Queue()
        found = []
        for attempt in (1, 2):
            writers.start(attempt, job(folder, held, PARTS, step=attempt), ended.put_nowait)
            while isinstance(event := await asyncio.wait_for(ended.get(), DEADLINE), Moved):
                pass
            found.append(event)
            folder.rename(tmp_path / f"away{attempt}") if folder.exists() else None
        return found

    first, second = asyncio.run(scenario())
    assert first == Ended(1)
    assert isinstance(second, Ended)
    assert second.trouble is Trouble.GONE
    assert not folder.exists()


def test_another_file_system_is_not_the_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageGoneError, match="another file system is there than before"):
        open_here(str(tmp_path), device=-1)
    assert device_of(open_here("memory://run", device=0)) == 0


def test_what_is_damaged_in_memory_is_not_tried_again(tmp_path: Path, held: list[list[Held]]) -> None:
    for ((_, fd),) in held:
        os.pwrite(fd, b"\xff", 3)
    [ended] = write(job(tmp_path / "run", held, PARTS))
    assert ended.trouble is Trouble.DAMAGED
    assert "weight is damaged in the part of rank" in ended.reason
    assert newest(open_store(str(tmp_path / "run"))) is None


def test_a_url_that_nobody_reads_is_told(held: list[list[Held]]) -> None:
    [ended] = write(job("nosuch://bucket/run", held, PARTS))
    assert ended.trouble is not None
    assert "nosuch" in ended.reason


def test_a_writer_that_is_killed_has_failed(tmp_path: Path, held: list[list[Held]]) -> None:
    [ended] = write(job(tmp_path / "run", held, PARTS), kills=True)
    assert ended.trouble is Trouble.OTHER
    assert ended.reason.startswith("the process that writes was killed by SIGKILL (9)")


def program(*lines: str) -> Starter:
    """In place of a writer: says these things, and ends with 3."""
    talk = "import socket, sys; channel = socket.socket(fileno=0); channel.recv(65536)\n"
    sends = "".join(f"channel.send({line.encode()!r})\n" for line in lines)
    return Starter((sys.executable, "-c", f"{talk}{sends}sys.exit('oops')"))


def test_the_last_words_of_a_writer_that_ends_by_itself_are_told(held: list[list[Held]]) -> None:
    [ended] = write(job("/run", held, PARTS), starter=program())
    assert ended == Ended(
        1, Trouble.OTHER, "the process that writes ended with exit code 1; its last line: oops"
    )


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "{",
        "[" * 5000,
        "7",
        '{"ask": 9}',
        '{"ask": -1}',
        '{"trouble": "bored", "reason": ""}',
        '{"done": 1}',
    ],
)
def test_what_makes_no_sense_counts_as_silence(held: list[list[Held]], nonsense: str) -> None:
    [ended] = write(job("/run", held, PARTS), starter=program(nonsense or "null"))
    assert (ended.trouble, ended.reason[-4:]) == (Trouble.OTHER, "oops")


def test_what_a_writer_said_before_its_end_counts(held: list[list[Held]]) -> None:
    said = '{"trouble": "full", "reason": "no room\\nat all"}'
    assert write(job("/run", held, PARTS), starter=program('{"moved": 1}', said)) == [
        Ended(1, Trouble.FULL, "no room?at all")
    ]


def test_a_note_is_logged_and_the_commit_is_there(
    held: list[list[Held]], caplog: pytest.LogCaptureFixture
) -> None:
    done = '{"done": true, "note": "old saved states are not removed: busy", "device": 7}'
    assert write(job("/run", held, PARTS), starter=program(done)) == [Ended(1)]
    assert "old saved states are not removed: busy" in caplog.text


def test_a_writer_that_cannot_be_started_has_failed(held: list[list[Held]]) -> None:
    async def scenario() -> None:
        told: list[Moved | Ended] = []
        starter = Starter()
        starter.spawn = lambda worker, command: None  # type: ignore[method-assign]
        writers = StorageWriters(CONFIG, starter)
        writers.start(1, job("/run", held, PARTS), told.append)
        [number] = writers.numbers
        assert not writers.on_exited(Exited(number - 1, 0)), "of another process"
        assert writers.on_spawn_failed(SpawnFailed(number, errno.EAGAIN, "no processes left"))
        assert told == [Ended(1, Trouble.OTHER, "its process could not be started: no processes left")]
        writers.start(2, job("/run", held, PARTS), told.append)
        writers.kill(1)  # has ended
        writers.close()
        assert writers.numbers == ()

    asyncio.run(scenario())


def test_without_its_warm_parent_a_writer_starts_cold(held: list[list[Held]]) -> None:
    async def scenario() -> None:
        starter = Starter()
        starter.spawn = lambda worker, command: starter.commands.append(command)  # type: ignore[method-assign]
        writers = StorageWriters(WorkerConfig(SCRIPT, 1, warm_imports=("torch",)), starter)
        for news in (WarmNews(False, "", over="other"), WarmNews(False, "", over="0")):
            writers.start(1, job("/run", held, PARTS), lambda _: None)
            writers.on_warm_news(news)
        writers.start(1, job("/run", held, PARTS), lambda _: None)
        assert [command.warm for command in starter.commands] == ["0", "0", None]
        writers.close()

    asyncio.run(scenario())


def test_signals_to_all_do_not_end_a_writer(tmp_path: Path, held: list[list[Held]]) -> None:
    """It waits for its piece meanwhile, as the agent does not look."""

    async def scenario() -> Ended:
        starter = Starter()
        writers = starter.writers = StorageWriters(CONFIG, starter)
        ended: asyncio.Queue[Moved | Ended] = asyncio.Queue()
        writers.start(1, job(tmp_path / "run", held, PARTS), ended.put_nowait)
        [process] = starter.processes.values()
        status = Path(f"/proc/{process.pid}/status")
        ignored = 1 << (signal.SIGTERM - 1)

        def ignores() -> bool:
            [mask] = [line for line in status.read_text().splitlines() if line.startswith("SigIgn")]
            return bool(int(mask.split()[1], 16) & ignored)

        while not ignores():
            await asyncio.to_thread(os.sched_yield)
        process.send_signal(signal.SIGTERM)
        while isinstance(event := await asyncio.wait_for(ended.get(), DEADLINE), Moved):
            pass
        return event

    assert asyncio.run(scenario()) == Ended(1)
