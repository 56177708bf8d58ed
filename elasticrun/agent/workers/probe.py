"""The agent's side of the probe child: start it, bound its time, turn what it wrote into a report.

The child (``elasticrun/probe``) runs below the spawner like a worker, so that it is signalled and swept like
one; its numbers are negative, workers' are not. Where workers are forked from a warm parent that imports
torch, so is the child: torch is imported once for the check and for training. It gets its settings as stdin
and writes its results, one line each, to a pipe. So whatever it had found is known however it ends, and is
judged like this:

- A probe without the result of its self test speaks against this node: ``ProbeReport.error``.
- Any later end speaks against the all-gather that was under way and those behind it, not yet against this
  node. Whose fault that is shows when the groups of all nodes are compared.

Invariant: each ``start`` is answered by exactly one report, unless ``cancel`` or another ``start`` comes
first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from elasticrun.agent.programs import PROBE
from elasticrun.agent.spawner.client import Command, Exited, SpawnFailed, WorkerStarter
from elasticrun.agent.workers.error_file import exit_sentence
from elasticrun.agent.workers.warm_recipes import probe_key
from elasticrun.config import WorkerConfig
from elasticrun.core.protocol.messages import GroupReport, NodeInfo, ProbeReport, StartProbe

#: The share of the probe's time after which the child is killed, and the results so far must do. The child
#: itself stops at 0.85, and the agent's machine gives up at 1.
USABLE = 0.95
#: Bytes kept of each of the child's streams.
MAX_RESULT = 1024 * 1024
MAX_STDERR = 8192
_READ_BYTES = 65_536
_MAX_LAST_WORDS = 300
_UNFINISHED = "the probe did not finish its self test"


def probe_settings(order: StartProbe, node: NodeInfo, start: float) -> str:
    """The settings of the child, as described in ``elasticrun/probe/program.py``."""
    groups = [
        {
            "slot": group.slot,
            "rank": group.rank,
            "names": group.nodes,
            "address": group.address,
            "port": group.port,
        }
        for group in order.groups
    ]
    settings = {
        "check": order.check,
        "start": start,
        "timeout": order.timeout,
        "slots": order.slots,
        "node": node.node,
        "address": node.address,
        "groups": groups,
        "secret": order.secret.hex(),
    }
    return json.dumps(settings)


def probe_command(config: WorkerConfig, stdin: int, stdout: int, stderr: int) -> Command:
    """How to start the child, in the interpreter and environment of the workers.

    It waits for a warm parent that imports just torch, as it would itself; not for one that imports more.
    """
    python = config.entrypoint.python or sys.executable
    command = Command([python, PROBE], dict(config.env), None, stdin, stdout, stderr)
    key = probe_key(config)
    if key is None:
        return command
    cpus = frozenset(os.sched_getaffinity(0))  # the warm parent's may be fewer
    return dataclasses.replace(
        command, cpus=cpus, warm=key, program=PROBE, waits=config.warm_imports == ("torch",)
    )


def probe_report(order: StartProbe, result: bytes, ending: str) -> ProbeReport:
    """What the child's results, complete or not, amount to; ``ending`` says how it ended."""
    lines = result.decode(errors="replace").split("\n")[:-1]  # what follows the last newline is incomplete
    try:
        own = _self_test(order, lines[0]) if lines else ProbeReport(order.check, f"{_UNFINISHED}: {ending}")
        groups = [_group_report(line) for line in lines[1 : len(order.groups) + 1]]
        for line in lines[len(order.groups) + 1 :]:
            own = _self_test(order, line)
    except (KeyError, TypeError, ValueError):
        own = ProbeReport(order.check, f"the probe's output is not a valid result: {_head(result)}")
        groups = []
    lost = own.error or f"the probe ended before this all-gather did: {ending}"
    groups += [GroupReport(lost)] * (len(order.groups) - len(groups))
    return dataclasses.replace(own, groups=tuple(groups))


def _self_test(order: StartProbe, line: str) -> ProbeReport:
    found = json.loads(line)
    flops = float(found["matmul_flops"])
    return ProbeReport(order.check, str(found["error"]), flops, engine=str(found["engine"]))


