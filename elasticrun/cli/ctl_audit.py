"""``elastic-ctl audit``: proves from a run's records that each sample counted exactly once."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.core.protocol.plain import plain
from elasticrun.errors import DataError, ExitCode, UsageError

if TYPE_CHECKING:
    from elasticrun.core.data.audit import Audit, Wrong
    from elasticrun.core.data.history import RankRecord, Verdict

FOLDER, PATTERN = "data", "round_*_rank_*.jsonl"  # as in storage/positions.py


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Audit the model of this step, not the newest one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(run_dir: Path, step: int | None, as_json: bool) -> None:
    """Prove that each sample is in the model's history exactly once, or name those that are not.

    RUN_DIR is the directory that the script gave to Checkpointer(records=...), or ChiefSession(records=...).
    Read are the positions that were saved, and nothing is concluded from rules: what was taken is counted,
    epoch by epoch.

    Exit codes: 0: each sample exactly once; 1: not so, or it cannot be proven; 2: there are no records.
    """
    with exit_on_errors():
        found = _verdict(run_dir, step)
    click.echo(json.dumps(as_plain(found), indent=2) if as_json else "\n".join(map(plain, lines(found))))
    sys.exit(ExitCode.OK if found.is_exact else ExitCode.JOB_FAILED)


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people."""
    rounds = ", ".join(map(str, verdict.rounds))
    yield f"the model of {verdict.final}, trained in rounds {rounds}"
    if verdict.begun is not None:
        yield f"went on from step {verdict.begun.step} of another job: what it trained on is not checked"
    for name, found in verdict.audits:
        yield f"{name}: {'exact' if found.is_exact else 'NOT exact'}"
        for text in (*found.problems, *map(str, found.epochs)):
            yield f"  {text}"


def as_plain(verdict: Verdict) -> dict[str, Any]:
    """The verdict for programs."""
    return {
        "exact": verdict.is_exact,
        "final": {"round": verdict.final.round, "step": verdict.final.step},
        "rounds": list(verdict.rounds),
        "begun": None if verdict.begun is None else {"step": verdict.begun.step},
        "data": {name: _plain_audit(found) for name, found in verdict.audits},
    }


def _plain_audit(found: Audit) -> dict[str, Any]:
    epochs = [
        {
            "epoch": each.epoch,
            "samples": each.samples,
            "padding": each.padding,
            "dropped": each.dropped,
            "missing": _plain_wrong(each.missing),
            "repeated": _plain_wrong(each.repeated),
            "left": each.left,
        }
        for each in found.epochs
    ]
    return {"exact": found.is_exact, "problems": list(found.problems), "epochs": epochs}


def _plain_wrong(wrong: Wrong) -> dict[str, Any]:
    return {"count": wrong.count, "first": list(wrong.first)}


def _verdict(run_dir: Path, step: int | None) -> Verdict:
    from elasticrun.core.data.history import History

    try:
        paths = sorted((run_dir / FOLDER).glob(PATTERN))
        records = [each for path in paths for each in _records(path)]
    except OSError as error:
        raise UsageError(f"{error.filename or run_dir} cannot be read: {error.strerror}") from None
    if not records:
        raise UsageError(
            f"{run_dir} has no records of data positions: give the directory that the script gave to"
            " elasticrun.Checkpointer(records=...), or elasticrun.tf.ChiefSession(records=...)"
        )
    return History(records).verdict(step)


def _records(path: Path) -> Iterator[RankRecord]:
    """The record in a file; none if its rank ended before it had begun."""
    from elasticrun.core.data.history import RankRecord, Saved, read_saved, read_start

    found = _lines(path)
    number, line = next(found, (0, None))
    if not number:
        return
    with _named(path, number):
        start = read_start(line)
        if path.name != f"round_{start.round}_rank_{start.rank}.jsonl":
            raise DataError(f"it is that of rank {start.rank} of round {start.round}")
    saved: dict[int, Saved] = {}
    for number, line in found:
        with _named(path, number):
            each = read_saved(line)
        saved[each.step] = each.after(saved[each.step]) if each.step in saved else each
    yield RankRecord(start, tuple(saved.values()))


@contextmanager
def _named(path: Path, number: int) -> Iterator[None]:
    """Say of which line an error is."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}, line {number}: {error}") from None


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The lines of a file with their numbers, but for a last one that a kill cut off."""
    from elasticrun.core.data.history import MAX_LINE

    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that somebody put there would never open
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise UsageError(f"{path} is no regular file")
        number = 0
        while line := stream.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n"):
                with _named(path, number):
                    if len(line) == MAX_LINE:
                        raise DataError(f"it is longer than {MAX_LINE} bytes")
                return
            with _named(path, number):
                found = _parsed(line)
            yield number, found


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no JSON ({error})") from None
