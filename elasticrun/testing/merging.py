"""The reports of all ranks as those of one test.

A phase has failed if it has on any rank. It was skipped if it was on all; else it has passed. Failures are
shown in the order in which they came, each with its rank in front; those that read alike are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO

import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest._io import TerminalWriter

PHASES = ("setup", "call", "teardown")
_ERROR = "E   "  # what pytest puts in front of the lines that say what is wrong


def merge(ranks: Mapping[int, Sequence[pytest.TestReport]], order: Sequence[int]) -> list[pytest.TestReport]:
    """One report for each phase that any rank got to.

    ``order``: the ranks that failed, the first one first.
    """
    merged = []
    for phase in PHASES:
        found = {rank: it for rank, reports in ranks.items() for it in reports if it.when == phase}
        if found:
            merged.append(_merged(found, order))
    return merged


def _merged(found: Mapping[int, pytest.TestReport], order: Sequence[int]) -> pytest.TestReport:
    failed = {rank: found[rank] for rank in order if rank in found and found[rank].failed}
    passed = [rank for rank, report in found.items() if report.passed]
    report = next(iter(failed.values()), found[passed[0] if passed else min(found)])
    report.duration = max(it.duration for it in found.values())
    report.sections = [
        (f"[rank {rank}] {name}", text)
        for rank, it in sorted(found.items())
        for name, text in it.sections
        if text
    ]
    if failed:
        alike: dict[str, list[int]] = {}
        for rank, each in failed.items():
            alike.setdefault(_text(each), []).append(rank)
        told = [_told(ranks, text, failed[ranks[0]]) for text, ranks in alike.items()]
        report.longrepr = as_failure("\n\n".join(told), report)
    return report


def as_failure(text: str, report: pytest.TestReport) -> ExceptionRepr:
    """What is shown of a failure: pytest's summary has only its first line, in a CI's log as well."""
    path, line, _ = report.location
    place = ReprFileLocation(path, (line or 0) + 1, text.split("\n")[0])
    entry = ReprEntryNative([f"{text}\n"])
    return ReprExceptionInfo(ReprTraceback([entry], extraline=None, style="native"), place)


def _told(ranks: Sequence[int], text: str, report: pytest.TestReport) -> str:
    """What is shown of a failure: the first line is all that pytest's summary has room for."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = text.split("\n")
    headline = lines.pop(0) if crash is None else crash.message.split("\n")[0]
    label = _label(sorted(ranks))
    errors = [line[len(_ERROR) :] for line in lines if _is_error(line)]
    indent = min((len(each) - len(each.lstrip()) for each in errors), default=0)
    marked = (
        f"{_ERROR}{label} {line[len(_ERROR) + indent :]}" if _is_error(line) else line for line in lines
    )
    return "\n".join((f"{label} {headline}".rstrip(), "", *marked))


def _label(ranks: Sequence[int]) -> str:
    """The ranks in short, as ``[rank 1]`` or ``[ranks 0-3, 7]``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return f"[rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, each)) for each in spans)}]"


def _text(report: pytest.TestReport) -> str:
    """What pytest would show, with the first line as far to the right as the others."""
    shown = StringIO()
    report.toterminal(TerminalWriter(shown))
    return shown.getvalue().strip("\n")


def _is_error(line: str) -> bool:
    return line.startswith(_ERROR) and bool(line.strip("E "))
