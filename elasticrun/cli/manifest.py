"""From a command line of ``elastic-run`` to what runs it on a cluster, as text.

All options of ``elastic-run`` are taken, from its own table. Those that only the platform can answer, such as
where the master is, are refused.
"""

from __future__ import annotations

import math
import re
from pathlib import PurePath
from typing import Any

import click

from elasticrun.cli import manifest_options as own
from elasticrun.cli import options, state_options
from elasticrun.cli.arguments import Given, GivenText, read_arguments
from elasticrun.cli.option import Group, Option
from elasticrun.cli.platform_options import PLATFORM
from elasticrun.errors import UsageError
from elasticrun.platforms.manifests.formats import FORMATS, SBATCH, Format, Queue, render
from elasticrun.platforms.manifests.workload import Workload

#: Options of elastic-run that the manifest gives, and what the user gives instead.
_INSTEAD: tuple[tuple[Option[Any], str], ...] = (
    (options.RDZV_ENDPOINT, "nothing: it is made from the names of the pods"),
    (options.MASTER_ADDR, "nothing: it is made from the names of the pods"),
    (options.MASTER_PORT, "nothing: each round has a port of its own"),
    (options.RDZV_BACKEND, "nothing: elasticrun's own master serves all of them"),
    (options.RDZV_ID, "--name"),
    (options.LOCAL_ADDR, "nothing: each node finds its own address"),
    (options.NODE_RANK, "nothing: each node finds its own rank"),
    (options.STANDALONE, "--nnodes 1"),
    (PLATFORM, "nothing: each pod is a node"),
    (options.TF_ROLE, "--role-counts with --format tfjob"),
)
#: What the manifest says in its own way, so that it is not repeated among the other options.
_SAID = (
    *(options.NNODES, options.NPROC_PER_NODE, options.MAX_RESTARTS, options.RDZV_CONF, options.TOKEN_FILE),
    options.ROLE_COUNTS,
)
#: Seconds that a launcher has for its own end, beyond what its workers and saved states have.
_MARGIN = 15
_SHARED = tuple(row for row in options.OPTIONS if row.group is not Group.ABOUT and not row.hidden)


def click_options() -> list[click.Parameter]:
    """The options of the verb: those of the manifest, and those of elastic-run, which its help leaves out."""
    return [_click_option(row) for row in (*own.ROWS, *_SHARED)]


def _click_option(row: Option[Any]) -> click.Option:
    names = [row.flag, *([f"-{row.short}"] if row.short else [])]
    if "-" in row.name and row not in own.ROWS:
        names.append(f"--{row.name.replace('-', '_')}")
    more: dict[str, Any] = {"is_flag": True} if row.is_flag else {"metavar": row.metavar}
    if row in own.REPEATED:
        more["multiple"] = True
    shown = row.help + (f"  [default: {row.default}]" if row in own.ROWS and row.default else "")
    return click.Option([*names, row.field_name], help=shown, hidden=row in _SHARED, **more)


def render_manifest(command: tuple[str, ...], given: dict[str, Any]) -> str:
    """The text for a command line. ``given``: by option. Raises UsageError for what is wrong in it."""
    mine = Given(
        {
            row.name: GivenText(given[row.field_name] if not row.is_flag else "1", row.flag)
            for row in own.ROWS
            if row not in own.REPEATED and given[row.field_name] not in (None, False)
        },
        command,
    )
    job = _launch(command, given)
    form = _format(mine, command)
    _check(form, mine, job, given)
    return render(form, _workload(form, mine, job, given))


def _launch(command: tuple[str, ...], given: dict[str, Any]) -> Given:
    """What elastic-run would be told. Raises UsageError for a wrong value, here and not in each pod."""
    words = list[str]()
    for row in _SHARED:
        text = given[row.field_name]
        if text not in (None, False):
            words += [row.flag] if row.is_flag else [f"{row.flag}={text}"]
    job = read_arguments([*words, "--", *command], {})
    for row in options.OPTIONS:
        job.find(row)
    for row, instead in _INSTEAD:
        if job.has(row):
            raise UsageError(f"{row.flag} is given to each node by the manifest: give {instead}")
    if any(key == "is_host" for key, _ in job.get(options.RDZV_CONF)):
        raise UsageError("is_host of --rdzv-conf differs from node to node: leave it out")
    if not command and not job.on(options.HEALTH_CHECK_ONLY):
        raise UsageError(
            "no training script given: give elastic-ctl manifest [options] script [its arguments]"
        )
    return job


def _format(mine: Given, command: tuple[str, ...]) -> Format:
    if not mine.has(own.FORMAT):
        behind = own.FORMAT.flag in (word.partition("=")[0] for word in command[1:])
        why = " (one stands behind the script, and goes to it)" if behind else ""
        raise UsageError(f"no --format given{why}: give {own.FORMAT.allowed}, before the script")
    name = mine.get(own.FORMAT)
    return next(form for form in FORMATS if form.name == name)


