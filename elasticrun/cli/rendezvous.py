"""Where the master is, for how many nodes, and what ``--rdzv-conf`` changes.

The theory: there are three ways to name the endpoint, tried in this order.

1. *Alone*: ``--standalone``; or one node at most, whatever else is given; or port 0, which nobody else could
   find. The node runs its own master, and no other agent becomes its spare: a second launcher with the same
   port finds it in use, and says so. A list of endpoints is the exception: it names other hosts on purpose.
2. *Given*: ``--rdzv-endpoint``, whatever the backend; the port is 29400 if none is given. The first of a list
   is the endpoint, and the others are the hosts that take over, one after the other.
3. *Static*: ``--master-addr`` and ``--master-port``. Any other backend without an endpoint means
   localhost, as it does to torchrun.

Alone, the job has one node; asking for two or more at the same time is an error. The token decides what the
port of ``--rdzv-endpoint`` is for. Without a token the master needs no port, so the workers get it: it is
MASTER_PORT, as with torchrun. With a token the master listens for orders there, and MASTER_PORT is
``--master-port``, else another one. In the static case MASTER_PORT is ``--master-port`` either way.

What a batch system's allocation adds (``allocated.py``) looks here as if the user had given it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from elasticrun.cli import options, values
from elasticrun.cli.arguments import Given
from elasticrun.cli.option import Option
from elasticrun.cli.splitting import PROGRAM
from elasticrun.config import Endpoint, HealthCheckMode, HealthConfig, JobConfig, RendezvousConfig
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

T = TypeVar("T")

Notes = list[tuple[str, str]]

DEFAULT_STATIC_PORT = 29500
LOOPBACK = "127.0.0.1"
ALONE = Endpoint(LOOPBACK, 0)

#: Options that have to be the same on all nodes, for them to find one another.
_SHARED: tuple[Option[Any], ...] = (
    *(options.NNODES, options.RDZV_BACKEND, options.RDZV_ENDPOINT, options.RDZV_ID),
    *(options.MASTER_ADDR, options.MASTER_PORT),
)

_KEY_ALLOWED: dict[str, str] = {
    "join_timeout": "a number of seconds above 0",
    "timeout": "a number of seconds above 0",
    "last_call_timeout": "a number of seconds, 0 or more",
    "close_timeout": "a number of seconds above 0",
    "read_timeout": "a number of seconds above 0",
    "keep_alive_interval": "a number of seconds above 0",
    "keep_alive_max_attempt": "a whole number of 1 or more",
    "is_host": "true or false",
}


@dataclass(frozen=True, slots=True)
class Conf:
    """The keys of ``--rdzv-conf``, read with the same care as options."""

    given: Given
    pairs: dict[str, str]

    def find(self, key: str, convert: Callable[[str], T]) -> T | None:
        if key not in self.pairs:
            return None
        try:
            return convert(self.pairs[key])
        except ValueError:
            reason = f"{key} is {self.pairs[key]!r}; give {_KEY_ALLOWED[key]}"
            self.given.refuse(options.RDZV_CONF, reason)

    def seconds(self, key: str, default: float) -> float:
        value = self.find(key, values.some_seconds)
        return default if value is None else value


def read_conf(given: Given, notes: Notes) -> Conf:
    """Parse ``--rdzv-conf``, and note the keys that have no effect here."""
    pairs = dict(given.get(options.RDZV_CONF))
    unknown = [key for key in pairs if key not in _KEY_ALLOWED]
    if unknown:
        sentence = f"--rdzv-conf: {', '.join(unknown)} not used; the keys used are {', '.join(_KEY_ALLOWED)}"
        notes.append(("warning", sentence))
    conf = Conf(given, pairs)
    if "close_timeout" in pairs:
        conf.seconds("close_timeout", 0.0)
        notes.append(("debug", "--rdzv-conf: close_timeout has no effect, nothing here waits for a close"))
    return conf


def job_config(given: Given, conf: Conf, alone: bool, notes: Notes) -> JobConfig:
    """The job's own settings; with ``alone`` it has one node."""
    low, high = given.get(options.NNODES)
    if alone:
        high = 1
    _check_node_unit(given, low, high)
    defaults = JobConfig()
    interval = conf.seconds("keep_alive_interval", defaults.heartbeat_interval)
    attempts = conf.find("keep_alive_max_attempt", values.whole(1))
    patience = attempts or defaults.heartbeat_timeout / defaults.heartbeat_interval
    return JobConfig(
        job_id=_job_id(given, given.get(options.NNODES)[1]),
        min_nodes=low,
        max_nodes=high,
        last_call_timeout=_last_call(given, conf, defaults.last_call_timeout),
        join_timeout=conf.seconds("join_timeout", conf.seconds("timeout", defaults.join_timeout)),
        heartbeat_interval=interval,
        heartbeat_timeout=interval * patience,
        health=_health(given, high, notes),
        tag=os.urandom(16).hex(),
        join_command="" if alone else _join_command(given),
        **given.fields(JobConfig),
    )


