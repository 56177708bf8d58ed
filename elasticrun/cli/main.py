"""``elastic-run``: the composition root.

The order is for an early first line of the user's output: processes that run beside us (the spawner, the
master) start before the imports that this process still needs, and modules that most launches never need
are not imported at all.
"""

# ruff: noqa: E402 the job's folders may hide whatever is imported

from __future__ import annotations

from elasticrun.cli.isolation import isolate

isolate()

import functools
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticrun.errors import ElasticRunError, ExitCode

if TYPE_CHECKING:
    from elasticrun.agent.logs.console import Console
    from elasticrun.agent.logs.router import LogRouter
    from elasticrun.agent.master_host.hosting import MasterHost
    from elasticrun.agent.observer_host import ObserverHost
    from elasticrun.agent.runtime import OpenFace, Witness
    from elasticrun.agent.signals import SignalInbox
    from elasticrun.agent.spawner.client import SpawnerHandle
    from elasticrun.agent.spawner.exec import Preloaded
    from elasticrun.config import Entrypoint, LaunchConfig
    from elasticrun.core.protocol.messages import NodeCheck, NodeInfo

PROGRAM = "elastic-run"
CpuPlan = tuple[frozenset[int], ...]  # by local rank; empty: no binding
_COMPLETE = "_ELASTIC_RUN_COMPLETE"  # set by the shell's completion script alone
_INTERRUPTED = 130  # 128 + SIGINT
_UNFOLDED = 100_000  # columns where there is no terminal: no line is folded


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``elastic-run`` with the arguments after the program's name; returns the exit status."""
    _open_missing_std()
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except ElasticRunError as error:
        from elasticrun.core.protocol.plain import plain

        print(f"{PROGRAM}: error: {plain(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before we handle signals, or if --signals-to-handle lacks SIGINT
        return _INTERRUPTED
    except Exception:  # noqa: BLE001 a bug: its traceback is shown, with the exit status that says so
        import traceback

        traceback.print_exc()
        return ExitCode.INTERNAL


def _main(arguments: Sequence[str]) -> int:
    if (asked := os.environ.get(_COMPLETE)) is not None:
        from elasticrun.cli.completion import answer, launcher

        return answer(launcher(), PROGRAM, asked)
    from elasticrun.cli.parse import RunElsewhere, ShowText, parse_command_line
    from elasticrun.cli.scrub import take_environment

    environ = take_environment()  # before any other process is started
    try:
        config = parse_command_line(arguments, environ)
    except ShowText as shown:
        return _show(shown.text)
    except RunElsewhere as elsewhere:
        from elasticrun.cli.ray_job import run_on_ray

        return run_on_ray(elsewhere.given, environ)
    status = launch(config, arguments, _observer(config))
    gc.freeze()  # spares the collections at the interpreter's end, 30 ms
    return status


def _show(text: str) -> int:
    try:
        print(text, flush=True)
    except OSError as error:
        # Else the interpreter would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK if isinstance(error, BrokenPipeError) else ExitCode.USAGE
    return ExitCode.OK


def _open_missing_std() -> None:
    """Open descriptors 0, 1 and 2 if closed, so that no socket of ours becomes a worker's stdout."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _observer(config: LaunchConfig) -> ObserverHost | None:
    if config.web is None and config.traces is None:
        return None
    from elasticrun.cli.web import observer_host

    return observer_host(config)


def launch(
    config: LaunchConfig,
    arguments: Sequence[str],
    observer: ObserverHost | None = None,
    preloaded: Preloaded | None = None,
    witness: Witness | None = None,
) -> int:
    """Start the processes, then run this agent's loop; returns the exit status.

    ``preloaded``: how workers start in a fork, without an exec.
    """
    from elasticrun.agent.signals import SignalInbox
    from elasticrun.agent.spawner.client import fork_spawner
    from elasticrun.agent.spawner.proctitle import set_title
    from elasticrun.cli.import_trimming import import_asyncio_without_ssl, import_hmac_without_openssl

    config = _with_run_dir(config)
    inbox = SignalInbox((*config.workers.signals, *_notice_signals(config), *_other_signals()))
    spawner = fork_spawner(preloaded)
    cpus = _plan_cpus(config)
    _start_warm_parents(config, cpus, spawner)
    # Else gRPC's core, which writes past our log, would report every broken connection. The workers do not
    # get this variable: their environment was taken before.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    set_title(" ".join([f"{PROGRAM}: agent", *arguments]))
    import_asyncio_without_ssl()
    if config.security.token is not None:
        import_hmac_without_openssl()
    host = _master_host(config)
    try:
        host.begin(lambda seconds: inbox.wait(seconds, unmoved_by=_other_signals()))

        import asyncio

        # Python's development mode is meant for the workers; asyncio's debug mode has its own variable.
        debug = bool(os.environ.get("PYTHONASYNCIODEBUG"))
        return asyncio.run(_run(config, cpus, inbox, spawner, host, observer, witness), debug=debug)
    except BaseException:
        spawner.control.close()  # this ends the spawner
        host.abandon()
        _forget_run_dir(config)
        raise
    finally:
        inbox.release()


async def _run(
    config: LaunchConfig,
    cpus: CpuPlan,
    inbox: SignalInbox,
    spawner: SpawnerHandle,
    host: MasterHost,
    observer: ObserverHost | None,
    witness: Witness | None,
) -> int:
    import logging

    from elasticrun.agent.logs.router import LogRouter
    from elasticrun.agent.runtime import Agent
    from elasticrun.cli.logs import configure_logging

    node = _describe_node(config, host)
    router = LogRouter(config.workers.logs, config.workers.role, host=node.host)
    configure_logging(config, node, router.stderr.write)
    if router.stderr.is_terminal or logging.getLogger("elasticrun").isEnabledFor(logging.INFO):
        from elasticrun.cli.hint import tell_how_to_ask

        tell_how_to_ask(config, router.stderr)
    show = functools.partial(show_checkup, router.stdout)
    face = _open_face(config, router)
    agent = Agent(config, node, spawner, host, router, cpus, show, face, observer, witness)
    return await agent.run(inbox)


def _open_face(config: LaunchConfig, router: LogRouter) -> OpenFace | None:
    """What makes the status line; None where none is wanted: on a pipe, a dumb terminal, or by an option."""
    import logging

    is_wanted = config.ui == "auto" and logging.getLogger("elasticrun").isEnabledFor(logging.WARNING)
    if not (is_wanted and router.stderr.is_terminal) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    from elasticrun.agent.face import Face

    return functools.partial(Face, router, colour=not os.environ.get("NO_COLOR"))


def _with_run_dir(config: LaunchConfig) -> LaunchConfig:
    """The configuration with the directory of this run, made before the master starts: its log goes there."""
    logs = config.workers.logs
    if not logs.log_dir or logs.log_dir == os.devnull:
        return config
    from dataclasses import replace

    from elasticrun.agent.logs.dirs import make_run_dir

    logs = replace(logs, run_dir=make_run_dir(logs.log_dir, config.job.job_id))
    return replace(config, workers=replace(config.workers, logs=logs))


def _forget_run_dir(config: LaunchConfig) -> None:
    """Remove the directory of a run that has not begun."""
    import contextlib

    with contextlib.suppress(OSError):  # there is something in it
        os.rmdir(config.workers.logs.run_dir or "")  # noqa: PTH106 it may be gone


def show_checkup(console: Console, rows: Sequence[NodeCheck]) -> None:
    """Print what the health check found, in colour and as wide as the window if it is a terminal."""
    from elasticrun.ui.checkup import render_checkup

    width, colour = _UNFOLDED, False
    if console.is_terminal:
        width = os.get_terminal_size(console.fd).columns or width  # a terminal without a window has none
        colour = not os.environ.get("NO_COLOR")
    console.write(render_checkup(rows, width, colour).encode(errors="replace") + b"\n")


def _notice_signals(config: LaunchConfig) -> tuple[int, ...]:
    number = config.workers.notice_signal
    return (number,) if number else ()


def _other_signals() -> tuple[int, ...]:
    """What the agent hears of and is not stopped by: a changed window; for ``orphans.py``, a child's end."""
    import signal

    return (signal.SIGWINCH, signal.SIGCHLD) if os.getpid() == 1 else (signal.SIGWINCH,)


def _master_host(config: LaunchConfig) -> MasterHost:
    from elasticrun.agent.master_host.hosting import MasterCommand, MasterHost
    from elasticrun.cli.master_settings import master_command, master_settings

    def settings(host: str, port: int, state_dir: str) -> dict[str, object]:
        return master_settings(config, host, port, state_dir)

    def main() -> int:
        from elasticrun.cli.master import main

        return main()

    command = MasterCommand(master_command(), settings, main)
    # With a token the job can be steered, which needs a port.
    is_private = config.rendezvous.standalone and config.security.token is None
    return MasterHost(config.rendezvous, command, is_private)


def _describe_node(config: LaunchConfig, host: MasterHost) -> NodeInfo:
    import socket

    from elasticrun.agent.master_host.addressing import address_for_others
    from elasticrun.core.protocol.bounds import COUNTS
    from elasticrun.core.protocol.messages import NodeInfo

    rendezvous = config.rendezvous
    incarnation = host.incarnation
    name = socket.gethostname()
    # Static rendezvous gives each node a rank of its own, so a node that comes back is recognised by it.
    is_named = rendezvous.backend == "static" and rendezvous.node_rank is not None
    mark = str(rendezvous.node_rank) if is_named else incarnation[:6]
    return NodeInfo(
        node=f"{name}/{mark}",
        incarnation=incarnation,
        host=name,
        address=rendezvous.local_addr
        or host.store_address
        or address_for_others(host.endpoints.own, host.found),
        local_world_size=config.workers.local_world_size,
        role=config.workers.role,
        node_rank=rendezvous.node_rank,
        pid=os.getpid(),
        position=host.endpoints.position if host.endpoints.are_several else -1,
        roles=config.workers.roles,
        program=_program(config.workers.entrypoint),
        min_nodes=COUNTS.clip(config.job.min_nodes),
        max_nodes=COUNTS.clip(config.job.max_nodes),
    )


def _program(entrypoint: Entrypoint) -> str:
    """The workers' program, as other nodes are told of it."""
    from elasticrun.config import EntrypointKind

    if entrypoint.kind is EntrypointKind.MODULE:
        return f"-m {entrypoint.target}"
    return os.path.abspath(entrypoint.target)  # noqa: PTH100 it may not be on this host's PATH, and need not


def _plan_cpus(config: LaunchConfig) -> CpuPlan:
    binding = config.workers.numa_binding
    if binding is None:
        return ()
    from elasticrun.agent.workers.numa import plan, read_topology

    visible = dict(config.workers.env).get("CUDA_VISIBLE_DEVICES")
    topology = read_topology(os.sched_getaffinity(0), visible)
    return plan(binding, topology, config.workers.local_world_size)


def _start_warm_parents(config: LaunchConfig, cpus: CpuPlan, spawner: SpawnerHandle) -> None:
    """Start them this early so that they import while we do, and while the nodes meet."""
    if config.workers.warm_imports is None and config.workers.server_imports is None:
        return
    from elasticrun.agent.spawner.client import start_warm_parents
    from elasticrun.agent.workers.warm_recipes import STDIN, server_recipe, warm_recipes

    recipes = {recipe.key: recipe for recipe in warm_recipes(config.workers, cpus)}
    servers = server_recipe(config.workers, cpus)
    start_warm_parents(spawner, [*recipes.values(), *filter(None, [servers])], STDIN)


if __name__ == "__main__":
    sys.exit(main())
