"""The notice file, with real files: it may come in many ways, and each is an event."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from elasticrun.agent.monitors import notice as module
from elasticrun.agent.monitors.notice import PreemptionNotice, Way, find_way

DEADLINE = 30.0
ROOT = Path(__file__).parent.parent.parent


class Watch:
    """A PreemptionNotice and what it said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.notice = PreemptionNotice(str(path), self.said.put_nowait)

    async def reason(self) -> str:
        return await asyncio.wait_for(self.said.get(), DEADLINE)

    async def turn(self) -> None:
        """Let the loop handle all events that the kernel has for us by now."""
        loop = asyncio.get_running_loop()
        for _ in range(3):
            turned = asyncio.Event()
            loop.call_soon(turned.set)
            await turned.wait()


def watch(path: Path, scenario: Callable[[Watch], Awaitable[None]]) -> None:
    async def main() -> None:
        watching = Watch(path)
        try:
            await scenario(watching)
        finally:
            watching.notice.close()

    before = open_files()
    asyncio.run(main())
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def expect(path: Path, *steps: Callable[[], object], said: str = "") -> None:
    """After ``steps``, between which the loop turns, the notice is seen; before the last one it is not."""

    async def scenario(watching: Watch) -> None:
        for step in steps:
            await watching.turn()
            assert watching.said.empty()
            step()
        assert await watching.reason() == f"preemption notice {path}{said}"
        await watching.turn()
        assert watching.said.empty()

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


def linked(path: Path) -> None:
    path.with_name("draft").write_text("maintenance at noon\n")
    path.hardlink_to(path.with_name("draft"))


def pointed_to(path: Path) -> None:
    path.with_name("draft").write_text("maintenance at noon\n")
    path.symlink_to("draft")


@pytest.mark.parametrize("make", [written, moved_in, linked, pointed_to])
def test_a_notice_comes(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "notice"
    expect(path, lambda: make(path), said=": maintenance at noon")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo, lambda path: path.write_text("\n \n")])
def test_a_notice_without_a_word(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "notice"
    expect(path, lambda: make(path))


def test_a_notice_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WRITING_TIME", 1000.0)
    path = tmp_path / "notice"

    async def scenario(watching: Watch) -> None:
        with path.open("w") as file:
            await watching.turn()
            file.write("soon\n")
        assert await watching.reason() == f"preemption notice {path}: soon"

    watch(path, scenario)


@pytest.mark.parametrize(("text", "word"), [("", ""), ("soon\n", ": soon")])
def test_a_notice_that_is_there_counts(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text(text)

    async def scenario(watching: Watch) -> None:
        assert watching.said.empty(), "the constructor calls nobody"
        reason = await watching.reason()
        assert reason.startswith(f"preemption notice {path}{word} (it was there at the start; remove")

    watch(path, scenario)


def test_a_reason_is_short_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    text = b"\x1b[31m\xff\tred " + b"x" * 100_000
    expect(path, lambda: path.write_bytes(text), said=": [31m� red " + "x" * (200 - len(" [31m� red ")))


# -- directories come and go


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c/notice"
    expect(path, (tmp_path / "a").mkdir, (tmp_path / "a/b").mkdir, path.parent.mkdir, path.touch)


def test_directories_and_notice_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c/notice"

    def make() -> None:
        path.parent.mkdir(parents=True)
        path.touch()

    expect(path, make)


def test_a_directory_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a/b/notice"
    path.parent.mkdir(parents=True)
    expect(path, lambda: shutil.rmtree(tmp_path / "a"), lambda: path.parent.mkdir(parents=True), path.touch)


def test_a_directory_that_vanishes_while_somebody_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "a/notice"
    path.parent.mkdir()
    held = os.open(path.parent, os.O_RDONLY)
    try:
        expect(path, path.parent.rmdir, path.parent.mkdir, path.touch)
    finally:
        os.close(held)


def test_a_directory_far_above_that_is_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c/notice"
    path.parent.mkdir(parents=True)
    away = tmp_path / "away"
    expect(
        path,
        lambda: (tmp_path / "a").rename(away),
        (away / "b/c/notice").touch,
        lambda: path.parent.mkdir(parents=True),
        path.touch,
    )


def test_a_file_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "a/notice"
    (tmp_path / "a").touch()
    expect(path, (tmp_path / "a").unlink, (tmp_path / "a").mkdir, path.touch)


# -- links


def test_a_volume_of_kubernetes(tmp_path: Path) -> None:
    for version in ("..1", "..2"):
        (tmp_path / version / "sub").mkdir(parents=True)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "sub").symlink_to("..data/sub")
    (tmp_path / "..2/sub/notice").write_text("node goes\n")
    expect(tmp_path / "sub/notice", lambda: swap(tmp_path / "..data", "..2"), said=": node goes")


def test_a_link_to_what_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.symlink_to("far/../away/notice")
    (tmp_path / "away").mkdir()
    expect(path, (tmp_path / "far").mkdir, (tmp_path / "away/notice").touch)


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario(watching: Watch) -> None:
        watching.path.touch()
        assert await watching.reason() == f"preemption notice {tmp_path / 'notice'}"

    watch(Path("notice"), scenario)


def test_the_way(tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path))
    (root / "real").mkdir()
    (root / "link").symlink_to("real/../real")
    names = find_way(f"{root}/link/missing/notice").names
    assert names[str(root)] == {b"link", b"real"}
    assert names[f"{root}/real"] == {b"missing"}
    assert find_way(f"{root}/link/missing/notice").end == f"{root}/real"


