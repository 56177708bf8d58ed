"""A program on a pseudo-terminal, as a test drives it: what it shows is read, and keys are typed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.processes import DEADLINE, Hung

_ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """One program with a terminal of its own; a context manager."""

    def __init__(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        cwd: Path,
        size: tuple[int, int] = (80, 24),
        stdout: int | None = None,
    ) -> None:
        """``size``: columns and lines. ``stdout``: a file instead of the terminal."""
        self.shown = b""
        self._ours, theirs = pty.openpty()
        self.resize(*size)
        self.before = self.attributes
        self._theirs = theirs  # kept open: what was shown last can be read after the program's end
        self.process = subprocess.Popen(
            [*map(str, command)],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            cwd=cwd,
            env={**env, "TERM": env.get("TERM", "xterm-256color")},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def text(self) -> str:
        """What was shown, without escape sequences."""
        return _ESCAPES.sub(b"", self.shown).decode(errors="replace")

    @property
    def attributes(self) -> list[object]:
        """How the terminal is set; also when its program has ended."""
        return termios.tcgetattr(self._ours)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait_for(self, words: str, after: int = 0) -> int:
        """Read until this is shown, as bytes from ``after`` on; returns how many bytes were shown."""
        deadline = time.monotonic() + DEADLINE
        while words not in _ESCAPES.sub(b"", self.shown[after:]).decode(errors="replace"):
            if not self._read(deadline - time.monotonic()):
                raise Hung(f"{words!r} is not shown: {self.text[-3000:]}")
        return len(self.shown)

    def end(self) -> int:
        """Read until the program has ended; its status."""
        deadline = time.monotonic() + DEADLINE
        pidfd = os.pidfd_open(self.process.pid)
        try:
            while True:
                ready, _, _ = select.select(
                    [self._ours, pidfd], [], [], max(0.0, deadline - time.monotonic())
                )
                if self._ours in ready and (data := self._take()):
                    self.shown += data
                elif pidfd in ready:
                    return self.process.wait()
                else:
                    raise Hung(f"it does not end: {self.text[-3000:]}")
        finally:
            os.close(pidfd)

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, seconds))
        data = self._take() if ready else b""
        self.shown += data
        return bool(data)

    def _take(self) -> bytes:
        try:
            return os.read(self._ours, 1 << 16)
        except OSError:  # the program has ended
            return b""
