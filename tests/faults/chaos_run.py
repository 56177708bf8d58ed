"""The chaos from a command line: its options, its report as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.chaos import TOLERANCE, Outcome, Plan, Reference, disturb, reference
from tests.faults.chaos_faults import FAULTS
from tests.faults.ledger import GOODPUT

#: A hung worker would cost more than a minute: as long until it is noticed as until it is given up.
QUICK = "--hang-timeout=10 --shutdown-timeout=5"
STORY_LINES = 150  # of a failed run on the console; all of it goes to a file


def kinds(text: str) -> tuple[str, ...]:
    """The faults of a list such as "worker,master"."""
    found = tuple(text.split(","))
    if unknown := set(found) - set(FAULTS):
        raise argparse.ArgumentTypeError(f"{sorted(unknown)} are no faults; there are {', '.join(FAULTS)}")
    return found


def add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--minutes", type=float, default=30.0, help="how long faults come (default 30)")
    group.add_argument("--every", type=float, default=20.0, help="seconds between faults (default 20)")
    group.add_argument("--seed", type=int, help="of the faults and their victims (default: a fresh one)")
    group.add_argument("--faults", type=kinds, default=tuple(FAULTS), help=f"default {','.join(FAULTS)}")
    group.add_argument("--health-check", default="off", help="of elastic-run (default off)")
    group.add_argument(
        "--elastic-run", default=QUICK, help=f'more options of elastic-run (default "{QUICK}")'
    )
    group.add_argument(
        "--report",
        type=Path,
        help="JSON file to write (default: a temporary one); the story goes beside it as .log",
    )
    group.add_argument(
        "--reference",
        type=Path,
        help="report of an earlier chaos whose undisturbed run counts for this one too (default: do one)",
    )


def run(options: argparse.Namespace) -> bool:
    """Do it, report it; whether all was well."""
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    launcher = ("--health-check", options.health_check, *options.elastic_run.split())
    plan = Plan(options.minutes * 60, options.every, seed, options.faults, launcher)
    print(f"chaos: seed {seed}, faults {','.join(plan.faults)}, elastic-run {' '.join(launcher)}", flush=True)
    given = read_reference(options.reference) if options.reference else reference(plan.seconds, launcher)
    print(
        f"chaos: undisturbed: {given.epochs} epochs in {given.seconds:.1f} s, accuracy {given.accuracy}, "
        + ", ".join(f"{1000 * each:.0f} ms an epoch on {n} nodes" for n, each in sorted(given.pace.items())),
        flush=True,
    )
    outcome = disturb(plan, given)
    report = options.report or Path(tempfile.gettempdir()) / f"elasticrun-chaos-{seed}.json"
    report.write_text(json.dumps(as_json(outcome), indent=2) + "\n")
    report.with_suffix(".log").write_text(outcome.story + "\n")
    if outcome.failure:
        print("\n".join(outcome.story.splitlines()[-STORY_LINES:]))
    print("\n".join(table(outcome)))
    print(f"chaos: report in {report}, story in {report.with_suffix('.log')}")
    return outcome.good


def read_reference(path: Path) -> Reference:
    found = json.loads(path.read_text())["reference"]
    return Reference(**{**found, "pace": {int(world): each for world, each in found["pace"].items()}})


def by_kind(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """What each kind of fault cost: count, and median and most seconds."""
    strikes = defaultdict(list)
    for strike in outcome.strikes:
        strikes[strike.kind].append(strike)
    found: dict[str, dict[str, Any]] = {}
    for kind, those in sorted(strikes.items()):
        found[kind] = {"count": len(those)}
        for name in ("back", "whole", "pause"):
            values = [value for it in those if (value := getattr(it, name)) is not None]
            found[kind][name] = [statistics.median(values), max(values)] if values else None
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "good": outcome.good,
        "failure": outcome.failure,
        "plan": asdict(outcome.plan),
        "reference": asdict(outcome.reference),
        "seconds": outcome.seconds,
        "accuracy": outcome.accuracy,
        "tolerance": TOLERANCE,
        "goodput": outcome.goodput(outcome.reference.pace),
        "goodput_means": GOODPUT,
        "goodput_at_own_pace": outcome.goodput(outcome.pace),
        "window": outcome.window,
        "kept_epochs": dict(outcome.kept),
        "repeated_epochs": outcome.repeated,
        "own_pace": outcome.pace,
        "faults": by_kind(outcome),
        "fault_count": len(outcome.strikes),
        "descriptors": outcome.descriptors,
        "leftovers": outcome.leftovers,
        "stacks_in_log_directories": outcome.stacks,
        "strikes": [asdict(strike) for strike in outcome.strikes],
    }


def shortened(outcome: Outcome) -> str:
    """Why faults came for less than their time, if they did."""
    is_short = outcome.window < outcome.plan.seconds and len(outcome.strikes) < outcome.plan.most
    return ": training was nearly done; let the undisturbed run have more epochs" if is_short else ""


def table(outcome: Outcome) -> Iterator[str]:
    """The report for people, line by line."""
    yield ""
    yield "fault      count   first epoch after (s)   two nodes after (s)     longest pause (s)"
    yield "                      median      most       median      most       median      most"
    for kind, row in by_kind(outcome).items():
        pairs = (row[name] or (0.0, 0.0) for name in ("back", "whole", "pause"))
        yield f"{kind:10} {row['count']:5}" + "".join(f"   {mid:10.2f}{most:10.2f}" for mid, most in pairs)
    yield f"all        {len(outcome.strikes):5}"
    yield ""
    left = sorted(outcome.leftovers.items())
    kept = ", ".join(f"{count} on {world} nodes" for world, count in sorted(outcome.kept.items()))
    rows = {
        "seed": outcome.plan.seed,
        "faults came for": f"{outcome.window:.1f} of {outcome.plan.seconds:g} s{shortened(outcome)}",
        "the whole run took": f"{outcome.seconds:.1f} s; undisturbed {outcome.reference.seconds:.1f} s",
        "epochs kept meanwhile": f"{kept}; {outcome.repeated} were repeated",
        "goodput": f"{outcome.goodput(outcome.reference.pace):.3f} "
        f"(at this run's own pace {outcome.goodput(outcome.pace):.3f})",
        "accuracy": f"{outcome.accuracy:.4f}; undisturbed {outcome.reference.accuracy:.4f}, "
        f"tolerance {TOLERANCE}",
        **{
            f"descriptors of one {role}": f"{counts[0]}, after {len(counts) - 1} faults {counts[-1]}"
            for role, counts in outcome.descriptors.items()
        },
        "": f"({GOODPUT})",
        "leftovers": ", ".join(f"{kind}: {'; '.join(found) or 'none'}" for kind, found in left),
        "stacks of hangs": f"{outcome.stacks} files in the log directories",
        "verdict": "good" if outcome.good else f"BAD {outcome.failure}",
    }
    yield from (f"{name:24} {value}" for name, value in rows.items())
