"""``elastic-ctl operator``: keeps the ElasticJobs of a Kubernetes cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.errors import UsageError

_NEEDS = ("kopf", "kubernetes")


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
def operator(namespaces: tuple[str, ...], kubeconfig: str | None, crds: bool, rbac: bool) -> None:
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
            _run(namespaces, kubeconfig or _kubeconfig())


def _print(crds: bool, rbac: bool, namespaces: tuple[str, ...]) -> None:
    from elasticrun.platforms.kubernetes.output import installation

    click.echo(installation(crds, rbac, namespaces), nl=False)


def _kubeconfig() -> str | None:
    if given := os.environ.get("KUBECONFIG"):
        return given
    own = Path("~/.kube/config").expanduser()
    return str(own) if own.exists() else None


def _run(namespaces: tuple[str, ...], kubeconfig: str | None) -> None:
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
            await operate(namespaces, kubeconfig, until, ready)
        finally:
            watching.cancel()

    asyncio.run(work())


async def _tell_ready(ready: object, namespaces: tuple[str, ...]) -> None:
    import asyncio

    assert isinstance(ready, asyncio.Event)
    await ready.wait()
    where = f"namespace {', '.join(namespaces)}" if namespaces else "all namespaces"
    click.echo(f"elastic-ctl operator: keeps the ElasticJobs of {where}", err=True)
