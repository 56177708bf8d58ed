"""The observer below a launcher: a child that is told by its stdin what to do, and ends with it.

One that is stopped goes on when that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys

from elasticrun.agent.spawner.resuming import resume_with_end_of
from elasticrun.errors import ElasticRunError, ExitCode
from elasticrun.observer.observe import observe
from elasticrun.observer.priority import give_way_to_workers
from elasticrun.observer.settings import ObserverSettings
from elasticrun.rpc.records import from_json

STDIN, STDOUT = 0, 1


def main() -> int:
    """Run an observer; returns the exit status. It answers on stdout, once: a URL, or an error."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)  # they are meant for the launcher, whose end is ours
    resume_with_end_of(STDIN)
    give_way_to_workers()
    line = sys.stdin.buffer.readline()
    if not line:
        return ExitCode.OK
    settings = from_json(ObserverSettings, json.loads(line))
    listener = None if settings.listener < 0 else socket.socket(fileno=settings.listener)
    try:
        asyncio.run(_run(settings, listener))
    except ElasticRunError as error:
        _answer("error", str(error))
        return error.exit_code
    return ExitCode.OK


async def _run(settings: ObserverSettings, listener: socket.socket | None) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(STDIN)  # it stays readable
        until.set()

    loop.add_reader(STDIN, ended)  # its end: the launcher is gone
    if listener is None:
        _answer("url", "")
    try:
        await observe(settings, listener, until, lambda url: _answer("url", url))
    finally:
        loop.remove_reader(STDIN)


def _answer(kind: str, text: str) -> None:
    try:
        os.write(STDOUT, json.dumps({kind: text}).encode() + b"\n")
    except OSError:  # the launcher is gone, as stdin says too
        return
