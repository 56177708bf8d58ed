"""How a program is started on a host: by ``ssh``, or as a child if the host is this one."""

from __future__ import annotations

import ipaddress
import shlex
import sys

from elasticrun.core.hosts.names import Host
from elasticrun.dataclass import dataclass

PROGRAM = "elasticrun.cli.hosted"
#: Options that hold unless the user's say otherwise: ssh takes the first value that it meets.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4")


@dataclass(frozen=True, slots=True)
class SshConfig:
    """What the user may choose."""

    program: str = "ssh"
    options: tuple[str, ...] = ()  # as for ssh -o
    python: str = sys.executable  # on each host
    local_without_ssh: bool = False


def command(host: Host, config: SshConfig) -> list[str]:
    """The command line that starts the program of ``remote.py`` on a host."""
    if config.local_without_ssh and is_local(host.name):
        return [config.python, "-m", PROGRAM]
    options = [word for option in (*config.options, *_OPTIONS) for word in ("-o", option)]
    # Words for the login shell there: quotes of sh, which bash, zsh, ksh, fish and csh read alike here.
    words = f"exec {shlex.quote(config.python)} -m {PROGRAM}"
    return [config.program, "-T", *options, "--", host.destination, words]


def is_local(name: str) -> bool:
    """Whether a name is certainly that of this host, whoever asks."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
