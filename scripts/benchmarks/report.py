"""Samples as a JSON file, and as a Markdown table for people; parts of one measurement joined.

The JSON file holds every sample, and the table is computed from it, so it can be made again at any time.
Parts are joined only if machine and commit are the same: anything else would compare what cannot be compared.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks.figures import (
    FIGURES,
    STAGES,
    TF_FIGURES,
    Figure,
    Sample,
    ratios,
    reference,
    spread,
    success,
    values,
    verdicts,
)
from scripts.benchmarks.launchers import OURS

FORMAT = 1
NOT_INSTALLED = "not installed"
_TF_CASES = frozenset(figure.case for figure in TF_FIGURES)
NO_GPU = " No GPU was there, so no context of one was made, and gloo stands for NCCL."
BEGIN, END = "<!-- speed:start -->", "<!-- speed:end -->"
#: Where the table goes if nothing but TensorFlow was measured.
TF_BEGIN, TF_END = "<!-- tensorflow-speed:start -->", "<!-- tensorflow-speed:end -->"


class MergeRefused(Exception):
    """The parts are not of one measurement; says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """One measurement, or several that were joined."""

    machine: dict[str, str]
    commit: str
    launchers: dict[str, str]  # what is behind each name, or NOT_INSTALLED
    samples: tuple[Sample, ...] = ()
    commands: tuple[str, ...] = ()
    begun: str = ""  # of the first part, UTC
    loads: tuple[tuple[float, float], ...] = ()  # of each part, at begin and end


def write_json(report: Report, path: Path) -> None:
    """Every sample, and the machine."""
    path.write_text(json.dumps({"format": FORMAT, **dataclasses.asdict(report)}, indent=1) + "\n")


def read_json(path: Path) -> Report:
    """What ``write_json`` wrote; ValueError if it is something else."""
    found: dict[str, Any] = json.loads(path.read_text())
    if found.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is no measurement of this version of scripts/bench")
    found["samples"] = tuple(Sample(**sample) for sample in found["samples"])
    found["commands"] = tuple(found["commands"])
    found["loads"] = tuple((begin, end) for begin, end in found["loads"])
    return Report(**found)


def merge(parts: Sequence[Report]) -> Report:
    """All parts as one; if a case is in several, its rounds are numbered on."""
    first = parts[0]
    for part in parts[1:]:
        for name in sorted(first.machine.keys() | part.machine.keys()):
            if first.machine.get(name) != part.machine.get(name):
                raise MergeRefused(
                    f"the parts are of different machines: {name} is {first.machine.get(name)}"
                    f" in one, {part.machine.get(name)} in another"
                )
        if part.commit != first.commit:
            raise MergeRefused(f"the parts are of different commits: {first.commit} and {part.commit}")
    samples: list[Sample] = []
    for part in parts:
        samples += _numbered_on(samples, part.samples)
    return dataclasses.replace(
        first,
        samples=tuple(samples),
        launchers={name: about for part in parts for name, about in part.launchers.items()},
        commands=tuple(dict.fromkeys(command for part in parts for command in part.commands)),
        begun=min(part.begun for part in parts),
        loads=tuple(load for part in parts for load in part.loads),
    )


def _numbered_on(before: Sequence[Sample], more: Sequence[Sample]) -> list[Sample]:
    taken: Counter[str] = Counter()
    for sample in before:
        taken[sample.case] = max(taken[sample.case], sample.number + 1)
    return [dataclasses.replace(it, number=it.number + taken[it.case]) for it in more]


# -- for people


