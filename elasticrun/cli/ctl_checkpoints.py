"""``elastic-ctl checkpoints``: what a storage has of a job's saved states, without the job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.ctl_run import exit_on_errors, has_colours
from elasticrun.core.protocol.plain import plain
from elasticrun.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from elasticrun.storage.catalog import Listed
    from elasticrun.storage.records import CommitName, Marker
    from elasticrun.storage.store import Store

_WIDTH = 100  # columns where there is no terminal
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_STEP = click.IntRange(0)


@click.group(invoke_without_command=True)
@click.argument("directory", metavar="DIR")
@click.pass_context
def checkpoints(context: click.Context, directory: str) -> None:
    """List, verify or export the saved states in DIR.

    DIR is a directory, or a URL that fsspec can read, such as s3://bucket/run. Without a command, they are
    listed.
    """
    context.obj = directory
    if context.invoked_subcommand is None:
        context.invoke(list_commits)


@checkpoints.command(name="list")
@_JSON
@click.pass_obj
def list_commits(directory: str, as_json: bool = False) -> None:
    """Show what DIR has, the newest last."""
    with exit_on_errors():
        click.echo(_as_json(directory) if as_json else plain(_as_table(directory)))


@checkpoints.command()
@click.argument("step", type=_STEP, required=False)
@_JSON
@click.pass_obj
def verify(directory: str, step: int | None, as_json: bool) -> None:
    """Read all that was saved after STEP, or after each step, and compare it with its digests.

    Exit codes: 0 all is as it was written; 1 something is damaged, and is named, or DIR cannot be read;
    2 wrong usage.
    """
    with exit_on_errors():
        found = _verified(directory, step, click.echo if not as_json else lambda _: None)
        if as_json:
            click.echo(json.dumps(found, indent=2))
    if any(each["damaged"] for each in found):
        sys.exit(ExitCode.JOB_FAILED)


@checkpoints.command()
@click.argument("step", type=_STEP)
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_obj
def export(directory: str, step: int, out: Path) -> None:
    """Write what was saved after STEP to the file OUT, for torch.load: a dict with whole tensors.

    All of it is verified before, and it has to fit in memory. This needs torch.
    """
    with exit_on_errors():
        store, marker = _chosen(directory, step)
        try:
            from elasticrun.checkpoint.stored import export as write
        except ImportError:
            raise UsageError(
                "a file for torch.load is written by torch, which is not installed here: "
                "pip install 'elasticrun[torch]'"
            ) from None
        write(store, marker, out)
        click.echo(plain(f"{marker.name} is in {out}"))


def _open(directory: str) -> Store:
    from elasticrun.storage.errors import StorageGoneError
    from elasticrun.storage.opening import open_store

    try:
        return open_store(directory)
    except StorageGoneError as error:
        raise UsageError(str(error)) from None


def _as_table(directory: str) -> str:
    import shutil

    from elasticrun.storage.catalog import commits
    from elasticrun.ui.checkpoints import Row, render_commits

    store = _open(directory)
    rows = [
        Row(
            *(each.name.commit.step, each.name.commit.round, each.name.run),
            *(None if each.marker is None else each.marker.world_size, _size(store, each)),
            *(None if each.marker is None else each.marker.finished, each.problem),
        )
        for each in commits(store)
    ]
    if not rows:
        return f"there are no saved states in {directory}"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    return render_commits(rows, width, has_colours())


def _as_json(directory: str) -> str:
    from elasticrun.storage.catalog import commits

    store = _open(directory)
    told = [
        {
            **_named(each.name),
            "folder": each.name.folder,
            "finished": None if each.marker is None else each.marker.finished,
            "nodes": None if each.marker is None else each.marker.nodes,
            "world_size": None if each.marker is None else each.marker.world_size,
            "bytes": _size(store, each),
            "problem": each.problem,
        }
        for each in commits(store)
    ]
    return json.dumps(told, indent=2)


def _named(name: CommitName) -> dict[str, Any]:
    return {"step": name.commit.step, "round": name.commit.round, "run": name.run}


def _size(store: Store, listed: Listed) -> int:
    """Bytes of the data; of a commit that is not finished, what there is by now."""
    if listed.marker is not None:
        return listed.marker.length
    return sum(entry.size for entry in store.entries(listed.name.folder))


def _chosen(directory: str, step: int) -> tuple[Store, Marker]:
    """The finished commit of a step; the one that was finished last, if there are several."""
    from elasticrun.storage.catalog import commits

    store = _open(directory)
    finished = [each.marker for each in commits(store) if each.marker is not None]
    found = [marker for marker in finished if marker.name.commit.step == step]
    if not found:
        steps = ", ".join(str(marker.name.commit.step) for marker in finished[-8:]) or "none"
        raise UsageError(f"step {step} is not in {directory}, or not finished: the newest ones are {steps}")
    return store, found[-1]


def _verified(directory: str, step: int | None, told: Callable[[str], None]) -> list[dict[str, Any]]:
    from elasticrun.storage.catalog import commits
    from elasticrun.ui.checkpoints import size_in_words

    if step is None:
        store = _open(directory)
        listed = [(each.name, each.marker, each.problem) for each in commits(store)]
    else:
        store, chosen = _chosen(directory, step)
        listed = [(chosen.name, chosen, "")]
    found = []
    for name, marker, problem in listed:
        if marker is None and not problem:
            told(plain(f"{name}: not finished"))
            continue
        damaged = [("commit.json", problem)] if marker is None else _damages(store, marker)
        if damaged is None:
            told(plain(f"{name}: removed meanwhile"))
            continue
        for key, reason in damaged:
            told(plain(f"{name}: {key} is damaged: {reason}"))
        if marker is not None and not damaged:
            told(plain(f"{name}: all {size_in_words(marker.length)} are as they were written"))
        found.append({**_named(name), "damaged": [{"key": key, "reason": reason} for key, reason in damaged]})
    return found


def _damages(store: Store, marker: Marker) -> list[tuple[str, str]] | None:
    """What is damaged, with the reasons; None: retention has removed this commit meanwhile."""
    from elasticrun.storage.catalog import is_removed
    from elasticrun.storage.errors import StorageGoneError
    from elasticrun.storage.verifying import damages

    try:
        found = [(damage.key, damage.reason) for damage in damages(store, marker)]
    except StorageGoneError:
        if is_removed(store, marker.name):
            return None
        raise
    return None if found and is_removed(store, marker.name) else found