def _group_report(line: str) -> GroupReport:
    found = json.loads(line)
    bandwidth, latency = float(found["bandwidth"]), float(found["latency"])
    return GroupReport(str(found["error"]), bandwidth, latency, str(found["transport"]))


def _head(data: bytes) -> str:
    return repr(data[:_MAX_LAST_WORDS].decode(errors="replace"))


class _Stream:
    """One of the child's output pipes, read as it fills; the end of what came is kept."""

    def __init__(self, limit: int) -> None:
        self.data = b""
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._read)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def finish(self) -> bytes:
        """Take what is still in the pipe, and close it."""
        while self._read_end >= 0 and self._read():
            pass
        self._close()
        return self.data

    def _read(self) -> bool:
        """Read some; return whether there may be more."""
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        self.data = (self.data + data)[-self._limit :]
        return True

    def _close(self) -> None:
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1


@dataclass(slots=True)
class _Run:
    """A probe whose child has not been reported as ended."""

    order: StartProbe
    worker: int
    result: _Stream
    stderr: _Stream
    timer: asyncio.TimerHandle | None = None


class ProbeRunner:
    """Runs one probe at a time; ``on_done`` is called from the loop, or from ``start`` if that fails."""

    def __init__(
        self,
        config: WorkerConfig,
        node: NodeInfo,
        starter: WorkerStarter,
        on_done: Callable[[ProbeReport], None],
    ) -> None:
        self._config = config
        self._node = node
        self._starter = starter
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._next_number = -1
        self._run: _Run | None = None

    def start(self, order: StartProbe) -> None:
        """Start a probe; one that still runs is cancelled."""
        self.cancel()
        try:
            self._run = self._spawn(order)
        except OSError as error:
            self._on_done(ProbeReport(order.check, f"the probe cannot be started: {error.strerror}"))
            return
        self._run.timer = self._loop.call_later(order.timeout * USABLE, self._expire)

    def cancel(self) -> None:
        """Kill the probe that runs, if there is one; nothing more is heard of it."""
        run = self._take()
        if run is not None:
            self._starter.signal(run.worker, signal.SIGKILL)

    def on_spawn_failed(self, event: SpawnFailed) -> bool:
        """The child could not be started; False if the event is about a worker."""
        return self._ended(event.worker, event.message)

    def on_exited(self, event: Exited) -> bool:
        """The child ended; False if the event is about a worker."""
        return self._ended(event.worker, exit_sentence(event.exit_code))

    def _expire(self) -> None:
        assert self._run is not None
        run = self._run
        self._starter.signal(run.worker, signal.SIGKILL)
        self._ended(run.worker, f"it did not end within {run.order.timeout * USABLE:g} s")

    def _spawn(self, order: StartProbe) -> _Run:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            stdin = os.memfd_create("elasticrun-probe")
            theirs.callback(os.close, stdin)  # the child gets copies
            os.write(stdin, probe_settings(order, self._node, time.monotonic()).encode())
            os.lseek(stdin, 0, os.SEEK_SET)
            result = ours.enter_context(_Stream(MAX_RESULT))
            theirs.callback(os.close, result.write_end)
            stderr = ours.enter_context(_Stream(MAX_STDERR))
            theirs.callback(os.close, stderr.write_end)
            number = self._next_number
            self._next_number -= 1
            self._starter.spawn(
                number, probe_command(self._config, stdin, result.write_end, stderr.write_end)
            )
            ours.pop_all()
            return _Run(order, number, result, stderr)

    def _ended(self, worker: int, ending: str) -> bool:
        if worker >= 0:
            return False
        if self._run is not None and self._run.worker == worker:
            run = self._run
            last_words = _last_line(run.stderr.finish())
            report = probe_report(run.order, run.result.finish(), ending + last_words)
            self._take()
            self._on_done(report)
        return True

    def _take(self) -> _Run | None:
        run, self._run = self._run, None
        if run is not None:
            run.result.finish()
            run.stderr.finish()
            if run.timer is not None:
                run.timer.cancel()
        return run


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"; its last line: {lines[-1][:_MAX_LAST_WORDS]}" if lines else ""
