"""The output of a launched job, read line by line."""

from __future__ import annotations

import os
import sys

import pytest

import elasticrun
from elasticrun.errors import UsageError
from elasticrun.launching import lines
from elasticrun.launching.lines import Line, Lines


def test_lines_come_as_they_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The job waits for the reader of its first lines: so these came before the end."""
    reader, writer = os.pipe()
    caller = os.getpid()

    def train() -> None:
        print(os.environ["RANK"], "begins", flush=True)
        os.read(os.open(f"/proc/{caller}/fd/{reader}", os.O_RDONLY), 1)
        print("a problem", file=sys.stderr)
        print("no end", end="")

    found = []
    with elasticrun.start(train, nproc=2, stream=True) as job:
        for line in job.stream():
            found.append(line)
            if "begins" in line.text:
                os.write(writer, b"!")
        job.wait()
        assert [*job.stream()] == [], "lines that were read are gone"
    os.close(reader)
    os.close(writer)
    for rank in (0, 1):
        own = [line for line in found if line.rank == rank]
        assert [line.text for line in own if not line.is_error] == [f"{rank} begins", "no end"]
        assert [line.text for line in own if line.is_error] == ["a problem"]
    assert capfd.readouterr() == ("", "")


def test_what_launchers_say_is_of_no_rank() -> None:
    def train() -> None:
        print("[rank7] it says")
        if os.environ["ELASTICRUN_ROUND"] == "0":
            raise LookupError("once")

    with elasticrun.start(train, nproc=1, max_restarts=1, stream=True) as job:
        found = [*job.stream()]
        job.wait()
    assert Line(0, "[rank7] it says") in found, "a rank cannot speak for another"
    assert any(line.rank is None and "LookupError: once" in line.text for line in found)


def test_who_reads_nothing_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "KEPT", 100 * (len("line 00000") + lines.COST))

    def train() -> None:
        for number in range(10_000):
            print(f"line {number:05}")

    with elasticrun.start(train, nproc=1, stream=True) as job:
        job.wait()
        lost, *kept = job.stream()
    assert lost.text == "9900 lines were dropped: nobody had read them"
    assert [line.text for line in kept] == [f"line {number:05}" for number in range(9900, 10_000)]


def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 10)
    found = Lines()
    found.out.write("[rank3] 123")
    found.out.write("45")
    found.finish()
    found.close()
    assert found.take() == [Line(3, "123"), Line(None, "45")]


def test_a_job_that_prints_has_no_stream() -> None:
    with elasticrun.start(os.getpid, nproc=1) as job:
        with pytest.raises(UsageError, match="give stream=True to start"):
            next(job.stream())
        job.wait()
