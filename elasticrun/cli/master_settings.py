"""What a master is started with by the process beside it: its command line, and one JSON object."""

from __future__ import annotations

import sys

from elasticrun.config import LaunchConfig
from elasticrun.rpc.records import to_json

_CODE = """\
import sys
sys.path[:] = path = {path!r}
from elasticrun.cli.isolation import isolate_as
isolate_as(path)
from elasticrun.cli.import_trimming import import_asyncio_without_ssl
import_asyncio_without_ssl()
from elasticrun.cli.master import main
sys.exit(main())
"""


def master_command() -> tuple[str, ...]:
    """The command line. The master imports the same modules as this process, whatever its directory."""
    return sys.executable, "-c", _CODE.format(path=sys.path)


def master_settings(config: LaunchConfig, host: str, port: int, state_dir: str) -> dict[str, object]:
    """The fields of ``MasterConfig``, without importing what only a master needs.

    They hold the job's token, so they go through a pipe and nowhere else. The event log stays with the other
    logs of the run, if there are any, since a state directory that nobody named is removed with the job.
    """
    run_dir = config.workers.logs.run_dir if config.rendezvous.state_dir is None else None
    return {
        "job": to_json(config.job),
        "host": host,
        "port": port,
        "state_dir": state_dir,
        "event_dir": run_dir or "",
        "log_level": config.log_level,
        "security": to_json(config.security),
    }
