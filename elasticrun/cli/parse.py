"""Turn the command line and the environment into a LaunchConfig, or one UsageError.

Nothing is started here but short-lived children of the workers' interpreter: they look for modules and
count accelerators, as the launcher never imports torch. Cheap checks come first, then the files and
modules named, then the count, so that a typing error is reported at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.cli import checks, nproc, options, values, warm
from elasticrun.cli.allocated import fill_in
from elasticrun.cli.arguments import Given, ShowText, read_arguments
from elasticrun.cli.option import Group
from elasticrun.cli.oversights import note_misplaced_options, note_mistyped_variables
from elasticrun.cli.platform_options import PLATFORM
from elasticrun.cli.rendezvous import (
    Notes,
    is_alone,
    job_config,
    read_conf,
    rendezvous_config,
    with_orders,
)
from elasticrun.cli.secrets import is_open, read_security, without_token
from elasticrun.cli.state_options import OF_STORAGE
from elasticrun.config import (
    Entrypoint,
    EntrypointKind,
    LaunchConfig,
    LogConfig,
    Policy,
    WorkerConfig,
)
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from elasticrun.cli.roles import Roles

__all__ = ["RunElsewhere", "ShowText", "parse_command_line"]

_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET")
_DEFAULT_LEVEL = "WARNING"
#: Stands for the script where none is started: an empty program, so a start by mistake would do nothing.
_NO_SCRIPT = os.devnull
_TENSORFLOW = tuple(option for option in options.OPTIONS if option.group is Group.TENSORFLOW)


class RunElsewhere(Exception):
    """The user asked for nodes on a platform: this host is none, so nothing more is looked at here."""

    def __init__(self, given: Given) -> None:
        super().__init__(given.texts[PLATFORM.name].text)
        self.given = given


def parse_command_line(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchConfig:
    """The configuration that ``elastic-run argv`` asks for, checked as far as this host can tell.

    ``argv`` is without the program's name. Raises UsageError with one sentence for anything wrong,
    ShowText for options that only print, such as ``--help``, and RunElsewhere if ``--platform`` says so.
    """
    given = read_arguments(argv, environ)
    _check_values(given)
    if given.get(PLATFORM) != PLATFORM.default:
        raise RunElsewhere(given)
    notes: Notes = []
    given, notice = fill_in(given, environ, notes)
    note_mistyped_variables(environ, notes)
    entrypoint = _entrypoint(given, environ, notes)
    if entrypoint.kind is not EntrypointKind.BINARY:  # which may be a launcher that has these options
        note_misplaced_options(argv, given.command, notes)
    conf = read_conf(given, notes)
    alone = is_alone(given, conf, notes)
    job = job_config(given, conf, alone, notes)
    if not job.state_storage:
        _note_lone_storage_options(given, notes)
    rendezvous = rendezvous_config(given, conf, alone, notes)
    log_level = read_log_level(environ, notes)
    roles = _roles(given, job.max_nodes, notes)
    workers = replace(_workers(given, environ, entrypoint, notes), notice_signal=notice)
    _check_files(given, workers, environ)
    workers = _prepared(workers, roles, given, environ, notes)
    job = replace(job, policy=policy_of(given), endpoints=1 + len(rendezvous.successors))
    security = read_security(given, environ, rendezvous, notes)
    if alone and security.token is not None:
        rendezvous = with_orders(rendezvous, given)
    job = replace(job, cautious=is_open(rendezvous, security))
    workers = _counted(workers, roles, given, environ, notes)
    return LaunchConfig(
        job,
        rendezvous,
        workers if roles is None else _with_roles(workers, roles, given, job.max_nodes),
        security,
        log_level=log_level,
        notes=tuple(notes),
        **given.fields(LaunchConfig),
    )


def _check_values(given: Given) -> None:
    """Refuse any wrong value, even of an option that has no effect here."""
    for option in options.OPTIONS:
        if option is options.RDZV_ENDPOINT and given.on(options.STANDALONE):
            continue  # ignored, so an address that an image sets for its clusters does no harm
        given.find(option)


def _entrypoint(given: Given, environ: Mapping[str, str], notes: Notes) -> Entrypoint:
    python = environ.get("PYTHON_EXEC") or sys.executable
    if given.on(options.HEALTH_CHECK_ONLY):
        if given.command:
            sentence = f"--health-check-only checks nodes and ends: {given.command[0]} is not started"
            notes.append(("info", sentence))
        return Entrypoint(EntrypointKind.SCRIPT, _NO_SCRIPT, python=python)
    if not given.command:
        raise UsageError(
            "no training script given: give elastic-run [options] script [its arguments]; "
            "see elastic-run --help"
        )
    kind = _kind(given)
    _note_options_without_effect(given, kind, notes)
    target, *args = given.command
    return Entrypoint(kind, target, tuple(args), python=python)


def _kind(given: Given) -> EntrypointKind:
    if given.on(options.RUN_PATH):
        return EntrypointKind.RUN_PATH
    if given.on(options.NO_PYTHON):
        if given.on(options.MODULE):
            raise UsageError(
                "--module and --no-python were given together: give one of them, "
                "a module cannot run without python"
            )
        return EntrypointKind.BINARY
    return EntrypointKind.MODULE if given.on(options.MODULE) else EntrypointKind.SCRIPT


def _note_options_without_effect(given: Given, kind: EntrypointKind, notes: Notes) -> None:
    method = given.get(options.START_METHOD)
    if kind is not EntrypointKind.RUN_PATH and given.has(options.START_METHOD):
        notes.append(("info", f"--start-method {method} is ignored: it belongs to --run-path"))
    elif method != "spawn":
        notes.append(("info", f"--start-method {method}: a fresh interpreter is used all the same"))


def _note_lone_storage_options(given: Given, notes: Notes) -> None:
    lone = [option.flag for option in OF_STORAGE if given.has(option)]
    if lone:
        sentence = f"{', '.join(lone)} without effect: no storage is given; see --state-storage"
        notes.append(("warning", sentence))


def _workers(given: Given, environ: Mapping[str, str], entrypoint: Entrypoint, notes: Notes) -> WorkerConfig:
    """How workers are started; ``_counted`` adds their number and environment."""
    return WorkerConfig(
        entrypoint,
        local_world_size=1,
        logs=_logs(given, notes),
        file_timer=_file_timer(environ),
        health_check_port=_health_check_port(environ),
        error_file=environ.get("TORCHELASTIC_ERROR_FILE") or None,
        auto_progress=not given.on(options.NO_AUTO_PROGRESS),
        **given.fields(WorkerConfig),
    )


def _check_files(given: Given, workers: WorkerConfig, environ: Mapping[str, str]) -> None:
    log_dir, state_dir = workers.logs.log_dir, given.find(options.STATE_DIR)
    checks.check_files(workers.entrypoint, log_dir, state_dir, environ)
    if workers.preemption_file is not None:
        checks.check_notice_file(options.PREEMPTION_FILE.flag, workers.preemption_file)


def policy_of(given: Given) -> Policy:
    """What ``--policy`` says. Raises UsageError for a file that cannot be used."""
    path = given.find(options.POLICY)
    if path is None:
        return Policy()
    from elasticrun.policy_file import read_policy

    return read_policy(path)


def _roles(given: Given, max_nodes: int, notes: Notes) -> Roles | None:
    if not any(given.has(option) for option in _TENSORFLOW):
        return None
    from elasticrun.cli.roles import read_roles

    return read_roles(given, max_nodes, notes)


def _prepared(
    workers: WorkerConfig, roles: Roles | None, given: Given, environ: Mapping[str, str], notes: Notes
) -> WorkerConfig:
    """Add what is prepared before workers start: a warm parent, and servers of a TensorFlow job."""
    if roles is None:
        return warm.choose(workers, given, environ, notes)
    from elasticrun.cli.roles import prepare

    return prepare(workers, roles, given, environ, notes)


def _with_roles(workers: WorkerConfig, roles: Roles, given: Given, max_nodes: int) -> WorkerConfig:
    from elasticrun.cli.roles import roles_by_rank

    return replace(workers, roles=roles_by_rank(roles, given, workers.local_world_size, max_nodes))


def _counted(
    workers: WorkerConfig, roles: Roles | None, given: Given, environ: Mapping[str, str], notes: Notes
) -> WorkerConfig:
    if roles is not None and roles.listed and not given.has(options.NPROC_PER_NODE):
        size = len(roles.listed)
    else:
        count, source = given.get(options.NPROC_PER_NODE), _nproc_source(given)
        size = nproc.count_workers(count, source, workers.entrypoint.python, environ, notes)
    env = without_token(environ)
    if roles is None:
        _settle_openmp(env, size, notes)
        _settle_pages(env)
    else:
        from elasticrun.cli.roles import settle_grpc

        settle_grpc(env)
    return replace(workers, local_world_size=size, env=tuple(env.items()))


def _nproc_source(given: Given) -> str:
    text = given.texts.get(options.NPROC_PER_NODE.name)
    return str(text) if text else options.NPROC_PER_NODE.flag


def _logs(given: Given, notes: Notes) -> LogConfig:
    logs_specs = given.find(options.LOGS_SPECS)
    if logs_specs is not None:
        _check_logs_specs(given, logs_specs, notes)
    return LogConfig(**given.fields(LogConfig))


def _check_logs_specs(given: Given, name: str, notes: Notes) -> None:
    """Refuse an unknown name, and warn of any but ``default``, which describes what we do anyway.

    A custom LogsSpecs is a subclass of one in torch, which the launcher never imports. Refusing the
    job over its logs would be worse than a warning.
    """
    if name == "default":
        return
    from importlib.metadata import entry_points

    found = entry_points(group="torchrun.logs_specs").names
    if name not in found:
        names = " or ".join(sorted({"default", *found}))
        given.refuse(
            options.LOGS_SPECS, f"the group torchrun.logs_specs has no entry point of this name; give {names}"
        )
    sentence = f"--logs-specs {name} is not used, since its class needs torch inside the launcher: "
    notes.append(("warning", sentence + "logs go where they go without it"))


def read_log_level(environ: Mapping[str, str], notes: Notes) -> str:
    """What LOGLEVEL says; the default, with a warning, if that is no level."""
    text = environ.get("LOGLEVEL") or _DEFAULT_LEVEL
    level = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(text.upper(), text.upper())
    if level in _LEVELS:
        return level
    sentence = f"LOGLEVEL={text!r} is no level, {_DEFAULT_LEVEL} is used: give {', '.join(_LEVELS)}"
    notes.append(("warning", sentence))
    return _DEFAULT_LEVEL


def _file_timer(environ: Mapping[str, str]) -> str | None:
    """Path of the watchdog's FIFO, if it is asked for."""
    if environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") != "1":
        return None
    path = environ.get("TORCHELASTIC_TIMER_FILE")
    if path:
        return path
    import tempfile

    return os.path.join(tempfile.gettempdir(), f"elasticrun_timer_{os.urandom(8).hex()}")  # noqa: PTH118


