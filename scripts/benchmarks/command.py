"""Measures elastic-run and, side by side with it, the other launchers that are installed.

scripts/bench [WHAT ...]          measures; without WHAT everything but TensorFlow
scripts/bench tensorflow          measures TensorFlow jobs: recovery by case, beside a loop made by hand
scripts/bench merge FILE ...      joins parts of one machine and one commit into one table
scripts/bench master --help       measures a master with thousands of agents
scripts/bench idle --help         measures what a job does while nothing happens
scripts/bench month [FAILURES]    measures the journal of a job in which a node fails each minute
scripts/bench save --help         measures how long a save of the state keeps a training waiting
scripts/bench recover --help      measures the time from a fault to the next new step
scripts/bench goodput --help      measures how much of a job under faults is work that counts
scripts/bench chaos --help        a soak under faults, its report, and torchrun beside it
scripts/bench accounting --help   measures whether the accounts of a job agree with a stopwatch
scripts/bench data --help         measures shards that ranks share: leases a second, waits, a slow node
scripts/bench watch --help        measures what 100 readers of the web page cost the job
scripts/bench cluster --help      replays many jobs on one cluster, with several schedulers
scripts/bench testing --help      measures what a test that runs on ranks costs, beside torch's own ways
scripts/bench ray --help          measures a job on Ray whose host is lost, beside Ray Train
"""

from __future__ import annotations

import argparse
import inspect
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

from scripts.benchmarks.cases import CASES, GROUPS, Case
from scripts.benchmarks.figures import FIGURES, STAGES, TF_FIGURES, Sample
from scripts.benchmarks.launchers import LAUNCHERS, OURS, Launcher
from scripts.benchmarks.machine import commit, load, machine
from scripts.benchmarks.report import (
    NOT_INSTALLED,
    MergeRefused,
    Report,
    markdown,
    merge,
    read_json,
    write_json,
    write_readme,
)
from scripts.benchmarks.session import measure

#: Measurements with command lines of their own: modules beside this one.
OTHERS = (
    "master",
    "idle",
    "month",
    "save",
    "recover",
    "goodput",
    "accounting",
    "chaos",
    "data",
    "watch",
    "testing",
    "cluster",
    "ray",
)
ALL = ",".join(LAUNCHERS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["merge"]:
        return _merge(given[1:])
    if given and given[0] in OTHERS:
        other = import_module(f"scripts.benchmarks.{given[0]}")
        return int(other.main(given[1:]))
    return _measure(given)


def _parser(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the table between the markers there")
    return parser


def _measure(arguments: list[str]) -> int:
    parser = _parser(f"{__doc__}\n{_about_cases()}")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join((*CASES, *GROUPS))}")
    parser.add_argument("--runs", type=int, default=10, help="of each launcher (default 10)")
    parser.add_argument(
        "--launchers",
        default=ALL,
        metavar="NAME,...",
        help=f"of {', '.join(LAUNCHERS)} (default: all that are installed)",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.what if name not in CASES and name not in GROUPS]:
        parser.error(f"{unknown[0]} is not measured; choose of {', '.join((*CASES, *GROUPS))}")
    names = options.launchers.split(",")
    if unknown := [name for name in names if name not in LAUNCHERS]:
        parser.error(f"{unknown[0]} is not known; choose of {', '.join(LAUNCHERS)}")
    launchers = [LAUNCHERS[name] for name in names]
    here = [launcher for launcher in launchers if launcher.path() is not None]
    before = load()
    report = Report(
        machine(),
        commit(),
        {launcher.name: _about(launcher) for launcher in launchers},
        commands=(_command(options),),
        begun=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )
    for sample in measure(cases_of(options.what), here, options.runs):
        print(_progress(sample), flush=True)
        report = replace(report, samples=(*report.samples, sample), loads=((before, load()),))
        if options.json is not None:  # each time: whatever ends this, what was measured is kept
            write_json(report, options.json)
    if not report.samples:
        parser.error("nothing was measured: no launcher of these is installed and takes part, or --runs is 0")
    return _write(report, options)


def cases_of(names: Sequence[str]) -> list[Case]:
    """The cases of these names; without names, all that are in no group."""
    grouped = {name for group in GROUPS.values() for name in group}
    wanted = [it for name in names for it in GROUPS.get(name, (name,))]
    return [CASES[name] for name in dict.fromkeys(wanted or (it for it in CASES if it not in grouped))]


def _command(options: argparse.Namespace) -> str:
    """The command that repeats this measurement, without the options for its output."""
    words = ["scripts/bench", *options.what, "--runs", str(options.runs)]
    if options.launchers != ALL:
        words += ["--launchers", options.launchers]
    return shlex.join(words)


def _about_cases() -> str:
    return "\n\n".join(inspect.cleandoc(case.drive.__doc__ or "") for case in CASES.values())


def _about(launcher: Launcher) -> str:
    return launcher.about if launcher.path() is not None else NOT_INSTALLED


def _progress(sample: Sample) -> str:
    units = {figure.name: figure.unit for figure in (*FIGURES, *STAGES, *TF_FIGURES)}
    text = ", ".join(f"{name} {units[name].text(value)}" for name, value in sample.figures.items())
    return f"{sample.case} {sample.number} {sample.launcher}: {sample.failure or text}"


def _merge(arguments: list[str]) -> int:
    parser = _parser("Joins parts of one machine and one commit into one table.")
    parser.add_argument("parts", nargs="+", type=Path, metavar="FILE", help="what --json wrote")
    options = parser.parse_args(arguments)
    try:
        report = merge([read_json(part) for part in options.parts])
    except (MergeRefused, ValueError, OSError) as error:
        parser.exit(1, f"scripts/bench merge: {error}\n")
    return _write(report, options)


def _write(report: Report, options: argparse.Namespace) -> int:
    """Write what is asked for; 1 if elastic-run failed in a run."""
    if options.json is not None:
        write_json(report, options.json)
    if options.markdown is not None:
        options.markdown.write_text(markdown(report))
    if options.readme is not None:
        write_readme(report, options.readme)
    print(f"\n{markdown(report)}")
    return int(any(it.failure for it in report.samples if it.launcher == OURS))
