"""A process that imports tensorflow once and forks the processes of a cluster, each ready at once.

Run as ``python -m tests.support.tf_forks``: one request in JSON a line on stdin, one answer a line on stdout.
No operation of tensorflow ever runs in it, so its children are as good as processes that were started. They
die with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from tests.support.processes import TORCH_DEADLINE, Hung

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1


class Forks:
    """The other end, in the test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def serve(self, cluster: dict[str, list[str]], role: str, index: int) -> int:
        """Fork a server of a cluster; its pid."""
        return int(self._ask({"do": "serve", "cluster": cluster, "role": role, "index": index}))

    def run(self, function: str, *args: object, **env: str) -> Any:
        """Call ``module:function`` in a fork with these variables set; what it returns, by way of JSON."""
        answer = self._ask({"do": "run", "function": function, "args": args, "env": env})
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["result"]

    def kill(self, pid: int) -> None:
        """SIGKILL a server; returns once it is gone."""
        self._ask({"do": "kill", "pid": pid})

    def _ask(self, request: dict[str, object]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], TORCH_DEADLINE)[0]:
            raise Hung(f"no answer to {request}")
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def tf_forks() -> Iterator[Forks]:
    """The process, with tensorflow imported."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **quiet},
    ) as process:
        try:
            yield Forks(process)
        finally:
            process.kill()


def main() -> None:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what children print is no answer
    importlib.import_module("tensorflow")
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_answer(request)) + "\n")
        answers.flush()


def _answer(request: dict[str, Any]) -> object:
    match request.pop("do"):
        case "serve":
            return _fork(lambda: _serve(**request))
        case "run":
            return _run(**request)
        case _:
            os.kill(request["pid"], signal.SIGKILL)
            return os.waitpid(request["pid"], 0)[0]


def _fork(work: Any) -> int:
    pid = os.fork()
    if pid == 0:
        _child(work)
    return pid


def _child(work: Any) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        work()
    except BaseException:  # noqa: BLE001 nothing of the parent may run in the child
        traceback.print_exc()
    finally:
        os._exit(0)


def _serve(cluster: dict[str, list[str]], role: str, index: int) -> None:
    import tensorflow as tf

    tf.distribute.Server(cluster, job_name=role, task_index=index, protocol="grpc").join()


def _run(function: str, args: list[object], env: dict[str, str]) -> dict[str, Any]:
    reader, writer = os.pipe()

    def work() -> None:
        os.environ.update(env)
        module, _, name = function.partition(":")
        try:
            answer = {"result": getattr(importlib.import_module(module), name)(*args)}
        except Exception:  # noqa: BLE001 it is the test's
            answer = {"error": traceback.format_exc()}
        os.write(writer, json.dumps(answer).encode())

    pid = _fork(work)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": f"{function} ended without an answer"}


if __name__ == "__main__":
    main()