def _health_check_port(environ: Mapping[str, str]) -> int | None:
    text = environ.get("TORCHELASTIC_HEALTH_CHECK_PORT")
    if not text:
        return None
    try:
        return values.whole(0, values.MAX_PORT)(text)
    except ValueError:
        raise UsageError(
            f"TORCHELASTIC_HEALTH_CHECK_PORT={text!r} is not valid: give a port from 0 to 65535"
        ) from None


def _settle_openmp(env: dict[str, str], workers: int, notes: Notes) -> None:
    """Set OMP_NUM_THREADS to 1 for several workers, unless it is set.

    Not for the tasks of a TensorFlow job: TensorFlow has thread pools of its own and does not read
    OMP_NUM_THREADS, so this would only slow down numpy in the input pipeline.
    """
    if "OMP_NUM_THREADS" not in env and workers > 1:
        env["OMP_NUM_THREADS"] = "1"
        sentence = f"OMP_NUM_THREADS is not set: each of the {workers} workers gets 1; set it to tune"
        notes.append(("warning", sentence))


def _settle_pages(env: dict[str, str]) -> None:
    """Have torch ask for huge pages for its large tensors on the CPU, unless the user says whether it does.

    The kernel then frees the memory of a dead worker, and gives the new one as much, in pages of 2 MB and not
    of 4 kB: most of what a restart with a large state takes is that.
    """
    env.setdefault("THP_MEM_ALLOC_ENABLE", "1")
