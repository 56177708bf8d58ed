"""Where the time of a job went, the ratios that others publish, and both in words.

Three ratios of this field mean nearly the same:

- *DLRover's goodput*: "the time spent computing useful new steps over the elapsed time of the training job"
  (README of DLRover). It is ``ettr`` here.
- *ByteRobust's ETTR*, the effective training time ratio: productive training time over the wall-clock time of
  the job ("Robust LLM Training Infrastructure at ByteDance", arXiv:2509.16293). It is ``ettr`` here.
- *Goodput of Google's ml-goodput-measurement*: time of steps that completed and were not lost to a restart,
  over the elapsed time of the job; the rest is badput by its kind. It is ``ettr`` and ``LOST`` here. Google
  takes away the first time of a step that is made twice, this takes away the second; there are as many of
  either. Google also takes away the loading of data, which the launcher does not see: it is in the steps.

All three look at the job as a whole, and a step is productive however slow it is. ``goodput`` here is
stricter, and is what the one who pays asks for: of all time of all nodes, what share was work on new steps?
Spares, joiners that wait, and nodes that wait for a straggler lower it, and not ``ettr``. In both the first
step of a round is counted as start.
"""

from __future__ import annotations

from elasticrun.core.accounting.activities import Activity, Spent
from elasticrun.core.protocol.amounts import percent, time_text
from elasticrun.dataclass import dataclass

#: How many of the nodes that lost the most are named.
_WORST = 3


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one job, in microseconds."""

    at: int  # until when
    start: int  # of the job
    nodes: dict[str, Spent]  # that are here, and the newest of those that were
    total: Spent  # of all nodes
    job: Spent  # of the job: its critical path

    @property
    def goodput(self) -> float:
        """The share of all time of nodes that was work on new steps."""
        return share(self.total[Activity.PRODUCTIVE], self.total)

    @property
    def ettr(self) -> float:
        """The share of the job's time in which its world made new steps."""
        return share(self.job[Activity.PRODUCTIVE], self.job)


#: All but work on new steps.
LOST = frozenset(Activity) - {Activity.PRODUCTIVE}


def share(micros: int, of: Spent) -> float:
    """The share of something in all; 0 of nothing."""
    whole = sum(of.values())
    return micros / whole if whole else 0.0


def in_words(summary: Summary) -> str:
    """A few lines for people."""
    lines = [
        f"goodput {percent(summary.goodput)} of {_time(summary.total)} of all nodes,"
        f" ETTR {percent(summary.ettr)} of {_time(summary.job)} of the job",
        f"nodes: {_split(summary.total)}",
        f"job: {_split(summary.job)}",
    ]
    losses = {name: sum(spent[each] for each in LOST) for name, spent in summary.nodes.items()}
    worst = sorted(losses, key=lambda name: (-losses[name], name))[:_WORST]
    if len(losses) > 1:
        said = (f"{name} {percent(share(losses[name], summary.nodes[name]))}" for name in worst)
        lines.append(f"most time was lost on {', '.join(said)}")
    return "\n".join(lines)


def by_loss(spent: Spent) -> list[Activity]:
    """What there was at all: work first, then the largest loss."""
    return sorted((each for each in Activity if spent[each]), key=lambda each: (each in LOST, -spent[each]))


def _split(spent: Spent) -> str:
    parts = (f"{each.value} {percent(share(spent[each], spent))}" for each in by_loss(spent))
    return ", ".join(parts) or "no time yet"


def _time(spent: Spent) -> str:
    return time_text(sum(spent.values()) / 1e6)
