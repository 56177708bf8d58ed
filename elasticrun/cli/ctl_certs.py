"""``elastic-ctl certs``: certificates for the hosts of a job, signed by an authority of its own."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticrun.cli import values
from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.cli.private_files import write_private
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from elasticrun.cli.authority import Pair

_CA, _CA_KEY = "ca.pem", "ca.key"
_LONGEST = 36_500  # days


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option(
    "--hosts",
    required=True,
    metavar="HOST[=ALIAS...],...",
    help="Hosts as --rdzv-endpoint names them, each with its other names: node0=10.0.0.1,node1.",
)
@click.option("--days", default="365", show_default=True, metavar="N", help="How long they are good.")
@click.option("--force", is_flag=True, help="Replace certificates of hosts that have one.")
def certs(directory: str, hosts: str, days: str, force: bool) -> None:
    """Make TLS certificates for the hosts of a job in DIR.

    The first time this makes an authority too, ca.pem and ca.key; later it signs with that, so hosts can be
    added. Keep ca.key away from the hosts: anyone who has it can join the job.
    """
    with exit_on_errors():
        click.echo(_make(Path(directory), _hosts(hosts), _days(days), force))


def _hosts(text: str) -> list[list[str]]:
    try:
        found = [[values.host(name) for name in item.split("=")] for item in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--hosts {text!r} is not valid: {error}; give HOST or HOST=ALIAS, ...") from None
    if len({names[0] for names in found}) < len(found):
        raise UsageError(f"--hosts {text!r} is not valid: a host is in it twice; give each once")
    for names in found:
        if not "".join(names).isascii():
            raise UsageError(f"--hosts {text!r} is not valid: names of hosts are ASCII; give xn--...")
        if f"{names[0]}.pem" == _CA:
            raise UsageError(f"--hosts {text!r} is not valid: {_CA} is the authority; give ALIAS={names[0]}")
    return found


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= _LONGEST):
        raise UsageError(f"--days {text!r} is not valid: give a whole number from 1 to {_LONGEST}")
    return int(text)


def _make(directory: Path, hosts: list[list[str]], days: int, force: bool) -> str:
    try:
        from elasticrun.cli import authority as ca
    except ImportError:
        raise UsageError(
            "certificates are made with the package cryptography, which is not installed: "
            "pip install 'elasticrun[certs]'"
        ) from None
    now = datetime.now(timezone.utc)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            authority = _authority(directory, fd, now, days)
            for names in hosts:
                _write(fd, names[0], ca.issue(authority, names, now, days), force)
        finally:
            os.close(fd)
    except FileExistsError as error:
        raise UsageError(f"{directory / error.filename} exists: give --force to replace it") from None
    except OSError as error:
        raise UsageError(
            f"no certificates can be made in {directory}: {error.strerror}; name another DIR"
        ) from None
    return _told(directory, hosts, authority)


def _authority(directory: Path, fd: int, now: datetime, days: int) -> Pair:
    from elasticrun.cli import authority as ca

    paths = (directory / _CA, directory / _CA_KEY)
    if not any(path.exists() for path in paths):
        made = ca.new_authority("elasticrun job authority", now, days)
        write_private(_CA_KEY, made.key_pem, fd)
        write_private(_CA, made.cert_pem, fd)
        return made
    try:
        found = ca.load(*(path.read_bytes() for path in paths))
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{paths[0]} and {paths[1]} cannot be used as the authority ({reason}): give a DIR that "
            "has both files, or neither"
        ) from None
    if found.cert.not_valid_after_utc <= now:
        raise UsageError(f"the authority {paths[0]} has expired: begin again in another DIR")
    return found


def _write(fd: int, host: str, pair: Pair, force: bool) -> None:
    # The key first, so that a host with a certificate has both.
    for name, data in ((f"{host}.key", pair.key_pem), (f"{host}.pem", pair.cert_pem)):
        try:
            write_private(name, data, fd, replace=force)
        except FileExistsError:
            raise FileExistsError(0, "", name) from None


def _told(directory: Path, hosts: list[list[str]], authority: Pair) -> str:
    until = authority.cert.not_valid_after_utc.date().isoformat()
    folder = str(directory)
    rows = [f"{', '.join(names)}: {folder}/{names[0]}.pem and .key" for names in hosts]
    return "\n".join(
        [
            *rows,
            f"valid until {until} at the latest; do not copy {folder}/{_CA_KEY}, the authority's "
            "key, to any host",
            "on each host: elastic-run "
            f"--tls-ca {folder}/{_CA} --tls-cert {folder}/HOST.pem --tls-key {folder}/HOST.key ...",
        ]
    )
