"""``elastic-ctl operator``: keeps the ElasticJobs of a Kubernetes cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.errors import UsageError

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
def operator(
    namespaces: tuple[str, ...],
    kubeconfig: str | None,
    crds: bool,
    rbac: bool,
    capacities: tuple[str, ...],
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
            _run(namespaces, kubeconfig or _kubeconfig(), capacity_of(capacities))


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


def _run(namespaces: tuple[str, ...], kubeconfig: str | None, capacity: dict[str, int] | None = None) -> None:
    import asyncio
    import logging

    from elasticrun.cli.web import check_installed

    for package in _NEEDS:
        check_installed(package, "elastic-ctl operator", "kubernetes")
    from elasticrun.platforms.kubernetes.operator import operate

    if kubeconfig and not Path(kubeconfig).is_file():
        raise UsageError(f"there is no file {kubeconfig}: give --kubeconfig")
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=level)
    for noisy in ("kopf", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

    async def work() -> None:
        until, ready = asyncio.Event(), asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, until.set)
        watching = asyncio.create_task(_tell_ready(ready, namespaces))
        try:
            await operate(namespaces, kubeconfig, until, ready, capacity)
        finally:
            watching.cancel()

    asyncio.run(work())


async def _tell_ready(ready: object, namespaces: tuple[str, ...]) -> None:
    import asyncio

    assert isinstance(ready, asyncio.Event)
    await ready.wait()
    where = f"namespace {', '.join(namespaces)}" if namespaces else "all namespaces"
    click.echo(f"elastic-ctl operator: keeps the ElasticJobs of {where}", err=True)
