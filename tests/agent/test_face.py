"""The launcher's status line: its words, and that output erases it in the same write."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import struct
import termios
import tty
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticrun.agent import face as module
from elasticrun.agent.face import Face, Words
from elasticrun.agent.logs.console import Console
from elasticrun.agent.logs.dirs import LogDirs
from elasticrun.agent.logs.router import LogRouter
from elasticrun.config import LogConfig, Std, StdByRank
from elasticrun.core.agent.search import Search
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase, NodeInfo

INFO = NodeInfo("a", "a.1", "a", "a.net", 2, min_nodes=2)


def state(phase: AgentPhase, **changes: object) -> AgentState:
    made = AgentState(INFO, Search(60.0, 1))
    made.phase = phase
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def words(made: AgentState, step: int = -1, waiting: str = "", now: float = 14.0) -> str:
    found = Words(0.0)
    found.changed(made.phase, 0, 4.0)
    found.waiting = waiting
    return found.text(made, step, now)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (state(AgentPhase.CHECKING), "elastic-run: checking compute and network, 10 s"),
        (state(AgentPhase.READY, imports=True), "elastic-run: importing what workers need, 10 s: 1 of 2"),
        (state(AgentPhase.READY), "elastic-run: waiting until 2 nodes can start, 10 s: 1 of 2"),
        (state(AgentPhase.STOPPING), "elastic-run: stopping, 10 s: 1 of 2"),
    ],
)
def test_each_phase_has_words(made: AgentState, wanted: str) -> None:
    assert words(made, waiting="1 of 2").startswith(wanted)


def test_it_prepares_first() -> None:
    assert Words(0.0).text(state(AgentPhase.PREPARING), -1, 2.0) == "elastic-run: preparing, 2.0 s"


class Pty:
    """A terminal and what was shown on it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        tty.setraw(self.theirs)
        os.set_blocking(self.ours, False)

    def expect(self, wanted: bytes) -> None:
        """Just this is shown next; the kernel passes it on when it likes."""
        found = b""
        while len(found) < len(wanted):
            ready, _, _ = select.select([self.ours], [], [], 60)
            assert ready, found
            found += self.shown()
        assert found == wanted

    def shown(self) -> bytes:
        try:
            return os.read(self.ours, 1 << 16)
        except BlockingIOError:
            return b""


def on_terminal(test: Callable[[Console, Pty], None]) -> None:
    async def run() -> None:
        made = Pty()
        console = Console(made.theirs, "stderr", pytest.fail)
        test(console, made)
        console.close()

    asyncio.run(run())


def test_output_erases_the_line_and_it_is_drawn_below() -> None:
    def test(console: Console, terminal: Pty) -> None:
        erased: list[bool] = []
        console.on_erased = lambda: erased.append(True)
        console.draw(b"status", 6, 80)
        terminal.expect(b"status")
        console.draw(b"other", 5, 80)
        terminal.expect(b"\r\x1b[Jother")
        console.write(b"out\n")
        terminal.expect(b"\r\x1b[Jout\n")
        assert erased == [True]
        console.write(b"more\n")
        terminal.expect(b"more\n")
        assert erased == [True]

    on_terminal(test)


def test_behind_an_unfinished_line_there_is_none() -> None:
    def test(console: Console, terminal: Pty) -> None:
        console.write(b"50 %")
        console.draw(b"status", 6, 80)
        terminal.expect(b"50 %")
        console.write(b"\n")
        console.draw(b"status", 6, 80)
        console.erase()
        console.erase()
        terminal.expect(b"\nstatus\r\x1b[J")

    on_terminal(test)


def test_a_line_that_a_narrower_window_broke_is_erased_whole() -> None:
    def test(console: Console, terminal: Pty) -> None:
        console.draw(b"x" * 70, 70, 80)
        fcntl.ioctl(terminal.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        terminal.shown()
        console.write(b"out\n")
        terminal.expect(b"\r\x1b[2A\x1b[Jout\n")

    on_terminal(test)


@pytest.mark.parametrize("tee", [True, False])
def test_a_worker_that_has_the_terminal_itself_takes_it(tmp_path: Path, tee: bool) -> None:
    async def run() -> None:
        terminal = Pty()
        logs = LogConfig(log_dir=str(tmp_path), tee=StdByRank(Std.OUT | Std.ERR) if tee else StdByRank())
        router = LogRouter(logs, "default", terminal.theirs, terminal.theirs, pytest.fail)
        assert not router.is_terminal_taken
        dirs = LogDirs(str(tmp_path), "job")
        round_ = router.open_round(dirs.open_round(0, 1), 0)
        assert router.is_terminal_taken is not tee
        round_.close()
        assert not router.is_terminal_taken
        await router.close()

    asyncio.run(run())


def test_the_line_comes_goes_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.0)
    monkeypatch.setattr(module, "EACH", 0.01)
    monkeypatch.setattr(module, "SOON", 0.01)

    async def run() -> None:
        terminal = Pty()
        router = LogRouter(LogConfig(), "default", terminal.theirs, terminal.theirs, pytest.fail)
        made = state(AgentPhase.READY)
        face = Face(router, made, lambda: -1, colour=False)
        seen, came = b"", asyncio.Event()
        asyncio.get_running_loop().add_reader(terminal.ours, came.set)
        face.changed("1 of 2: b is missing\x1b[2J")
        while b"b is missing?[2J" not in seen:
            came.clear()
            await asyncio.wait_for(came.wait(), 60)
            seen += terminal.shown()
        face.resized()
        face.close()
        while not seen.endswith(b"\r\x1b[J"):
            came.clear()
            await asyncio.wait_for(came.wait(), 60)
            seen += terminal.shown()
        await router.close()

    asyncio.run(run())


def test_a_fault_of_the_line_ends_the_line_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        terminal = Pty()
        router = LogRouter(LogConfig(), "default", terminal.theirs, terminal.theirs, pytest.fail)
        face = Face(router, state(AgentPhase.READY), lambda: 1 // 0)
        face._draw_or_end()
        terminal.expect(b"")
        await router.close()

    asyncio.run(run())
    assert "there is no status line from now on" in caplog.text
