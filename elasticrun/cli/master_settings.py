"""What an agent tells the master it starts: the configuration as one JSON object."""

from __future__ import annotations

from elasticrun.config import LaunchConfig
from elasticrun.rpc.records import to_json


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
