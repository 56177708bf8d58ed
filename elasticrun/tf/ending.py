"""How a chief ends that an error ends, or that has saved: at once, before tensorflow is taken down.

Theory. As the interpreter ends, it destroys tensorflow's runtime, which still talks to the servers. That
takes from a third of a second to four, and the whole job waits: the next chief starts once this one is gone.
Nobody needs it. A chief that is killed leaves just as much behind, and the next one goes on from there.

So once nobody has caught the error, or ``SavedExit``, the rest of an orderly end follows (``exits.py``). Then
the process ends, with the status that the interpreter would have given it.

Invariant. Only an end is made shorter. The interpreter calls the hook, or asks ``SavedExit`` for its code, in
the main thread with no frame below only where the exception has left the whole program, or what was typed at
a prompt; and where there is a prompt, nothing changes. Nor does it if a program that goes on calls or asks.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from elasticrun.exits import leave

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_FAILED = 1  # the interpreter's status for an error that nobody has caught


def end_at_once_on_errors() -> None:
    """From now on, end this process without a teardown if an error ends it."""
    show = sys.excepthook

    def show_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        if isinstance(error, Exception) and _is_the_end(sys._getframe()):  # others have their own status
            leave(_FAILED)

    sys.excepthook = show_and_end


class SavedExit(SystemExit):
    """Ends a program whose state is saved, with this status; in the same way, if nobody catches it."""

    @property
    def code(self) -> int | str | None:
        """The status; others are what a program has assigned, as it may to any SystemExit."""
        code = super().code
        if isinstance(code, int) and _is_the_end(sys._getframe()):
            leave(code)
        return code

    @code.setter
    def code(self, code: int | str | None) -> None:
        super().__init__(code)  # which is what sets the one that is read above


def _is_the_end(frame: FrameType) -> bool:
    """Whether the interpreter has called the function of this frame as the program is over."""
    is_main = threading.get_ident() == threading.main_thread().ident
    return frame.f_back is None and is_main and not _has_prompt()


def _has_prompt() -> bool:
    """Whether somebody may type what to do next, now or once the program has ended (``python -i``)."""
    return hasattr(sys, "ps1") or bool(sys.flags.inspect or os.environ.get("PYTHONINSPECT"))
