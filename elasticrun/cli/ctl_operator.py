"""``elastic-ctl operator``: keeps the ElasticJobs of a Kubernetes cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    import socket

    from elasticrun.config import Endpoint
    from elasticrun.core.fleet.figures import Figures

_NEEDS = ("kopf", "kubernetes")
#: The name of a resource that hosts offer beside CPU and memory.
_DEVICES = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Keep the jobs of this namespace; may be repeated (default: of all).",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="How to reach the cluster (default: KUBECONFIG, else ~/.kube/config if there is one, else the"
    " service account of this pod).",
)
@click.option(
    "--crds",
    is_flag=True,
    help="Print the definitions of ElasticJob, ScaleOut and ScaleIn as YAML, and exit.",
)
@click.option(
    "--rbac",
    is_flag=True,
    help="Print one service account with the rights that it needs, in each --namespace or in all, and exit;"
    " the account is in the first --namespace, or in default.",
)
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    metavar="KIND=UNITS",
    help="Share so much of a resource among the jobs, such as nvidia.com/gpu=16 or cpu=64; may be repeated,"
    " and a job takes of the first one that its pods request (default: each job has what it asks for).",
)
@click.option(
    "--metrics",
    metavar="[HOST]:PORT",
    help="Serve the operator's own figures for Prometheus at /metrics, and the probes /healthz and /readyz;"
    " only here without HOST (default: nothing is served).",
)
def operator(
    namespaces: tuple[str, ...],
    kubeconfig: str | None,
    crds: bool,
    rbac: bool,
    capacities: tuple[str, ...],
    metrics: str | None,
) -> None:
    """Run the pods of ElasticJobs, until SIGTERM: start them, replace what is lost, suspend and resume.

    \b
    elastic-ctl operator --crds | kubectl apply -f -
    elastic-ctl operator --namespace training --rbac | kubectl apply -f -
    elastic-ctl operator --namespace training
    """  # noqa: D301 # for click it has to be that character
    with exit_on_errors():
        if crds or rbac:
            _print(crds, rbac, namespaces)
        else:
            capacity, at = capacity_of(capacities), None if metrics is None else _address(metrics)
            _run(namespaces, kubeconfig or _kubeconfig(), capacity, at)


def _print(crds: bool, rbac: bool, namespaces: tuple[str, ...]) -> None:
    from elasticrun.platforms.kubernetes.output import installation

    click.echo(installation(crds, rbac, namespaces), nl=False)


def _kubeconfig() -> str | None:
    if given := os.environ.get("KUBECONFIG"):
        return given
    own = Path("~/.kube/config").expanduser()
    return str(own) if own.exists() else None


def capacity_of(options: Sequence[str]) -> dict[str, int] | None:
    """The units of each kind, in the order that was given; None: nothing is shared. Raises UsageError."""
    from elasticrun.platforms.kubernetes.quantity import CPU, units_of

    found = dict[str, int]()
    for option in options:
        kind, _, text = option.partition("=")
        if kind != CPU and not re.fullmatch(_DEVICES, kind):
            raise UsageError(
                f"--capacity {option} is of no kind that can be shared: give cpu=CORES, or a device such as"
                " nvidia.com/gpu=16"
            )
        if kind in found:
            raise UsageError(f"--capacity gives {kind} twice: give the sum once")
        try:
            found[kind] = units_of(kind, text)
        except ValueError as error:
            raise UsageError(f"--capacity {option}: {error}; give a number such as 16") from None
    return found or None


def _address(text: str) -> Endpoint:
    from elasticrun.cli.values import web_address

    try:
        return web_address(text)
    except ValueError as error:
        shape = "give [HOST]:PORT, such as :9400"
        raise UsageError(f"--metrics {text!r} is not valid: {error}; {shape}") from None


def _listen(at: Endpoint) -> socket.socket:
    """Raises UsageError and EndpointTakenError."""
    from elasticrun.cli.web import check_installed
    from elasticrun.observer.listening import listen

    check_installed("prometheus_client", "--metrics", "metrics")
    return listen(at, "--metrics")


def _run(
    namespaces: tuple[str, ...],
    kubeconfig: str | None,
    capacity: dict[str, int] | None,
    metrics: Endpoint | None,
) -> None:
    import asyncio
    import logging

    from elasticrun.cli.web import check_installed

    for package in _NEEDS:
        check_installed(package, "elastic-ctl operator", "kubernetes")
    from elasticrun.core.fleet.figures import Figures
    from elasticrun.platforms.kubernetes.operator import operate

    if kubeconfig and not Path(kubeconfig).is_file():
        raise UsageError(f"there is no file {kubeconfig}: give --kubeconfig")
    listener = None if metrics is None else _listen(metrics)
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=level)
    for noisy in ("kopf", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

    async def work() -> None:
        until, ready = asyncio.Event(), asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, until.set)
        figures = Figures()
        async with AsyncExitStack() as stack:
            if listener is not None and metrics is not None:
                await _serve(figures, ready, until, listener, metrics.host, stack)
            watching = asyncio.create_task(_tell_ready(ready, namespaces))
            stack.callback(watching.cancel)
            await operate(namespaces, kubeconfig, until, ready, capacity, figures)

    asyncio.run(work())


async def _serve(
    figures: Figures,
    ready: asyncio.Event,
    until: asyncio.Event,
    listener: socket.socket,
    host: str,
    stack: AsyncExitStack,
) -> None:
    from elasticrun.observer.listening import url_of
    from elasticrun.observer.operator import serve_figures

    await serve_figures(figures, ready, until, listener, stack)
    click.echo(f"elastic-ctl operator: metrics at {url_of(listener, host, False)}metrics", err=True)


async def _tell_ready(ready: asyncio.Event, namespaces: tuple[str, ...]) -> None:
    await ready.wait()
    where = f"namespace {', '.join(namespaces)}" if namespaces else "all namespaces"
    click.echo(f"elastic-ctl operator: keeps the ElasticJobs of {where}", err=True)
