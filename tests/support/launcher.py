"""One ``elastic-run`` as a test drives it: started, read line by line, signalled, waited for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.processes import DEADLINE, Hung, kill_marked, marked, only, titled, wait_end

ROOT = Path(__file__).parent.parent.parent
MODULE = (sys.executable, "-m", "elasticrun")
MARK = "ELASTICRUN_TEST_LAUNCH"

#: What would change the launcher's behaviour, or tell a worker a lie, if it came from whoever runs the tests.
FOREIGN = re.compile(
    r"PET_|TORCHELASTIC_|ELASTICRUN_|PYTHON|OMP_NUM_THREADS$|LOGLEVEL$|(MASTER_|LOCAL_|GROUP_|ROLE_)|RANK$|WORLD_SIZE$"
    r"|CUDA_VISIBLE_DEVICES$|(SLURM|OMPI|PMIX?|PBS|LSB)_|TORCH_NCCL|TF_CONFIG$"
)


def clean_environment(**extra: str) -> dict[str, str]:
    """An environment in which only ``extra`` speaks to the launcher."""
    ours = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **extra}


def private_folders(folder: Path) -> dict[str, str]:
    """Variables that have a launcher, or elastic-ctl, look for tokens in a folder, not in this user's own."""
    names = {"XDG_RUNTIME_DIR": "session", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache"}
    return {variable: str(folder / name) for variable, name in names.items()}


class Launcher:
    """A running launcher with everything it has printed so far. Waiting raises Hung with the output."""

    def __init__(
        self,
        *args: str | Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = MODULE,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        name: str = "launcher",
        news: threading.Condition | None = None,  # shared by launchers that are waited for together
    ) -> None:
        self.name = name
        self.patience = DEADLINE  # seconds of each wait
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self.lines: list[tuple[str, str]] = []  # ("out" or "err", line), as they came
        self.moments: list[float] = []  # when, on the monotonic clock; for reports, no test decides by it
        self._news = news or threading.Condition()
        self._open = 2
        environment = clean_environment(**(env or {}))
        environment[MARK] = self.mark.partition("=")[2]
        self.process = subprocess.Popen(
            [*command, *map(str, args)],
            cwd=cwd,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for kind, pipe in (("out", self.process.stdout), ("err", self.process.stderr)):
            assert pipe is not None
            threading.Thread(target=self._read, args=(kind, pipe), daemon=True).start()

    # -- what it printed

    def _read(self, kind: str, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                with self._news:
                    self.lines.append((kind, raw.decode(errors="replace").rstrip("\n")))
                    self.moments.append(time.monotonic())
                    self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()

    def output(self, kind: str = "") -> str:
        """Everything printed so far, of "out", "err" or both."""
        with self._news:
            return "\n".join(line for of, line in self.lines if not kind or of == kind)

    @property
    def out(self) -> str:
        return self.output("out")

    @property
    def err(self) -> str:
        return self.output("err")

    def wait_line(self, pattern: str, kind: str = "", after: int = 0) -> re.Match[str]:
        """The first line, from number ``after`` on, in which the pattern is found."""
        return self.wait_lines(pattern, 1, kind, after)[0]

    def wait_lines(self, pattern: str, count: int, kind: str = "", after: int = 0) -> list[re.Match[str]]:
        """The matches in the first ``count`` lines in which the pattern is found."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            nonlocal found
            candidates = (line for of, line in self.lines[after:] if not kind or of == kind)
            found = [match for line in candidates if (match := re.search(pattern, line))]
            return len(found) >= count or self._open == 0

        self._wait(seen, f"{count} lines with {pattern!r}")
        if len(found) < count:
            raise AssertionError(f"{self.name} ended without {count} lines with {pattern!r}:\n{self.story()}")
        return found[:count]

    def moment(self, pattern: str, after: float) -> float:
        """When the first line came in which the pattern is found, of those that came after a moment."""
        number = sum(moment <= after for moment in list(self.moments))
        self.wait_line(pattern, after=number)
        with self._news:
            numbered = enumerate(self.lines)
            return next(
                self.moments[n] for n, (_, line) in numbered if n >= number and re.search(pattern, line)
            )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._news:
            if not self._news.wait_for(condition, self.patience):
                raise Hung(f"{self.name}: no {what} within {self.patience:g} s:\n{self.story()}")

    def story(self) -> str:
        """The whole output for a human."""
        return "\n".join(f"{self.name} {kind}| {line}" for kind, line in list(self.lines))

    # -- its processes

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def spawner(self) -> int:
        return only(titled(self.mark, "elastic-run: spawner"))

    def signal(self, signum: int) -> None:
        """Signal the agent alone."""
        os.kill(self.pid, signum)

    def kill(self) -> None:
        """SIGKILL the agent alone."""
        self.signal(signal.SIGKILL)

    def kill_node(self) -> None:
        """SIGKILL everything that this launcher started, as when its host loses power."""
        kill_marked(self.mark)

    def wait(self, deadline: float | None = None) -> int:
        """The exit status, once the process has ended and everything it printed was read."""
        try:
            wait_end(self.pid, self.patience if deadline is None else deadline)
        except Hung as hung:
            raise Hung(f"{hung}\n{self.story()}") from None
        status = self.process.wait()
        self._wait(lambda: self._open == 0, "end of the output")
        return status

    def wait_status(self) -> int:
        """The exit status alone; a descendant may still hold the output open."""
        wait_end(self.pid)
        return self.process.wait()

    def finish(self) -> None:
        """Let nothing of this launch survive the test."""
        kill_marked(self.mark)
        self.process.wait()

    @property
    def processes(self) -> list[int]:
        """Everything alive that this launcher started, itself included."""
        return marked(self.mark)


def run(*args: str | Path, cwd: Path, env: Mapping[str, str] | None = None, **rest: object) -> Launcher:
    """A launcher that has ended by itself; its status is ``process.returncode``."""
    launcher = Launcher(*args, cwd=cwd, env=env, **rest)  # type: ignore[arg-type]
    try:
        launcher.wait()
    finally:
        launcher.finish()
    return launcher
