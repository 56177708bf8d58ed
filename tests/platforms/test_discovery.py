"""What is an answer to the question which hosts there are, and what is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from elasticrun.core.hosts.names import Host
from elasticrun.errors import UsageError
from elasticrun.platforms import discovery
from elasticrun.platforms.discovery import Source
from tests.support.processes import DEADLINE, marked, nobody_left


def ask(source: Source) -> tuple[Host, ...]:
    return asyncio.run(source.ask())


def script(folder: Path, text: str, timeout: float = DEADLINE) -> Source:
    path = folder / "discover"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Source(script=str(path), timeout=timeout)


def refusal(source: Source) -> str:
    with pytest.raises(UsageError) as caught:
        ask(source)
    return str(caught.value)


def test_an_option_names_hosts() -> None:
    assert ask(Source(option="a:2, b")) == (Host("a", "2"), Host("b"))
    assert "-H, host 2: 'b:x' is not valid" in refusal(Source(option="a,b:x"))
    assert "names no host" in refusal(Source(option=","))


def test_a_file_names_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two\na:2\nb slots=3\n")
    assert ask(Source(file=str(path))) == (Host("a", "2"), Host("b", "3"))


def test_a_file_from_another_system_names_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfa:2\r\n\r\nb slots=3\r\n")
    assert ask(Source(file=str(path))) == (Host("a", "2"), Host("b", "3"))


def test_files_that_are_no_lists_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(Source(file=str(tmp_path / "none")))
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refusal(Source(file=str(tmp_path / "pipe")))
    path = tmp_path / "hosts"
    for data, said in ((b"\xff", "no text in UTF-8"), (b"#" * (1 << 21), "more than 1048576 bytes")):
        path.write_bytes(data)
        assert said in refusal(Source(file=str(path)))
    path.write_text("a\nb c\n")
    assert f"{path}, line 2: 'b c' is not valid" in refusal(Source(file=str(path)))


def test_a_script_names_hosts(tmp_path: Path) -> None:
    assert ask(script(tmp_path, "echo chatter >&2; echo a:2; echo b")) == (Host("a", "2"), Host("b"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo a; echo oops >&2; exit 3", "ended with 3: oops"),
        ("exit 4", "ended with 4"),
        ("true", "names no host"),
        ("echo 'a b'", "line 1: 'a b' is not valid"),
        ("kill -9 $$", "ended with -9"),
        ("head -c 2000000 /dev/zero", "more than 1048576 bytes"),
    ],
)
def test_scripts_that_give_no_answer(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(script(tmp_path, text))


def test_a_script_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    assert "cannot be started: No such file" in refusal(Source(script=str(tmp_path / "none"), timeout=1.0))
    path = tmp_path / "plain"
    path.write_text("#!/bin/sh\n")
    assert "chmod +x it" in refusal(Source(script=str(path), timeout=1.0))
    path.write_text("echo a\n")
    path.chmod(0o755)
    assert "begin it with a line such as #!/bin/sh" in refusal(Source(script=str(path)))
    assert "put arguments into a script" in refusal(Source(script="python3 discover.py"))
    assert "give its path, such as ./discover-none" in refusal(Source(script="discover-none"))


def test_a_script_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = f"ELASTICRUN_TEST_LAUNCH=discovery{os.getpid()}"
    source = script(tmp_path, f"export {mark}\ntail -f /dev/null & tail -f /dev/null", timeout=0.5)
    assert "did not end within 0.5 s" in refusal(source)
    nobody_left(mark)
    assert not marked(mark)


@pytest.mark.parametrize("held", ["", "2>&1 >/dev/null", ">/dev/null"])
def test_a_script_that_has_ended_has_answered(tmp_path: Path, held: str) -> None:
    """Even if what it left behind holds its output, as the background ssh of ControlPersist does."""
    code = f"echo a; setsid tail --pid={os.getpid()} -f /dev/null {held} & echo $! >{tmp_path}/pid; echo b"
    try:
        assert ask(script(tmp_path, code)) == (Host("a"), Host("b"))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_file_that_hangs_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a server that is away. Only one thread waits for it, and its late answer counts."""
    goes_on, reads = threading.Event(), list[str]()

    def read(path: str) -> bytes:
        reads.append(path)
        assert goes_on.wait(DEADLINE)
        return b"a\n"

    monkeypatch.setattr(discovery, "_read", read)

    async def ask_thrice() -> tuple[Host, ...]:
        source = Source(file="hosts", timeout=0.05)
        for _ in range(2):
            with pytest.raises(UsageError, match=r"hosts cannot be read within 0\.05 s"):
                await source.ask()
        goes_on.set()
        while True:
            with contextlib.suppress(UsageError):
                return await source.ask()

    assert asyncio.run(asyncio.wait_for(ask_thrice(), DEADLINE)) == (Host("a"),)
    assert reads == ["hosts"]
