"""Jobs that are launched from Jupyter and IPython: from real kernels, which are interrupted and killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import DEADLINE, nobody_left, wait_end

_MISSING = [name for name in ("ipykernel", "nbclient") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"needs {_MISSING}: pip install ipykernel nbclient")

#: Cells that the tests share.
IMPORTS = "import os, threading\nimport elasticrun"
WORK = """\
offset = 10

def work(base):
    print(f"rank {os.environ['RANK']} works\\n", end="")
    return base + offset + int(os.environ["RANK"])
"""
SLEEP = """\
def sleep():
    print(f"rank {os.environ['RANK']} is {os.getpid()}.\\n", end="")
    threading.Event().wait()
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What all processes of a test carry; nothing of the user's own Jupyter is read or written."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("NOTEBOOK_MARK", str(tmp_path))
    return f"NOTEBOOK_MARK={tmp_path}"


# -- whole notebooks


def notebook(*cells: str) -> dict[str, Any]:
    """A notebook of these cells; the last one raises."""
    made: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell{number}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(cells)
    ]
    made[-1]["metadata"]["tags"] = ["raises-exception"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def printed(cell: dict[str, Any]) -> str:
    """What a cell of an executed notebook has printed."""
    return "".join("".join(each["text"]) for each in cell["outputs"] if each["output_type"] == "stream")


def test_a_notebook_launches_its_functions(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "notebook.ipynb"
    cells = (
        IMPORTS,
        f"{WORK}first = [it.value for it in elasticrun.launch(work, 100)]",
        "[print(it.value) for it in elasticrun.launch(lambda: sum(first) + offset, nproc=1)]",
        "def fail():\n    raise LookupError('no such thing')\nelasticrun.launch(fail, nproc=1)",
    )
    path.write_text(json.dumps(notebook(*cells)))
    command = [sys.executable, "-m", "jupyter", "execute", "--inplace", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    _, first, second, failed = json.loads(path.read_text())["cells"]
    assert sorted(printed(first).splitlines()) == ["rank 0 works", "rank 1 works"]
    assert printed(second) == f"{110 + 111 + 10}\n"
    (error,) = (each for each in failed["outputs"] if each["output_type"] == "error")
    assert error["ename"] == "WorkerFailed"
    assert "LookupError: no such thing" in error["evalue"]
    nobody_left(mark)


# -- a kernel and its cells


class Kernel:
    """A kernel that runs, and its cells, one after the other."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(startup_timeout=DEADLINE)
        self._asked = ""
        self._error: str | None = None
        self._is_idle = True
        self._is_closed = False
        #: What the cell, and the jobs that it has started, have printed so far.
        self.printed = ""

    def begin(self, code: str) -> None:
        """Have it run a cell."""
        self._asked, self._error, self._is_idle, self.printed = self._client.execute(code), None, False, ""

    def wait_ranks(self) -> list[int]:
        """The pids of both ranks, once they are printed below the cell, which may have ended before."""
        while len(found := re.findall(r"rank \d is (\d+)\.", self.printed)) < 2:
            assert self._error is None, self._error
            self._hear()
        return [int(pid) for pid in found]

    def wait(self) -> str | None:
        """The name of what the cell has raised, once it has ended."""
        while not self._is_idle:
            self._hear()
        return self._error

    def run(self, code: str) -> str:
        """What a cell prints; it must not fail."""
        self.begin(code)
        assert self.wait() is None
        return self.printed

    def interrupt(self) -> None:
        """As the notebook's button does."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """SIGKILL, as the kernel of a host that runs out of memory."""
        self._manager.signal_kernel(signal.SIGKILL)

    def close(self) -> None:
        """End the kernel as a notebook's end does. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._client.stop_channels()
        self._manager.shutdown_kernel()

    def _hear(self) -> None:
        message = self._client.get_iopub_msg(timeout=DEADLINE)
        if message["parent_header"].get("msg_id") != self._asked:
            return
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream":
            self.printed += content["text"]
        elif kind == "error":
            self._error = content["ename"]
        elif kind == "status":
            self._is_idle = content["execution_state"] == "idle"


@pytest.fixture
def kernel(mark: str) -> Iterator[Kernel]:
    """A kernel that knows the cells above; nothing may be left of it."""
    kernel = Kernel()
    try:
        kernel.run(IMPORTS)
        kernel.run(WORK)
        kernel.run(SLEEP)
        yield kernel
    finally:
        kernel.close()
    nobody_left(mark)


def test_a_cell_that_is_interrupted_ends_its_job(kernel: Kernel) -> None:
    kernel.begin("elasticrun.launch(sleep)")
    ranks = kernel.wait_ranks()
    kernel.interrupt()
    assert kernel.wait() == "KeyboardInterrupt"
    for pid in ranks:
        wait_end(pid)
    again = kernel.run("print([it.value for it in elasticrun.launch(work, 100)])")
    assert sorted(again.splitlines()) == ["[110, 111]", "rank 0 works", "rank 1 works"]


@pytest.mark.parametrize(
    ("cell", "end"),
    [("job = elasticrun.start(sleep)", Kernel.close), ("elasticrun.launch(sleep)", Kernel.kill)],
    ids=["shut down", "killed"],
)
def test_a_kernel_that_ends_leaves_nothing(
    kernel: Kernel, mark: str, cell: str, end: Callable[[Kernel], None]
) -> None:
    kernel.begin(cell)
    ranks = kernel.wait_ranks()
    end(kernel)
    for pid in ranks:
        wait_end(pid)
    nobody_left(mark)


# -- IPython


def test_ipython_launches_what_is_typed(mark: str) -> None:
    code = f"{IMPORTS}\n{WORK}print([it.value for it in elasticrun.launch(work, 100)])"
    command = [sys.executable, "-m", "IPython", "--no-banner", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert "[110, 111]" in done.stdout
    nobody_left(mark)
