"""What an operator tells of its own work, as a test reads it: ``elastic-ctl operator --metrics``."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from elasticrun.core.fleet.figures import ANSWERS, FAILED, FAULTY, VERBS
from tests.support.processes import DEADLINE

_GET = "import sys, urllib.request as it; print(it.urlopen(sys.argv[1], timeout=60).read().decode())"
_SAMPLE = re.compile(r"^(\w+(?:\{.*\})?) (\S+)$", re.M)


@dataclass(frozen=True)
class Scrape:
    """Values by name, with labels as they are written, at one moment."""

    values: dict[str, float]
    moment: float

    def __getitem__(self, name: str) -> float:
        return self.values[f"elasticrun_operator_{name}"]

    @property
    def memory(self) -> float:
        """MB of the operator."""
        return self.values["process_resident_memory_bytes"] / 2**20

    @property
    def cpu(self) -> float:
        """Seconds that the operator has computed."""
        return self.values["process_cpu_seconds_total"]


def scrape(url: str, enter: Sequence[str] = ()) -> Scrape:
    """Ask once; ``enter``: goes in front of a command, so that it runs where the operator does."""
    command = [*enter, sys.executable, "-c", _GET, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    values = {name: float(value) for name, value in _SAMPLE.findall(done.stdout)}
    return Scrape(values, time.monotonic())


@dataclass(frozen=True)
class Work:
    """What was done between two scrapes of one operator."""

    before: Scrape
    after: Scrape
    jobs: int

    def count(self, name: str) -> float:
        return self.after[name] - self.before.values.get(f"elasticrun_operator_{name}", 0.0)

    @property
    def passes(self) -> float:
        results = ("done", FAILED, FAULTY)
        return sum(self.count(f'pass_seconds_count{{result="{each}"}}') for each in results)

    def calls(self, verb: str) -> dict[str, float]:
        """Requests of one kind by their answer, as far as there were any."""
        names = {it: f'api_requests_total{{answer="{it}",verb="{verb}"}}' for it in ANSWERS}
        return {answer: count for answer, name in names.items() if (count := self.count(name))}

    @property
    def all_calls(self) -> float:
        return sum(sum(self.calls(verb).values()) for verb in VERBS.values())

    def __str__(self) -> str:
        seconds = self.after.moment - self.before.moment
        passes = max(1.0, self.passes)
        took = self.count('pass_seconds_sum{result="done"}') / passes
        waited = self.count("pass_wait_seconds_sum") / passes
        each = ", ".join(
            f"{verb} {sum(found.values()) / self.jobs:.2f} {_brief(found)}"
            for verb in VERBS.values()
            if (found := self.calls(verb))
        )
        failed, faulty = (self.count(f'pass_seconds_count{{result="{it}"}}') for it in (FAILED, FAULTY))
        return (
            f"{self.passes:.0f} passes, {self.passes / self.jobs:.2f} a job, {self.passes / seconds:.1f} a"
            f" second for {seconds:.1f} s; {failed:.0f} failed, {faulty:.0f} faulty; on average {took:.3f} s"
            f" after {waited:.3f} s\n  {self.all_calls / self.jobs:.2f} API requests a job: {each};"
            f" {self.after.memory:.0f} MB, {self.after.cpu - self.before.cpu:.1f} s of CPU"
        )


def _brief(found: dict[str, float]) -> str:
    return "(" + " ".join(f"{answer}: {count:.0f}" for answer, count in found.items()) + ")"
