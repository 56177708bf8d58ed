"""Simulated jobs for tests: the real decisions of agents and master, under faults, on a clock that jumps.

::

    from elasticrun.testing import simulation as sim

    def test_our_policy_outlives_a_flaky_node() -> None:
        policy = {"refill_after": 3600}  # or the path of a file
        runs = sim.simulate(policy, [sim.WorkerFails(at=20, node="n1")], seeds=10)
        runs.check()
        runs.check(lambda run: run.goodput > 0.5, "goodput above 0.5")

No process is started, and neither torch nor a network is needed. A seed decides all that is left to chance:
how long each message takes, which worker of a node fails, how long each one takes to start. The same seed
gives the same job on every machine. Of each fault, ``at`` is when it comes, in virtual seconds from the
start, and ``node`` the name of a node, which are ``"n0"``, ``"n1"`` and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import overload

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.protocol.chronicle import LogEntry, RoundStarted
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.master.snapshot import restore, take
from elasticrun.rpc.event_lines import to_line
from elasticrun.sim.ills import Bug, Drain, FallsIll, Hang, Illness, LinkBreaks, Preempt, Scale
from elasticrun.sim.invariants import STATUS
from elasticrun.sim.kernel import Violation
from elasticrun.sim.literal import literal
from elasticrun.sim.log_book import LogBook
from elasticrun.sim.master import Saving
from elasticrun.sim.run import explain
from elasticrun.sim.scenario import (
    AgentCrash,
    AgentStarts,
    Cut,
    Direction,
    Freeze,
    MasterCrash,
    Memory,
    Network,
    PortTaken,
    Reset,
    Scenario,
    Stop,
    Stubborn,
    Unkillable,
    WorkerFails,
)
from elasticrun.sim.simulator import Simulator
from elasticrun.testing.scenarios import Fault, Faults, PolicyLike, plan, seeds_of

__all__ = [
    "AgentCrash",
    "AgentStarts",
    "Bug",
    "Cut",
    "Direction",
    "Drain",
    "FallsIll",
    "Fault",
    "Freeze",
    "Hang",
    "Illness",
    "LinkBreaks",
    "MasterCrash",
    "Memory",
    "Network",
    "PortTaken",
    "Preempt",
    "Reset",
    "Run",
    "Runs",
    "Scale",
    "SimulationFailed",
    "Stop",
    "Stubborn",
    "Unkillable",
    "WorkerFails",
    "simulate",
]

SUCCEEDED = "succeeded"
_SHOWN = 20  # seeds that a failure names
_SAVING = Saving(take, restore)  # as a real master saves its state


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one seed. All times are virtual seconds. Made by ``simulate``."""

    seed: int
    status: str  # succeeded, failed, timed_out, repeated_error, unhealthy; or left: all nodes went away
    exit_status: int  # of elastic-run, see ``elasticrun.errors.ExitCode``
    reason: str  # of the end, in the master's words
    rounds: int  # worlds that its workers were in
    restarts: int  # of the budget of max_restarts
    seconds: float  # until the last node was gone
    steps: int  # that the job has made for good: a script makes one a second while all of its ranks run
    goodput: float  # the share of all nodes' time that was work on new steps, 0 to 1
    lost: Mapping[str, float]  # seconds of the job that were no such work, by what they were spent on
    recoveries: tuple[float, ...]  # seconds from each failure, or change of the world, to the next step
    _reasons: Mapping[int, str]  # why each round ended
    _entries: tuple[LogEntry, ...]
    _scenario: Scenario

    @property
    def succeeded(self) -> bool:
        """Whether all workers of its last round ended with 0."""
        return self.status == SUCCEEDED

    @property
    def log(self) -> str:
        """The event log, one line of JSON for each entry: ``elastic-ctl report`` reads it from a file."""
        return "".join(f"{to_line(entry)}\n" for entry in self._entries)

    def why(self, round: int) -> str:
        """Why there was a round ``round``: why the one before stopped, and with whom it began, in words.

        Raises UsageError if there was no such round.
        """
        begun = {it.told.round: it.told.reason for it in self._entries if isinstance(it.told, RoundStarted)}
        if round not in begun:
            there = ", ".join(map(str, begun)) or "none"
            raise UsageError(f"round {round} was asked for: give one of seed {self.seed}, {there}")
        before = max((number for number in begun if number < round), default=-1)
        return "; ".join(filter(None, (self._reasons.get(before), begun[round])))

    def trace(self) -> str:
        """All that happened, each message and decision, with the scenario at the end. Runs the seed again."""
        return explain(self._scenario, _SAVING)

    def __repr__(self) -> str:
        return (
            f"<Run of seed {self.seed}: {self.status}, {_count(self.rounds, 'round')},"
            f" {_count(self.restarts, 'restart')}, goodput {self.goodput:.2f}>"
        )

    def __str__(self) -> str:
        losses = sorted(self.lost.items(), key=lambda item: -item[1])
        lines = [
            f"seed {self.seed}: {self.status} (exit status {self.exit_status}) after {self.seconds:.1f} s:"
            f" {_count(self.rounds, 'round')}, {_count(self.restarts, 'restart')},"
            f" {_count(self.steps, 'step')}, goodput {self.goodput:.2f}",
            *(f"  round {number} ended: {reason}" for number, reason in self._reasons.items()),
            f"  the end: {self.reason}",
            f"  lost: {', '.join(f'{what} {seconds:.1f} s' for what, seconds in losses) or 'nothing'}",
        ]
        return "\n".join(lines)


