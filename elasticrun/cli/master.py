"""The master process, as an agent starts it.

    stdin    one JSON line with the configuration, then nothing; its end means that the agent is gone
    stdout   one JSON line: {"port": N}, or {"taken": sentence}, or {"error": sentence}
    stderr   the log

An agent that dies closes stdin by dying, so nothing has to be polled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

from elasticrun.agent.proctitle import set_title
from elasticrun.errors import ElasticRunError, EndpointTakenError, ExitCode
from elasticrun.master.loop import MasterLoop
from elasticrun.master.records import from_json
from elasticrun.master.service import MasterConfig, serve

STDIN, STDOUT, STDERR = 0, 1, 2


def main() -> int:
    """Run a master; the exit status is for whoever reads ``ps``, the agent reads stdout."""
    os.setsid()
    # The signals of a terminal or of a whole group are meant for agents; the master ends when they go.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    config = from_json(MasterConfig, json.loads(sys.stdin.buffer.readline()))
    logging.basicConfig(level=config.log_level, format="elastic-run: master: %(message)s")
    set_title(f"elastic-run: master {config.job.job_id}")
    try:
        asyncio.run(serve(config, _announce_port, _watch_stdin))
    except EndpointTakenError as error:
        _announce({"taken": str(error)})
        return error.exit_code
    except ElasticRunError as error:
        _announce({"error": str(error)})
        return error.exit_code
    except OSError as error:
        _announce({"error": f"cannot listen on {config.host} port {config.port}: {error.strerror}"})
        return ExitCode.USAGE
    return ExitCode.OK


def _announce_port(port: int) -> None:
    _announce({"port": port})


def _announce(message: dict[str, object]) -> None:
    os.write(STDOUT, json.dumps(message).encode() + b"\n")
    # Whoever reads the launcher's output must not wait for a master that outlives the launcher.
    os.dup2(os.open(os.devnull, os.O_RDWR), STDOUT)


def _watch_stdin(loop: MasterLoop) -> None:
    asyncio.get_running_loop().add_reader(STDIN, _host_gone, loop)


def _host_gone(loop: MasterLoop) -> None:
    asyncio.get_running_loop().remove_reader(STDIN)
    os.dup2(os.open(os.devnull, os.O_RDWR), STDERR)
    loop.host_gone()


if __name__ == "__main__":
    sys.exit(main())
