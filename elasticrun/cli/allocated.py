"""The rendezvous options that nobody gave, from the allocation of Slurm, PBS or LSF.

What the user says wins, on the command line and in ``PET_`` variables alike: an option that is given is never
changed. Who names an endpoint, or wants one node alone, has said where the nodes are, so then the allocation
is not even read. By which signal a node is taken away is no option, so that is read then too. Nothing is read
in a worker that starts a job of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticrun.cli import options
from elasticrun.cli.arguments import Given, GivenText
from elasticrun.cli.option import Option
from elasticrun.cli.rendezvous import Notes

if TYPE_CHECKING:
    from elasticrun.platforms.allocation import Allocation

#: Without one of these nothing is read, and nothing imported.
_MARKS = ("SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SETTLED = (options.RDZV_ENDPOINT, options.MASTER_ADDR, options.MASTER_PORT)
_IN_A_WORKER = "TORCHELASTIC_RUN_ID"
_MOST_BYTES = 4 << 20


def fill_in(given: Given, environ: Mapping[str, str], notes: Notes) -> tuple[Given, int]:
    """The options with what the allocation adds, and the signal by which it takes nodes away; 0: none.

    Raises UsageError if the allocation cannot be understood.
    """
    if environ.get(_IN_A_WORKER) or not any(environ.get(mark) for mark in _MARKS):
        return given, 0
    from elasticrun.platforms.allocation import notice_signal

    notice = _notice(notice_signal(environ), given)
    return (_with_allocation(given, environ, notes) if _is_wanted(given) else given), notice


def _with_allocation(given: Given, environ: Mapping[str, str], notes: Notes) -> Given:
    from elasticrun.platforms.allocation import find_task, read_allocation

    allocation = read_allocation(environ, _read)
    if allocation is None:
        task = find_task(environ)
        if task is not None and task.size > 1:
            sentence = (
                f"{task.launcher} started {task.size} of these, and nothing says on which nodes: each is a "
                "job of its own; give --rdzv-endpoint, --nnodes and --node-rank to make them one"
            )
            notes.append(("warning", sentence))
        return given
    _tell(allocation, notes)
    found = _found(allocation)
    added = {option.name: text for option, text in found.items() if not given.has(option)}
    return Given({**given.texts, **added}, given.command)


def _is_wanted(given: Given) -> bool:
    if given.on(options.STANDALONE):
        return False
    if any(given.has(option) for option in _SETTLED):
        return False
    return not given.has(options.NNODES) or given.get(options.NNODES)[1] > 1


def _found(allocation: Allocation) -> dict[Option[Any], GivenText]:
    """What each option would be. One node alone needs no endpoint: it gets the job's name and no more."""
    source, host = allocation.source, allocation.nodes[0]
    found: dict[Option[Any], GivenText] = {options.RDZV_ID: GivenText(allocation.job_id, source)}
    if len(allocation.nodes) > 1:
        place = f"[{host}]" if ":" in host else host
        found[options.RDZV_ENDPOINT] = GivenText(f"{place}:{allocation.port}", source)
        found[options.NNODES] = GivenText(str(len(allocation.nodes)), source)
        found[options.NODE_RANK] = GivenText(str(allocation.node_rank), source)
    return found


def _tell(allocation: Allocation, notes: Notes) -> None:
    size = len(allocation.nodes)
    where = (
        f"node {allocation.node_rank} of {size}, the first is {allocation.nodes[0]}" if size > 1 else "1 node"
    )
    sentence = f"{allocation.platform}: job {allocation.job_id}, {where} (from {allocation.source})"
    notes.append(("info", sentence))
    if allocation.restarts:
        times = "once" if allocation.restarts == 1 else f"{allocation.restarts} times"
        notes.append(
            ("info", f"{allocation.platform} has queued this job again {times}: it goes on as the same job")
        )


def _notice(name: str, given: Given) -> int:
    if not name:
        return 0
    import signal

    number = int(signal.Signals[name])
    return 0 if number in given.get(options.SIGNALS_TO_HANDLE) else number


def _read(path: str) -> str:
    """A regular file's text; raises OSError for one that is none, or is absurdly large."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, "rb") as content:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is no regular file")
        data = content.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(0, f"it is larger than {_MOST_BYTES} bytes")
    return data.decode(errors="replace")