def _check(form: Format, mine: Given, job: Given, given: dict[str, Any]) -> None:
    """Refuse what the format cannot say."""
    for row in own.ROWS:
        if row not in own.REPEATED:
            mine.find(row)
    flag = f"--format {form.name}"
    if form is SBATCH:
        for row in own.OF_KUBERNETES:
            if given[row.field_name]:
                raise UsageError(f"{row.flag} was given, which {flag} cannot use: leave it out")
    elif not mine.has(own.IMAGE):
        raise UsageError(f"no --image given, which {flag} needs: give {own.IMAGE.allowed}")
    queued = ", ".join(it.name for it in FORMATS if it.queue is not Queue.NONE)
    if mine.has(own.QUEUE) and form.queue is Queue.NONE:
        mine.refuse(own.QUEUE, f"{flag} has no queues; leave it out, or give one of the formats {queued}")
    if not mine.has(own.QUEUE) and form.queue is Queue.NEEDED:
        raise UsageError(f"no --queue given, which {flag} needs: give the name of a LocalQueue")
    if mine.has(own.TIME_LIMIT) and not form.has_time_limit:
        mine.refuse(own.TIME_LIMIT, f"{flag} has no such limit; leave it out")
    if mine.has(own.RUNTIME) and form.name != "trainjob":
        mine.refuse(own.RUNTIME, f"{flag} has no runtime; leave it out")
    for row in (own.PRIORITY_CLASS, own.RESTRICTED) if form.name == "trainjob" else ():
        if mine.has(row):
            mine.refuse(row, f"{flag} takes it from its runtime; leave it out")
    if mine.has(own.TOKEN_SECRET) and job.on(options.NO_TOKEN):
        raise UsageError("--token-secret and --no-token exclude each other: give one of them")
    if job.has(options.ROLE_COUNTS):
        if not form.has_roles:
            job.refuse(options.ROLE_COUNTS, f"{flag} has pods of one kind; give --format tfjob")
        if job.has(options.NNODES):
            raise UsageError("--role-counts says how many nodes there are: leave out --nnodes")


def _workload(form: Format, mine: Given, job: Given, given: dict[str, Any]) -> Workload:
    name = _name(mine, job)
    secret = (
        "" if form is SBATCH or job.on(options.NO_TOKEN) else mine.find(own.TOKEN_SECRET) or f"{name}-token"
    )
    roles = tuple((role.value, count) for role, count in (job.find(options.ROLE_COUNTS) or {}).items())
    total = sum(count for _, count in roles)
    texts = [(row, job.texts[row.name].text) for row in _SHARED if job.has(row) and row not in _SAID]
    passed = [(row.flag, "" if row.is_flag else text) for row, text in texts]
    if form is SBATCH and job.has(options.TOKEN_FILE):
        passed.append((options.TOKEN_FILE.flag, job.texts[options.TOKEN_FILE.name].text))
    repeated = {row.field_name: _items(row, given[row.field_name]) for row in own.REPEATED}
    return Workload(
        name=name,
        image=mine.find(own.IMAGE) or "",
        namespace=mine.find(own.NAMESPACE) or "",
        options=tuple(passed),
        command=job.command,
        nodes=(total, total) if roles else job.get(options.NNODES),
        workers=str(job.get(options.NPROC_PER_NODE)),
        max_restarts=job.get(options.MAX_RESTARTS),
        conf=_conf(job),
        roles=roles,
        grace=_grace(job),
        token_secret=secret,
        token_file=job.find(options.TOKEN_FILE) or "",
        cpu=mine.find(own.CPU) or "",
        memory=mine.find(own.MEMORY) or "",
        gpu=mine.find(own.GPU) or ("nvidia.com/gpu", 0),
        shm=mine.find(own.SHM) or "",
        is_spot=mine.on(own.SPOT),
        is_restricted=mine.on(own.RESTRICTED),
        queue=mine.find(own.QUEUE) or "",
        priority_class=mine.find(own.PRIORITY_CLASS) or "",
        service_account=mine.find(own.SERVICE_ACCOUNT) or "",
        pull_secret=mine.find(own.PULL_SECRET) or "",
        node_selector=repeated["node_selector"],
        env=repeated["env"],
        volumes=repeated["volume"],
        time_limit=math.ceil(mine.find(own.TIME_LIMIT) or 0),
        minor=mine.get(own.KUBERNETES),
        runtime=mine.get(own.RUNTIME),
    )


def _items(row: Option[Any], texts: tuple[str, ...]) -> tuple[Any, ...]:
    """The values of an option that may be repeated; raises UsageError for a wrong one."""
    return tuple(Given({row.name: GivenText(text, row.flag)}, ()).find(row) for text in texts)


def _name(mine: Given, job: Given) -> str:
    if mine.has(own.NAME):
        return mine.get(own.NAME)
    stem = PurePath(job.command[0]).name if job.command else "health-check"
    if not job.on(options.MODULE):
        stem = stem.removesuffix(".py")
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    try:
        return own.NAME.convert(name)
    except ValueError:
        raise UsageError(
            f"the script {stem!r} gives no name for the job: give --name with {own.NAME.allowed}"
        ) from None


def _conf(job: Given) -> tuple[tuple[str, str], ...]:
    """With the time that pods may take to come; those that are there wait for the master for as long."""
    given = dict(job.get(options.RDZV_CONF))
    patience = given.get("join_timeout", given.get("timeout", "600"))
    return tuple(({"read_timeout": patience} | given).items())


def _grace(job: Given) -> int:
    """Seconds from SIGTERM to SIGKILL for a whole pod: workers save, the newest state is written, all end."""
    seconds = job.find(options.SHUTDOWN_TIMEOUT) or 0.0
    if job.has(state_options.STATE_STORAGE):
        seconds += job.get(state_options.STATE_FLUSH_TIMEOUT)
    return math.ceil(seconds) + _MARGIN
