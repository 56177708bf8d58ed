"""``elastic-run --platform ray``: the launcher as the driver of a job whose nodes run on a Ray cluster.

Theory. The driver knows how many nodes there are, where the master is and which node is which. So it gives
these options to each node itself, and refuses them: two answers to one question would be one too many. All
other options go to the nodes as they were given, and those of the job to the master as well.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from elasticrun.cli import options, values
from elasticrun.cli.arguments import Given
from elasticrun.cli.option import Option
from elasticrun.cli.platform_options import PLATFORM, PLATFORM_CONF
from elasticrun.cli.secrets import Notes
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import UsageError
from elasticrun.platforms.kubernetes.quantity import memory_of

if TYPE_CHECKING:
    from elasticrun.config import JobConfig
    from elasticrun.core.fleet.replicas import Note, Wish
    from elasticrun.platforms.ray.driver import RayJob
    from elasticrun.platforms.ray.words import Needs, Place

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
    (options.ROLE_COUNTS, "jobs of TensorFlow are not run on Ray"),
    (options.TF_ROLE, "jobs of TensorFlow are not run on Ray"),
)
#: Those that it says in its own words, or for itself.
_SAID = (
    *(options.NNODES, options.RDZV_ID, options.RDZV_CONF, options.TOKEN_FILE),
    *(PLATFORM, PLATFORM_CONF),
)
#: Variables of the driver that hold for nodes as well.
_PASSED = ("LOGLEVEL",)
#: Seconds beyond the grace of workers that a launcher may need for its end.
_MARGIN = 30.0
_MOST = 1 << 20
#: What Ray calls its own resources.
_RESERVED = frozenset({"CPU", "GPU", "object_store_memory"})
T = TypeVar("T")


def run_on_ray(given: Given, environ: Mapping[str, str]) -> int:
    """Run the job; returns the exit status. Raises ElasticRunError."""
    from elasticrun.cli.web import check_installed

    check(given)
    check_installed("ray", "--platform ray", "ray")
    _configure_logging(environ)
    with tempfile.TemporaryDirectory(prefix="elasticrun_ray_", ignore_cleanup_errors=True) as state_dir:
        job = job_of(given, environ, state_dir)
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


def check(given: Given) -> None:
    """Raise UsageError for what makes no job on Ray."""
    for option in options.OPTIONS:
        given.find(option)  # refuses a wrong value
    for option, why in _OURS:
        if given.has(option):
            raise UsageError(f"{option.flag} cannot be given with --platform ray: {why}")
    if not given.command and not given.on(options.HEALTH_CHECK_ONLY):
        raise UsageError("no training script given: give elastic-run --platform ray [options] script")
    needs = _Conf(given).needs()
    if not needs.cpus and not needs.gpus and not needs.memory and not needs.others:
        given.refuse(PLATFORM_CONF, "each node takes nothing; give it something, such as cpus=1")
    if given.get(options.NPROC_PER_NODE) == "gpu" and not needs.gpus:
        raise UsageError("--nproc-per-node gpu needs GPUs: give --platform-conf gpus=N, for each node")


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
    if note.is_warning and not logging.getLogger("elasticrun").isEnabledFor(logging.INFO):
        print(f"elastic-run: {plain(one_line(note.text))}", file=sys.stderr, flush=True)


def job_of(given: Given, environ: Mapping[str, str], state_dir: str) -> RayJob:
    """The job that a command line asks for, with the journal of its master in this folder."""
    from elasticrun.cli.master_settings import master_command
    from elasticrun.cli.parse import policy_of
    from elasticrun.cli.rendezvous import job_config, read_conf
    from elasticrun.platforms.ray.driver import RayJob
    from elasticrun.platforms.remote import Request, encode

    notes: Notes = []
    conf = read_conf(given, notes)
    job = replace(job_config(given, conf, False, notes), policy=policy_of(given))
    if not given.has(options.RDZV_ID):
        job = replace(job, job_id=f"ray-{os.urandom(4).hex()}")
    security = _security(given, environ, notes)
    _warn(notes)
    extra = _Conf(given)
    wish = _wish(given, job, extra)
    assert security.token is not None
    variables = {name: environ[name] for name in _PASSED if name in environ} | {
        "ELASTICRUN_TOKEN": security.token
    }

    def request(endpoint: Endpoint, index: int, place: Place) -> bytes:
        argv = _argv(given, job, endpoint, index, place)
        directory = place.directory or os.getcwd()  # noqa: PTH109
        return encode(Request(argv, directory, variables, math.inf, wish.grace))

    def settings(host: str, port: int, journal: int) -> dict[str, object]:
        return _settings(job, security, f"{state_dir}/{journal}", host, port)

    return RayJob(job.job_id, wish, extra.needs(), security, master_command(), settings, request)


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


def _security(given: Given, environ: Mapping[str, str], notes: Any) -> SecurityConfig:
    from elasticrun.cli.secrets import given_token, read_tls

    token = given_token(given.find(options.TOKEN_FILE), environ, notes, not given.on(options.INSECURE_TOKEN))
    ca, cert, key = (given.find(option) for option in (options.TLS_CA, options.TLS_CERT, options.TLS_KEY))
    tls = read_tls(ca, cert, key, notes)
    if token is None:
        return SecurityConfig(os.urandom(32).hex(), tls, "this driver")
    return SecurityConfig(token.text, tls, token.source)


def _wish(given: Given, job: JobConfig, conf: _Conf) -> Wish:
    from elasticrun.core.fleet.replicas import Shape, Wish

    grace = given.find(options.SHUTDOWN_TIMEOUT)
    return Wish(
        Shape(job.min_nodes, job.max_nodes, slots=0),
        job.max_nodes,
        max_failures=conf.restarts,
        memory=conf.memory,
        grace=_MARGIN + (_MARGIN if grace is None else grace),
    )


def _argv(given: Given, job: JobConfig, endpoint: Endpoint, index: int, place: Place) -> list[str]:
    """The command line of one node; its Python is that of the actor."""
    theirs = [
        row.flag if row.is_flag else f"{row.flag}={given.texts[row.name].text}"
        for row in options.OPTIONS
        if row not in _SAID and (given.on(row) if row.is_flag else given.has(row))
    ]
    conf = given.texts.get(options.RDZV_CONF.name)
    ours = {
        options.NNODES: f"{job.min_nodes}:{job.max_nodes}",
        options.RDZV_BACKEND: "static",
        options.RDZV_ENDPOINT: str(endpoint),
        options.RDZV_ID: job.job_id,
        options.RDZV_CONF: f"{f'{conf.text},' if conf else ''}is_host=false",
        options.NODE_RANK: str(index),
        options.LOCAL_ADDR: place.address,
        PLATFORM: "host",
    }
    words = [word for row, text in ours.items() for word in (row.flag, text)]
    return [place.python, "-m", "elasticrun", *theirs, *words, "--", *given.command]


class _Conf:
    """What ``--platform-conf`` says. Raises UsageError."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._texts = dict(given.get(PLATFORM_CONF))
        workers = given.get(options.NPROC_PER_NODE)
        self._default_cpus = str(workers) if isinstance(workers, int) else "1"
        self.memory = self._take("memory", memory_of, "0")
        self.restarts = self._take("restarts", values.whole(0), "10")
        self._cpus = self._take("cpus", _amount, self._default_cpus)
        self._gpus = self._take("gpus", _amount, "0")
        if taken := _RESERVED.intersection(self._texts):
            given.refuse(PLATFORM_CONF, f"{min(taken)} is Ray's own word; give cpus, gpus or memory")
        if self._gpus > 1 and self._gpus % 1:
            given.refuse(PLATFORM_CONF, f"gpus is {self._gpus:g}; Ray gives whole ones, or a part of one")
        self._others = tuple((name, self._take(name, _amount, "0")) for name in list(self._texts))

    def _take(self, key: str, convert: Callable[[str], T], default: str) -> T:
        try:
            return convert(self._texts.pop(key, default))
        except ValueError as error:
            self._given.refuse(PLATFORM_CONF, f"{key}: {error}; {PLATFORM_CONF.allowed}")

    def needs(self) -> Needs:
        """What a node takes."""
        from elasticrun.platforms.ray.words import Needs

        return Needs(self._cpus, self._gpus, self.memory, self._others)


def _amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < _MOST:
        raise ValueError(f"{text!r} is no amount")
    return number
