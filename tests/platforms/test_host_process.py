"""The process here that stands for a host, with shells in the place of ssh."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from elasticrun.core.hosts.events import Ended
from elasticrun.core.hosts.fates import LOST
from elasticrun.platforms import host_process
from elasticrun.platforms.host_process import HostProcess, start
from elasticrun.platforms.output import Sink
from tests.support.processes import DEADLINE, nobody_left

HELLO = "printf '\\036elastic-run is up 1\\n' >&2"


class Seen:
    """A process, and what it printed."""

    def __init__(self, code: str) -> None:
        self.out, self.err = b"", b""
        self.ups = 0
        self.code = code

    async def run(self, before: asyncio.Event | None = None, kill: bool = False) -> Ended:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        made = start("a", ["sh", "-c", self.code])
        assert isinstance(made, HostProcess)
        task = asyncio.create_task(made.run(b"x\n", Sink(out_end), Sink(err_end), self._up))
        if kill:
            asyncio.get_running_loop().call_soon(made.kill)
        if before is not None:
            await asyncio.wait_for(before.wait(), DEADLINE)
        threads = [threading.Thread(target=self._read, args=pair) for pair in (("out", out), ("err", err))]
        for thread in threads:
            thread.start()
        ended = await asyncio.wait_for(task, DEADLINE)
        for end in (out_end, err_end):
            os.close(end)
        for thread in threads:
            thread.join(DEADLINE)
        return ended

    def _up(self) -> None:
        self.ups += 1

    def _read(self, name: str, fd: int) -> None:
        with os.fdopen(fd, "rb") as pipe:
            setattr(self, name, pipe.read())


def test_lines_have_the_host_in_front_and_hello_is_not_shown() -> None:
    seen = Seen(f"echo banner >&2; {HELLO}; printf 'a\\nb'; echo c >&2; exit 3")
    assert asyncio.run(seen.run()) == Ended("a", 3, "banner")
    assert (seen.ups, seen.out, seen.err) == (1, b"[a] a\n[a] b\n", b"[a] c\n")


def test_hello_is_found_behind_a_banner_without_an_end() -> None:
    """As a login prints one; else the host would never be up, and be killed."""
    seen = Seen(f"printf welcome >&2; {HELLO}; echo c >&2; exit 0")
    assert asyncio.run(seen.run()) == Ended("a", 0)
    assert (seen.ups, seen.err) == (1, b"[a] c\n")


def test_the_last_word_of_one_that_never_was_up_is_kept_and_made_harmless() -> None:
    seen = Seen("printf 'first\\nda\\033[2Jmn\\n\\n' >&2; exit 255")
    assert asyncio.run(seen.run()) == Ended("a", LOST, "da?[2Jmn")
    assert (seen.ups, seen.err) == (0, b"")


def test_one_that_is_killed_here_is_lost() -> None:
    assert asyncio.run(Seen("kill -9 $$").run()).code == LOST


def test_kill_ends_what_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "_LAST_WORDS", 0.1)
    assert asyncio.run(Seen("trap '' 15; exec tail -f /dev/null").run(kill=True)).code == LOST


def test_kill_reaches_what_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the ProxyCommand of an ssh that hangs."""
    monkeypatch.setattr(host_process, "_LAST_WORDS", 0.1)
    mark = f"ELASTICRUN_TEST_LAUNCH=proxy{os.getpid()}"
    seen = Seen(f"trap '' 15; export {mark}; tail -f /dev/null & wait; wait")
    assert asyncio.run(seen.run(kill=True)).code == LOST
    nobody_left(mark)


def test_what_it_leaves_behind_may_hold_its_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "_LAST_WORDS", 0.1)
    seen = Seen("tail --pid=$PPID -f /dev/null & echo $!; exit 5")
    assert asyncio.run(seen.run()).code == 5
    os.kill(int(seen.out.removeprefix(b"[a] ")), signal.SIGKILL)


def test_nothing_is_lost_when_output_is_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "_LAST_WORDS", 0.0)
    seen = Seen(f"{HELLO}; head -c 120000 /dev/zero | tr '\\0' x; echo; exit 0")

    async def late() -> Ended:
        waited = asyncio.Event()
        running = asyncio.create_task(seen.run(waited))
        asyncio.get_running_loop().call_later(1.0, waited.set)  # nobody reads until then
        return await running

    assert asyncio.run(late()).code == 0
    assert seen.out.count(b"x") == 120000


def test_nothing_is_lost_if_somebody_makes_our_output_non_blocking() -> None:
    """As any program may that shares the terminal; a write that would block is no end."""

    end, fd = os.pipe()
    os.set_blocking(fd, False)
    read = list[bytes]()

    def drain() -> None:
        with os.fdopen(end, "rb") as pipe:
            read.append(pipe.read())

    async def write() -> None:
        sink = Sink(fd)
        writing = asyncio.ensure_future(sink.write(b"x" * 300_000))
        await asyncio.wait([writing], timeout=0.1)  # nobody reads yet, so the pipe is full by now
        thread = threading.Thread(target=drain)
        thread.start()
        await asyncio.wait_for(writing, DEADLINE)
        os.close(fd)
        thread.join(DEADLINE)

    asyncio.run(write())
    assert len(read[0]) == 300_000


def test_output_goes_on_after_an_error_that_passes() -> None:
    """As a disk that is full for a while."""

    async def write() -> bytes:
        fd = os.open("/dev/full", os.O_WRONLY)
        sink = Sink(fd)
        await asyncio.wait_for(sink.write(b"lost"), DEADLINE)
        end, pipe = os.pipe()
        os.set_blocking(end, False)
        os.dup2(pipe, fd)
        await asyncio.wait_for(sink.write(b"next"), DEADLINE)
        read = os.read(end, 9)
        for each in (fd, end, pipe):
            os.close(each)
        return read

    assert asyncio.run(write()) == b"next"


def test_a_program_that_is_not_there_is_an_end() -> None:
    assert start("a", ["/nowhere/ssh"]) == Ended(
        "a", 127, "/nowhere/ssh cannot be executed: No such file or directory"
    )


def test_a_long_line_is_cut_into_several() -> None:
    seen = Seen("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")
    asyncio.run(seen.run())
    assert seen.out.count(b"x") == 300000 and seen.out.endswith(b"[a] end\n")
    assert len(seen.out.splitlines()) > 3