def test_a_link_to_itself_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert find_way(f"{tmp_path}/loop/notice").end == os.path.realpath(tmp_path)


# -- mounts

MOUNTS = """
import asyncio, subprocess, sys
from pathlib import Path
from elasticrun.agent.monitors.notice import PreemptionNotice

async def main(folder):
    came = asyncio.Event()
    notice = PreemptionNotice(str(folder / "notice"), lambda reason: came.set())
    for command in sys.argv[2:]:
        run = await asyncio.create_subprocess_shell(command, cwd=folder.parent)
        if await run.wait() != 0:
            sys.exit(77)
    (folder / "notice").touch()
    await asyncio.wait_for(came.wait(), 30)
    notice.close()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.root
@pytest.mark.parametrize(
    "commands",
    [
        ["mount -t tmpfs none volume"],
        ["mount -t tmpfs none volume", "umount volume", "mount -t tmpfs none volume"],
        ["mount -t tmpfs none volume", "umount volume"],
    ],
)
def test_a_file_system_that_is_mounted_over_the_directory(commands: list[str], tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    argv = ["unshare", "-m", sys.executable, "-c", MOUNTS, str(tmp_path / "volume"), *commands]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
    if ended.returncode == 77 or "unshare" in ended.stderr:
        pytest.skip(f"nothing may be mounted here: {ended.stderr.strip()}")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_a_descriptor_left_for_the_mounts_the_file_still_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notice"

    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        before = open_files()
        with monkeypatch.context() as patch:
            patch.setattr(select, "epoll", refuse)
            watching = Watch(path)
        path.touch()
        await watching.reason()
        watching.notice.close()
        assert open_files() == before

    asyncio.run(main())


# -- when it ends, and what it costs


def test_after_close_nobody_is_called(tmp_path: Path) -> None:
    path = tmp_path / "notice"

    async def late(watching: Watch) -> None:
        watching.notice.close()
        path.touch()
        await watching.turn()
        assert watching.said.empty()

    async def just_before(watching: Watch) -> None:
        watching.notice.close()
        await watching.turn()
        assert watching.said.empty()

    watch(path, late)
    watch(path, just_before)  # the file is there, and the call under way


def test_a_busy_directory_costs_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def count(path: str) -> Way:
        nonlocal looks
        looks += 1
        return find_way(path)

    async def scenario(watching: Watch) -> None:
        await watching.turn()
        monkeypatch.setattr(module, "find_way", count)
        for number in range(100):
            (tmp_path / str(number)).touch()
            await watching.turn()
        assert looks == 0
        watching.path.touch()
        await watching.reason()
        assert looks > 0

    watch(tmp_path / "notice", scenario)


@pytest.mark.parametrize("part", ["__init__", "_watch_all"])
def test_where_the_kernel_refuses_there_is_a_warning(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module._Inotify, part, refuse)
    path = tmp_path / "notice"

    async def scenario(watching: Watch) -> None:
        path.touch()
        await watching.turn()
        assert watching.said.empty()

    watch(path, scenario)
    assert caplog.messages == [
        f"cannot watch for the preemption notice {path}: No space left on device (the limit is "
        "fs.inotify.max_user_watches); a file that comes later will not be seen"
    ]


def test_a_notice_that_is_there_needs_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_Inotify", None)
    path = tmp_path / "notice"
    path.touch()

    async def scenario(watching: Watch) -> None:
        await watching.reason()

    watch(path, scenario)


def test_the_module_is_light() -> None:
    module = "elasticrun.agent.monitors.notice"
    program = f"import sys, {module}; sys.exit(not {{'asyncio', 'ctypes'}}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE, cwd=ROOT)
