"""The test's end of its workers: who has come, in which round, and what they are told to do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.processes import DEADLINE, Hung

VARIABLE = "ELASTICRUN_TEST_DIRECTOR"
WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """One worker process that has said hello."""

    def __init__(self, director: Director, link: socket.socket, hello: dict[str, Any]) -> None:
        self.pid: int = hello["pid"]
        self.argv: list[str] = hello["argv"]
        self.cwd: str = hello["cwd"]
        self.env: dict[str, str] = hello["env"]
        self.gone = False
        self.answers: deque[Any] = deque()
        self._director = director
        self._link = link

    @property
    def round(self) -> int:
        return int(self.env["ELASTICRUN_ROUND"])

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])

    @property
    def task(self) -> tuple[str, int]:
        """Its role and index in a TensorFlow cluster."""
        task = json.loads(self.env["TF_CONFIG"])["task"]
        return task["type"], task["index"]

    @property
    def tf_cluster(self) -> dict[str, list[str]]:
        """The addresses of all tasks by role, as this one was told."""
        found: dict[str, list[str]] = json.loads(self.env["TF_CONFIG"])["cluster"]
        return found

    @property
    def attempt(self) -> int:
        return int(self.env["ELASTICRUN_ATTEMPT"])

    @property
    def store(self) -> tuple[str, str]:
        """Where this worker was told that rank 0's store is."""
        return self.env["MASTER_ADDR"], self.env["MASTER_PORT"]

    def tell(self, command: str) -> None:
        """Give an order that has no answer; the dead do not hear it."""
        with contextlib.suppress(OSError):
            self._link.sendall(command.encode() + b"\n")

    def ask(self, command: str) -> Any:
        """Give an order and wait for its answer."""
        self.tell(command)
        return self.answer()

    def answer(self) -> Any:
        """The next thing that the worker says."""
        self._director.wait(lambda: bool(self.answers) or self.gone, f"answer of {self}")
        assert self.answers, f"{self} has ended instead of answering"
        return self.answers.popleft()

    def kill(self) -> None:
        """SIGKILL this worker alone."""
        os.kill(self.pid, signal.SIGKILL)

    def wait_end(self) -> None:
        """Return once the process has ended."""
        self._director.wait(lambda: self.gone, f"end of {self}")

    def __repr__(self) -> str:
        return f"worker of rank {self.rank} in round {self.round}, pid {self.pid}"


class Director:
    """Listens for workers; everything is waited for with a deadline."""

    def __init__(self, folder: Path) -> None:
        self.workers: list[Worker] = []
        self.deadline = DEADLINE  # seconds
        self._standing: str = ""  # an order for everybody who comes
        self._news = threading.Condition()
        path = folder / "director"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self.env = {VARIABLE: str(path)}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(link,), daemon=True).start()

    def _listen(self, link: socket.socket) -> None:
        worker: Worker | None = None
        try:
            with link, link.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    with self._news:
                        if worker is None:
                            worker = Worker(self, link, message)
                            self.workers.append(worker)
                            if self._standing:
                                worker.tell(self._standing)
                        else:
                            worker.answers.append(message)
                        self._news.notify_all()
        except ConnectionError:
            pass  # it was killed with something unread
        finally:
            with self._news:
                if worker is not None:
                    worker.gone = True
                self._news.notify_all()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return once the condition holds; Hung after the deadline."""
        with self._news:
            if not self._news.wait_for(condition, self.deadline):
                raise Hung(f"no {what} within {self.deadline:g} s; there were {self.workers}")

    def order(self, command: str) -> None:
        """Tell everybody who is here, and everybody who will come."""
        with self._news:
            self._standing = command
            for worker in self.workers:
                if not worker.gone:
                    worker.tell(command)

    def forget(self) -> None:
        """Start over, for another job."""
        with self._news:
            self.workers.clear()

    def arrivals(self, count: int) -> None:
        """Return once ``count`` workers have come, over all rounds and jobs."""
        self.wait(lambda: len(self.workers) >= count, f"{count} workers")

    def of_round(self, number: int) -> list[Worker]:
        """The workers that have come in a round, by rank."""
        with self._news:
            return sorted((w for w in self.workers if w.round == number), key=lambda w: w.rank)

    def round(self, number: int, size: int) -> list[Worker]:
        """All ``size`` workers of a round, by rank, once they have come."""
        self.wait(lambda: len(self.of_round(number)) >= size, f"{size} workers in round {number}")
        workers = self.of_round(number)
        assert [worker.rank for worker in workers] == list(range(size)), workers
        assert {worker.env["WORLD_SIZE"] for worker in workers} == {str(size)}, workers
        return workers

    def task(self, role: str, index: int = 0, attempt: int = 0, round_: int = 0) -> Worker:
        """One attempt of a task of a TensorFlow cluster, once it has come; no attempt comes twice."""

        def found() -> list[Worker]:
            wanted = (role, index, attempt, round_)
            return [
                w for w in self.workers if "TF_CONFIG" in w.env and (*w.task, w.attempt, w.round) == wanted
            ]

        self.wait(lambda: bool(found()), f"attempt {attempt} of {role} {index} in round {round_}")
        (worker,) = found()
        return worker

    def world(self, size: int, after: int = -1) -> list[Worker]:
        """All workers of a round that has ``size`` of them, by rank, once they have come."""
        found: list[Worker] = []

        def complete() -> bool:
            nonlocal found
            for number in {worker.round for worker in self.workers if worker.round > after}:
                found = self.of_round(number)
                if len(found) == size and {w.env["WORLD_SIZE"] for w in found} == {str(size)}:
                    return True
            return False

        self.wait(complete, f"world of {size}")
        return found

    @property
    def last_round(self) -> int:
        with self._news:
            return max((worker.round for worker in self.workers), default=-1)
