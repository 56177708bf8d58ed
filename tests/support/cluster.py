"""Several launchers on this box, the workers they start, and the certainty that none outlives the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.director import WORKER, Director
from tests.support.launcher import Launcher, private_folders
from tests.support.ports import free_port
from tests.support.processes import listener, nobody_left, only, titled

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "torch"
ENV_REPORT = EXAMPLES / "env_report.py"

__all__ = ["ENV_REPORT", "EXAMPLES", "WORKER", "Cluster", "cluster"]


class Cluster:
    """The launchers of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.director = Director(folder)
        temporary = folder / "tmp"  # what failed jobs and killed launchers leave there goes with the test
        temporary.mkdir()
        (folder / "session").mkdir()
        # Most tests are about something else, and a check would import torch in each of their launchers.
        # Who wants one says --health-check, or gives PET_HEALTH_CHECK to ``launch``.
        self._env = {
            **self.director.env,
            **private_folders(folder),
            "TMPDIR": str(temporary),
            "PET_HEALTH_CHECK": "off",
        }
        self.launchers: list[Launcher] = []

    def launch(self, *args: str | Path, env: dict[str, str] | None = None, **rest: Any) -> Launcher:
        """A launcher with exactly these arguments."""
        rest.setdefault("cwd", self.folder)
        rest.setdefault("name", f"node{len(self.launchers)}")
        launcher = Launcher(*args, env={**self._env, **(env or {})}, **rest)
        self.launchers.append(launcher)
        return launcher

    def pretend_tensorflow(self) -> None:
        """Let launchers find a tensorflow in their working directory, where none may be installed.

        They look for it, and never import it.
        """
        (self.folder / "tensorflow.py").touch()

    def alone(self, *args: str | Path, **rest: Any) -> Launcher:
        """A standalone launcher of remote-controlled workers."""
        return self.launch("--standalone", *args, WORKER, **rest)

    def node(self, nnodes: str, *args: str | Path, **rest: Any) -> Launcher:
        """One of several launchers that share an endpoint, of remote-controlled workers."""
        return self.launch(*self.options(nnodes), *args, WORKER, **rest)

    def options(self, nnodes: str) -> tuple[str, ...]:
        """The options that all nodes of this cluster share."""
        endpoint = f"127.0.0.1:{self.port}"
        return ("--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job")

    def master_of(self, launcher: Launcher) -> int:
        """The pid of the master that this launcher hosts."""
        return only(titled(launcher.mark, "elastic-run: master"))

    def host(self) -> Launcher:
        """The launcher that hosts the master: the one that listens, as another may just be giving up."""
        master = listener(self.port)
        return next(it for it in self.launchers if master in titled(it.mark, "elastic-run: master"))

    def wait_all(self, status: int = 0) -> None:
        """Every launcher ends with ``status``."""
        for launcher in self.launchers:
            assert launcher.wait() == status, launcher.story()

    def nobody_left(self) -> None:
        """Nothing that any of the launchers started is alive."""
        for launcher in self.launchers:
            nobody_left(launcher.mark)

    def close(self) -> None:
        """Show what was printed, then make sure that nothing is left."""
        for launcher in self.launchers:
            launcher.finish()
        for launcher in self.launchers:
            print(launcher.story())
        self.director.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster; if the test let every launcher end, nothing may be left of them."""
    made = Cluster(tmp_path)
    try:
        yield made
        if all(launcher.process.poll() is not None for launcher in made.launchers):
            made.nobody_left()
    finally:
        made.close()
