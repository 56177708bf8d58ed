"""The hosts of one launch: which are started, drained, tried again or left out, and when the launch ends.

Theory. The list says which hosts are wanted (``belief.py``); the machine knows which have a process here that
stands for them. Each event leads from the difference between the two to effects, with a reason in words.

* A wanted host without a process is started, unless it is left out.
* A host that is gone from the list is drained, and leaves by itself; else it is stopped, and in the end
  killed.
* A host that fails is left out for a time that doubles with each failure in a row, up to a bound. One that
  ran for long has no failures behind it.
* The first host has the master. It is never drained, and the launch ends if it fails too often.
* A host that was told to leave by somebody else is not wanted any more. If the first host was, and nothing
  runs, the job has been stopped: without its master no other host could go on.
* A launcher that says how the job ended ends the launch: the others get the time to end by themselves.

Invariants. A host has at most one process at a time. Only a host that is gone is drained. Once the launch
ends nothing is started, and it is over when the last process has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass as mutable
from enum import Enum

from elasticrun.core.hosts import fates
from elasticrun.core.hosts.belief import Belief
from elasticrun.core.hosts.events import (
    Drain,
    Effect,
    Ended,
    Event,
    Finish,
    Interrupted,
    Kill,
    Listed,
    NotDrained,
    Start,
    Stop,
    Tell,
    Unlisted,
    Up,
)
from elasticrun.core.hosts.fates import SIGTERM, Fate, Terms
from elasticrun.core.hosts.names import Host
from elasticrun.core.timers import Deadlines
from elasticrun.errors import ExitCode

_END = ""  # the name of the launch's own deadline; no host has it


class State(Enum):
    """What a host's process does."""

    ABSENT = "absent"  # there is none
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"  # the master was asked to let it go
    STOPPING = "stopping"  # it got a signal
    KILLED = "killed"


#: What may be drained, or stopped.
ACTIVE = frozenset({State.STARTING, State.RUNNING, State.DRAINING})
#: What ends because it was told to.
LEAVING = frozenset({State.DRAINING, State.STOPPING, State.KILLED})


@mutable(slots=True)
class Entry:
    """What is known of one host."""

    host: Host
    rank: int
    state: State = State.ABSENT
    up_since: float | None = None
    failures: int = 0  # in a row
    out: str = ""  # why it is left out until its deadline, or, without one, until it leaves the list
    dismissed: int = 0  # the exit status with which it was told to leave by somebody else; 0: it was not


