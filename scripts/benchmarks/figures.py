"""What samples say: medians, spread, ratios, and whether a target is met. Pure.

A ratio compares elastic-run with another launcher in one round of A B A B, so both were measured within
seconds of one another; the median of these ratios is shown. A round in which one of
the two gave no figure has no ratio. A target in multiples of torchrun is judged by the first of the figure's
references that has ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from scripts.benchmarks.launchers import BY_HAND, OURS, TORCHRUN, TUNED


class Unit(Enum):
    """What a figure is counted in, and how it is written."""

    SECONDS = "s"
    MEGABYTES = "MB"
    SHARE = ""

    def text(self, value: float) -> str:
        match self:
            case Unit.SECONDS:
                return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
            case Unit.MEGABYTES:
                return f"{value:.1f}"
            case Unit.SHARE:
                return f"{value:.3f}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. Targets that are not set are None."""

    name: str
    case: str
    title: str
    unit: Unit = Unit.SECONDS
    references: tuple[str, ...] = (TORCHRUN,)
    ratio: float | None = None  # at most so many times the reference
    most: float | None = None
    least: float | None = None
    always: bool = False  # no run may fail


_ELASTIC = (TUNED, TORCHRUN)

FIGURES = (
    Figure("launch", "launch", "launch to first line, script without torch", ratio=0.15),
    Figure("allreduce", "allreduce", "launch to first all-reduce, 2 workers", ratio=0.5),
    Figure(
        "kill",
        "kill",
        "worker SIGKILL to first all-reduce, 1 node x 2",
        references=_ELASTIC,
        ratio=0.12,
        most=0.5,
        always=True,
    ),
    Figure("kill-two", "kill-two", "the same, 2 nodes x 1", references=_ELASTIC, ratio=0.1),
    Figure("node-loss", "node-loss", "node killed to survivors' first step", references=_ELASTIC, ratio=0.02),
    Figure("join-pause", "join", "node joins: pause of those training", references=_ELASTIC, ratio=0.1),
    Figure(
        "join-world", "join", "node joins to first step of the larger world", references=_ELASTIC, ratio=0.4
    ),
    Figure(
        "goodput",
        "goodput",
        "goodput, a worker SIGKILLed every 20 s for 3 minutes",
        Unit.SHARE,
        _ELASTIC,
        least=0.985,
    ),
    Figure("agent", "memory", "launcher (agent) of one node, resident", Unit.MEGABYTES, most=45),
    Figure("master", "memory", "its master, resident", Unit.MEGABYTES, most=45),
    Figure("agent-of-two", "memory", "launcher (agent) of two nodes, resident", Unit.MEGABYTES, most=45),
    Figure("master-of-two", "memory", "their master, resident", Unit.MEGABYTES, most=45),
    Figure("overhead", "memory", "all but the workers, PSS", Unit.MEGABYTES),
    Figure("worker-rss", "memory", "worker, torch imported, resident", Unit.MEGABYTES),
    Figure("worker", "memory", "memory added per further worker, torch imported", Unit.MEGABYTES, ratio=0.3),
)

STAGES = (
    Figure("stage-detect", "stages", "death seen, and told to the master"),
    Figure("stage-stop", "stages", "the other worker stopped"),
    Figure("stage-rendezvous", "stages", "next round assigned, its workers being started"),
    Figure("stage-start", "stages", "the script's first line"),
    Figure("stage-import", "stages", "torch imported"),
    Figure("stage-device", "stages", "the GPU's context made"),
    Figure("stage-group", "stages", "process group ready"),
    Figure("stage-step", "stages", "first all-reduce"),
)

_HAND = (BY_HAND,)

TF_FIGURES = (
    Figure(
        "tf-mirrored-start", "tf-mirrored", "mirrored, 3 workers: launch to the first step", references=_HAND
    ),
    Figure(
        "tf-mirrored",
        "tf-mirrored",
        "mirrored: worker SIGKILL to the first step of the new world",
        references=_HAND,
    ),
    Figure(
        "tf-served-start",
        "tf-served",
        "chief, 2 workers, 2 ps: launch to the first step",
        references=_HAND,
    ),
    Figure("tf-calm-gap", "tf-served", "longest gap between two steps, undisturbed", references=_HAND),
    Figure("tf-worker-gap", "tf-served", "the same around the SIGKILL of a worker", references=_HAND),
    Figure("tf-worker", "tf-served", "worker SIGKILL to the first step of the new worker", references=_HAND),
    Figure("tf-ps", "tf-served", "ps SIGKILL to the chief's first step", references=_HAND),
    Figure("tf-ps-disk", "tf-served", "the same, its own copy lost: restored from a peer", references=_HAND),
    Figure("tf-chief", "tf-served", "chief SIGKILL to the new chief's first step", references=_HAND),
    Figure("tf-more", "tf-served", "ps 2 to 3: pause of training", references=_HAND),
    Figure("tf-fewer", "tf-served", "ps 3 to 2: pause of training", references=_HAND),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one run of one launcher; ``failure`` says what went wrong, "" if nothing did. A run that
    failed may have figures all the same.
    """

    case: str
    launcher: str
    number: int  # of the round in which the launchers were measured in turn
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    load: float = 0.0
    log: str = ""  # the end of what the launcher printed, of a failure only


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of one figure."""

    median: float
    least: float
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target of one figure."""

    target: str
    met: bool | None  # None: it could not be judged


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of these values; None if there are none."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values), len(values))


def values(samples: Iterable[Sample], launcher: str, figure: str) -> dict[int, float]:
    """The figure of each round in which this launcher gave it."""
    return {
        it.number: it.figures[figure] for it in samples if it.launcher == launcher and figure in it.figures
    }


def success(samples: Iterable[Sample], launcher: str, case: str) -> tuple[int, int]:
    """How many runs of a case succeeded, of how many."""
    of_case = [it for it in samples if it.launcher == launcher and it.case == case]
    return sum(not it.failure for it in of_case), len(of_case)


def ratios(samples: Sequence[Sample], figure: str, reference: str) -> Spread | None:
    """The ratios of elastic-run to the reference, taken round by round."""
    ours, theirs = values(samples, OURS, figure), values(samples, reference, figure)
    return spread([ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())])


def reference(samples: Sequence[Sample], figure: Figure) -> str | None:
    """The launcher by which a ratio is judged; None: no round has both."""
    return next((name for name in figure.references if ratios(samples, figure.name, name)), None)


def verdicts(samples: Sequence[Sample], figure: Figure) -> list[Verdict]:
    """Each target of a figure; none if it was not measured. A run of ours that failed is a target missed."""
    ours = spread(list(values(samples, OURS, figure.name).values()))
    done, runs = success(samples, OURS, figure.case)
    if not runs:
        return []
    found = []
    if figure.ratio is not None:
        by = reference(samples, figure)
        ratio = ratios(samples, figure.name, by) if by else None
        met = ratio.median <= figure.ratio if ratio else None
        found.append(Verdict(f"<= {figure.ratio:g} x {by or figure.references[0]}", met))
    if figure.most is not None:
        unit = f" {figure.unit.value}".rstrip()
        found.append(Verdict(f"<= {figure.most:g}{unit}", ours.median <= figure.most if ours else None))
    if figure.least is not None:
        found.append(Verdict(f">= {figure.least:g}", ours.median >= figure.least if ours else None))
    if figure.always or done < runs:  # a run that failed may be in no median
        found.append(Verdict("no run fails", done == runs))
    return found
