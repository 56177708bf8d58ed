"""``elastic-ctl replay``: what a master decided, and why, from its journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.core.protocol.plain import plain
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from elasticrun.config import JobConfig
    from elasticrun.master.journal import Entry

#: Fields that hold credentials. They are not shown, as the output may end up in a bug report.
SECRET = frozenset({"key", "ticket", "returning", "nonce", "proof", "secret"})


@click.command()
@click.argument("journal", type=click.Path(path_type=Path))
def replay(journal: Path) -> None:
    """Print what a master was told and what it decided, and why, from its JOURNAL.

    JOURNAL is the file journal.jsonl of a --state-dir, or that directory. The decisions are taken again, so
    only the version that wrote the journal explains it.
    """
    with exit_on_errors():
        config, entries = _read(journal)
        for line in explained(config, entries):
            click.echo(plain(line))


def _read(path: Path) -> tuple[JobConfig, list[Entry]]:
    from elasticrun.master.journal import read_journal, replay

    file = path
    if path.is_dir():
        from elasticrun.master.service import JOURNAL_NAME

        file = path / JOURNAL_NAME
    found = read_journal(file)
    if found is None:
        raise UsageError(f"{file}: there is no journal, or nothing in it")
    replay(file, *found)  # raises an error that names a line that cannot be replayed
    return found


def explained(config: JobConfig, entries: list[Entry]) -> Iterator[str]:
    """Lines for each event, with its number in the log, and for its effects; => marks decisions."""
    from elasticrun.core.job.events import Decided
    from elasticrun.core.job.machine import JobMachine
    from elasticrun.master.snapshot import Snapshot, restore
    from elasticrun.sim.literal import literal

    machine = JobMachine(config)
    for entry in entries:
        if isinstance(entry.event, Snapshot):
            machine = restore(config, entry.event)
            where = f"round {machine.state.round}, {machine.state.phase.value}"
            yield f"{entry.at:12.3f} the state in {where}; older events are gone"
            continue
        effects = machine.handle(entry.event, entry.at)
        yield f"{entry.at:12.3f} #{machine.state.events} {literal(entry.event, SECRET)}"
        for effect in effects:
            said = f"=> {effect.text}" if isinstance(effect, Decided) else f"-> {literal(effect, SECRET)}"
            yield f"{'':12} {said}"