class Hosts:
    """The machine. ``handle`` never raises on what a host does."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._belief = Belief(terms.grace)
        self._timers = Deadlines[str]()
        self._effects: list[Effect] = []
        self._end: tuple[int, str] | None = None  # with what the launch ends, once nothing runs
        self._signum = 0  # that stops the launch
        self._trouble = ""  # of the list; told when it changes
        self._told_master = False
        self._next_rank = 0
        self.hosts: dict[str, Entry] = {}

    @property
    def next_deadline(self) -> float | None:
        """When ``Tick`` has something to do."""
        return self._timers.next()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in an event at an instant that never goes back; returns what is to be done, in order.

        A ``Tick`` says no more than the time.
        """
        match event:
            case Listed(hosts=hosts):
                self._listed(hosts, now)
            case Unlisted(reason=reason):
                self._unlisted(reason)
            case Up(name=name):
                self._up(self.hosts[name], now)
            case Ended():
                self._ended(self.hosts[event.name], event, now)
                self._end_if_stopped(now)
            case NotDrained(name=name, reason=reason):
                self._not_drained(name, reason, now)
            case Interrupted(signum=signum):
                self._interrupted(signum, now)
        for name in self._timers.pop_due(now):
            self._due(name, now)
        if self._end is not None and not _running(self.hosts):
            self._effects.append(Finish(*self._end))
        effects, self._effects = self._effects, []
        return effects

    # -- the list

    def _listed(self, hosts: Iterable[Host], now: float) -> None:
        if self._trouble:
            self._tell("the list of hosts can be read again")
        self._trouble = ""
        gone = self._belief.take(hosts, self.hosts, now)
        for host in self._belief.wanted.values():
            self._want(host)
            self._start(self.hosts[host.name], now)
        for name in gone:
            self._lose(self.hosts[name], now)

    def _unlisted(self, reason: str) -> None:
        if reason != self._trouble:
            self._tell(f"{reason}; the last good list of {len(self._belief.wanted)} hosts stays in force")
        self._trouble = reason

    def _want(self, host: Host) -> None:
        entry = self.hosts.get(host.name)
        if entry is None:
            entry = self.hosts[host.name] = Entry(host, self._next_rank)
            self._next_rank += 1
        if entry.host != host and entry.state is not State.ABSENT:
            self._tell(f"{host.name} is now listed as {host}; it runs as {entry.host} until it starts anew")
        entry.host = host

    def _lose(self, entry: Entry, now: float) -> None:
        """A host is gone from the list."""
        if entry.rank == 0:
            if not self._told_master and self._end is None:
                self._tell(f"{entry.host.name} is no longer listed, but stays: it has the job's master")
            self._told_master = True
        elif entry.state is State.ABSENT:
            del self.hosts[entry.host.name]  # if it comes back, it comes as a new one
            self._timers.cancel(entry.host.name)
        elif entry.state in (State.STARTING, State.RUNNING) and self._end is None:
            self._tell(f"{entry.host.name} is no longer listed: it is drained")
            entry.state = State.DRAINING
            self._timers.set(entry.host.name, now + self._terms.drain_timeout)
            self._effects.append(Drain(entry.host.name, entry.rank, "no longer in the list of hosts"))

    # -- the life of a host

    def _start(self, entry: Entry, now: float) -> None:
        name = entry.host.name
        wanted = name in self._belief.wanted or entry.rank == 0
        if entry.state is not State.ABSENT or entry.out or not wanted or self._end is not None:
            return
        entry.state, entry.up_since = State.STARTING, None
        self._timers.set(name, now + self._terms.start_timeout)
        self._effects.append(Start(entry.host, entry.rank))

    def _up(self, entry: Entry, now: float) -> None:
        entry.up_since = now
        if entry.state is State.STARTING:
            entry.state = State.RUNNING
            self._timers.cancel(entry.host.name)

    def _ended(self, entry: Entry, event: Ended, now: float) -> None:
        was, name = entry.state, entry.host.name
        entry.state = State.ABSENT
        self._timers.cancel(name)
        if self._end is not None:
            return
        if was in LEAVING and not fates.is_of_job(event, entry.up_since):
            entry.failures = 0
            self._tell(f"{name} has left")
            self._start(entry, now)  # it may be wanted again
            return
        if entry.up_since is not None and now - entry.up_since >= self._terms.healthy_after:
            entry.failures = 0
        fate, text = fates.judge(event, entry.up_since is not None, entry.rank == 0)
        match fate:
            case Fate.JOB_OVER:
                self._finish(event.code, "", now)
            case Fate.HOPELESS:
                self._finish(event.code, f"{name} {text}", now)
            case Fate.DISMISSED:
                entry.out, entry.dismissed = text, event.code
                self._tell(f"{name} {text}; it is left out until the list lacks it")
            case _:
                self._failed(entry, event, text, now)

    def _failed(self, entry: Entry, event: Ended, text: str, now: float) -> None:
        entry.failures += 1
        name, pause = entry.host.name, self._terms.pause(entry.failures)
        if entry.rank == 0 and entry.failures >= self._terms.tries:
            status = fates.status_of(event, entry.up_since is not None)
            self._finish(status, f"{name}, which has the job's master, {text} ({entry.failures} times)", now)
            return
        entry.out = text
        self._timers.set(name, now + pause)
        self._tell(f"{name} {text}; it is tried again in {pause:g} s")
        left = sum(each.failures < self._terms.tries for each in self.hosts.values())
        if self._terms.is_fixed and left < self._terms.min_nodes:
            why = f"only {left} of {self._terms.min_nodes} hosts that the job needs can be started"
            self._finish(ExitCode.RENDEZVOUS_TIMEOUT, f"{why}: {name} {text}", now)

    def _end_if_stopped(self, now: float) -> None:
        first = next(entry for entry in self.hosts.values() if entry.rank == 0)
        if self._end is None and first.dismissed and not _running(self.hosts):
            why = f"{first.host.name}, which has the job's master, {first.out}"
            self._finish(first.dismissed, f"{why}, and no other host runs", now)

    def _not_drained(self, name: str, reason: str, now: float) -> None:
        entry = self.hosts.get(name)  # it may have left by itself meanwhile, and be forgotten
        if entry is not None and entry.state is State.DRAINING:
            self._tell(f"{name} cannot be drained ({reason}): it is told to stop")
            self._stop(entry, SIGTERM, now)

    # -- time

    def _due(self, name: str, now: float) -> None:
        if name == _END:
            self._stop_all(self._signum or SIGTERM, now)
            return
        entry = self.hosts[name]
        match entry.state:
            case State.ABSENT:
                entry.out = ""
                self._start(entry, now)
            case State.STARTING:
                self._tell(f"{name} did not start within {self._terms.start_timeout:g} s")
                self._kill(entry)
                entry.state = State.STARTING  # so that its end counts as a failure
            case State.DRAINING:
                self._tell(f"{name} did not leave within {self._terms.drain_timeout:g} s: it is told to stop")
                self._stop(entry, SIGTERM, now)
            case _:
                self._kill(entry)

    def _stop(self, entry: Entry, signum: int, now: float) -> None:
        entry.state = State.STOPPING
        self._timers.set(entry.host.name, now + self._terms.stop_timeout)
        self._effects.append(Stop(entry.host.name, signum))

    def _kill(self, entry: Entry) -> None:
        entry.state = State.KILLED
        self._timers.cancel(entry.host.name)
        self._effects.append(Kill(entry.host.name))

    # -- the end

    def _finish(self, status: int, reason: str, now: float) -> None:
        """The launch ends once nothing runs; what was decided first stands."""
        self._end = (status, reason)
        for name, entry in self.hosts.items():
            if entry.state is State.ABSENT:
                self._timers.cancel(name)
        # Launchers of a job that is over end by themselves; those of one that has lost its master do not.
        self._timers.set(_END, now + (0.0 if reason else self._terms.over_timeout))

    def _interrupted(self, signum: int, now: float) -> None:
        running = _running(self.hosts)
        if self._signum:
            self._tell(f"asked to stop again: killing {_them(len(running))} now")
            for entry in running:
                self._kill(entry)
            return
        self._signum = signum
        if self._end is None:
            self._end = (128 + signum, "")
        if running:
            again = "Ctrl-C again" if signum == fates.SIGINT else "a second signal"
            grace = f"up to {self._terms.stop_timeout:g} s; {again} kills them"
            self._tell(f"stopping {_them(len(running))} ({grace})")
        self._stop_all(signum, now)

    def _stop_all(self, signum: int, now: float) -> None:
        for entry in self.hosts.values():
            if entry.state in ACTIVE:
                self._stop(entry, signum, now)
            elif entry.state is State.ABSENT:
                self._timers.cancel(entry.host.name)

    def _tell(self, text: str) -> None:
        self._effects.append(Tell(text))


def _running(hosts: dict[str, Entry]) -> list[Entry]:
    return [entry for entry in hosts.values() if entry.state is not State.ABSENT]


def _them(count: int) -> str:
    return f"the launchers of {count} hosts" if count != 1 else "the launcher of 1 host"
