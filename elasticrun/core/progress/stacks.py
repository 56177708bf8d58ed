"""Where a process is, by its stack as text: the main thread's frames, and what they wait for.

py-spy and faulthandler write the same facts in two forms; both become a ``Stack`` here. Names alone tell what
a frame waits for. There are two questions, and a wrong answer costs differently. *Which rank lags* needs a
guess: a rank that seems to wait for others is hardly the one that holds them up (``is_in_collective``). *Can
this rank go on by itself* may stop a job, so the answer has to be right (``awaits_peers``): it counts only
frames of torch itself whose one purpose is to wait for other ranks or for the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        """Equal for the same place, whichever tool wrote the frame."""
        return self.function.rpartition(".")[2], self.file.rpartition("/")[2], self.line

    def __str__(self) -> str:
        file = self.file.rpartition("site-packages/")[2]
        return f"{self.function} ({'/'.join(file.split('/')[-3:])}:{self.line})"


Stack = tuple[Frame, ...]  # innermost frame first

_FAULTHANDLER_THREAD = re.compile(r"(Current thread|Thread) 0x")
_FAULTHANDLER_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_PY_SPY_THREAD = re.compile(r'Thread \S+ \([^)]*\)(: "MainThread")?')
_PY_SPY_FRAME = re.compile(r"    (.+) \((.*):(\d+)\)")


def main_stack(text: str) -> Stack:
    """The main thread's stack in what py-spy or faulthandler wrote of a process; () if there is none.

    py-spy names the main thread. faulthandler lists the newest thread first, so the main thread is the last,
    unless the list was cut; the kernel gives a signal to the main thread first, so it is the current one too.
    """
    threads: list[tuple[bool, list[Frame]]] = []  # (whether it may be the main thread, frames)
    cut = False
    for line in text.splitlines():
        if match := _FAULTHANDLER_THREAD.match(line):
            threads.append((match[1] == "Current thread", []))
        elif match := _PY_SPY_THREAD.match(line):
            threads.append((match[1] is not None, []))
        elif threads and (match := _FAULTHANDLER_FRAME.match(line)):
            threads[-1][1].append(Frame(match[3], match[1], int(match[2])))
        elif threads and (match := _PY_SPY_FRAME.match(line)):
            threads[-1][1].append(Frame(match[1], match[2], int(match[3])))
        cut = cut or line == "..."
    if not threads:
        return ()
    candidates = [frames for is_main, frames in threads if is_main]
    is_py_spy = not _FAULTHANDLER_THREAD.search(text)
    if candidates and (is_py_spy or cut):
        return tuple(candidates[0])
    return tuple(threads[0 if is_py_spy else -1][1])


def have_moved(before: Mapping[int, Stack], after: Mapping[int, Stack]) -> bool:
    """Whether a main thread that was seen twice has moved. A missing stack does not count."""
    return any(
        _place(stack) != _place(after[local_rank])
        for local_rank, stack in before.items()
        if stack and after.get(local_rank)
    )


#: Functions that wait for other ranks, or for a device that may be waiting for them.
_COLLECTIVE = re.compile(
    r"_?(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|(distributed_)?broadcast|(monitored_)?barrier"
    r"|(batch_)?i?send|(batch_)?i?recv|wait_tensor)(_.*)?|_?(synchronize|_engine_run_backward)"
)
_COMMUNICATION = re.compile(r"(^|/)torch/distributed/(?!checkpoint/|elastic/|launch|run\.py|optim/)")
#: Files of wrappers: their frames do not show what is waited for.
_PLUMBING = re.compile(r"(^|/)(torch/_ops|torch/_library/.*|torch/utils/_contextlib|contextlib)\.py$")


def is_in_collective(stack: Stack) -> bool:
    """Whether the innermost frame outside wrappers waits for other ranks.

    Only a guess by names: ``work.wait()`` in the script leaves no frame of its own.
    """
    for frame in stack:
        if _is_collective(frame):
            return True
        if not _PLUMBING.search(frame.file):
            return False
    return False


def _is_collective(frame: Frame) -> bool:
    return bool(_COLLECTIVE.fullmatch(_name(frame)) or _COMMUNICATION.search(frame.file))


def _name(frame: Frame) -> str:
    return frame.function.rpartition(".")[2]


#: Files of torch whose functions wait for other ranks, or for the store, and do nothing else for long.
_PEERS = re.compile(
    r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives|rendezvous|c10d_logger)\.py$"
    r"|(^|/)torch/distributed/elastic/utils/store\.py$"
)
_TORCH = re.compile(r"(^|/)torch/")
_DEBUGGER = re.compile(
    r"(^|/)((pdb|bdb)\.py$|(ipdb|pudb|IPython|prompt_toolkit|debugpy|_?pydevd\w*)(/|\.py$))"
)
#: Functions of the standard library that read a line at a prompt.
_PROMPTS = frozenset({("cmd.py", "cmdloop"), ("code.py", "raw_input"), ("code.py", "interact")})


def awaits_peers(stack: Stack) -> bool:
    """Whether this thread seems to wait for another rank or for the store.

    A function of the same name outside torch may do anything, so it does not count.
    """
    for frame in stack:
        if _PEERS.search(frame.file) or (_TORCH.search(frame.file) and _COLLECTIVE.fullmatch(_name(frame))):
            return True
        if not _PLUMBING.search(frame.file):
            return False
    return False


def is_at_prompt(stack: Stack) -> bool:
    """Whether a debugger or another prompt is on the stack."""
    return any(
        _DEBUGGER.search(frame.file) or (frame.file.rpartition("/")[2], _name(frame)) in _PROMPTS
        for frame in stack
    )


def _place(stack: Stack) -> list[tuple[str, str, int]]:
    """The places that stay equal while a thread does not move.

    A thread that polls within a collective changes its line there. That is no movement, so only the frames
    that called the collective count.
    """
    inner = 0
    for depth, frame in enumerate(stack):
        if _is_collective(frame):
            inner = depth + 1
        elif not _PLUMBING.search(frame.file):
            break
    return [frame.place for frame in stack[inner:]]
