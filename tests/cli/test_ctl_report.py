"""``elastic-ctl report`` and ``advice``: what they write, print and refuse; a log of any size is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_report import ASSUMED
from elasticrun.cli.documents import FOLDER
from elasticrun.core.protocol.chronicle import LogEntry, SaveStalled
from elasticrun.core.whatif.replay import MEANINGS
from elasticrun.master import event_reader
from elasticrun.master.event_reader import NAME, read_events, stream_entries
from elasticrun.rpc.event_lines import to_line
from tests.support.log_files import written
from tests.support.long_log import Settings, log
from tests.support.schema import misfits


def run(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(group, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a log."""
    folder = tmp_path_factory.mktemp("job")
    written(folder / NAME, log(Settings(rounds=20)))
    return folder


def schema(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def test_it_is_told_in_a_few_lines(job: Path) -> None:
    result = run("report", job)
    assert result.exit_code == 0
    assert "goodput" in result.output
    assert "what if:" in result.output
    assert run("report", job / NAME).output == result.output


def test_a_page_is_written(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run(
        "report", job, "-o", page, "--title", "Title <x>", "--cost-per-node-hour", 3, "--currency", "CHF"
    )
    assert result.exit_code == 0
    assert "goodput" not in result.output
    html = page.read_text()
    assert "Title &lt;x&gt;" in html
    assert "CHF" in html
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("verb", ["report", "advice"])
def test_json_is_as_its_schema_says(verb: str, job: Path) -> None:
    result = run(verb, job, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert misfits(found, schema(verb)) == []
    assert found["advice"]


def test_a_trace_is_written(job: Path, tmp_path: Path) -> None:
    result = run("report", job, "--trace", tmp_path / "trace.json")
    assert result.exit_code == 0
    assert "goodput" not in result.output
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 100


def test_the_end_of_stderr_comes_from_the_logs(job: Path, tmp_path: Path) -> None:
    first = json.loads(run("report", job, "--json").stdout)["failures"][0]
    folder = tmp_path / "job_x" / f"attempt_{first['first_round']}" / str(first["first_local_rank"])
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("ValueError: this is why\n")
    page = tmp_path / "report.html"
    assert run("report", job, "-o", page, "--logs", tmp_path).exit_code == 0
    assert "ValueError: this is why" in page.read_text()


def test_figures_can_be_given(job: Path) -> None:
    def torchrun(*given: str) -> float:
        words = [word for each in given for word in ("--assume", each)]
        return float(json.loads(run("report", job, "--json", *words).stdout)["what_if"][0]["more"])

    assert (
        torchrun("restart-nodes=100") > torchrun("restart-nodes=10") > torchrun("restart-nodes=1", "import=0")
    )
    assert set(ASSUMED) == set(MEANINGS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--assume", "speed=3"), "there is no 'speed'; choose of restart"),
        (("--assume", "restart"), "give a figure from 0, such as restart=1"),
        (("--assume", "restart=-1"), "give a figure from 0"),
        (("--assume", "every=nan"), "such as every=600"),
        (("--cost-per-node-hour", "-1"), "give a number from 0, such as 2.5"),
        (("--cost-per-node-hour", "nan"), "give a number from 0"),
        (("-o", "/nowhere/at/all.html"), "cannot write /nowhere/at/all.html: No such file"),
        (("--trace", "/nowhere/at/all.json"), "cannot write /nowhere/at/all.json: No such file"),
    ],
)
def test_wrong_use_is_an_error_in_a_sentence(arguments: tuple[str, ...], words: str, job: Path) -> None:
    result = run("report", job, *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1


def test_advice_needs_a_log_or_a_job(job: Path, tmp_path: Path) -> None:
    result = run("advice", job, "--rdzv-id", "x")
    assert result.exit_code == 2
    assert "--rdzv-id is for a job that is asked" in result.output
    calm = written(tmp_path / NAME, log(Settings(rounds=1, nodes=2, every=0)))
    assert run("advice", calm).output == "nothing that is known asks for a change\n"


# -- logs that are not whole


@pytest.mark.parametrize("verb", ["report", "advice"])
def test_without_a_log_it_says_what_to_give(verb: str, tmp_path: Path) -> None:
    result = run(verb, tmp_path)
    assert result.exit_code == 2
    assert "there is no event log; give a --state-dir" in result.output


@pytest.mark.parametrize(
    "damage",
    [
        '{"v": 1}',
        "nonsense",
        '{"v":1,"event":1,"at":1e999,"time":1,"kind":"x"}',
        "[" * 100_000,
        to_line(LogEntry(1, 1.0, 1.0, SaveStalled(0, 1.0))).replace('"seconds":1.0', '"seconds":NaN'),
        to_line(LogEntry(1, 1.0, 1.0, SaveStalled(0, 1.0))).replace('"seconds":1.0', '"seconds":1e999'),
    ],
    ids=["no entry", "no json", "no moment", "deep", "not a number", "endless"],
)
def test_a_damaged_line_is_named(damage: str, tmp_path: Path) -> None:
    lines = [to_line(entry) for entry in log(Settings(rounds=2))]
    lines[3:3] = [damage]
    (tmp_path / NAME).write_text("\n".join(lines) + "\n")
    result = run("report", tmp_path)
    assert result.exit_code == 2
    assert "is damaged" in result.output or "is no entry" in result.output


def test_a_line_too_long_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "LONGEST", 100)
    (tmp_path / NAME).write_text("x" * 101 + "\n")
    assert "line 1 of the event log" in run("report", tmp_path).output


def test_a_last_line_that_is_cut_is_left_out(job: Path, tmp_path: Path) -> None:
    text = (job / NAME).read_text()
    (tmp_path / NAME).write_text(text + text[:50])
    assert run("report", tmp_path).output == run("report", job).output


def test_all_files_of_a_log_are_read_in_order(job: Path, tmp_path: Path) -> None:
    lines = (job / NAME).read_text().splitlines(keepends=True)
    parts = [lines[:50], lines[50:51], lines[51:900], lines[900:]]
    for part, name in zip(parts, ("events.3.jsonl", "events.2.jsonl", "events.1.jsonl", NAME), strict=True):
        (tmp_path / name).write_text("".join(part))
    assert run("report", tmp_path).output == run("report", job).output
    (tmp_path / "events.3.jsonl").unlink()
    assert "begins in the middle" in run("report", tmp_path).output


def test_a_file_that_is_renamed_while_it_is_read_is_read_once(job: Path, tmp_path: Path) -> None:
    lines = (job / NAME).read_text().splitlines(keepends=True)
    (tmp_path / "events.1.jsonl").write_text("".join(lines[:50]))
    (tmp_path / NAME).write_text("".join(lines[50:]))
    entries = stream_entries(tmp_path / NAME)
    found = [next(entries)]
    (tmp_path / "events.1.jsonl").rename(tmp_path / "events.2.jsonl")
    (tmp_path / NAME).rename(tmp_path / "events.1.jsonl")
    assert len([*found, *entries]) == len(lines)


def test_kinds_of_another_version_are_passed_over(job: Path, tmp_path: Path) -> None:
    other = '{"v":1,"event":1,"at":1.0,"time":1.0,"kind":"of_tomorrow"}\n'
    (tmp_path / NAME).write_text((job / NAME).read_text() + other)
    assert run("report", tmp_path).output == run("report", job).output
    (tmp_path / NAME).write_text(other.replace('"v":1', '"v":2'))
    assert "has version 2" in run("report", tmp_path).output


@pytest.mark.parametrize("what", ["directory", "fifo"])
def test_what_is_no_file_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    if what == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    result = run("report", tmp_path)
    assert result.exit_code == 2
    assert "no regular file" in result.output


MEASURE = """
import resource, sys
from elasticrun.cli.ctl_report import review_of
from elasticrun.core.review.build import report
from pathlib import Path
found = report(review_of(Path(sys.argv[1])))
print(found.entries, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_long_log_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Five times the lines take hardly more memory; as a list of entries they take 100 MB more."""

    def megabytes(rounds: int) -> tuple[int, float]:
        path = written(tmp_path / str(rounds) / NAME, log(Settings(rounds=rounds)))
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
        )
        entries, kilobytes = map(int, done.stdout.split())
        return entries, kilobytes / 1024

    few, before = megabytes(80)
    many, after = megabytes(400)
    assert many > 4 * few
    assert after < before + 15


def test_the_whole_log_can_still_be_had_at_once(job: Path) -> None:
    assert len(read_events(job / NAME)) == len((job / NAME).read_text().splitlines())