def markdown(report: Report) -> str:
    """The table with what it was measured on."""
    parts = [_head(report), _table(report), _stages(report), _foot(report)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(report: Report) -> list[str]:
    it = report.machine
    loads = ", ".join(f"{begin:g} to {end:g}" for begin, end in report.loads)
    gpu = "no GPU" if it["gpu"] == "none" else it["gpu"]
    return [
        f"{it['cpu']}, {it['cores']} cores, {it['memory']}, {gpu}; Linux {it['kernel']},"
        f" Python {it['python']}, {_library(report)}; commit {report.commit}, {report.begun};"
        f" load average {loads}. Made by",
        "",
        "```sh",
        *report.commands,
        "```",
        "",
        "Median (least to most), runs that succeeded; ratio: median of the ratios of neighbouring runs."
        " A fault comes when the job trains and its launchers have nothing left to do.",
    ]


def _library(report: Report) -> str:
    """What trains: tensorflow, torch, or both."""
    versions = report.machine
    tensorflow = f"tensorflow {versions.get('tensorflow', 'none')}"
    if _is_tensorflow(report):
        return tensorflow
    is_mixed = any(it.case in _TF_CASES for it in report.samples)
    return f"torch {versions['torch']}" + (f", {tensorflow}" if is_mixed else "")


def _is_tensorflow(report: Report) -> bool:
    """Whether only TensorFlow jobs were measured."""
    return bool(report.samples) and all(it.case in _TF_CASES for it in report.samples)


def _table(report: Report) -> list[str]:
    measured = [name for name in report.launchers if any(it.launcher == name for it in report.samples)]
    figures = (*FIGURES, *TF_FIGURES)
    shown = [figure for figure in figures if any(it.case == figure.case for it in report.samples)]
    if not shown:
        return []
    header = ["figure", *measured, "ratio", "target", ""]
    rows = [
        [_title(it), *(_cell(report, it, name) for name in measured), *_judged(report, it)] for it in shown
    ]
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _stages(report: Report) -> list[str]:
    """The split of elastic-run's recovery; nothing if it was not measured."""
    cells = [[it.title, _cell(report, it, OURS)] for it in STAGES]
    rows = [row for row in cells if row[1]]
    if not rows:
        return []
    gpu = "" if any(it.figures.get("stage-device") for it in report.samples) else NO_GPU
    head = f"Where the time of elastic-run goes after the SIGKILL of a worker, 1 node x 2.{gpu}"
    return [head, "", _row(["stage", "seconds"]), _row(["---", "---"]), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _title(figure: Figure) -> str:
    return f"{figure.title} ({figure.unit.value})" if figure.unit.value else figure.title


def _cell(report: Report, figure: Figure, launcher: str) -> str:
    done, runs = success(report.samples, launcher, figure.case)
    if not runs:
        return ""
    found = spread(list(values(report.samples, launcher, figure.name).values()))
    if found is None:
        return f"never, {done}/{runs}" if not done else ""
    text = figure.unit.text
    least_to_most = f" ({text(found.least)} to {text(found.most)})" if found.count > 1 else ""
    return f"{text(found.median)}{least_to_most}, {done}/{runs}"


def _judged(report: Report, figure: Figure) -> list[str]:
    by = reference(report.samples, figure)
    ratio = ratios(report.samples, figure.name, by) if by else None
    found = verdicts(report.samples, figure)
    words = {True: "met", False: "missed", None: "not judged"}
    verdict = [words[it.met] for it in found]
    rounds = len(values(report.samples, OURS, figure.name))
    of_few = f" ({ratio.count} of {rounds} runs)" if ratio and ratio.count < rounds else ""
    return [
        f"{ratio.median:.3g} x {by}{of_few}" if ratio else "",
        "; ".join(it.target for it in found),
        "; ".join(verdict),
    ]


def _foot(report: Report) -> list[str]:
    took_part = {it.launcher for it in report.samples}
    lines = [
        f"{name}: {about}."
        for name, about in report.launchers.items()
        if name != OURS and (name in took_part or (about == NOT_INSTALLED and not _is_tensorflow(report)))
    ]
    failures = Counter((it.case, it.launcher, it.failure) for it in report.samples if it.failure)
    lines += [f"{case}, {name}: {count} x {why}." for (case, name, why), count in failures.items()]
    return [f"- {line}" for line in lines]


def write_readme(report: Report, path: Path) -> None:
    """Put the table between the markers of a page; ValueError if it has none."""
    first, last = (TF_BEGIN, TF_END) if _is_tensorflow(report) else (BEGIN, END)
    before, begin, rest = path.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} has no {first} and {last} to put the table between")
    path.write_text(f"{before}{begin}\n{markdown(report)}{end}{after}")
