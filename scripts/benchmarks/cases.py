"""What is measured: each case is one function that drives one run and gives its figures.

All times are seconds from a moment that this process stamps (a launcher is started, a process is killed) to
a stamp of the workers themselves, on the one monotonic clock. "First all-reduce" is always that of the last
worker of the world that is waited for. A fault comes when the job has made steps and its launchers have
nothing left to do; only those of ``goodput`` come by the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.benchmarks import tf_cases
from scripts.benchmarks.launchers import BY_HAND, HASTY, OURS, TORCHRUN, TUNED
from scripts.benchmarks.run import LINE, TRAIN, Event, Node, Run, RunFailed
from scripts.benchmarks.stages import STAGES, agent_marks, split
from scripts.benchmarks.usage import memory as memory_of
from tests.support.processes import marked, titled

START = 90.0  # seconds; a launcher that takes longer hangs
RECOVERY = 30.0
SETTLED = 100  # steps, two seconds or more
FEW = 2  # runs of a launcher that mostly hangs
JOIN = 40.0
GOODPUT, EVERY = 180.0, 20.0
NODE_LOSS = 90.0  # torchrun takes three quarters of a minute
#: A world below its maximum starts soon; torchrun waits half a minute by default. No figure has this wait.
SHORT_CALL = ("--rdzv-conf", "last_call_timeout=2")
RESTARTS = ("--max-restarts", "1000")


def launch(run: Run) -> dict[str, float]:
    """``launch``: from the start of the launcher to the first line of a script without torch."""
    node = run.alone("--nproc-per-node", "1", LINE)
    line = run.wait(lambda: run.events[0] if run.events else None, START, "first line")
    if status := run.ended(node, START):
        raise RunFailed(f"the launcher ended with {status}")
    return {"launch": line.at - node.begun}


def allreduce(run: Run) -> dict[str, float]:
    """``allreduce``: from the start of the launcher to the first all-reduce of two workers."""
    node = run.alone("--nproc-per-node", "2", TRAIN)
    first = run.all_of("reduced", 2, START)
    return {"allreduce": max(event.at for event in first) - node.begun}


def kill(run: Run) -> dict[str, float]:
    """``kill``: from the SIGKILL of one of two workers of a node to the first all-reduce of the new ones."""
    run.alone("--nproc-per-node", "2", *RESTARTS, TRAIN)
    return {"kill": _kill_one(run)[0]}


def stages(run: Run) -> dict[str, float]:
    """``stages``: where the time of ``kill`` goes."""
    node = run.alone("--nproc-per-node", "2", *RESTARTS, "--event-log-handler", "console", TRAIN)
    _, killed, again = _kill_one(run)
    offset = time.time() - time.monotonic()
    run.steps(again, SETTLED, START)  # and by now the agent has written what it had to say
    pids = {event.pid for event in again}
    marks = agent_marks(node.log.read_text(errors="replace"), offset)
    found = split(killed, marks, [event for event in run.events if event.pid in pids])
    if missing := STAGES.keys() - found.keys() - {"device"}:
        raise RunFailed(f"nobody marked the end of {', '.join(sorted(missing))}")
    return {f"stage-{stage}": seconds for stage, seconds in found.items()}


def kill_two(run: Run) -> dict[str, float]:
    """``kill-two``: the same with two nodes of one worker each."""
    for _ in range(2):
        run.node("2", *RESTARTS, TRAIN)
    return {"kill-two": _kill_one(run)[0]}


def _kill_one(run: Run) -> tuple[float, float, list[Event]]:
    """Seconds to the first all-reduce, the moment of the kill, and that all-reduce of each new worker."""
    workers = _settled(run, 2)
    killed = run.kill(workers[run.number % 2].pid)
    again = run.all_of("reduced", 2, RECOVERY, after=killed)
    return max(event.at for event in again) - killed, killed, again


def _settled(run: Run, world: int) -> list[Event]:
    """The workers of a world that trains, once its start is over and all is quiet."""
    workers = run.all_of("reduced", world, START)
    run.steps(workers, SETTLED, START)
    run.quiet(START)
    return workers


def node_loss(run: Run) -> dict[str, float]:
    """``node-loss``: of three nodes with one worker each, one that does not host the rendezvous is SIGKILLed
    with all it started: from then to the first all-reduce of the two that are left.
    """
    for _ in range(3):
        run.node("2:3", *RESTARTS, TRAIN)
    _settled(run, 3)
    killed = run.lose(run.guests()[run.number % 2])
    again = run.all_of("reduced", 2, NODE_LOSS, after=killed)
    return {"node-loss": max(event.at for event in again) - killed}


def join(run: Run) -> dict[str, float]:
    """``join``: one node trains and a second is launched. The pause is from the last step of the first node
    alone to the first all-reduce of the larger world; the other figure is from the launch to that moment.
    """
    run.node("1:2", *SHORT_CALL, *RESTARTS, TRAIN)
    old = _settled(run, 1)
    joiner = run.node("1:2", *SHORT_CALL, *RESTARTS, TRAIN)
    new = max(event.at for event in run.all_of("reduced", 2, JOIN, after=joiner.begun))
    last = max(event.at for event in run.events if event.pid == old[0].pid)
    return {"join-pause": new - last, "join-world": new - joiner.begun}


def goodput(run: Run) -> dict[str, float]:
    """``goodput``: two workers of one node train for three minutes, and every 20 s one of them is SIGKILLed.
    Nothing is saved and no step is made twice, so each step counts. Goodput is steps x undisturbed step
    time / wall time, from the first step on; the undisturbed step time is the mean in the 10 s before the
    first kill: the start is over by then, so its slow steps are not in that mean.
    """
    node = run.alone("--nproc-per-node", "2", *RESTARTS, TRAIN)
    begun = max(event.at for event in run.all_of("reduced", 2, START))
    for number in range(1, round(GOODPUT / EVERY)):
        run.collect(begun + number * EVERY)
        run.kill_newest(node, number % 2)
    run.collect(begun + GOODPUT)
    figures = {"goodput": goodput_of(run.events, begun)}
    if not _stamps(run.events, begun + GOODPUT - EVERY / 2, begun + GOODPUT):
        raise RunFailed("no step was made in the end", figures)
    return figures


def goodput_of(events: Sequence[Event], begun: float) -> float:
    """Goodput of a run whose first step was made then; RunFailed if it ended before the first kill."""
    calm = _stamps(events, begun + EVERY / 2, begun + EVERY)
    if len(calm) < 2:
        raise RunFailed("no steps were made before the first kill")
    undisturbed = (calm[-1] - calm[0]) / (len(calm) - 1)
    return len(_stamps(events, begun, begun + GOODPUT)) * undisturbed / GOODPUT


def _stamps(events: Sequence[Event], since: float, until: float) -> list[float]:
    """When steps were made: a step is an all-reduce, so that of one rank is that of all."""
    steps = (it.at for it in events if it.rank == 0 and it.what in ("reduced", "step"))
    return sorted(at for at in steps if since < at <= until)


def memory(run: Run) -> dict[str, float]:
    """``memory``: a launcher with two workers that have imported torch and allocate nothing. The resident
    memory (RSS) of the launcher and, if it has one, of the master; the sum of the proportional shares (PSS)
    of all processes but the workers; of a worker, as the mean of both, RSS and what would be free again if it
    ended (USS: private pages and page tables), which is what one more worker adds. Then the RSS of launcher
    (the larger one) and master again, in a job of two nodes with one worker each.
    """
    node = run.alone("--nproc-per-node", "2", TRAIN, "idle")
    workers = _imported(run, node)
    helpers = sorted(set(marked(node.mark)) - set(workers))
    of_workers = [memory_of(pid) for pid in workers]
    figures = {
        **_of_launchers(node),
        "overhead": sum(_share_of(pid) for pid in helpers),
        "worker-rss": statistics.mean(it.rss for it in of_workers),
        "worker": statistics.mean(it.uss for it in of_workers),
    }
    run.lose(node)
    two = [run.node("2", TRAIN, "idle") for _ in range(2)]
    _imported(run, two[0])
    return figures | {f"{name}-of-two": rss for name, rss in _of_launchers(*two).items()}


def _share_of(pid: int) -> float:
    """The PSS of a process; 0 of one that has ended, as a helper may at any time."""
    try:
        return memory_of(pid).pss
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def _imported(run: Run, first: Node) -> list[int]:
    """The pids of two workers that have imported torch, when all is quiet."""
    workers = run.all_of("imported", 2, START, after=first.begun)
    run.quiet(START)
    return [event.pid for event in workers]


def _of_launchers(*nodes: Node) -> dict[str, float]:
    """RSS of the largest agent, and of the master if there is one."""
    masters = [pid for node in nodes for pid in titled(node.mark, "elastic-run: master")]
    agent = max(memory_of(node.pid).rss for node in nodes)
    return {"agent": agent, **{"master": memory_of(pid).rss for pid in masters[:1]}}  # noqa: B035 one at most


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, and which launchers it makes sense for."""

    name: str
    drive: Callable[[Run], dict[str, float]]
    launchers: tuple[str, ...] = (OURS, TORCHRUN, "ft_launcher", "dlrover-run")
    few: tuple[str, ...] = ()  # of these: they mostly hang, which a few runs show
    only: int | None = None  # the most runs of any launcher: each takes long

    def rounds(self, runs: int) -> int:
        """How many rounds there are, if ``runs`` are asked for."""
        return runs if self.only is None else min(runs, self.only)

    def runs_of(self, launcher: str, runs: int) -> int:
        """How many of them a launcher takes part in."""
        if launcher not in self.launchers:
            return 0
        return min(self.rounds(runs), FEW) if launcher in self.few else self.rounds(runs)


CASES = {
    case.name: case
    for case in (
        Case("launch", launch),
        Case("allreduce", allreduce),
        Case("kill", kill, (OURS, TORCHRUN, TUNED, "ft_launcher", "dlrover-run")),
        Case("kill-two", kill_two, (OURS, TORCHRUN, TUNED, "ft_launcher")),
        Case("node-loss", node_loss, (OURS, TORCHRUN, TUNED, HASTY, "ft_launcher"), few=(TORCHRUN,)),
        Case("join", join, (OURS, TORCHRUN, TUNED, "ft_launcher"), few=(TORCHRUN,)),
        Case("goodput", goodput, (OURS, TORCHRUN, TUNED, "ft_launcher", "dlrover-run"), only=1),
        Case("memory", memory),
        Case("stages", stages, (OURS,)),
        Case("tf-mirrored", tf_cases.mirrored, (OURS, BY_HAND)),
        Case("tf-served", tf_cases.served, (OURS, BY_HAND)),
    )
}
#: Several cases by one name. They are measured only if they are asked for.
GROUPS = {"tensorflow": tuple(name for name in CASES if name.startswith("tf-"))}
