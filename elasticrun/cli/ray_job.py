"""``elastic-run --platform ray``: the launcher as the driver of a job whose nodes run on a Ray cluster.

Theory. The driver knows how many nodes there are, where the master is and which node is which. All other
options go to the nodes as they were given, and those of the job to the master as well. With ``--role-counts``
each task of TensorFlow is a node of its own; the slot of a replica says which role it has, so the successor
of a lost one has the same.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticrun.cli import options
from elasticrun.cli.arguments import Given
from elasticrun.cli.node_words import NodeWords, check_given, grace_of, security_of
from elasticrun.cli.option import Option
from elasticrun.cli.platform_options import PLATFORM, PLATFORM_CONF
from elasticrun.cli.ray_conf import RayConf, read_ray_conf
from elasticrun.cli.secrets import Notes
from elasticrun.config import Endpoint, SecurityConfig, TaskRole
from elasticrun.core.protocol.plain import one_line, plain

if TYPE_CHECKING:
    from elasticrun.config import JobConfig
    from elasticrun.core.fleet.replicas import Note, Start, Wish
    from elasticrun.platforms.ray.driver import RayJob
    from elasticrun.platforms.ray.words import Place

log = logging.getLogger(__name__)

#: Options that the driver gives to each node.
_OURS: tuple[tuple[Option[Any], str], ...] = (
    (options.RDZV_ENDPOINT, "the master runs beside the driver"),
    (options.MASTER_ADDR, "the master runs beside the driver"),
    (options.MASTER_PORT, "each round has a port of its own"),
    (options.RDZV_BACKEND, "elasticrun's own master serves all of them"),
    (options.LOCAL_ADDR, "Ray knows the address of each host"),
    (options.NODE_RANK, "each node gets a rank of its own"),
    (options.STANDALONE, "give --nnodes 1"),
    (options.NO_TOKEN, "each job on Ray has a token"),
    (options.TF_ROLE, "give --role-counts, or --framework tensorflow for workers alone"),
)
#: Those that it says in its own words, or for itself.
_SAID = (
    *(options.NNODES, options.RDZV_ID, options.RDZV_CONF, options.TOKEN_FILE),
    *(PLATFORM, PLATFORM_CONF, options.ROLE_COUNTS),
)
#: Variables of the driver that hold for nodes as well.
_PASSED = ("LOGLEVEL",)
_EXAMPLE = "elastic-run --platform ray [options] script"


def run_on_ray(given: Given, environ: Mapping[str, str]) -> int:
    """Run the job; returns the exit status. Raises ElasticRunError."""
    from elasticrun.cli.web import check_installed

    conf = check(given)
    check_installed("ray", "--platform ray", "ray")
    _configure_logging(environ)
    with tempfile.TemporaryDirectory(prefix="elasticrun_ray_", ignore_cleanup_errors=True) as state_dir:
        job = job_of(given, conf, environ, state_dir)
        return _drive(job, environ)


def _configure_logging(environ: Mapping[str, str]) -> None:
    from elasticrun.cli.parse import read_log_level

    notes: Notes = []
    logging.basicConfig(format="elastic-run: %(message)s", level="WARNING")
    logging.getLogger("elasticrun").setLevel(read_log_level(environ, notes))
    _warn(notes)


def _warn(notes: Notes) -> None:
    for level, sentence in notes:
        if level == "warning":
            print(f"elastic-run: {plain(sentence)}", file=sys.stderr, flush=True)


def check(given: Given) -> RayConf:
    """What ``--platform-conf`` says. Raises UsageError for what makes no job on Ray."""
    check_given(given, _OURS, "cannot be given with --platform ray", _EXAMPLE)
    return read_ray_conf(given)


def _drive(job: RayJob, environ: Mapping[str, str]) -> int:
    import asyncio
    import signal

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from elasticrun.agent.signals import SignalInbox
    from elasticrun.platforms.ray.cluster import connect
    from elasticrun.platforms.ray.driver import drive

    cluster = connect(environ.get("RAY_ADDRESS"))
    # Only now: Ray has put a handler of its own in place of the one for SIGTERM.
    inbox = SignalInbox((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        return asyncio.run(drive(job, cluster, inbox, _tell))
    finally:
        cluster.close()


def _tell(note: Note) -> None:
    if note.is_warning and not log.isEnabledFor(logging.INFO):  # then the keeper has told it
        log.warning("%s", plain(one_line(note.text)))


def job_of(given: Given, conf: RayConf, environ: Mapping[str, str], state_dir: str) -> RayJob:
    """The job that a command line asks for, with the journal of its master in this folder."""
    from elasticrun.cli.master_settings import master_command
    from elasticrun.cli.parse import policy_of
    from elasticrun.cli.rendezvous import job_config, read_conf
    from elasticrun.platforms.ray.driver import RayJob
    from elasticrun.platforms.remote import Request, encode

    notes: Notes = []
    job = replace(job_config(given, read_conf(given, notes), False, notes), policy=policy_of(given))
    if count := len(conf.roles):
        job = replace(job, min_nodes=count, max_nodes=count)
    if not given.has(options.RDZV_ID):
        job = replace(job, job_id=f"ray-{os.urandom(4).hex()}")
    security = _security(given, environ, notes)
    _warn(notes)
    wish = _wish(given, job, conf)
    assert security.token is not None
    variables = {name: environ[name] for name in _PASSED if name in environ} | {
        "ELASTICRUN_TOKEN": security.token
    }

    def request(endpoint: Endpoint, start: Start, place: Place) -> bytes:
        node = NodeWords(job.job_id, (job.min_nodes, job.max_nodes), endpoint, start.index, is_host=False)
        argv = _argv(given, node, place, conf.roles[start.slot] if conf.roles else None)
        directory = place.directory or os.getcwd()  # noqa: PTH109
        return encode(Request(argv, directory, variables, math.inf, wish.grace))

    def settings(host: str, port: int, journal: int) -> dict[str, object]:
        return _settings(job, security, f"{state_dir}/{journal}", host, port)

    return RayJob(job.job_id, wish, conf.needs, security, master_command(), settings, request)


def _settings(
    job: JobConfig, security: SecurityConfig, state_dir: str, host: str, port: int
) -> dict[str, object]:
    from elasticrun.master.service import MasterConfig
    from elasticrun.rpc.records import to_json

    os.makedirs(state_dir, mode=0o700, exist_ok=True)  # noqa: PTH103
    level = logging.getLevelName(logging.getLogger("elasticrun").level)
    config = MasterConfig(
        job, host, port, state_dir, log_level=level, security=security, launcher=os.getpid()
    )
    return dict(to_json(config))


def _security(given: Given, environ: Mapping[str, str], notes: Notes) -> SecurityConfig:
    path, strict = given.find(options.TOKEN_FILE), not given.on(options.INSECURE_TOKEN)
    tls = (given.find(options.TLS_CA), given.find(options.TLS_CERT), given.find(options.TLS_KEY))
    return security_of(path, tls, environ, notes, is_strict=strict, whose="this driver")


def _wish(given: Given, job: JobConfig, conf: RayConf) -> Wish:
    from elasticrun.core.fleet.replicas import Shape, Wish

    return Wish(
        Shape(job.min_nodes, job.max_nodes, slots=len(conf.roles)),
        job.max_nodes,
        max_failures=conf.restarts,
        memory=conf.needs.memory,
        grace=grace_of(given),
    )


def _argv(given: Given, node: NodeWords, place: Place, role: TaskRole | None) -> list[str]:
    """The command line of one node; its Python is that of the actor."""
    theirs = [
        row.flag if row.is_flag else f"{row.flag}={given.texts[row.name].text}"
        for row in options.OPTIONS
        if row not in _SAID and (given.on(row) if row.is_flag else given.has(row))
    ]
    more: dict[Option[Any], str] = {options.LOCAL_ADDR: place.address, PLATFORM: "host"}
    if role is not None:
        more |= {options.TF_ROLE: role.value, options.NPROC_PER_NODE: "1"}
    return node.argv(place.python, given, theirs, more)