def _health(given: Given, max_nodes: int, notes: Notes) -> HealthConfig:
    only = given.on(options.HEALTH_CHECK_ONLY)
    _note_unused_checks(given, only, max_nodes, notes)
    # --health-check-only asks for a check, even of a single node.
    mode = HealthCheckMode.START if only else given.get(options.HEALTH_CHECK)
    return HealthConfig(mode, **given.fields(HealthConfig))


def _note_unused_checks(given: Given, only: bool, max_nodes: int, notes: Notes) -> None:
    mode = given.get(options.HEALTH_CHECK)
    if only and given.has(options.HEALTH_CHECK):
        sentence = f"--health-check {mode.value} is not used: --health-check-only checks the nodes once"
        notes.append(("info", sentence))
    if only or mode not in (HealthCheckMode.OFF, HealthCheckMode.AUTO):
        return
    details = [options.HEALTH_CHECK_TIMEOUT, options.EXCLUDE_STRAGGLERS]
    if max_nodes == 1:
        details.insert(1, options.STRAGGLER_RATIO)  # several nodes are compared while they train, too
    unused = [option.flag for option in details if given.has(option)]
    flags = f"{', '.join(unused)} without effect"
    if unused and mode is HealthCheckMode.OFF:
        notes.append(("warning", f"{flags}: the health check is off; see --health-check"))
    elif unused and max_nodes == 1:
        notes.append(("info", f"{flags}: one node alone is not checked; see --health-check"))


def _last_call(given: Given, conf: Conf, default: float) -> float:
    by_conf = conf.find("last_call_timeout", values.seconds)
    by_flag = given.find(options.LAST_CALL_TIMEOUT)
    if by_flag is not None:
        return by_flag
    return default if by_conf is None else by_conf


def _check_node_unit(given: Given, low: int, high: int) -> None:
    unit = given.get(options.NODE_UNIT)
    if high // unit * unit < max(low, 1):
        nodes = f"{low}" if low == high else f"{low} to {high}"
        given.refuse(
            options.NODE_UNIT, f"no multiple of {unit} lies in --nnodes, which is {nodes}; give one that fits"
        )


def _job_id(given: Given, max_nodes: int) -> str:
    """A random UUID where torchrun draws one, except that a given id is kept if possible; else the id."""
    is_nowhere = given.get(options.RDZV_BACKEND) == "static" and not (
        given.has(options.RDZV_ENDPOINT) or given.has(options.MASTER_PORT) or given.has(options.RDZV_ID)
    )
    if given.on(options.STANDALONE) or (is_nowhere and max_nodes == 1):
        drawn = os.urandom(16).hex()
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-8{drawn[17:20]}-{drawn[20:]}"
    return given.get(options.RDZV_ID)


def _join_command(given: Given) -> str:
    """How another node of this job is started: with the options that have to be the same on all nodes."""
    from shlex import quote  # not needed by a node that is alone

    shared = [option for option in _SHARED if given.has(option)]
    words = [word for option in shared for word in (option.flag, quote(given.texts[option.name].text))]
    if given.has(options.NODE_RANK):
        words += [options.NODE_RANK.flag, "N"]
    return " ".join([PROGRAM, *words, "..."])


