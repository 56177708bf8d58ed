"""What holds a job back, with the figure, and what to do about it.

Each rule is a function from what is known to at most one piece of advice. A rule that has no evidence says
nothing: a figure that was not measured is never guessed, and a loss below ``WORTH`` of the job's time is not
worth a sentence. Rules do not know one another; the largest loss comes first, then what threatens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.summary import Summary, share
from elasticrun.core.history.history import History
from elasticrun.core.history.incidents import Kind
from elasticrun.core.protocol.amounts import count, time_text
from elasticrun.core.protocol.chronicle import Place
from elasticrun.core.protocol.round_progress import NodeFigures
from elasticrun.core.protocol.status import JobStatus
from elasticrun.core.whatif.measured import Measured, measured
from elasticrun.core.whatif.replay import daly, with_interval
from elasticrun.dataclass import dataclass

#: The least share of the time that is worth a sentence.
WORTH = 0.01
#: Failures in one place that are a pattern, and their least share in all.
REPEATS, PATTERN = 3, 0.6
NEARLY = 0.9  # of a limit
NEARLY_SPENT = 0.75  # of the budget of restarts
#: How many times too long or too short an interval of saves is told.
OFF = 3.0
#: A device that is less busy than this waits.
IDLE_DEVICE = 0.5
#: The least share of imports in the recoveries that makes a warm start worth it.
IMPORTS = 0.4
NO_FIGURES: Mapping[str, NodeFigures] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of it."""

    rule: str
    finding: str  # with the figure
    action: str
    figure: float
    unit: str  # of the figure: "share", "times", "failures" or "seconds"
    lost: float  # seconds of the job that it cost, as far as that is known; 0: none yet


@dataclass(frozen=True, slots=True)
class View:
    """What rules look at."""

    history: History
    summary: Summary
    measured: Measured
    status: JobStatus | None
    figures: Mapping[str, NodeFigures]  # by node


Found = Iterator[Advice]


def advise(
    history: History,
    status: JobStatus | None = None,
    figures: Mapping[str, NodeFigures] = NO_FIGURES,
    now: float | None = None,
) -> tuple[Advice, ...]:
    """All advice, the largest loss first. ``status`` and ``figures``: of a job that runs, if they are known.

    Figures that are not given are those of the status. ``now``: the moment on the job's clock; None: that of
    the last entry.
    """
    nodes = () if status is None else status.nodes
    said = {node.name: node.figures for node in nodes if node.figures is not None}
    view = View(history, history.summary(now), measured(history, now), status, {**said, **figures})
    found = [advice for rule in RULES for advice in rule(view)]
    return tuple(sorted(found, key=lambda it: -it.lost))


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.095 else f"{100 * part:.1f} %"


def _straggler(view: View) -> Found:
    lost = view.summary.total[Activity.SLOW]
    part = share(lost, view.summary.total)
    slow = view.history.incidents.slow
    if part < WORTH or not slow:
        return
    name = max(slow, key=lambda it: (slow[it], it))
    yield Advice(
        "straggler",
        f"{_percent(part)} of all time of nodes was spent waiting for stragglers; {name} takes up to"
        f" {slow[name]:.1f} times as long as the others",
        f"look at the clocks, temperature and neighbours of {name}, or drain it: elastic-ctl drain {name}",
        part,
        "share",
        part * view.measured.seconds,
    )


def _memory(view: View) -> Found:
    used = {name: it.memory / it.memory_limit for name, it in view.figures.items() if it.memory_limit > 0} | {
        f"{gpu.name} of {name}": gpu.memory / gpu.memory_limit
        for name, it in view.figures.items()
        for gpu in it.gpus
        if gpu.memory_limit > 0
    }
    name = max(used, key=lambda it: (used[it], it), default="")
    if name and used[name] >= NEARLY:
        yield Advice(
            "memory",
            f"the memory of {name} is {_percent(used[name])} full",
            "make batches or the number of data workers smaller, before the kernel kills a worker",
            used[name],
            "share",
            0.0,
        )


def _checkpoints(view: View) -> Found:
    it = view.measured
    every, best = it.between_saves, daly(it)
    if every is None or best is None or best <= 0 or 1 / OFF < every / best < OFF:
        return
    gain = it.seconds - with_interval(it, best / every).seconds
    if gain < WORTH * it.seconds:
        return
    word = "often" if every < best else "rarely"
    yield Advice(
        "checkpoints",
        f"the state is saved each {time_text(every)} of training, too {word}: by the measured stall and"
        f" failures {time_text(best)} would lose the least",
        'use Checkpointer(every="auto"), which finds the interval by itself',
        every / best,
        "times",
        gain,
    )


def _spares(view: View) -> Found:
    sums = view.measured.incidents
    waited = sum(sums[kind].waiting for kind in (Kind.LOST, Kind.FAILED))
    if waited <= WORTH * view.measured.seconds:
        return
    yield Advice(
        "spares",
        f"the job waited {time_text(waited)} for nodes, after {count(sums[Kind.LOST].count, 'lost node')}",
        "start one node more than --nnodes asks for: it waits as a spare, and takes the place of a lost one",
        waited,
        "seconds",
        waited,
    )


