"""The master's bench measures what it says; how long that takes is not looked at here."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.benchmarks import master
from scripts.benchmarks.master import BenchError, Process


@pytest.mark.parametrize("token", [(), ("--token",)])
@pytest.mark.parametrize("client", ["lean", "grpc"])
def test_every_agent_gets_its_seat_in_both_worlds(
    client: str, token: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    arguments = ["--agents", "20", "--runs", "1", "--loads", "2", "--client", client, "--json", str(path)]
    assert master.main([*arguments, *token]) == 0
    (run,) = json.loads(path.read_text())
    # The master started and a node was lost; each node said Hello, and those that were not lost said that
    # they run, that they stop and that they have stopped.
    assert run["events"] >= 2 + 20 + 19 * 3
    assert 1 < run["journal_writes"] <= run["events"]
    assert min(run["first_world"], run["new_world"], run["memory"]) > 0
    assert "| 20 | 1 |" in capsys.readouterr().out


def says(held: ExitStack, **told: object) -> Process:
    code = f"import sys; sys.stdin.readline(); print({json.dumps(told)!r}, flush=True)"
    if "waits" in told:
        code += "; sys.stdin.read()"
    process = Process([sys.executable, "-c", code], {})
    held.callback(process.end)
    return process


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"round": 1, "at": 1.0, "ranks": [0]}, "should have the ranks 0 to 1"),
        ({"round": 0, "at": 1.0, "ranks": [1]}, "should have the ranks 0 to 1"),
        ({"broken": "node7 was refused"}, "node7 was refused"),
        ({"ready": True}, "ended before"),
    ],
)
def test_a_world_that_is_not_as_it_should_be_is_no_figure(told: dict[str, object], words: str) -> None:
    with ExitStack() as held:
        first = {"round": 0, "at": 1.0, "ranks": [1]} if "round" in told else {"waits": "for ever"}
        swarms = [says(held, **first), says(held, **told)]
        with pytest.raises(BenchError, match=words):
            master._world(swarms, 0, 2)


def test_a_world_is_there_when_its_last_agent_is_seated() -> None:
    with ExitStack() as held:
        swarms = [says(held, round=0, at=2.5, ranks=[2, 0]), says(held, round=0, at=1.0, ranks=[1])]
        assert master._world(swarms, 0, 3) == 2.5


def test_the_events_of_one_batch_have_one_time() -> None:
    lines = [json.dumps({"at": at, "kind": "Left"}).encode() for at in (0.0, 1.5, 1.5, 1.5, 2.0)]
    assert master._writes(lines) == 3
