"""The notice file, with real files: it may come in many ways."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from elasticrun.agent.monitors.notice import PreemptionNotice
from tests.support.processes import DEADLINE

LOOKS = 0.01  # seconds between two
ROOT = Path(__file__).parent.parent.parent


class Watch:
    """A PreemptionNotice and what it said."""

    def __init__(self, path: Path, interval: float = LOOKS) -> None:
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.notice = PreemptionNotice(str(path), self.said.put_nowait, interval)

    async def reason(self) -> str:
        return await asyncio.wait_for(self.said.get(), DEADLINE)


def watch(path: Path, scenario: Callable[[Watch], Awaitable[None]], interval: float = LOOKS) -> None:
    async def main() -> None:
        watching = Watch(path, interval)
        try:
            await scenario(watching)
        finally:
            watching.notice.close()

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "notice":
            thread.join(DEADLINE)
            assert not thread.is_alive()


def looks(monkeypatch: pytest.MonkeyPatch, path: Path) -> threading.Semaphore:
    """Released with each look that finds no file."""
    missed, exists = threading.Semaphore(0), os.path.exists

    def look(asked: str) -> bool:
        found = exists(asked)
        if asked == str(path) and not found:
            missed.release()
        return found

    monkeypatch.setattr(os.path, "exists", look)
    return missed


def expect(monkeypatch: pytest.MonkeyPatch, path: Path, *steps: Callable[[], object], said: str = "") -> None:
    """After ``steps`` the notice is seen; after each step but the last it is looked for in vain."""
    missed = looks(monkeypatch, path)

    async def scenario(watching: Watch) -> None:
        for step in steps:
            for _ in range(2):  # the second look began after the step before
                assert await asyncio.to_thread(missed.acquire, timeout=DEADLINE)
            assert watching.said.empty()
            while missed.acquire(blocking=False):
                pass
            step()
        assert await watching.reason() == f"preemption notice {path}{said}"

    watch(path, scenario)


def swap(link: Path, target: str) -> None:
    """As Kubernetes does: a new link is moved over the old one."""
    link.with_suffix(".tmp").symlink_to(target)
    link.with_suffix(".tmp").rename(link)


def written(path: Path) -> None:
    path.write_text("maintenance at noon\nmore\n")


def moved_in(path: Path) -> None:
    path.with_name("draft").write_text("maintenance at noon")
    path.with_name("draft").rename(path)


def pointed_to(path: Path) -> None:
    path.with_name("draft").write_text("maintenance at noon\n")
    path.symlink_to("draft")


@pytest.mark.parametrize("make", [written, moved_in, pointed_to])
def test_a_notice_comes(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notice"
    expect(monkeypatch, path, lambda: make(path), said=": maintenance at noon")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo, lambda path: path.write_text("\n \n")])
def test_a_notice_without_a_word(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notice"
    expect(monkeypatch, path, lambda: make(path))


def test_whoever_makes_the_file_has_time_to_write_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notice"
    wait = threading.Event.wait

    def write_meanwhile(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout == LOOKS and path.exists():
            path.write_text("soon\n")
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", write_meanwhile)
    expect(monkeypatch, path, path.touch, said=": soon")


@pytest.mark.parametrize(("text", "word"), [("", ""), ("soon\n", ": soon")])
def test_a_notice_that_is_there_counts(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text(text)

    async def scenario(watching: Watch) -> None:
        assert watching.said.empty(), "the constructor calls nobody"
        reason = await watching.reason()
        assert reason.startswith(
            f"preemption notice {path}{word} (the file existed before the agent started; remove"
        )

    watch(path, scenario, interval=1000.0)


def test_a_reason_is_short_and_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notice"
    text = b"\x1b[31m\xff\tred " + b"x" * 100_000
    said = ": [31m\ufffd red " + "x" * (200 - len(" [31m\ufffd red "))
    expect(monkeypatch, path, lambda: path.write_bytes(text), said=said)


def test_directories_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a/b/notice"
    expect(
        monkeypatch,
        path,
        (tmp_path / "a").touch,
        (tmp_path / "a").unlink,
        lambda: path.parent.mkdir(parents=True),
        lambda: (tmp_path / "a").rename(tmp_path / "away"),
        (tmp_path / "away/b/notice").touch,
        lambda: path.parent.mkdir(parents=True),
        lambda: shutil.rmtree(tmp_path / "a"),
        lambda: path.parent.mkdir(parents=True),
        path.touch,
    )


def test_a_volume_of_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("..1", "..2"):
        (tmp_path / version / "sub").mkdir(parents=True)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "sub").symlink_to("..data/sub")
    (tmp_path / "..2/sub/notice").write_text("node goes\n")
    path = tmp_path / "sub/notice"
    expect(monkeypatch, path, lambda: swap(tmp_path / "..data", "..2"), said=": node goes")


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario(watching: Watch) -> None:
        (tmp_path / "notice").touch()
        assert (await watching.reason()).startswith(f"preemption notice {tmp_path / 'notice'}")

    watch(Path("notice"), scenario)


def test_after_close_nobody_is_called(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.touch()

    async def scenario(watching: Watch) -> None:
        watching.notice.close()
        for thread in threading.enumerate():
            if thread.name == "notice":
                await asyncio.to_thread(thread.join, DEADLINE)
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()
        assert watching.said.empty()

    async def main() -> None:
        await scenario(Watch(path))

    asyncio.run(main())


def test_a_loop_that_has_ended_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notice"

    async def main() -> None:
        Watch(path)

    asyncio.run(main())
    path.touch()
    for thread in threading.enumerate():
        if thread.name == "notice":
            thread.join(DEADLINE)
    assert capfd.readouterr() == ("", "")


def test_the_module_is_light() -> None:
    module = "elasticrun.agent.monitors.notice"
    program = f"import sys, {module}; sys.exit(not {{'asyncio', 'threading'}}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE, cwd=ROOT)
