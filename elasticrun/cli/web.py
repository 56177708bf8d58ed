"""The observer that ``--web`` and ``--traces`` ask for.

What can be wrong with them is told before anything starts.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from elasticrun.config import Endpoint, LaunchConfig, SecurityConfig
from elasticrun.errors import UsageError
from elasticrun.observer.access import Reading, is_loopback

if TYPE_CHECKING:
    import socket

    from elasticrun.agent.observer_host import ObserverHost

_CODE = """\
import sys
sys.path[:] = path = {path!r}
from elasticrun.cli.isolation import isolate_as
isolate_as(path)
from elasticrun.observer.main import main
sys.exit(main())
"""
#: Seconds that the observer tries to reach the master, before it tries again.
_TIMEOUT = 5.0


def observer_host(config: LaunchConfig) -> ObserverHost | None:
    """What keeps the observer of this launch, with its port taken; None if none is asked for.

    Raises:
        UsageError: what it needs is not installed, or the page would be open to strangers by mistake.
        EndpointTakenError: the port is taken.
    """
    if config.web is None and config.traces is None:
        return None
    from elasticrun.agent.observer_host import ObserverCommand, ObserverHost

    if config.traces is not None:
        check_installed("opentelemetry.sdk", "--traces", "traces")
    listener = None if config.web is None else open_listener(config.web, config.web_read, config.security)
    command = ObserverCommand(
        (sys.executable, "-c", _CODE.format(path=sys.path)), _settings(config, listener), listener
    )
    return ObserverHost(command)


def open_listener(web: Endpoint, read: str, security: SecurityConfig) -> socket.socket:
    """The socket for a page. Raises as ``observer_host`` does."""
    check_installed("aiohttp", "--web", "web")
    if security.token is None and Reading(read) is not Reading.ANYONE and not is_loopback(web.host):
        raise UsageError(
            f"--web {web} would show nobody anything, as this job has no token to log in with: give it one by"
            " --token-file, or serve the page to this host only (--web :PORT), or give --web-read anyone"
        )
    from elasticrun.observer.listening import listen

    return listen(web)


def check_installed(package: str, option: str, extra: str) -> None:
    """Raises UsageError if a package is missing."""
    try:
        found = find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UsageError(
            f"{option} needs the package {package.partition('.')[0]}, which is not installed: pip install"
            f" 'elasticrun[{extra}]'"
        )


def _settings(config: LaunchConfig, listener: socket.socket | None) -> dict[str, object]:
    import os

    from elasticrun.observer.settings import ObserverSettings
    from elasticrun.rpc.records import to_json

    rendezvous = config.rendezvous
    is_alone = rendezvous.standalone
    settings = ObserverSettings(
        job_id=None if is_alone else config.job.job_id,
        launcher=os.getpid() if is_alone else None,
        endpoints=() if is_alone else (rendezvous.endpoint, *rendezvous.successors),
        security=config.security,
        timeout=_TIMEOUT,
        listener=-1 if listener is None else listener.fileno(),
        host="" if config.web is None else config.web.host,
        reading=Reading(config.web_read),
        traces=config.traces or "",
    )
    found: dict[str, object] = to_json(settings)
    return found
