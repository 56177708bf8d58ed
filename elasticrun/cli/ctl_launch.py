"""``elastic-ctl launch``: starts ``elastic-run`` on each host of a list, and follows the list.

The exit status is that of the job, as ``elastic-run`` has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli import values
from elasticrun.cli.ctl_run import run_lean
from elasticrun.cli.scrub import take_environment
from elasticrun.cli.secrets import TOKEN_VARIABLE, Notes
from elasticrun.config import MAX_COUNT, Endpoint, SecurityConfig
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import ElasticRunError, UsageError

if TYPE_CHECKING:
    from elasticrun.agent.signals import SignalInbox
    from elasticrun.cli.launch_words import LaunchWords
    from elasticrun.core.hosts.events import Finish
    from elasticrun.core.hosts.fates import Terms
    from elasticrun.core.hosts.names import Host
    from elasticrun.platforms.discovery import Source

_FILE = click.Path(dir_okay=False)
_SECONDS = click.FloatRange(0, min_open=True, max=1e6)
_NODES = click.IntRange(1, MAX_COUNT)
_OPTIONS = (
    click.option(
        "-H",
        "--hosts",
        multiple=True,
        metavar="HOST[:SLOTS],...",
        help="The hosts, and workers on each; may be repeated.",
    ),
    click.option("--hostfile", metavar="FILE", help="A file with a host on each line; read again and again."),
    click.option(
        "--host-discovery-script",
        metavar="PROGRAM",
        help="A program that prints a host on each line; run again and again.",
    ),
    click.option("--min-nodes", type=_NODES, metavar="N", help="Default: the hosts there are at first."),
    click.option(
        "--max-nodes",
        type=_NODES,
        metavar="N",
        help="Default: the hosts of -H, else all there may be.",
    ),
    click.option(
        "--rdzv-endpoint",
        metavar="HOST[:PORT]",
        help="Where the first host's master listens (default: its name as listed, port 29400).",
    ),
    click.option(
        "--discovery-interval",
        type=_SECONDS,
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How often the list is looked at.",
    ),
    click.option(
        "--discovery-timeout",
        type=_SECONDS,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long the program may take.",
    ),
    click.option(
        "--discovery-grace",
        type=click.FloatRange(0, 1e6),
        default=15.0,
        show_default=True,
        metavar="SECONDS",
        help="A host is drained once two answers in a row lack it, and for this long.",
    ),
    click.option(
        "--cooldown",
        default="5:300",
        show_default=True,
        metavar="FIRST:LONGEST",
        help="For how many seconds a host that failed is left out; doubles with each failure in a row.",
    ),
    click.option(
        "--ssh", "ssh_program", default="ssh", show_default=True, metavar="PROGRAM", help="Which ssh."
    ),
    click.option(
        "-o", "--ssh-option", multiple=True, metavar="NAME=VALUE", help="As for ssh -o; may be repeated."
    ),
    click.option("--local-without-ssh", is_flag=True, help="Start localhost and 127.x.x.x without ssh."),
    click.option(
        "--silence",
        type=_SECONDS,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="A host that hears nothing of this launch for so long stops its workers.",
    ),
    click.option(
        "--export",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="A variable for elastic-run and its workers; without a value as it is here. May be repeated.",
    ),
    click.option("--directory", metavar="DIR", help="Working directory on each host (default: as here)."),
    click.option(
        "--python", metavar="PROGRAM", help="Python on each host (default: the one that runs this)."
    ),
    click.option(
        "--token-file",
        type=_FILE,
        metavar="FILE",
        help=f"The job's token (default: {TOKEN_VARIABLE}, else a new one); hosts get it through ssh.",
    ),
    click.option("--tls-ca", type=_FILE, metavar="FILE", help="If the job uses TLS: its authority, PEM."),
    click.option("--tls-cert", type=_FILE, metavar="FILE", help="A certificate for this host, PEM."),
    click.option("--tls-key", type=_FILE, metavar="FILE", help="Its key, PEM."),
)
_EPILOG = """\
Exit codes: those of elastic-run, for the job; 2 also if there is no good list of hosts at first; 3 also if
too few hosts of -H can be started; 4 also if the first host cannot be reached; 128 + n after signal n.
"""


def _with_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@_with_options
@click.argument("words", metavar="-- [OPTIONS OF ELASTIC-RUN] SCRIPT [ARGS]...", nargs=-1, required=True)
def launch(words: tuple[str, ...], **given: Any) -> None:
    """Start a job on several hosts by ssh, and follow the list of hosts while it runs.

    New hosts are started, hosts that are missing are drained. The first host has the job's master. See
    elastic-ctl manual hosts.
    """
    from elasticrun.agent.signals import SignalInbox

    inbox = SignalInbox(_signals())
    environ = take_environment()  # neither ssh nor a script has to know the token
    try:
        end = run_lean(lambda: _launch(words, given, environ, inbox))
        status, reason = end.status, end.reason
    except ElasticRunError as error:
        status, reason = error.exit_code, one_line(str(error))
    if reason:
        click.echo(f"elastic-ctl: error: {plain(reason)}", err=True)
    sys.exit(status)


def _signals() -> tuple[int, ...]:
    import signal

    return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def _launch(
    words: tuple[str, ...], given: dict[str, Any], environ: Mapping[str, str], inbox: SignalInbox
) -> Finish:
    from elasticrun.cli.launch_words import read_words
    from elasticrun.control import JobControl
    from elasticrun.core.hosts.machine import Hosts
    from elasticrun.platforms.launch import Launch
    from elasticrun.platforms.remote import Request
    from elasticrun.platforms.ssh import SshConfig

    line = read_words(words, f"launch-{os.urandom(4).hex()}")
    source = _source(given)
    environment, security = _exported(given["export"], environ), _security(given, line, environ)
    _warn_of_tls(security, line, environment, source.is_fixed)
    cooldown = _cooldown(given["cooldown"])
    hosts = await _first_answer(source, inbox)
    nodes = _nodes(given, source, len(hosts))
    endpoint = _endpoint(given["rdzv_endpoint"], hosts)
    python, directory = given["python"] or sys.executable, given["directory"] or _directory()
    ssh = SshConfig(given["ssh_program"], given["ssh_option"], python, given["local_without_ssh"])
    assert security.token is not None
    environment[TOKEN_VARIABLE] = security.token

    def request(host: Host, rank: int) -> Request:
        argv = line.argv(python, host, rank, nodes, endpoint)
        return Request(argv, directory, environment, given["silence"], line.grace)

    machine = Hosts(_terms(given, source, nodes[0], line, cooldown))
    job = JobControl([endpoint], line.job_id, security)
    made = Launch(machine, source, ssh, request, job, given["discovery_interval"], given["silence"])
    return await made.run(hosts, inbox)


async def _first_answer(source: Source, inbox: SignalInbox) -> tuple[Host, ...]:
    """The hosts to begin with. A signal ends the wait for a script."""
    import asyncio

    asking = asyncio.ensure_future(source.ask())
    signals = list[int]()

    def on_signal(signum: int) -> None:
        signals.append(signum)
        asking.cancel()

    inbox.attach(on_signal)
    try:
        return await asking
    except asyncio.CancelledError:
        raise SystemExit(128 + signals[0]) from None
    finally:
        inbox.detach()


def _directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError as error:
        raise UsageError(f"there is no working directory here ({error.strerror}): give --directory") from None


def _terms(
    given: dict[str, Any], source: Source, min_nodes: int, line: LaunchWords, cooldown: tuple[float, float]
) -> Terms:
    from elasticrun.core.hosts.fates import Terms

    return Terms(
        min_nodes,
        source.is_fixed,
        given["discovery_grace"],
        cooldown,
        drain_timeout=2 * line.grace,
        stop_timeout=line.grace,
    )


def _source(given: dict[str, Any]) -> Source:
    from elasticrun.platforms.discovery import Source

    found = [",".join(given["hosts"]), given["hostfile"] or "", given["host_discovery_script"] or ""]
    if sum(map(bool, found)) != 1:
        how = "none" if not any(found) else "several"
        raise UsageError(
            f"{how} of -H, --hostfile and --host-discovery-script given: give one of them, such as -H a:2,b:2"
        )
    return Source(found[0], found[1], found[2], given["discovery_timeout"])


def _nodes(given: dict[str, Any], source: Source, count: int) -> tuple[int, int]:
    from elasticrun.core.hosts.names import MAX_HOSTS

    low = given["min_nodes"] or min(count, given["max_nodes"] or count)
    high = given["max_nodes"] or max(low, count if source.is_fixed else MAX_HOSTS)
    if low > high:
        raise UsageError(f"--min-nodes {low} is more than --max-nodes {high}: give at most {high}")
    if source.is_fixed and low > count:
        raise UsageError(f"--min-nodes {low} is more than the {count} hosts of -H: name more hosts")
    return low, high


def _endpoint(text: str | None, hosts: tuple[Host, ...]) -> Endpoint:
    from elasticrun.platforms.ssh import is_local

    if text is None:
        first = hosts[0].name
        others = [host.name for host in hosts if not is_local(host.name)]
        if is_local(first) and others:
            raise UsageError(
                f"the first host is {first}, which {others[0]} cannot reach: give its name in the network, or"
                " --rdzv-endpoint"
            )
        return Endpoint(first, values.DEFAULT_PORT)
    try:
        (endpoint,) = values.endpoints(text)
    except ValueError as error:
        reason = str(error) if "unpack" not in str(error) else "the first host alone has the master"
        raise UsageError(f"--rdzv-endpoint {text!r} is not valid: {reason}; give HOST:PORT") from None
    if endpoint.port == 0:
        raise UsageError(f"--rdzv-endpoint {text!r} is not valid: give a port that all hosts can reach")
    return endpoint


def _exported(items: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name.isidentifier() or not name.isascii():
            raise UsageError(f"--export {item!r} is not valid: give NAME or NAME=VALUE")
        if name == TOKEN_VARIABLE:
            raise UsageError(f"--export {name} is not needed: each host gets the token of this launch")
        if not equals and name not in environ:
            raise UsageError(f"--export {name}: this variable is not set here; set it, or give {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found


def _security(given: dict[str, Any], line: LaunchWords, environ: Mapping[str, str]) -> SecurityConfig:
    from elasticrun.cli import options
    from elasticrun.cli.node_words import security_of

    notes: Notes = []
    strict = not line.given.on(options.INSECURE_TOKEN)
    tls = (given["tls_ca"], given["tls_cert"], given["tls_key"])
    found = security_of(given["token_file"], tls, environ, notes, is_strict=strict, whose="this launch")
    for level, sentence in notes:
        if level == "warning":
            _warn(sentence)
    return found


def _warn_of_tls(
    security: SecurityConfig, line: LaunchWords, exported: Mapping[str, str], is_fixed: bool
) -> None:
    """Hosts that leave are drained on a connection of this launch, which needs TLS if the job has it."""
    from elasticrun.cli import options

    flags = "--tls-ca, --tls-cert and --tls-key"
    rows = (options.TLS_CA, options.TLS_CERT, options.TLS_KEY)
    has_job = any(line.given.has(option) or option.env in exported for option in rows)
    if has_job and security.tls is None and not is_fixed:
        _warn(
            f"the job uses TLS and this launch does not, so hosts are stopped, not drained: give {flags}"
            " before the -- too"
        )
    elif security.tls is not None and not has_job:
        _warn(
            f"{flags} stand only before the --: the job has TLS only if they stand behind it too, or in the"
            " environment on each host"
        )


def _warn(sentence: str) -> None:
    click.echo(f"elastic-ctl: {sentence}", err=True)


def _cooldown(text: str) -> tuple[float, float]:
    first, _, longest = text.partition(":")
    try:
        found = values.some_seconds(first), values.some_seconds(longest or first)
    except ValueError:
        found = (1.0, 0.0)
    if found[0] > found[1]:
        raise UsageError(f"--cooldown {text!r} is not valid: give FIRST:LONGEST in seconds, such as 5:300")
    return found