def _threads(view: View) -> Found:
    """Workers that keep one core each busy, on hosts with many more, where no GPU works for them."""
    for name, it in sorted(view.figures.items()):
        node = view.history.nodes.get(name)
        if node is None or node.workers < 1 or it.gpus or it.cpus < 2 * node.workers:
            continue
        each = it.cpu / node.workers
        if 0.85 <= each <= 1.15:
            threads = it.cpus // node.workers
            yield Advice(
                "threads",
                f"each worker of {name} keeps {each:.1f} cores busy, and there are {threads} for each",
                f"set OMP_NUM_THREADS={threads}; the launcher sets 1 where several workers share a node",
                each,
                "times",
                0.0,
            )
            return


def _input(view: View) -> Found:
    """GPUs that wait while the cores are all busy: the data does not come fast enough."""
    for name, it in sorted(view.figures.items()):
        part = it.gpu_busy
        if part is not None and part < IDLE_DEVICE and it.cpus and it.cpu / it.cpus >= NEARLY:
            yield Advice(
                "input",
                f"the GPUs of {name} are busy {_percent(part)} of the time, while its cores are"
                f" {_percent(it.cpu / it.cpus)} busy: the training waits for its input",
                "prepare the data beforehand, or give its loader more cores",
                part,
                "share",
                0.0,
            )
            return


def _repeats(view: View) -> Found:
    incidents, failed = view.history.incidents, view.history.failed
    hosts = incidents.hosts.most_common(1)
    if len(incidents.hosts) > 1 or len({node.host for node in view.history.nodes.values()}) > 1:
        for host, times in hosts:
            if times >= REPEATS and times >= PATTERN * failed:
                yield Advice(
                    "host",
                    f"{times} of {count(failed, 'failure')} were on {host}",
                    f"drain the nodes of {host} and check it: elastic-run --health-check-only",
                    float(times),
                    "failures",
                    0.0,
                )
                return
    for rank, times in incidents.ranks.most_common(1):
        if times >= REPEATS and times >= PATTERN * failed and len(incidents.ranks) > 1:
            yield Advice(
                "rank",
                f"{times} of {count(failed, 'failure')} were of rank {rank}, wherever it was",
                f"look at what only rank {rank} does, and at its share of the data",
                float(times),
                "failures",
                0.0,
            )


def _budget(view: View) -> Found:
    status = view.status
    if status is None or status.max_restarts < 1:
        return
    part = status.restarts_used / status.max_restarts
    if part >= NEARLY_SPENT:
        yield Advice(
            "budget",
            f"{status.restarts_used} of {count(status.max_restarts, 'restart')} are used up",
            "find the cause of the failures; the next job can have more with --max-restarts",
            part,
            "share",
            0.0,
        )


def _imports(view: View) -> Found:
    every = view.measured.all
    if every.imports <= WORTH * view.measured.seconds or every.imports < IMPORTS * every.seconds:
        return
    part = min(1.0, every.imports / every.seconds) if every.seconds else 1.0
    yield Advice(
        "imports",
        f"imports are {_percent(part)} of the recoveries: {time_text(every.imports)} in all",
        "let workers start warm: see elastic-ctl manual warm-start for what prevents it",
        part,
        "share",
        every.imports,
    )


def _storage(view: View) -> Found:
    saves = view.history.totals.saves
    if view.history.incidents.most_nodes != 1 or saves[Place.STORAGE] or not saves[Place.MEMORY]:
        return
    yield Advice(
        "storage",
        f"{time_text(view.measured.trained)} of work are saved in the memory of one host only",
        "give --state-storage: with the host all of it would be lost",
        view.measured.trained,
        "seconds",
        0.0,
    )


def _unsaved(view: View) -> Found:
    every = view.measured.all
    if any(view.history.totals.saves.values()) or every.redone <= WORTH * view.measured.seconds:
        return
    yield Advice(
        "unsaved",
        f"{time_text(every.redone)} of work was done again, and elasticrun knows of no saved state",
        "save it with elasticrun.Checkpointer, in memory and as often as you like",
        every.redone,
        "seconds",
        every.redone,
    )


def _hangs(view: View) -> Found:
    lost = view.summary.job[Activity.HUNG]
    if lost >= WORTH * sum(view.summary.job.values()) and lost:
        part = share(lost, view.summary.job)
        yield Advice(
            "hangs",
            f"{_percent(part)} of the time no step was made, in {count(view.history.totals.hangs, 'hang')}",
            "read the stacks that were saved, and see elastic-ctl manual hangs for how soon it is found out",
            part,
            "share",
            lost / 1e6,
        )


RULES: tuple[Callable[[View], Found], ...] = (
    _straggler,
    _memory,
    _checkpoints,
    _spares,
    _threads,
    _input,
    _repeats,
    _budget,
    _imports,
    _storage,
    _unsaved,
    _hangs,
)
