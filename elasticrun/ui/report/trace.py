"""A log as a trace that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) show.

The format is Chrome's *Trace Event Format*: a list of objects, each with ``ph`` (B and E begin and end
a slice, i is an instant, C a counter, M names a track), a track (``pid``, ``tid``) and microseconds ``ts``.

Theory. A tracer is fed entries and gives events at once, so a log of any size is written with the memory of
its open slices. Each track has a stack of these. Invariants, on each track: instants never fall, as what is
late is told as now; each E ends the newest B; and at the end nothing is open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.core.protocol.messages import AgentPhase

Event = dict[str, Any]
JOB, NODES = 1, 2  # the two groups of tracks, which the format calls processes
#: How many nodes have a track of their own.
MOST_NODES = 4096
_RUNNING = AgentPhase.RUNNING.value


class Track(IntEnum):
    """Tracks of the job."""

    ROUNDS = 1
    RECOVERIES = 2
    DECISIONS = 3


@dataclass(slots=True)
class Tracer:
    """Takes entries, in the order of the log."""

    _now: dict[tuple[int, int], int] = field(default_factory=dict)
    _open: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    _threads: dict[str, int] = field(default_factory=dict)  # of nodes
    _newest: int = 0
    _round: int = -1
    _ran: set[str] = field(default_factory=set)  # members whose workers run
    _nodes: int = 0  # of the round

    def begin(self) -> Iterator[Event]:
        """The names of the tracks."""
        yield _name("process_name", JOB, 0, "job")
        yield _name("process_name", NODES, 0, "nodes")
        for track in Track:
            yield _name("thread_name", JOB, track, track.name.lower())

    def take(self, entry: LogEntry) -> Iterator[Event]:
        """What an entry adds."""
        at, told = round(entry.at * 1e6), entry.told
        self._newest = max(self._newest, at)
        match told:
            case chronicle.RoundStarted():
                yield from self._started(at, told)
            case chronicle.RoundStopping():
                yield from self._end(at, JOB, Track.ROUNDS, cause=told.cause, reason=told.reason)
                yield from self._lost(at, told.cause)
            case chronicle.RoundStopped():
                yield from self._end(at, JOB, Track.ROUNDS)
            case chronicle.StepsDone():
                yield from self._step(at, told.round)
                if told.rate is not None:
                    yield self._event("C", at, JOB, Track.ROUNDS, "steps per second", {"rate": told.rate})
            case chronicle.Decision():
                yield self._instant(at, JOB, Track.DECISIONS, told.phase, {"text": told.text})
            case chronicle.OrderAnswered():
                yield self._instant(at, JOB, Track.DECISIONS, told.order, {"answer": told.answer})
            case chronicle.StateSaved():
                args = {"step": told.step, "round": told.round}
                yield self._instant(at, JOB, Track.ROUNDS, f"saved: {told.place.value}", args)
            case chronicle.HangFound():
                yield self._instant(at, JOB, Track.ROUNDS, "hang", {"silence": told.silence})
            case chronicle.JobEnded():
                yield from self._all(at)
                yield self._instant(at, JOB, Track.DECISIONS, f"job {told.outcome}", {"reason": told.reason})
            case _:
                yield from self._of_node(at, told)

    def end(self) -> Iterator[Event]:
        """Close what is open."""
        yield from self._all(self._newest)

    # -- the job

    def _started(self, at: int, told: chronicle.RoundStarted) -> Iterator[Event]:
        yield from self._end(at, JOB, Track.ROUNDS)
        self._round, self._nodes, self._ran = told.round, told.nodes, set()
        args = {"nodes": told.nodes, "workers": told.workers, "reason": told.reason}
        yield self._begin(at, JOB, Track.ROUNDS, f"round {told.round}", args)
        if self._depth(JOB, Track.RECOVERIES) == 2:
            yield from self._end(at, JOB, Track.RECOVERIES)
            yield self._begin(at, JOB, Track.RECOVERIES, "start workers", {})

    def _lost(self, at: int, cause: str) -> Iterator[Event]:
        """A round is at its end: a recovery begins, if none has."""
        if self._depth(JOB, Track.RECOVERIES) == 0:
            yield self._begin(at, JOB, Track.RECOVERIES, f"recovery: {cause}", {"round": self._round})
            yield self._begin(at, JOB, Track.RECOVERIES, "stop workers", {})

    def _runs(self, at: int, node: str) -> Iterator[Event]:
        """The workers of a node run; if those of all do, the next phase of the recovery begins."""
        self._ran.add(node)
        if len(self._ran) == self._nodes and self._depth(JOB, Track.RECOVERIES) == 2:
            yield from self._end(at, JOB, Track.RECOVERIES)
            yield self._begin(at, JOB, Track.RECOVERIES, "first step", {})

    def _step(self, at: int, number: int) -> Iterator[Event]:
        """The newest round has made a step: its recovery is over."""
        if number == self._round:
            yield from self._ends(at, JOB, Track.RECOVERIES)

    # -- nodes

    def _of_node(self, at: int, told: chronicle.Happening) -> Iterator[Event]:
        name = getattr(told, "node", "")
        if not isinstance(name, str) or not name:
            return
        if name not in self._threads:
            if len(self._threads) >= MOST_NODES:
                return
            self._threads[name] = len(self._threads) + 1
            yield _name("thread_name", NODES, self._threads[name], name)
        thread = self._threads[name]
        match told:
            case chronicle.NodeJoined():
                yield self._instant(at, NODES, thread, "joined", {"host": told.host, "workers": told.workers})
            case chronicle.NodeDetached() | chronicle.NodeGone():
                yield from self._ends(at, NODES, thread)
                word = "gone" if isinstance(told, chronicle.NodeGone) else "away"
                yield self._instant(at, NODES, thread, word, {"reason": told.reason})
            case chronicle.NodeChanged():
                yield from self._ends(at, NODES, thread)
                yield self._begin(at, NODES, thread, told.phase, {"round": told.round})
                if told.phase == _RUNNING and told.round == self._round:
                    yield from self._runs(at, name)
            case chronicle.WorkerFailed():
                args = {"rank": told.rank, "pid": told.pid, "summary": told.summary}
                yield self._instant(at, NODES, thread, "worker failed", args)
                if told.round == self._round:
                    yield from self._lost(at, "worker failed")
            case chronicle.MilestoneReached():
                yield self._instant(at, NODES, thread, told.milestone, {"round": told.round})
                if told.milestone == "first_step":
                    yield from self._step(at, told.round)
            case chronicle.StragglerFound():
                yield self._instant(at, NODES, thread, "straggler", {"factor": told.factor})
            case _:
                pass

    # -- events

    def _event(
        self, ph: str, at: int, pid: int, tid: int, name: str, args: dict[str, Any], **more: Any
    ) -> Event:
        ts = self._now[pid, tid] = max(at, self._now.get((pid, tid), at))
        return {"name": name, "ph": ph, "ts": ts, "pid": pid, "tid": int(tid), "args": args, **more}

    def _instant(self, at: int, pid: int, tid: int, name: str, args: dict[str, Any]) -> Event:
        return self._event("i", at, pid, tid, name, args, s="t")

    def _begin(self, at: int, pid: int, tid: int, name: str, args: dict[str, Any]) -> Event:
        self._open.setdefault((pid, tid), []).append(name)
        return self._event("B", at, pid, tid, name, args)

    def _end(self, at: int, pid: int, tid: int, **args: str) -> Iterator[Event]:
        """End the newest slice of a track, if one is open."""
        if self._depth(pid, tid):
            yield self._event("E", at, pid, tid, self._open[pid, tid].pop(), dict(args))

    def _ends(self, at: int, pid: int, tid: int) -> Iterator[Event]:
        """End all slices of a track."""
        while self._depth(pid, tid):
            yield from self._end(at, pid, tid)

    def _all(self, at: int) -> Iterator[Event]:
        for pid, tid in self._open:
            yield from self._ends(at, pid, tid)

    def _depth(self, pid: int, tid: int) -> int:
        return len(self._open.get((pid, tid), ()))


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": int(tid), "args": {"name": name}}


def chunks(entries: Iterable[LogEntry]) -> Iterator[str]:
    """The file, piece by piece."""
    tracer, encode = Tracer(), json.JSONEncoder(separators=(",", ":")).encode
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    yield ",\n".join(map(encode, tracer.begin()))
    for entry in entries:
        for event in tracer.take(entry):
            yield f",\n{encode(event)}"
    for event in tracer.end():
        yield f",\n{encode(event)}"
    yield "\n]}\n"
