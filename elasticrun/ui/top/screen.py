"""A terminal as a screen: keys come in, lines go out, and in the end it is as it was before.

Theory. The terminal is changed in one place, ``__enter__``, and changed back in one place, ``__exit__``,
which runs on every way out: a key, a signal (SIGINT, SIGTERM and SIGHUP end the loop instead of the process),
an exception. Ctrl-Z changes it back before the process stops, and anew when it goes on. Nothing is read or
written by a thread.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from elasticrun.errors import UsageError

_ESCAPE = "\x1b"
#: Seconds after which an escape character that nothing follows is the key of that name.
_ESCAPE_DELAY = 0.05
_SEQUENCES = {
    **{
        f"\x1b{lead}{letter}": name
        for lead in "[O"
        for letter, name in zip("ABCDHF", ("up", "down", "right", "left", "home", "end"), strict=True)
    },
    "\x1b[1~": "home",
    "\x1b[7~": "home",
    "\x1b[4~": "end",
    "\x1b[8~": "end",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def keys_of(text: str) -> tuple[list[str], str]:
    """The keys in what was read, by name, and the beginning of one that is not whole."""
    found: list[str] = []
    while text:
        if not text.startswith(_ESCAPE):
            found.append(text[0])
            text = text[1:]
            continue
        known = next((it for it in _SEQUENCES if text.startswith(it)), None)
        if known is not None:
            found.append(_SEQUENCES[known])
            text = text[len(known) :]
        elif len(text) == 1 or (text[1] in "[O" and _end_of_sequence(text) is None):
            return found, text
        else:  # a key that nobody needs, or escape and another key
            text = text[_end_of_sequence(text) or 1 :] if text[1] in "[O" else text[1:]
    return found, ""


def _end_of_sequence(text: str) -> int | None:
    """Where the escape sequence at the beginning ends; None: it is not whole."""
    ends = (at for at, letter in enumerate(text[2:], 3) if "@" <= letter <= "~" or letter == _ESCAPE)
    return next(ends, None)


class Screen:
    """The terminal of this process. Made inside the running loop; a context manager."""

    def __init__(self, on_key: Callable[[str], None], on_change: Callable[[], None]) -> None:
        """``on_change``: the window has another size, or shows other things. UsageError: no terminal."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(
                "stdin and stdout are no terminal, which this needs: use --once for one picture of the job"
            )
        self._console = Console()
        self._live: Live | None = None
        self._on_key = on_key
        self._on_change = on_change
        self._fd = sys.stdin.fileno()
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._left = ""
        self._timer: asyncio.TimerHandle | None = None
        self._before: list[object] = []
        self.ended: asyncio.Future[int] = self._loop.create_future()  # by a signal, whose number it is

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self._console.size

    @property
    def is_plain(self) -> bool:
        """Whether there are no colours, or no characters beyond ASCII."""
        return self._console.no_color or not self._console.encoding.startswith("utf")

    def show(self, lines: Sequence[Text]) -> None:
        """Show these lines, and nothing else."""
        if self._live is not None:
            self._live.update(Group(*lines), refresh=True)

    # -- the terminal

    def __enter__(self) -> Screen:
        for signum in _ENDS:
            self._loop.add_signal_handler(signum, self._end, signum)
        self._loop.add_signal_handler(signal.SIGWINCH, self._on_change)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        try:
            self._open()
        except BaseException:
            self._forget_signals()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._forget_signals()

    def _open(self) -> None:
        self._before = termios.tcgetattr(self._fd)
        live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        try:
            tty.setcbreak(self._fd)
            live.start()
        except BaseException:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
            raise
        self._live = live
        self._loop.add_reader(self._fd, self._read)

    def _close(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        live, self._live = self._live, None
        try:
            if live is not None:
                live.update("")
                live.stop()
        except OSError:
            pass  # the terminal has gone
        finally:
            with contextlib.suppress(termios.error):  # the same
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _forget_signals(self) -> None:
        for signum in (*_ENDS, signal.SIGWINCH, signal.SIGTSTP):
            self._loop.remove_signal_handler(signum)

    def _end(self, signum: int) -> None:
        if not self.ended.done():
            self.ended.set_result(signum)

    def _stop(self) -> None:
        """Ctrl-Z: give the terminal back, and take it again once the shell lets us go on."""
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()
        self._on_change()

    # -- keys

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except OSError:
            data = b""
        if not data:  # the terminal has gone
            self._loop.remove_reader(self._fd)
            self._end(signal.SIGHUP)
            return
        if self._timer is not None:
            self._timer.cancel()
        found, self._left = keys_of(self._left + self._decoder.decode(data))
        for key in found:
            self._on_key(key)
        if self._left:
            self._timer = self._loop.call_later(_ESCAPE_DELAY, self._escape)

    def _escape(self) -> None:
        """Nothing follows."""
        is_key, self._left = self._left == _ESCAPE, ""
        if is_key:
            self._on_key("escape")
