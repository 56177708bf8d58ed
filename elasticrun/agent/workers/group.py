"""The workers of one round on this node, from start to sweep.

Each worker gets a number that is never used again, so a late event of an earlier round has no effect. A task
of a TensorFlow cluster may start again within the round, under another number: at most one process lives
under a local rank at any time, and the event of its end comes before its next attempt is asked for.

An event about a worker names the round and the attempt that it was started for, not those that run by then:
an error file may be read in between. The agent's machine decides whether the event still matters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from elasticrun.agent.logs.dirs import LogDirs, RoundDirs, WorkerPaths, open_worker
from elasticrun.agent.logs.router import LogRouter, RoundLogs
from elasticrun.agent.monitors.facts import FactCollector
from elasticrun.agent.monitors.progress import HangWatch
from elasticrun.agent.spawner.client import Command, Exited, SpawnFailed, Started, WorkerStarter
from elasticrun.agent.tasks import global_rank, program, role_name, trainers
from elasticrun.agent.workers.env import worker_argv, worker_environment
from elasticrun.agent.workers.error_file import ErrorRecord, WorkerExit, make_failure, make_spawn_failure
from elasticrun.agent.workers.error_reader import ReadError, read_at_once
from elasticrun.agent.workers.ports import is_taken
from elasticrun.agent.workers.warm_recipes import warm_keys
from elasticrun.config import WorkerConfig
from elasticrun.core.agent.events import WorkerFailed, WorkerFinished, WorkersStarted
from elasticrun.core.protocol.messages import Assignment, Failure, NodeInfo
from elasticrun.core.protocol.tasks import Task
from elasticrun.core.recovery.own_failures import Stopping
from elasticrun.errors import ElasticRunError

if TYPE_CHECKING:
    from elasticrun.agent.memory.gate import MemoryGate, ShutGate
    from elasticrun.agent.workers.ps_backup_dirs import PsBackupDirs

STDIN = 0
CpuPlan = tuple[frozenset[int], ...]  # by local rank; empty: no binding


class _Place(NamedTuple):
    """What a worker was started as."""

    round: int
    local_rank: int
    attempt: int  # of its task; 0 if it has none


class WorkerGroup:
    """Starts the workers of a round and turns what happens to them into events."""

    def __init__(
        self,
        config: WorkerConfig,
        job_id: str,
        node: NodeInfo,
        starter: WorkerStarter,
        router: LogRouter,
        dirs: LogDirs,
        cpus: CpuPlan,
        on_event: Callable[[WorkersStarted | WorkerFailed | WorkerFinished], None],
        watch: HangWatch | None = None,  # None: nobody asks for steps
        memory: MemoryGate | ShutGate | None = None,  # None: workers save their state by themselves
        backup_dirs: PsBackupDirs | None = None,  # None: no ps keeps copies
        read_error: ReadError = read_at_once,
    ) -> None:
        self.pids: dict[int, int] = {}  # by local rank, of workers that run
        self._config = config
        self._job_id = job_id
        self._node = node
        self._starter = starter
        self._router = router
        self._dirs = dirs
        self._cpus = cpus
        self._on_event = on_event
        self._watch = watch
        self._memory = memory
        self._backup_dirs = backup_dirs
        self._read_error = read_error
        self._stopped_at = 0.0  # wall clock when workers of the round were first told to stop
        self._warm = warm_keys(config, cpus)
        self._facts = FactCollector()
        self._places: dict[int, _Place] = {}  # by worker number, of workers that have not ended
        self._unstarted: set[int] = set()  # worker numbers of the round's first workers, not started yet
        self._next_number = 0
        self._assignment: Assignment | None = None
        self._logs: RoundLogs | None = None
        self._round_dirs = RoundDirs(-1, "", ())
        self._paths: dict[int, WorkerPaths] = {}  # by local rank

    @property
    def is_warm(self) -> bool:
        """Whether workers are forked from a warm parent."""
        return bool(self._warm.first)

    def start(self, assignment: Assignment) -> None:
        """Start the workers of a round; the round before is over. Raises OSError if descriptors run out."""
        size = self._config.local_world_size
        self._assignment = assignment
        self._stopped_at = 0.0
        self._round_dirs = self._dirs.open_round(assignment.round, 0 if assignment.cluster else size)
        self._paths = dict(enumerate(self._round_dirs.workers))
        self._logs = self._router.open_round(self._round_dirs, assignment.first_rank)
        self._facts.begin()
        if self._watch is not None:
            self._watch.start(
                assignment.round, assignment.first_rank, trainers(assignment, size), assignment.max_restarts
            )
        if self._memory is not None:
            self._memory.begin(assignment)
        first = self._next_number
        for local_rank in assignment.local_ranks(size):
            self._start(local_rank)
        self._unstarted = set(range(first, self._next_number))

    def start_task(self, assignment: Assignment, local_rank: int) -> None:
        """Start one task of the round that runs: a further attempt, or a task that was added.

        If it cannot be started, this is its own failure, unlike for a round: the other tasks go on.
        """
        self._assignment = assignment
        try:
            self._start(local_rank)
        except (OSError, ElasticRunError) as error:
            self._fail_to_start(_place(assignment, local_rank), str(error))

    def _fail_to_start(self, place: _Place, reason: str) -> None:
        node, rank = self._node_of(place.local_rank), self._rank(place.local_rank)
        failure = make_spawn_failure(node, rank, place.local_rank, reason, time.time())
        self._on_event(WorkerFailed(place.round, failure, attempt=place.attempt))

    def _start(self, local_rank: int) -> None:
        assert self._assignment is not None
        assert self._logs is not None
        task = self._assignment.task(local_rank)
        if task is not None:
            self._paths[local_rank] = open_worker(self._round_dirs, local_rank, task.attempt)
            self._logs.reopen(local_rank, self._paths[local_rank], self._rank(local_rank), task)
        if self._watch is not None:
            self._watch.start_worker(local_rank, os.path.dirname(self._paths[local_rank].error_file))
        command = self._command(local_rank, task)
        self._places[self._next_number] = _place(self._assignment, local_rank)
        self._starter.spawn(self._next_number, command)
        self._logs.started(local_rank)
        self._next_number += 1

    def signal(self, signum: int, drain: bool = False, spared: frozenset[int] = frozenset()) -> None:
        """Signal the process group of each worker that has not ended, except on ``spared`` local ranks.

        ``drain``: all of them may save their state; a worker that listens for a drain request is not
        signalled, as the signal could end it before it has saved.
        """
        watch = self._watch
        self._stopped_at = self._stopped_at or time.time()
        if watch is not None:
            watch.stop()
        if watch is not None and drain:
            watch.request_drain(self._config.shutdown_timeout)
        for number, place in self._places.items():
            listens = drain and watch is not None and watch.listens(place.local_rank)
            if place.local_rank not in spared and not listens:
                self._starter.signal(number, signum)

    def signal_task(self, local_rank: int, signum: int) -> None:
        """Signal the process group of one task, if it is alive. From now on its silence is no hang."""
        if self._watch is not None:
            self._watch.ended(local_rank)
        for number, place in self._places.items():
            if place.local_rank == local_rank:
                self._starter.signal(number, signum)

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        """Kill what is left of the round except the processes numbered in ``spare`` and, with
        ``spares_detached``, what workers detached, unless ``kill_leftovers`` is configured.
        """
        self._stopped_at = self._stopped_at or time.time()
        if self._watch is not None:
            self._watch.stop()
        self._starter.sweep(spares_detached and not self._config.kill_leftovers, spare)

    def close_round(self) -> None:
        """Take the last of the output and close the files; everything is dead."""
        if self._logs is not None:
            self._logs.close()
            self._logs = None
        self._places.clear()
        self.pids.clear()

    def close(self) -> None:
        """Close everything: no round follows."""
        self.close_round()
        self._facts.close()

    def pid_of(self, number: int) -> int | None:
        """The pid of a worker that has not been reported as ended."""
        place = self._places.get(number)
        return None if place is None else self.pids.get(place.local_rank)

    def on_started(self, event: Started) -> None:
        """Note that a worker runs."""
        place = self._places.get(event.worker)
        if place is not None:
            self.pids[place.local_rank] = event.pid
            if self._watch is not None:
                self._watch.started(place.local_rank, event.pid)
            if self._unstarted == {event.worker}:
                self._on_event(WorkersStarted(place.round))
            self._unstarted.discard(event.worker)

    def on_spawn_failed(self, event: SpawnFailed) -> None:
        """Report a worker that could not be started."""
        place = self._places.pop(event.worker, None)
        if place is not None:
            self._fail_to_start(place, event.message)

    def on_exited(self, event: Exited) -> None:
        """Report the end of a worker."""
        place = self._places.pop(event.worker, None)
        if place is None or self._assignment is None:
            return
        round_, local_rank, attempt = place
        pid = self.pids.pop(local_rank, 0)
        if self._watch is not None:
            self._watch.ended(local_rank)
        if event.exit_code == 0:
            self._on_event(WorkerFinished(round_, local_rank, attempt))
            return
        assignment, node = self._assignment, self._node_of(local_rank)
        ended = self._describe_exit(local_rank, pid, event)
        stopping = Stopping(ended.told, self._stopped_at)
        step = self._watch.step(local_rank) if self._watch is not None else -1
        port = _port_in_question(assignment, ended, step)

        def tell(record: ErrorRecord | None) -> None:
            failure = make_failure(node, ended, port, record)
            self._on_event(WorkerFailed(round_, self._with_facts(failure), stopping, attempt))

        self._read_error(ended.error_file, tell)

    def _with_facts(self, failure: Failure) -> Failure:
        facts = self._facts.collect()
        return replace(
            failure,
            step=self._watch.step(failure.local_rank) if self._watch is not None else -1,
            oom_kills=facts.oom_kills,
            host_oom=facts.host_oom,
            kernel_log=facts.kernel_log,
        )

    def _describe_exit(self, local_rank: int, pid: int, event: Exited) -> WorkerExit:
        assert self._assignment is not None
        return WorkerExit(
            local_rank=local_rank,
            rank=self._rank(local_rank),
            pid=pid,
            exit_code=event.exit_code,
            timestamp=time.time(),
            error_file=self._paths[local_rank].error_file,
            stderr_tail=self._logs.stderr_tail(local_rank) if self._logs is not None else "",
            told=frozenset(event.told),
        )

    def _rank(self, local_rank: int) -> int:
        assert self._assignment is not None
        return global_rank(self._assignment, self._config.local_world_size, local_rank)

    def _node_of(self, local_rank: int) -> NodeInfo:
        """This node, with the role of one worker."""
        assert self._assignment is not None
        task = self._assignment.task(local_rank)
        return replace(self._node, role=role_name(self._config.role, task))

    def _command(self, local_rank: int, task: Task | None) -> Command:
        assert self._assignment is not None
        assert self._logs is not None
        fds = self._logs.fds(local_rank)
        error_file = self._paths[local_rank].error_file
        env = worker_environment(self._config, self._job_id, self._assignment, local_rank, error_file)
        if self._watch is not None:
            env |= self._watch.environment(local_rank, env)
        if self._memory is not None:
            env |= self._memory.environment(local_rank)
        if self._backup_dirs is not None:
            env |= self._backup_dirs.prepare(task, self._assignment)
        entrypoint = program(self._config, task, self._assignment)
        is_script = entrypoint is self._config.entrypoint
        return Command(
            argv=worker_argv(entrypoint, local_rank),
            env=env,
            cwd=None,
            stdin=STDIN,
            stdout=fds.stdout,
            stderr=fds.stderr,
            cpus=self._cpus[local_rank] if local_rank < len(self._cpus) else None,
            warm=self._warm.of(local_rank) if is_script else self._warm.servers,
            alone=task is not None,
            preloaded=is_script and self._config.preloaded,
        )


def _place(assignment: Assignment, local_rank: int) -> _Place:
    task = assignment.task(local_rank)
    return _Place(assignment.round, local_rank, 0 if task is None else task.attempt)


def _port_in_question(assignment: Assignment, ended: WorkerExit, step: int) -> int:
    """MASTER_PORT if another program may have taken it, else 0: the worker's error is then its own.

    No other has it if we serve there, if steps were made, or if the port is free now that the worker is gone:
    then the worker served there itself, and something else of its own came too late.
    """
    port = assignment.store_port
    if assignment.store_hosted or step >= 0 or ended.rank != 0 or not port:
        return 0
    return port if is_taken(port) else 0