def is_alone(given: Given, conf: Conf, notes: Notes) -> bool:
    """Whether this node is the whole job, with a master that no other node can reach."""
    low, high = given.get(options.NNODES)
    why = _why_alone(given, high)
    # A user who says that the master is on another host has one there, for one node as well.
    is_elsewhere = given.has(options.RDZV_ENDPOINT) and conf.find("is_host", values.truth) is False
    if not why or (is_elsewhere and not given.on(options.STANDALONE)):
        return False
    if low > 1:
        raise UsageError(
            f"--nnodes asks for {low} nodes, but {why}: "
            "give an endpoint with a port that the other nodes can reach, or --nnodes 1"
        )
    if high > 1:
        notes.append(("warning", f"--nnodes allows {high} nodes, but {why}: no other node can join"))
    return True


def _why_alone(given: Given, max_nodes: int) -> str:
    if given.on(options.STANDALONE):
        return "--standalone runs one node"
    named = given.find(options.RDZV_ENDPOINT)
    if max_nodes == 1 and (named is None or len(named) == 1):
        return "one node needs no other"
    if named is not None:
        return "port 0 of --rdzv-endpoint is one that no other node knows" if named[0].port == 0 else ""
    if given.get(options.RDZV_BACKEND) != "static":
        return ""
    port = given.find(options.MASTER_PORT)
    return "--master-port 0 is one that no other node knows" if port == 0 else ""


def endpoints_of(given: Given, alone: bool, max_nodes: int, notes: Notes) -> tuple[Endpoint, ...]:
    """The master's endpoint, and after it those of the hosts that may take over."""
    if alone:
        return (ALONE,)
    named = given.find(options.RDZV_ENDPOINT)
    if named is not None:
        return named
    if given.get(options.RDZV_BACKEND) == "static":
        return (_static_endpoint(given, max_nodes, notes),)
    _note_local(max_nodes, "--rdzv-endpoint", notes)
    return (Endpoint("localhost", values.DEFAULT_PORT),)


def _static_endpoint(given: Given, max_nodes: int, notes: Notes) -> Endpoint:
    if not given.has(options.MASTER_ADDR):
        _note_local(max_nodes, "--rdzv-endpoint or --master-addr", notes)
    port = given.find(options.MASTER_PORT)
    return Endpoint(given.get(options.MASTER_ADDR), DEFAULT_STATIC_PORT if port is None else port)


def _note_local(max_nodes: int, flag: str, notes: Notes) -> None:
    if max_nodes > 1:
        notes.append(("warning", f"no {flag} given: only agents on this host can find the master"))


def rendezvous_config(given: Given, conf: Conf, alone: bool, notes: Notes) -> RendezvousConfig:
    """How this agent finds, or hosts, the master."""
    defaults = RendezvousConfig(ALONE)
    backend = given.get(options.RDZV_BACKEND)
    notes.append(("debug", f"rendezvous backend {backend}: served by elasticrun's own master"))
    is_host = conf.find("is_host", values.truth)
    endpoint, *successors = endpoints_of(given, alone, given.get(options.NNODES)[1], notes)
    return RendezvousConfig(
        endpoint=endpoint,
        backend="c10d" if given.on(options.STANDALONE) else backend,
        standalone=alone,
        is_host=None if alone else is_host,
        connect_timeout=conf.seconds("read_timeout", defaults.connect_timeout),
        successors=tuple(successors),
        master=_master_of_one(given) if alone and not given.on(options.STANDALONE) else None,
        **given.fields(RendezvousConfig),
    )


def _master_of_one(given: Given) -> Endpoint | None:
    """Where the user expects the workers' store of a node that is alone; None: anywhere."""
    named = given.find(options.RDZV_ENDPOINT)
    if named is not None:
        return named[0] if named[0].port else None
    if given.get(options.RDZV_BACKEND) != "static":
        return Endpoint("localhost", values.DEFAULT_PORT)
    port = given.find(options.MASTER_PORT)
    return Endpoint(given.get(options.MASTER_ADDR), port) if port else None


def with_orders(rendezvous: RendezvousConfig, given: Given) -> RendezvousConfig:
    """Let the master of a node that is alone listen for orders at the endpoint that elastic-ctl is given."""
    place, port = rendezvous.master, given.find(options.MASTER_PORT)
    is_static = given.get(options.RDZV_BACKEND) == "static" and not given.has(options.RDZV_ENDPOINT)
    if place is None or is_static:
        return rendezvous
    return replace(rendezvous, endpoint=place, master=Endpoint(place.host, port) if port else None)