class SimulationFailed(AssertionError):
    """Some seeds do not hold what they were checked for. Made by ``Runs.check``."""

    def __init__(self, text: str, runs: Sequence[Run]) -> None:
        """``text``: the story. ``runs``: those of these seeds, the first one first."""
        super().__init__(text)
        self.runs = tuple(runs)


class Runs(Sequence[Run]):
    """What came of each seed, in the order of the seeds; ``str`` gives a summary. Made by ``simulate``."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index: int | slice) -> Run | Runs:
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def check(self, condition: Callable[[Run], object] | None = None, what: str = "") -> None:
        """Check each run; the failure shows the first seed that does not hold, and names the others.

        Args:
            condition: Takes a run, and returns whether it holds; or it makes assertions and returns None.
                By default: the job succeeded.
            what: What it means, for the failure.

        Raises:
            SimulationFailed: a run does not hold; an AssertionError. Its ``runs`` are those that do not.
        """
        __tracebackhide__ = True  # pytest then shows the test's own line alone
        what = what or ("the job succeeds" if condition is None else "the condition")
        broken, cause = [], None
        for run in self._runs:
            try:
                answer = run.succeeded if condition is None else condition(run)
                holds = answer is None or bool(answer)
            except AssertionError as error:
                holds, cause = False, cause or error
            if not holds:
                broken.append(run)
        if broken:
            raise SimulationFailed(_told(broken, len(self._runs), what, cause), broken) from cause

    def __str__(self) -> str:
        counts = Counter(run.status for run in self._runs)
        said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        goodput = _span([run.goodput for run in self._runs], 2)
        return (
            f"{_count(len(self._runs), 'seed')}: {said}; goodput {goodput},"
            f" rounds {_span([run.rounds for run in self._runs])},"
            f" restarts {_span([run.restarts for run in self._runs])}"
        )

    def __repr__(self) -> str:
        return f"<Runs of {self}>"


def simulate(
    policy: PolicyLike = None,
    faults: Faults = (),
    seeds: int | Iterable[int] = 100,
    *,
    nodes: int = 3,
    nproc: int = 1,
    min_nodes: int | None = None,
    max_nodes: int | None = None,
    max_restarts: int = 3,
    joins: Mapping[str, float] | None = None,
    seconds: float = 60.0,
    save_every: float | None = 10.0,
    health_check: str = "auto",
    join_timeout: float = 600.0,
    network: Network | None = None,
) -> Runs:
    """Run a job under faults once for each seed, on a virtual clock, and return what came of each.

    Args:
        policy: What is done about failures: the path of a file for ``--policy``, a dict with the same keys,
            or None for the default.
        faults: What befalls the job; a list, or a function that makes one from a ``random.Random``, which has
            another state for each seed. Nodes are ``"n0"``, ``"n1"`` and so on, in the order of their ranks;
            times are virtual seconds from the start, less than ``seconds``.
        seeds: How many, from 0 on; or which.
        nodes: Nodes that come: those beyond ``max_nodes`` are spares.
        nproc: Workers of each node.
        min_nodes: Nodes that the smallest world has; by default as many as the largest.
        max_nodes: Nodes that the largest world has; by default all.
        max_restarts: As for ``launch``.
        joins: When nodes come, in seconds; those that are not named come at the start.
        seconds: When the script ends, if it runs then. It trains until then, however often it was restarted.
        save_every: Seconds of training between two saves of the state in memory; None: the script saves
            nothing, and each round begins with the first step.
        health_check: As ``--health-check``: auto, off, start or always.
        join_timeout: Seconds with fewer than ``min_nodes`` nodes after which the job ends.
        network: How messages travel; by default each takes at most 0.01 s, and they keep their order.

    Raises:
        UsageError: an argument is wrong.
        AssertionError: a rule that elasticrun always keeps is broken: a bug of elasticrun. The text has the
            scenario for a report.
    """
    job = plan(
        policy,
        faults,
        nodes=nodes,
        nproc=nproc,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        max_restarts=max_restarts,
        joins={} if joins is None else joins,
        seconds=seconds,
        save_every=save_every,
        health_check=health_check,
        join_timeout=join_timeout,
        network=Network() if network is None else network,
    )
    return Runs([_run(job.scenario(seed)) for seed in seeds_of(seeds)])


def _run(scenario: Scenario) -> Run:
    sim = Simulator(scenario, saving=_SAVING)
    book = LogBook(sim)
    try:
        result = sim.run()
    except Violation as broken:
        raise AssertionError(
            f"seed {scenario.seed} breaks a rule of elasticrun itself: {broken}; please report it with "
            f"{literal(scenario)}"
        ) from broken
    history = book.history
    summary = history.summary()
    spent = {it.value: micros / 1e6 for it, micros in summary.job.items() if micros}
    exits = [agent.finish.exit_status for agent in sim.agents if agent.finish is not None]
    return Run(
        seed=scenario.seed,
        status=result.outcome.value if result.outcome else "left",
        exit_status=int(STATUS[result.outcome]) if result.outcome else max(exits, default=1),
        reason=history.end_reason or "no node is left",
        rounds=max(result.rounds, *(round + 1 for round in book.stops), 0),
        restarts=result.used,
        seconds=result.ended_at,
        steps=max(0, *(view.step for view in history.rounds)) if history.rounds else 0,
        goodput=summary.goodput,
        lost={what: seconds for what, seconds in spent.items() if what != Activity.PRODUCTIVE.value},
        recoveries=tuple(it.seconds for it in history.recoveries if it.seconds is not None),
        _reasons={round: reason or history.end_reason for round, reason in book.stops.items()},
        _entries=tuple(book.entries),
        _scenario=scenario,
    )


def _told(broken: Sequence[Run], count: int, what: str, cause: AssertionError | None) -> str:
    numbers = ", ".join(str(run.seed) for run in broken[:_SHOWN])
    more = f" and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    said = f": {str(cause).splitlines()[0]}" if cause is not None and str(cause) else ""
    return (
        f"{len(broken)} of {_count(count, 'seed')} break {what!r}: {numbers}{more}{said}\n{broken[0]}\n"
        f"run it alone with simulate(..., seeds=[{broken[0].seed}]): its log is the event log, its trace() "
        "has each message"
    )


def _count(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"


def _span(values: Sequence[float], digits: int = 0) -> str:
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"
