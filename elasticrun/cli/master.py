"""The master process, as an agent starts it.

    stdin    one JSON line with the configuration, then nothing; its end means that the agent is gone
    stdout   one JSON line: {"port": N}, or {"taken": sentence}, or {"error": sentence}
    stderr   the log

The death of the agent closes stdin, so nothing has to be polled. A master that is stopped goes on then.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import resource
import signal
import sys

from elasticrun.agent.logs.console import Console
from elasticrun.agent.spawner.proctitle import set_title
from elasticrun.agent.spawner.resuming import resume_with_end_of
from elasticrun.cli.import_trimming import import_hmac_without_openssl
from elasticrun.cli.logs import ConsoleHandler
from elasticrun.errors import ElasticRunError, EndpointTakenError, ExitCode
from elasticrun.master.loop import MasterLoop
from elasticrun.master.service import MasterConfig, serve
from elasticrun.rpc.records import from_json

STDIN, STDOUT, STDERR = 0, 1, 2
_FLUSH_TIMEOUT = 1.0  # seconds
#: Thresholds of gc: new objects until a collection, and collections until older objects are looked at, too.
_COLLECTOR = (50_000, 20, 20)
#: One for each agent, and some for strangers; many systems give a process 1,024 unless it asks for more.
_DESCRIPTORS = 65_536


def main() -> int:
    """Run a master; returns the exit status, which tells the agent whether this master stepped down."""
    # Signals to the whole process group are meant for agents; the master ends when they are gone.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    resume_with_end_of(STDIN)
    with open(STDIN, "rb", closefd=False) as stdin:
        line = stdin.readline()
    if not line:
        return ExitCode.OK  # the agent ended before it could say what it wants
    config = from_json(MasterConfig, json.loads(line))
    _raise_limit_of_descriptors()
    if config.security.token is not None:
        import_hmac_without_openssl()
    set_title(f"elastic-run: master {config.job.job_id}")
    try:
        asyncio.run(_serve(config))
    except EndpointTakenError as error:
        _announce({"taken": str(error)})
        return error.exit_code
    except ElasticRunError as error:
        _announce({"error": str(error)})
        return error.exit_code
    return ExitCode.OK


async def _serve(config: MasterConfig) -> None:
    # A stopped terminal, or a reader that does not read, must not stop the job.
    console = Console(STDERR, "stderr", report=lambda sentence: None)
    handler = ConsoleHandler(console.write)
    logging.basicConfig(level=config.log_level, format="elastic-run: master: %(message)s", handlers=[handler])
    await serve(config, _announce_port, functools.partial(_watch_stdin, console))
    await console.flush(_FLUSH_TIMEOUT)


def _raise_limit_of_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _announce_port(port: int) -> None:
    _announce({"port": port})
    _spare_collector()


def _spare_collector() -> None:
    """Freeze the objects made so far, and look for cycles less often: thousands of agents are no garbage.

    The collector took a sixth of the time that a crowd of new streams cost, as it looked at all of them again
    and again. A refused stream leaves some hundred objects behind, so they are still found soon.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)


def _announce(message: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the agent is gone; stdin says so as well
        os.write(STDOUT, json.dumps(message).encode() + b"\n")
    # A reader of the launcher's output must not wait for a master that outlives the launcher.
    _forget(STDOUT)


def _forget(fd: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


def _watch_stdin(console: Console, loop: MasterLoop) -> None:
    asyncio.get_running_loop().add_reader(STDIN, _host_gone, console, loop)


def _host_gone(console: Console, loop: MasterLoop) -> None:
    asyncio.get_running_loop().remove_reader(STDIN)
    console.close()
    _forget(STDERR)
    loop.host_gone()


if __name__ == "__main__":
    sys.exit(main())
