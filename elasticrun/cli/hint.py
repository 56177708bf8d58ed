"""The line by which a user asks about the job that is being started."""

from __future__ import annotations

import ast
import logging
import os
import shlex

from elasticrun.agent.logs.console import Console
from elasticrun.cli.secrets import TOKEN_FILE_SOURCE
from elasticrun.cli.strength import is_weak
from elasticrun.config import LaunchConfig
from elasticrun.core.protocol.plain import plain

logger = logging.getLogger("elasticrun")


def tell_how_to_ask(config: LaunchConfig, console: Console) -> None:
    """Show the line on a terminal, or log it at INFO: torchrun's users read no more than they are used to."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("ask about this job with: %s", how_to_ask(config))
    elif console.is_terminal and logger.isEnabledFor(logging.WARNING):
        text = plain(f"elastic-run: ask about this job with: {how_to_ask(config)}")
        console.write(text.encode(errors="replace") + b"\n")


def how_to_ask(config: LaunchConfig) -> str:
    """An ``elastic-ctl status`` that finds this job, whatever else runs on this host."""
    rendezvous, security = config.rendezvous, config.security
    if rendezvous.standalone:
        return f"elastic-ctl status --pid {os.getpid()}"
    named = ["--rdzv-id", config.job.job_id]
    if security.token is None:
        return f"{shlex.join(['elastic-ctl', 'status', *named])} (on the host of the master)"
    endpoints = ",".join(map(str, (rendezvous.endpoint, *rendezvous.successors)))
    words = ["elastic-ctl", "status", "--endpoint", endpoints, *named]
    if security.token_source.startswith(TOKEN_FILE_SOURCE):
        words += ["--token-file", ast.literal_eval(security.token_source.removeprefix(TOKEN_FILE_SOURCE))]
    if is_weak(security.token):
        words.append("--insecure-token")
    if security.tls is not None:
        tls = security.tls
        words += ["--tls-ca", tls.ca, "--tls-cert", tls.cert, "--tls-key", tls.key]
    return shlex.join(words)
